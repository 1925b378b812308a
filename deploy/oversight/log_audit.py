"""`precad audit log`: an aggregator's log, ledger and releases, verified together and against the other one's."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from precad.deploy.configuration.sections import Deployment, section
from precad.deploy.errors import ConfigError, refusing
from precad.dp.accountants.earlier_rounds import CONDITIONS, EarlierTask
from precad.dp.ledgers.earlier import counted_in, described, tasks_of_header
from precad.dp.ledgers.events import ledger_events
from precad.dp.ledgers.lines import Charge, Fields, chains, read_lines
from precad.mpc.errors import PeerMismatchError
from precad.protos.tls.identity import Role
from precad.servers.config import AggregatorConfig, ServerConfig
from precad.servers.database.replicas import url_of
from precad.servers.errors import AuditError, SetupError
from precad.servers.store import audit_log
from precad.servers.store.folder import ledger_path, store_path

_OF_LOSSES: Final = ("interrupted", "unknown")
"""Kinds of entries that say why a round was lost, or what was with it."""
_FILES: Final = ("ledger.jsonl", "model.npy", "rounds.jsonl")
"""Files that an aggregator keeps in its folder in any case, and that `precad export` and `precad status` read."""
_NOT_COMPARED: Final = {"rounds": 0, "chain": "", CONDITIONS: {}}
"""Fields of an earlier task that are no price. Words of what it rests on stand in ledgers of later versions alone."""


def copy_state(deployment: Deployment, role: Role, folder: Path) -> list[Path]:
    """Copy what one server keeps in PostgreSQL into files, with its ledger, model and records beside them. So the copy
    of a finished task can be exported. It is whole, or there is no folder. Raises ConfigError, SetupError, StoreError.
    """
    own: ServerConfig
    if role is Role.DEALER:
        own = section(deployment.dealer, "dealer")
    else:
        letter = role.value[-1]
        own = section(getattr(deployment.aggregator, letter), f"aggregator.{letter}")
    if (url := url_of(own.database_url)) is None:
        raise ConfigError("database_url: expected one, found none: the state_dir itself holds everything")
    with refusing(OSError, f"DIR: expected a new folder, found {folder}"):
        folder.mkdir(mode=0o700)
    from precad.servers.store.copy import copy_database

    try:
        made = copy_database(url, role, folder)
        if isinstance(own, AggregatorConfig):
            made += [Path(shutil.copy(path, folder)) for name in _FILES if (path := own.state_dir / name).exists()]
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)  # half of a state may look like a whole one
        if isinstance(error, OSError):
            raise ConfigError(f"DIR: expected room for a copy, found {folder}: {error.strerror}") from None
        raise
    return made


def check_log(state_dir: Path, *, against: Path | None = None, known: str | None = None) -> dict[str, Any]:
    """Verify a server's log and ledger, and return what was verified, in numbers. Nothing on disk is changed, so a copy
    of a running server's folder will do.

    `earlier_ledgers` of the report: last chain values of ledgers that the ledger counts as well.
    Raises SetupError when a file is not there. Raises AuditError, LedgerCorruptedError when something was changed.
    Raises ConfigError for a `known` that is no chain value.
    Raises PeerMismatchError when the servers' logs, or the earlier tasks that their ledgers count, contradict each
    other.
    """
    _require_chain_value(known)
    log = audit_log.read(store_path(state_dir))
    releases, evaluated = audit_log.releases(log), audit_log.releases(log, ("evaluated",))
    header, charged, _ = read_lines(_ledger(state_dir))
    for round in releases.keys() - charged.keys():
        raise AuditError(f"round {round} was released, and the ledger does not hold it")
    for round, fields in releases.items():
        if sorted(fields["chosen"]) != charged[round].clients:
            raise AuditError(f"round {round} was charged to others than it was released for")
        if charged[round].is_evaluation is not (round in evaluated):
            raise AuditError(f"round {round} was charged as one of another kind than it was released as")
    _require_one_history(releases, header, charged)
    if uncharged := audit_log.checked(log) - charged.keys():
        raise AuditError(f"round {min(uncharged)} was checked, and the ledger does not hold it")
    if known is not None and known not in {entry.chain for entry in log}:
        raise AuditError(
            f"--known: expected the chain value of an entry, found {known!r}: the log was rewritten or cut"
        )
    report: dict[str, Any] = {
        "task": next((entry.fields["task"] for entry in log if entry.kind == "task"), None),
        "entries": len(log),
        "releases": len(releases),
        "charged_rounds": len(charged),
        "verdicts_unknown": audit_log.n_unknown_verdicts(log, charged.keys()),
        "interruptions": sum(entry.kind == "interrupted" for entry in log),
        "chain": log[-1].chain if log else audit_log.FIRST_CHAIN,
    }
    if lost := [entry for entry in log if entry.kind in _OF_LOSSES]:
        report["losses"] = [_loss(entry, releases) for entry in lost]
    if before := {task.chain for task in tasks_of_header(_ledger(state_dir), header)}:
        report["earlier_ledgers"] = sorted(before)
    if against is not None:
        theirs = audit_log.read(store_path(against))
        _require_the_other_servers(log, theirs)
        report["agreed_releases"] = audit_log.compare(log, theirs)
        _require_charged(audit_log.releases(theirs, ("evaluated",)), charged.keys())
        report |= _earlier_compared(tasks_of_header(_ledger(state_dir), header), ledger_path(against))
    return report


def _require_chain_value(known: str | None) -> None:
    if known is not None and not re.fullmatch("[0-9a-f]{64}", known):
        raise ConfigError(f"--known: expected a chain value, 64 hexadecimal digits, found {known!r:.80}")


def _require_charged(theirs: Collection[int], charged: Collection[int]) -> None:
    """Require a charge for every evaluation that the other server has opened, but after our ledger's end.

    A server that was lost before it had the sum has charged it. Raises PeerMismatchError.
    """
    for round in sorted(set(theirs).difference(charged)):
        if round < max(charged, default=-1):
            field = f"charge of evaluation {round} (was this server given back an old state_dir?)"
            raise PeerMismatchError(field, ours="none", peers="opened")


def _earlier_compared(ours: Sequence[EarlierTask], other: Path) -> dict[str, Any]:
    """Compare the earlier tasks with those in the other server's ledger, if a copy is there.

    An earlier task may have other rounds there, and so another chain value: one server alone may have charged a round
    that was lost. That is shown. Raises PeerMismatchError where number, bounds or prices differ; LedgerCorruptedError.
    """
    if not other.is_file():
        return {"not_compared": f"earlier tasks: found no {other}"}
    with refusing(OSError, f"{other}: expected a ledger to read", SetupError):
        theirs = counted_in(other)
    prices = [sorted(json.dumps({**task.fields(), **_NOT_COMPARED}) for task in tasks) for tasks in (ours, theirs)]
    if prices[0] != prices[1]:
        raise PeerMismatchError("earlier_ledgers", ours=described(ours), peers=described(theirs))
    found: dict[str, Any] = {"agreed_earlier": len(ours)}
    if [(task.chain, task.rounds) for task in ours] != [(task.chain, task.rounds) for task in theirs]:
        found["not_alike"] = f"rounds of earlier tasks: ours {described(ours)}; theirs {described(theirs)}"
    return found


def _require_the_other_servers(ours: Sequence[audit_log.Entry], theirs: Sequence[audit_log.Entry]) -> None:
    """Require the log of the same task by the other server: one agrees with itself. Raises ConfigError.

    Logs of earlier versions do not say whose they are. Two servers' first entries differ in their time, at least.
    """
    of_a, of_b = (next((entry for entry in log if entry.kind == "task"), None) for log in (ours, theirs))
    if of_a is None or of_b is None:
        return
    if of_a.fields["task"] != of_b.fields["task"]:
        raise ConfigError(f"--against: expected task {of_a.fields['task']!r:.80}, found {of_b.fields['task']!r:.80}")
    role = of_a.fields.get("role")
    if of_a.chain == of_b.chain or (role is not None and role == of_b.fields.get("role")):
        raise ConfigError(f"--against: expected the other aggregator's log, found one of {role or 'the same server'}")


def _loss(entry: audit_log.Entry, releases: Collection[int]) -> dict[str, Any]:
    """Return when what was lost, and why or whose.

    `released`: that round was done, mostly later, once all servers were back. So this cost other rounds or none.
    """
    fields = entry.fields
    why = f"unknown verdicts of {', '.join(fields['clients'])}" if entry.kind == "unknown" else fields["reason"]
    return {"at": entry.at, "round": fields["round"], "released": fields["round"] in releases, "why": why}


def _require_one_history(
    releases: Mapping[int, Mapping[str, Any]], header: Fields, charged: Mapping[int, Charge]
) -> None:
    """Require that the log names the ledger's chain value at each release, after the round's charge.

    A chain value is of the header too: of what a round costs, and of earlier tasks. So a ledger that was written anew
    is found. Raises AuditError.
    """
    found = chains(header, charged)
    of_round, of_chain = ({one: i for i, one in enumerate(some)} for some in (found, found.values()))
    for round, fields in releases.items():
        if of_chain.get(fields.get("ledger"), -1) < of_round[round]:
            raise AuditError(f"ledger.jsonl: it is not the ledger that round {round} was released with")


def events_of(state_dir: Path) -> dict[str, Any]:
    """Return what the ledger in a state_dir holds, as events of dp-accounting.

    Raises: SetupError; LedgerCorruptedError.
    """
    path = _ledger(state_dir)
    with refusing(OSError, f"{path}: expected a ledger to read", SetupError):
        return ledger_events(path)


def _ledger(state_dir: Path) -> Path:
    if not (ledger := ledger_path(state_dir)).is_file():
        raise SetupError(f"{ledger}: expected the privacy ledger, found none")
    return ledger
