"""The privacy ledger of one server: which clients took part in which round, on disk before anything is released.

Format. One JSON object per line, appended only. The first line holds the parameters, each later one a charge:

    {"format":1,"delta":1e-05,"events":{"one_server":{...},"clients_only":{...}},"every_round":{...},"chain":"..."}
    {"round":0,"clients":["alice","bob"],"chain":"..."}
    {"round":1,"clients":["bob"],"kind":"evaluation","chain":"..."}

A charge counts twice. It counts for the clients it names, whose records meet one of `events`. It counts also as a round
of the task, in which every enrolled client, drawn or not, meets each of `every_round`. The header has `every_round` if
there is any such event. The header has `"unit":"client"` where `events` are about whole clients, not records. It has
`steps_per_round` where an event happens more than once in a round, `slack` where the protocol takes a part of delta.
It has `earlier` where finished tasks of the same clients count as well. It has `rests_on` where figures rest on
conditions, in words that no restart compares. An event that is null leaves nothing protected.

Where an event is of records in bins (`precad.dp.accountants.bins_event`), rounds e T .. e T + T - 1 are an epoch. A
client that was charged in one of them counts as charged in all of them, once. An epoch costs all that it can at its
first release.

A charge of an evaluation counts likewise, with the events of the header's `evaluations`. Every figure composes both
kinds.

`chain` is a SHA-256 over the previous line's chain and this line's other fields. It finds a damaged or edited line.
`chain` is not keyed. It does not stop somebody who may write the file from rewriting all of it, or cutting it at the
end of a line.

Crashes. `charge` returns after fsync, and the caller releases the round only after `charge` returns. So

- a complete last line may be of a round that was never released: it counts, which can only overstate epsilon;
- a last line without its newline is of a charge that did not return, hence of a round that was not released. Its
  clients cannot be known, so it cannot count either: opening cuts it off.

Anything else that is not as written here stops the server with LedgerCorruptedError.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from precad.dp.accountants.earlier_rounds import CONDITIONS, EarlierTask, fields_of_conditions
from precad.dp.accountants.pld import (
    Conduct,
    Event,
    Label,
    PldAccountant,
    PrivacyAccountant,
    PrivacyStatement,
    Release,
    Unit,
    View,
    event_fields,
)
from precad.dp.accountants.task_cost import Charged, Evaluations, TaskCost, evaluation_fields
from precad.dp.accountants.task_cost import Level as Level  # noqa: PLC0414 - ledgers are asked by level
from precad.dp.checks import require_count, require_delta, require_non_negative, require_positive
from precad.dp.errors import BudgetExceededError, LedgerClosedError
from precad.dp.ledgers.lines import Charge, charge_fields, charge_of, read_lines, sorted_ids
from precad.dp.ledgers.sealed_file import KeepsSealedFile, SealedFile

_FORMAT: Final = 1
_UNITS: Final = {Level.CLIENT: Unit.CLIENT, Level.HIDDEN_CLIENT: Unit.CLIENT, Level.DRAWN_RECORD: Unit.RECORD}


class Ledger(KeepsSealedFile):
    """Realised participation of every client, and what it amounts to. For one thread of one process.

    A statement says against whom it holds. Against an adversary that may discard draws it counts the most rounds that
    there can be, else the rounds that were charged (`precad.dp.accountants.task_cost`).

    - `path`: the file, created if missing; None keeps the ledger in memory, for simulations and tests.
    - `events`: what one round is to each view, see `precad.dp.task_privacy`; None: epsilon is infinite after it.
    - `delta`: the delta of every statement.
    - `budgets`: the largest epsilon any client may reach, by view or level; one without is accounted, not limited.
    - `every_round`: what one round of the task is, by level.
    - `unit`: what `events` are about.
    - `steps_per_round`: how often an event of `events` happens in a round.
    - `slack`: what the protocol takes from delta in all its rounds together (`precad.dp.accountants.slack`).
    - `most_rounds`: how many rounds can be charged at most, fixed before the task; None: nothing limits them.
    - `separation`: how many rounds apart any two rounds of a client are, at least, as its caller draws clients.
    - `earlier`: finished tasks of the same clients, which every figure and budget counts as well.
    - `evaluations`: what an evaluation is, and how many there are at most; None: none can be charged.
    - `rests_on`: conditions of the figures, by view, which a later task that counts this one prints as well.
    - `accountant`: what composes rounds, which must prove bounds; None: `PldAccountant`.
    - `only_reads`: read the file, which may lie where nothing can be written, and take no charge.

    For the life of the file, `events`, `delta`, `slack`, `every_round`, `unit`, `steps_per_round`, `earlier` and
    `evaluations` are fixed.

    With a budget for a view, when the task ends depends on who was drawn. Hiding in the draw is then over: the levels
    are accounted as if everybody were drawn in every round.

    Raises: LedgerCorruptedError, LedgerInUseError, ValueError; and OSError as the file system gives it.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        events: Mapping[View, Release | None],
        delta: float,
        budgets: Mapping[View | Level, float] | None = None,
        every_round: Mapping[Level, Event] | None = None,
        unit: Unit = Unit.RECORD,
        steps_per_round: int = 1,
        slack: float = 0.0,
        most_rounds: int | None = None,
        separation: int = 1,
        earlier: Sequence[EarlierTask] = (),
        evaluations: Evaluations | None = None,
        rests_on: Mapping[View, str] = MappingProxyType({}),
        accountant: PrivacyAccountant | None = None,
        only_reads: bool = False,
    ) -> None:
        if set(events) != set(View):
            raise ValueError(f"events: expected one entry for each of {', '.join(View)}, found {', '.join(events)}")
        require_delta(delta)
        require_non_negative("slack", slack)
        require_count("steps_per_round", steps_per_round, at_least=1)
        if most_rounds is not None:
            require_count("most_rounds", most_rounds, at_least=1)
        require_count("separation", separation, at_least=1)
        self._unit, self._steps_per_round = Unit(unit), steps_per_round
        self._every_round = {level: (every_round or {})[level] for level in Level if level in (every_round or {})}
        self._earlier = tuple(task.of_groups(_group_size(events)) for task in earlier)
        if foreign := [task.unit for task in self._earlier if task.unit is not self._unit]:
            raise ValueError(f"earlier: expected tasks about a {self._unit}, found one about a {foreign[0]}")
        self._budgets = _budgets_of(budgets or {}, self._every_round)
        self._events = {view: events[view] for view in View}
        self._delta, self._slack, self._evaluations = delta, slack, evaluations
        accountant = PldAccountant() if accountant is None else accountant
        if accountant.label is not Label.BOUND:
            raise ValueError(f"accountant: expected one that proves a bound, found one of label {accountant.label}")
        self._cost = TaskCost(
            events=self._events,
            delta=delta,
            every_round=self._every_round,
            budgets=self._budgets,
            steps_per_round=steps_per_round,
            most_rounds=most_rounds,
            separation=separation,
            accountant=accountant,
            slack=slack,
            earlier=self._earlier,
            evaluations=evaluations,
        )

        self._rounds, self._evaluated = set[int](), set[int]()
        self._participation, self._answered = Counter[str](), Counter[str]()
        self._of_epochs: dict[int, set[str]] = {}
        header = self._header() | fields_of_conditions(rests_on)
        self._file = SealedFile(path, header, self._replay, "a ledger", (CONDITIONS,), only_reads=only_reads)

    @property
    def cost(self) -> TaskCost:
        """Return what rounds cost here, beside the earlier tasks that every figure counts."""
        return self._cost

    @property
    def levels(self) -> frozenset[Level]:
        """Return those that the ledger can make a `task_statement` of."""
        return frozenset(self._every_round)

    @property
    def participation(self) -> Mapping[str, int]:
        """Return the number of charged rounds of each client that took part in any.

        A read-only view that stays current.

        Rounds are those of the training; `evaluations_of` counts the others. Where records are in bins, every round of
        an epoch counts that has a charged one.
        """
        return MappingProxyType(self._participation)

    @property
    def evaluations_of(self) -> Mapping[str, int]:
        """Return the number of charged evaluations of each client that took part in any.

        A read-only view that stays current.
        """
        return MappingProxyType(self._answered)

    @property
    def evaluations(self) -> frozenset[int]:
        """Return the numbers of the charged rounds that are evaluations."""
        return frozenset(self._evaluated)

    @property
    def rounds(self) -> frozenset[int]:
        """Return every round number charged, of evaluations too."""
        return frozenset(self._rounds)

    @property
    def charged(self) -> Charged:
        """Return what budgets count of the rounds so far, as if every number up to the last charged one was drawn."""
        return self.charged_before(max(self._rounds, default=-1) + 1)

    def charged_before(self, next_round: int) -> Charged:
        """Return what budgets count before the round of this number. Call when no round is in flight."""
        n_evaluations = len(self._evaluated)
        return Charged(
            n_drawn=next_round - n_evaluations,
            n_charged=len(self._rounds) - n_evaluations,
            most_of_a_client=max(self._participation.values(), default=0),
            n_evaluations=n_evaluations,
            most_evaluations=max(self._answered.values(), default=0),
        )

    @property
    def discarded_draws(self) -> int:
        """Count the numbers before the last charged one that were used up and not charged.

        Each is a round that was given up before its charge, at this server or at the other.
        """
        return max(self._rounds, default=-1) + 1 - len(self._rounds)

    @property
    def most_rounds_of_a_client(self) -> int | None:
        """Return the rounds that statements count against an adversary that may discard draws; None without a limit."""
        most = self._cost.most_of_a_client
        return None if most is None else max(most, *self._participation.values(), 0)

    @property
    def chain(self) -> str:
        """Return the last line's chain; whoever keeps it notices every later change of the lines so far."""
        return self._file.chain

    @property
    def is_closed(self) -> bool:
        """Return whether it takes no charge any more.

        After a failed write, its file may hold a round that it does not.
        """
        return self._file.is_closed

    def charge(self, round_number: int, clients: Collection[str], *, is_evaluation: bool = False) -> None:
        """Record durably that `clients` take part in the round. Call before anything of the round is released.

        A round that then fails stays charged, which can only overstate epsilon. An empty round is charged too.

        Raises: ValueError if the round was charged before, or a client is named twice, or it is an evaluation too many.
            BudgetExceededError if a client would end the round over a budget.
            OSError if the write failed, which closes the ledger, since what reached the disk is then unknown.
            LedgerClosedError if the ledger is closed. In each case the round must not be released.
        """
        if self.is_closed:
            raise LedgerClosedError
        require_count("round_number", round_number)
        if round_number in self._rounds:
            raise ValueError(f"round_number: expected one that was not charged before, found {round_number}")
        chosen = sorted_ids(clients)
        if is_evaluation:
            self._require_evaluation()
        if (exceeded := self._exceeded_by(chosen, round_number, is_evaluation=is_evaluation)) is not None:
            raise exceeded
        charge = Charge(chosen, is_evaluation)
        self._file.append(charge_fields(round_number, charge))
        self._count(round_number, charge)

    def foresee(self, clients: Collection[str], next_round: int | None = None, *, is_evaluation: bool = False) -> None:
        """Compute what `statement` will say of every view once a round of `clients` is charged, and charge nothing.

        The accountant keeps the bounds. Called while clients train, it takes them out of the way of the check.
        """
        now, coming = self.charged, self._after(clients, next_round, is_evaluation=is_evaluation)
        for view in View:
            self._cost.of_view(view, max(coming[0], now.most_of_a_client), max(coming[1], now.most_evaluations))

    def would_exceed(
        self,
        clients: Collection[str],
        next_round: int | None = None,
        *,
        is_evaluation: bool = False,
        evaluations_due: int = 0,
    ) -> bool:
        """Tell whether the coming round would take any of `clients` over a budget, if that client were chosen.

        Ask before selection, naming every client that could be chosen. Then no selection is ever discarded for whom it
        drew. Discarding would leave the accepted rounds with another law than Poisson selection has.

        `next_round` is the coming round's number, where rounds were given up. Budgets of levels count the rounds given
        up: their clients were drawn as well. `evaluations_due` of them were evaluations, charged or given up.
        """
        chosen = sorted_ids(clients)
        found = self._exceeded_by(chosen, next_round, is_evaluation=is_evaluation, evaluations_due=evaluations_due)
        return found is not None

    def statement(self, view: View, client: str | None = None, conduct: Conduct = Conduct.WATCHES) -> PrivacyStatement:
        """Return the bound on what one client's units lose, or those of the client with most rounds.

        If no draw is discarded, that of the rounds so far; else that of the most rounds that it can have been in. The
        client with most evaluations counts for these, whoever has most rounds.
        """
        charged = self.charged
        rounds = charged.most_of_a_client if client is None else self._participation[client]
        if conduct is Conduct.WATCHES:
            evaluations = charged.most_evaluations if client is None else self._answered[client]
            epsilon = self._cost.of_view(view, rounds, evaluations)
        else:
            epsilon = self._cost.view_if_discarded(view, rounds)
        return PrivacyStatement(
            epsilon,
            self._delta,
            view,
            Label.BOUND,
            unit=self._unit,
            conduct=Conduct(conduct),
            group_size=1 if (event := self._events[view]) is None else event.group_size,
        )

    def task_statement(self, level: Level, conduct: Conduct = Conduct.WATCHES) -> PrivacyStatement:
        """Bound what a unit of any enrolled client loses, after as many rounds as were charged.

        If draws may be discarded, the bound is that after as many rounds as can be drawn.

        Raises: ValueError for a level that the ledger was not given.
        """
        charged = self.charged
        epsilon = self._cost.level_if_discarded(level, charged.n_charged)
        if conduct is Conduct.WATCHES:  # what holds against more holds against less
            epsilon = min(epsilon, self._cost.of_level(level, charged.n_charged, charged.n_evaluations))
        return PrivacyStatement(
            epsilon,
            self._delta,
            View.CLIENTS_ONLY,
            Label.BOUND,
            unit=_UNITS[Level(level)],
            conduct=Conduct(conduct),
            group_size=self._every_round[Level(level)].group_size,
        )

    def _exceeded_by(
        self, clients: Collection[str], next_round: int | None, *, is_evaluation: bool, evaluations_due: int = 0
    ) -> BudgetExceededError | None:
        """Return an error for the first budget that the coming round would break; None if it would break none.

        In a view the client with most rounds decides for all, with the most evaluations of any of them. In a level
        every draw counts alike, also one that drew nobody, and one whose round was given up.
        """
        worst = max(clients, key=lambda client: (self._participation[client], self._answered[client]), default=None)
        before = self.charged_before(next_round or 0)
        for key, budget in self._budgets.items():
            if isinstance(key, Level):
                given_up = max(0, evaluations_due - before.n_evaluations)
                drawn = (before.n_drawn - given_up, before.n_charged)
                n_drawn, n_charged = (n + (not is_evaluation) for n in drawn)
                evaluations = before.n_evaluations + given_up + is_evaluation
                would_be = self._cost.level_after_draws(key, n_drawn, n_charged, evaluations)
            elif worst is None:
                continue
            else:
                would_be = self._cost.of_view(key, *self._after(clients, next_round, is_evaluation=is_evaluation))
            if not would_be <= budget:
                client = worst if isinstance(key, View) else None
                return BudgetExceededError(view=key, client=client, budget=budget, would_be=would_be)
        return None

    def _after(self, clients: Collection[str], next_round: int | None, *, is_evaluation: bool) -> tuple[int, int]:
        """Return the most rounds, and the most evaluations, of any of these clients after one more round of them.

        next_round: its number; None: the one after the last charged.
        """
        number = max(self._rounds, default=-1) + 1 if next_round is None else next_round
        known = self._of_epochs.get(number // self._cost.bins, set())
        coming = 0 if is_evaluation else self._cost.bins
        most = max((self._participation[c] + (c not in known) * coming for c in clients), default=0)
        return most, max((self._answered[c] + is_evaluation for c in clients), default=0)

    def _require_evaluation(self) -> None:
        """Raise ValueError unless the task may have one more evaluation."""
        most = self._cost.most_evaluations
        if len(self._evaluated) >= most:
            raise ValueError(f"is_evaluation: expected at most {most} evaluations, found one more")

    def _count(self, round_number: int, charge: Charge) -> None:
        self._rounds.add(round_number)
        if charge.is_evaluation:
            self._evaluated.add(round_number)
            self._answered.update(charge.clients)
        elif (bins := self._cost.bins) == 1:
            self._participation.update(charge.clients)
        else:
            known = self._of_epochs.setdefault(round_number // bins, set())
            self._participation.update({client: bins for client in charge.clients if client not in known})
            known.update(charge.clients)

    def _header(self) -> dict[str, Any]:
        events = {str(view): None if event is None else event_fields(event) for view, event in self._events.items()}
        header: dict[str, Any] = {"format": _FORMAT, "delta": self._delta, "events": events}
        if self._unit is not Unit.RECORD:
            header["unit"] = str(self._unit)
        if self._slack != 0:
            header["slack"] = self._slack
        if self._steps_per_round != 1:
            header["steps_per_round"] = self._steps_per_round
        if self._every_round:
            header["every_round"] = {str(level): event_fields(event) for level, event in self._every_round.items()}
        if self._earlier:
            header["earlier"] = [task.fields() for task in self._earlier]
        if self._evaluations is not None:
            header["evaluations"] = evaluation_fields(self._evaluations)
        return header

    def _replay(self, fields: dict[str, Any]) -> None:
        """Count one charge read from the file. The budget is not asked: what is on disk has been spent."""
        round_number, charge = charge_of(fields, self._rounds)
        if charge.is_evaluation:
            self._require_evaluation()
        self._count(round_number, charge)


def _group_size(events: Mapping[View, Release | None]) -> int:
    return max((event.group_size for event in events.values() if event is not None), default=1)


def _budgets_of(budgets: Mapping[View | Level, float], every_round: Mapping[Level, Event]) -> dict[View | Level, float]:
    """Return budgets by the members that their keys may only equal. Raises ValueError."""
    found: dict[View | Level, float] = {
        Level(key) if key in set(Level) else View(key): budget for key, budget in budgets.items()
    }
    for key, budget in found.items():
        require_positive(f"budget of {key}", budget)
        if isinstance(key, Level) and key not in every_round:
            raise ValueError(f"every_round: expected {key}, which has a budget, found {', '.join(every_round)}")
    return found


def verified_charges(path: Path) -> dict[int, list[str]]:
    """Return the charged rounds of a ledger's file with their clients, read without opening it for charges. An
    incomplete last line does not count. Raises: LedgerCorruptedError; OSError as the file system gives it."""
    return {number: charge.clients for number, charge in read_lines(path)[1].items()}
