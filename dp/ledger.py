"""The privacy ledger of one server: which clients took part in which round, on disk before anything is released.

Format. One JSON object per line, appended only. The first line holds the parameters, each later one a charge:

    {"format":1,"delta":1e-05,"events":{"one_server":{...},"clients_only":{...}},"every_round":{...},"chain":"..."}
    {"round":0,"clients":["alice","bob"],"chain":"..."}

A charge counts twice: for the clients it names, whose records meet one of `events`; and as a round of the task, in
which every enrolled client is drawn or not and meets each of `every_round`, whichever it was. The header has the latter
if there are any. It has `"unit":"client"` where `events` are about whole clients, not records, and `steps_per_round`
where an event happens more than once in a round; an event that is null leaves nothing protected.

`chain` is a SHA-256 over the previous line's chain and this line's other fields. It finds a damaged or edited
line; it is not keyed, so it does not stop somebody who may write the file and rewrites all of it, or who cuts it
at the end of a line.

Crashes. `charge` returns after fsync, and the caller releases the round only after `charge` returns. So

- a complete last line may be of a round that was never released: it counts, which can only overstate epsilon;
- a last line without its newline is of a charge that did not return, hence of a round that was not released. Its
  clients cannot be known, so it cannot count either: opening cuts it off.

Anything else that is not as written here stops the server with LedgerCorruptedError.
"""

import enum
import fcntl
import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Final, Self

from dp.accounting import (
    Event,
    Label,
    PldAccountant,
    PrivacyAccountant,
    PrivacyStatement,
    SampledGaussian,
    TwoStageSampledGaussian,
    Unit,
    View,
)
from dp.checks import require_count, require_delta, require_positive
from dp.errors import BudgetExceededError, LedgerClosedError, LedgerCorruptedError, LedgerInUseError

_FORMAT: Final = 1
_FIRST_CHAIN: Final = ""


class Level(enum.StrEnum):
    """What a round of the task costs a unit of any enrolled client, drawn or not, against clients only."""

    CLIENT = "client"
    """A whole client: drawn with probability q, for all to see, its update at most C long."""
    DRAWN_RECORD = "drawn_record"
    """A record: its client is drawn with probability q, for all to see, and then the record. Two stages of sampling."""


_UNITS: Final = {Level.CLIENT: Unit.CLIENT, Level.DRAWN_RECORD: Unit.RECORD}


