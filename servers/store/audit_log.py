"""Log of what a server did, entry by entry, in an order that cannot be changed afterwards without notice.

Each decision and each release has one entry, in the transaction that records it (`precad.servers.store.rounds`). So
there is no decision without its entry and no entry of a decision that was not taken. An entry's chain value is the
SHA-256 of the previous one's and of this entry's text. Whoever keeps the last value (`precad audit log` prints it)
notices every later change of what came before. The database refuses to change or delete an entry; the chain is for
whoever bypasses the database. It is not keyed. Somebody who may write the file and rewrites all of it is found out by a
value kept elsewhere, or by the other aggregator's log.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from precad.mpc.errors import PeerMismatchError, raised_as
from precad.servers.database.dialects import Dialect
from precad.servers.database.tables import Run
from precad.servers.errors import AuditError, SetupError

FIRST_CHAIN: Final = ""
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_HEXADECIMAL: Final = re.compile("[0-9a-f]{64}")
FieldKind: TypeAlias = Literal["text", "integer", "64 hexadecimal digits", "list of names"]
"""The kind of value that a field of an entry holds, as errors say it."""
_OF_RELEASE: Final[Mapping[str, FieldKind]] = {
    "round": "integer",
    "chosen": "list of names",
    "accepted": "list of names",
    "model": "64 hexadecimal digits",
    "ledger": "64 hexadecimal digits",
}
REQUIRED: Final[Mapping[str, Mapping[str, FieldKind]]] = {
    "task": {"task": "text", "config": "64 hexadecimal digits", "model": "64 hexadecimal digits"},
    "turns": {"coin": "text"},
    "checking": {"round": "integer", "active": "list of names"},
    "unknown": {"round": "integer", "clients": "list of names"},
    "validated": {"round": "integer"},
    "committed": _OF_RELEASE,
    "evaluated": _OF_RELEASE,
    "interrupted": {"round": "integer", "reason": "text"},
    "finished": {"reason": "text"},
}
"""Fields that whoever verifies a log goes by, of the kinds of entries that have them. Every version wrote them."""
COMPARED: Final = ("chosen", "accepted", "rejected", "noisy_sum", "model")
"""Fields on which both servers' entries of a committed round, or of an evaluation, must agree."""
RELEASES: Final = ("committed", "evaluated")
"""Kinds of entries that are of a release: of a model, or of an evaluation."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log."""

    number: int
    kind: str
    at: str
    """UTC, ISO 8601, by this server's clock."""
    fields: Mapping[str, Any]
    chain: str


def table(sql: Dialect) -> str:
    """Return the statements that make it."""
    return f"""CREATE TABLE audit (
            number {sql.integer} PRIMARY KEY,
            entry TEXT NOT NULL,
            chain TEXT NOT NULL
        ){sql.table_end};
        {sql.append_only.format(table="audit")}"""


def append(run: Run, kind: str, at: str, fields: Mapping[str, Any]) -> None:
    """Add an entry, within the caller's transaction."""
    last = run("SELECT number, chain FROM audit ORDER BY number DESC LIMIT 1").fetchone()
    number, chain = (0, FIRST_CHAIN) if last is None else (last[0] + 1, last[1])
    text = _text(kind, at=at, **fields)
    run("INSERT INTO audit (number, entry, chain) VALUES (?, ?, ?)", (number, text, _next_chain(chain, number, text)))


def last_kind(run: Run) -> str | None:
    """Return the kind of the newest entry, if there is one."""
    last = run("SELECT entry FROM audit ORDER BY number DESC LIMIT 1").fetchone()
    return None if last is None else json.loads(last[0])["kind"]


def role_in(run: Run) -> str | None:
    """Return which server began the task, if one did."""
    first = run("SELECT entry FROM audit ORDER BY number LIMIT 1").fetchone()
    return None if first is None else json.loads(first[0]).get("role")


def last_of(run: Run, kind: str) -> Mapping[str, Any] | None:
    """Return the fields of the newest entry of this kind, if there is one."""
    start = _text(kind).removesuffix("}")
    found = run("SELECT entry FROM audit WHERE entry LIKE ? ORDER BY number DESC LIMIT 1", (f"{start},%",)).fetchone()
    return None if found is None else json.loads(found[0])


def holds(run: Run, kind: str) -> bool:
    """Return whether there is an entry of this kind."""
    start = _text(kind).removesuffix("}")
    return run("SELECT 1 FROM audit WHERE entry LIKE ? LIMIT 1", (f"{start},%",)).fetchone() is not None


def _text(kind: str, **fields: Any) -> str:
    return json.dumps({"kind": kind, **fields}, separators=(",", ":"))


def _next_chain(chain: str, number: int, text: str) -> str:
    return hashlib.sha256(f"{chain}{number}{text}".encode()).hexdigest()


def read(path: Path) -> list[Entry]:
    """Return the verified log in a server's database, without changing it. Raises AuditError at the first thing amiss;
    SetupError where there is no such database."""
    return list(_verified(rows_in(path, "SELECT number, entry, chain FROM audit ORDER BY number")))