class Ledger:
    """Realised participation of every client, and what it amounts to. For one thread of one process.

    path      the file, created if missing; None keeps the ledger in memory, for simulations and tests.
    events    what one round is to each view, see `dp.task_privacy`; None: epsilon is infinite after it. Fixed for the
              life of the file.
    delta     of every statement. Fixed for the life of the file.
    budgets   the largest epsilon any client may reach, by view or level; one without is accounted, not limited.
    every_round   what one round of the task is, by level. Fixed for the life of the file.
    unit      what `events` are about. Fixed for the life of the file.
    steps_per_round   how often an event of `events` happens in a round. Fixed for the life of the file.

    With a budget for a view, when the task ends depends on who was drawn. Hiding in the draw is then over: the levels
    are accounted as if everybody were drawn in every round.

    Raises: LedgerCorruptedError, LedgerInUseError, ValueError; and OSError as the file system gives it.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        events: Mapping[View, SampledGaussian | None],
        delta: float,
        budgets: Mapping[View | Level, float] | None = None,
        every_round: Mapping[Level, Event] | None = None,
        unit: Unit = Unit.RECORD,
        steps_per_round: int = 1,
        accountant: PrivacyAccountant | None = None,
    ) -> None:
        if set(events) != set(View):
            raise ValueError(f"events must have one entry for each of {', '.join(View)}, got {', '.join(events)}")
        require_delta(delta)
        require_count("steps_per_round", steps_per_round, at_least=1)
        self._unit, self._steps_per_round = Unit(unit), steps_per_round
        self._every_round = {level: (every_round or {})[level] for level in Level if level in (every_round or {})}
        self._budgets = {_view_or_level(key): budget for key, budget in (budgets or {}).items()}
        for key, budget in self._budgets.items():
            require_positive(f"budget of {key}", budget)
            if isinstance(key, Level) and key not in self._every_round:
                raise ValueError(f"every_round must have {key}, which has a budget, got {', '.join(self._every_round)}")
        self._events = {view: events[view] for view in View}
        self._delta = delta
        self._accountant: PrivacyAccountant = PldAccountant() if accountant is None else accountant
        if self._accountant.label is not Label.BOUND:
            raise ValueError(f"accountant must prove a bound, got one whose label is {self._accountant.label}")

        self._rounds: set[int] = set()
        self._participation: Counter[str] = Counter()
        self._chain = _FIRST_CHAIN
        self._is_closed = False
        self._fd: int | None = None
        if path is not None:
            self._fd = _open_alone(path)
            try:
                self._load(path, self._fd)
            except BaseException:
                self.close()
                raise

    @property
    def levels(self) -> frozenset[Level]:
        """Those that the ledger can make a `task_statement` of."""
        return frozenset(self._every_round)

    @property
    def participation(self) -> Mapping[str, int]:
        """Number of charged rounds of each client that took part in any. A read-only view that stays current."""
        return MappingProxyType(self._participation)

    @property
    def rounds(self) -> frozenset[int]:
        """Every round number charged."""
        return frozenset(self._rounds)

    @property
    def chain(self) -> str:
        """Of the last line; whoever keeps it notices every later change of the lines so far."""
        return self._chain

    def charge(self, round_number: int, clients: Collection[str]) -> None:
        """Record durably that `clients` take part in the round. Call before anything of the round is released.

        A round that then fails stays charged, which can only overstate epsilon. An empty round is charged too.

        Raises: ValueError if the round was charged before, or a client is named twice; BudgetExceededError if
            a client would end the round over a budget; OSError if the write failed, which closes the ledger, since
            what reached the disk is then unknown. In each case the round must not be released.
        """
        if self._is_closed:
            raise LedgerClosedError
        require_count("round_number", round_number)
        if round_number in self._rounds:
            raise ValueError(f"round_number must not have been charged before, got {round_number}")
        chosen = _sorted_ids(clients)
        if (exceeded := self._exceeded_by(chosen)) is not None:
            raise exceeded
        self._append({"round": round_number, "clients": chosen})
        self._rounds.add(round_number)
        self._participation.update(chosen)

    def would_exceed(self, clients: Collection[str]) -> bool:
        """Whether the coming round would take any of `clients` over a budget, if that client were chosen.

        Ask before selection, naming every client that could be chosen: then no selection is ever discarded for
        whom it drew, which would leave the accepted rounds with another law than Poisson selection has.
        """
        return self._exceeded_by(_sorted_ids(clients)) is not None

    def statement(self, view: View, client: str | None = None) -> PrivacyStatement:
        """The bound reached so far by one client's units, or by those of the client with most rounds."""
        rounds = max(self._participation.values(), default=0) if client is None else self._participation[client]
        return PrivacyStatement(self._epsilon(view, rounds), self._delta, view, Label.BOUND, unit=self._unit)

    def task_statement(self, level: Level) -> PrivacyStatement:
        """The bound reached so far by a unit of any enrolled client, after as many rounds as were charged.

        Raises: ValueError for a level that the ledger was not given.
        """
        epsilon = self._task_epsilon(level, len(self._rounds))
        return PrivacyStatement(epsilon, self._delta, View.CLIENTS_ONLY, Label.BOUND, unit=_UNITS[Level(level)])

    def close(self) -> None:
        """Give the file back. Statements can still be made, charges cannot. Closing twice does nothing."""
        self._is_closed = True
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _epsilon(self, view: View, rounds: int) -> float:
        event = self._events[view]
        if event is None:
            return math.inf if rounds else 0.0
        return self._accountant.epsilon(event, rounds * self._steps_per_round, self._delta)

    def _task_epsilon(self, level: Level, rounds: int) -> float:
        if level not in self._every_round:
            raise ValueError(f"level must be one of {', '.join(self._every_round) or 'none'}, got {level}")
        event = self._every_round[Level(level)]
        if any(isinstance(key, View) for key in self._budgets):
            event = everybody_drawn(event)
        return self._accountant.epsilon(event, rounds, self._delta)

    def _exceeded_by(self, clients: Collection[str]) -> BudgetExceededError | None:
        """The first budget the coming round would break. The client with most rounds decides for all in a view; in a
        level every round counts alike, also one for which nobody is drawn."""
        worst = max(clients, key=lambda client: self._participation[client], default=None)
        for key, budget in self._budgets.items():
            if isinstance(key, Level):
                would_be = self._task_epsilon(key, len(self._rounds) + 1)
            elif worst is None:
                continue
            else:
                would_be = self._epsilon(key, self._participation[worst] + 1)
            if not would_be <= budget:
                client = worst if isinstance(key, View) else None
                return BudgetExceededError(view=key, client=client, budget=budget, would_be=would_be)
        return None

    def _header(self) -> dict[str, Any]:
        events = {str(view): None if event is None else asdict(event) for view, event in self._events.items()}
        header: dict[str, Any] = {"format": _FORMAT, "delta": self._delta, "events": events}
        if self._unit is not Unit.RECORD:
            header["unit"] = str(self._unit)
        if self._steps_per_round != 1:
            header["steps_per_round"] = self._steps_per_round
        if self._every_round:
            header["every_round"] = {str(level): asdict(event) for level, event in self._every_round.items()}
        return header

    def _append(self, fields: dict[str, Any]) -> None:
        """One line, in one write, on the disk when this returns."""
        line, chain = _seal(fields, self._chain)
        if self._fd is not None:
            try:
                written = os.write(self._fd, line)
                if written != len(line):
                    raise OSError(f"ledger line of {len(line)} bytes must be written whole, only {written} were")
                os.fsync(self._fd)
            except OSError:
                self.close()
                raise
        self._chain = chain

    def _load(self, path: Path, fd: int) -> None:
        """Replay the file, or start it. The file is changed only once all complete lines are known to be good."""
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        for number, line in enumerate(content[:end].splitlines(keepends=True), start=1):
            try:
                fields, self._chain = _unseal(line, self._chain)
                if number == 1:
                    _require_same(fields, self._header())
                else:
                    self._replay(fields)
            except (ValueError, RecursionError) as error:
                raise LedgerCorruptedError(path, line=number, problem=str(error)) from error

        if end < len(content):
            if end == 0 and not _seal(self._header(), _FIRST_CHAIN)[0].startswith(content):
                raise LedgerCorruptedError(path, line=1, problem="this is not the beginning of a ledger")
            os.ftruncate(fd, end)
            os.fsync(fd)
        if end == 0:
            self._append(self._header())
            sync_folder(path.parent)

    def _replay(self, fields: dict[str, Any]) -> None:
        """Count one charge read from the file. The budget is not asked: what is on disk has been spent."""
        round_number, clients = _charge_of(fields, self._rounds)
        self._participation.update(clients)
        self._rounds.add(round_number)