def rows_in(path: Path, query: str) -> list[Any]:
    """Return what a query finds in a server's database, without changing it. Raises SetupError where there is none."""
    with raised_as(SetupError, OSError, f"{path}: expected a file that this user can read, found"):
        is_there = path.is_file()
    if not is_there:
        raise SetupError(f"{path}: expected a server's database, found none; `precad audit copy` writes PostgreSQL's")
    damaged = (sqlite3.Error, UnicodeDecodeError)  # the latter of SQLite's message, where a schema is damaged
    with raised_as(SetupError, damaged, f"{path}: expected a server's database"):
        is_closed = not path.with_name(f"{path.name}-wal").exists()  # else a reader would leave files of a log behind
        how = "mode=ro&immutable=1" if is_closed else "mode=ro"
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True)
        try:
            if connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'view'").fetchone() is not None:
                raise SetupError(f"{path}: expected a server's tables, found a view, which may have no end")
            return connection.execute(query).fetchall()
        finally:
            connection.close()


def _verified(rows: Sequence[tuple[int, str, str]]) -> Iterator[Entry]:
    chain = FIRST_CHAIN
    for expected, (number, text, written) in enumerate(rows):
        if number != expected:
            raise AuditError(f"entry {expected}: missing, the next one is {number}")
        if (chain := _next_chain(chain, number, text)) != written:
            raise AuditError(f"entry {number}: it was changed after it was written, or one before it was")
        try:
            fields = json.loads(text)
            entry = Entry(number, fields.pop("kind"), fields.pop("at"), fields, chain)
            required = REQUIRED.get(entry.kind, {})
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            raise AuditError(f"entry {number}: expected a kind, a time and fields") from None
        for name, kind in required.items():
            if not _is(kind, entry.fields.get(name)):
                found = f"{entry.fields[name]!r:.80}" if name in entry.fields else "none"
                where = f"in an entry of kind {entry.kind!r}"
                raise AuditError(f"entry {number}: expected {name}, {kind}, {where}, found {found}")
        yield entry


def _is(kind: FieldKind, value: object) -> bool:
    """Return whether a field's value is of this kind."""
    match kind:
        case "text":
            return isinstance(value, str) and _SURROGATE.search(value) is None  # else no file could hold it
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "64 hexadecimal digits":
            return isinstance(value, str) and _HEXADECIMAL.fullmatch(value) is not None
        case "list of names":
            return isinstance(value, list) and all(_is("text", name) for name in value)


def releases(log: Sequence[Entry], kinds: Collection[str] = RELEASES) -> dict[int, Mapping[str, Any]]:
    """Return the released rounds, by number. Raises AuditError when one is released twice, or without its verdicts.

    kinds: of the releases that are wanted.
    """
    validated, seen = set[int](), set[int]()
    released: dict[int, Mapping[str, Any]] = {}
    for entry in log:
        if entry.kind == "validated":
            validated.add(entry.fields["round"])
        if entry.kind in RELEASES:
            round = entry.fields["round"]
            if round in seen:
                raise AuditError(f"entry {entry.number}: round {round} is {entry.kind} twice")
            if round not in validated:
                raise AuditError(f"entry {entry.number}: round {round} is {entry.kind} without verdicts")
            seen.add(round)
            if entry.kind in kinds:
                released[round] = entry.fields
    return released


def checked(log: Sequence[Entry]) -> set[int]:
    """Return the rounds whose check may have begun, of a log that says when one begins (`precad/v1.1`)."""
    locked = {entry.fields["round"] for entry in log if entry.kind == "checking"}
    return locked & {entry.fields["round"] for entry in log if entry.kind in ("validated", "unknown")}


def n_unknown_verdicts(log: Sequence[Entry], charged: Collection[int]) -> int:
    """Count the uploads whose check may have begun and whose verdict this server has not seen, as
    `unknown_verdicts`."""
    return sum(unknown_verdicts(log, charged).values())


def unknown_verdicts(log: Sequence[Entry], charged: Collection[int]) -> Counter[str]:
    """Count by client the uploads whose check may have begun and whose verdict this server has not seen.

    charged: the rounds that the ledger holds. When a server is stopped in a check, or is in one, only they tell that it
    began. The entry `unknown` is written when the server goes on.
    """
    ended = {entry.fields["round"] for entry in log if entry.kind in ("validated", "unknown")}
    begun = [entry.fields for entry in log if entry.kind == "checking" and entry.fields["round"] in charged]
    in_check = [name for fields in begun if fields["round"] not in ended for name in fields["active"]]
    return Counter(in_check) + Counter(name for e in log if e.kind == "unknown" for name in e.fields["clients"])


def compare(ours: Sequence[Entry], theirs: Sequence[Entry]) -> int:
    """Return how many released rounds both servers' logs agree on. The last one may be missing in one of them.

    So may any evaluation: a server that was lost before it had the sum goes on without it.

    Raises: PeerMismatchError naming the first difference; AuditError.
    """
    a, b = releases(ours), releases(theirs)
    for round in sorted(a.keys() & b.keys()):
        for name in COMPARED:
            if a[round].get(name) != b[round].get(name):
                raise PeerMismatchError(f"{name} of round {round}", ours=a[round].get(name), peers=b[round].get(name))
    of_models = {*releases(ours, ("committed",)), *releases(theirs, ("committed",))}
    only = sorted((a.keys() ^ b.keys()) & of_models)
    newest = max(of_models, default=-1)
    if len(only) > 1 or (only and only[0] != newest):
        is_cut = only[0] > max(a.keys() & b.keys(), default=-1) and (a.keys() <= b.keys() or b.keys() <= a.keys())
        hint = "; the other one ends before it: are they of one moment?" if is_cut else ""
        field = f"committed rounds (round {only[0]} is in one log alone{hint})"
        raise PeerMismatchError(field, ours=f"{len(a)} rounds", peers=f"{len(b)} rounds")
    return len(a.keys() & b.keys())