def verified_charges(path: Path) -> dict[int, list[str]]:
    """The charged rounds of a ledger's file with their clients, read without opening it for charges. An incomplete last
    line does not count. Raises: LedgerCorruptedError; OSError as the file system gives it."""
    content, chain = path.read_bytes(), _FIRST_CHAIN
    charges: dict[int, list[str]] = {}
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(keepends=True), start=1):
        try:
            fields, chain = _unseal(line, chain)
            if number > 1:
                round_number, clients = _charge_of(fields, charges)
                charges[round_number] = clients
        except (ValueError, RecursionError) as error:
            raise LedgerCorruptedError(path, line=number, problem=str(error)) from error
    return charges


def _charge_of(fields: dict[str, Any], earlier: Collection[int]) -> tuple[int, list[str]]:
    """Round and clients of a charge. ValueError if it is none, or of a round that was charged before."""
    if list(fields) != ["round", "clients"] or not isinstance(fields["clients"], list):
        raise ValueError(f"a charge must have a round and a list of clients, got the fields {', '.join(fields)}")
    require_count("round", fields["round"])
    if fields["round"] in earlier:
        raise ValueError(f"a round must be charged once, round {fields['round']} is again")
    return fields["round"], _sorted_ids(fields["clients"])


def _view_or_level(key: View | Level) -> View | Level:
    """As the enumeration's member. ValueError if it is neither."""
    return Level(key) if key in set(Level) else View(key)


def everybody_drawn(event: Event) -> Event:
    """The event of a client that is in the round for certain."""
    if isinstance(event, TwoStageSampledGaussian):
        return SampledGaussian(event.record_rate, event.noise_multiplier)
    return SampledGaussian(1.0, event.noise_multiplier)


def _sorted_ids(clients: Collection[str]) -> list[str]:
    """The client ids in order, each a non-empty string and named once."""
    if isinstance(clients, str) or not all(isinstance(client, str) and client for client in clients):
        raise ValueError(f"clients must be a collection of non-empty strings, got {clients!r}")
    if len(set(clients)) != len(clients):
        raise ValueError(f"clients must be named once each, got {sorted(clients)}")
    return sorted(clients)


def _seal(fields: dict[str, Any], previous_chain: str) -> tuple[bytes, str]:
    """The line holding `fields`, with its newline, and its chain value."""
    body = json.dumps(fields, separators=(",", ":"))
    chain = hashlib.sha256(f"{previous_chain}{body}".encode()).hexdigest()
    return f'{body[:-1]},"chain":"{chain}"}}\n'.encode(), chain


def _unseal(line: bytes, previous_chain: str) -> tuple[dict[str, Any], str]:
    """The fields of a line and its chain value. ValueError unless `_seal` makes exactly this line of them."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("a line must be a JSON object")
    fields.pop("chain", None)
    sealed, chain = _seal(fields, previous_chain)
    if sealed != line:
        raise ValueError("the line was changed after it was written, or the line before it was")
    return fields, chain


def _require_same(found: dict[str, Any], ours: dict[str, Any], prefix: str = "") -> None:
    """Every parameter in the header must be ours; the first that is not is named."""
    for name in sorted(ours.keys() | found.keys()):
        theirs, expected = found.get(name), ours.get(name)
        if isinstance(theirs, dict) and isinstance(expected, dict):
            _require_same(theirs, expected, f"{prefix}{name}.")
        elif theirs != expected:
            raise ValueError(f"the ledger was started with {prefix}{name} = {theirs}, this server has {expected}")


def _open_alone(path: Path) -> int:
    """Descriptor for appending to `path`, readable by its owner, locked against other processes until closed."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise LedgerInUseError(path) from error
    return fd


def sync_folder(folder: Path) -> None:
    """Make a new file's name as durable as its content. Raises: OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
