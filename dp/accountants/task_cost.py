"""Account for a task: what its rounds cost one unit, what budgets allow, and how many rounds that makes at most.

A figure names what its adversary may do to the draws of clients (`precad.dp.accountants.pld.Conduct`):

- `watches`: No draw is discarded. The figure counts the rounds that were charged, in which the client really was.
- `may_discard`: Draws can be discarded and the task can be ended for what has been released. The number of rounds is
  then a stopping time, and "(epsilon of it, delta)" does not hold. Stopping at the right moment raises delta tenfold
  (tests/dp/accountants/test_odometer.py). The figure counts the most rounds that there can be, a number that was fixed
  before. It follows from T, the rounds that may be lost, and the rounds that a budget allows.

The second figure is sound for every stopping rule. A training that stops early is a function of one that runs on.
A training that runs on is the composition of a fixed number of rounds, each chosen by what came before.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from precad.dp.accountants.bins_event import bins_of
from precad.dp.accountants.calibration import largest
from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import (
    Event,
    PldAccountant,
    PrivacyAccountant,
    Release,
    SampledGaussian,
    TwoStageSampledGaussian,
    View,
    event_fields,
    event_of,
)
from precad.dp.accountants.slack import least_with_slack, with_slack
from precad.dp.checks import require_count

_SEARCH_END: Final = 1_000_000
"""Where the search for the rounds of a budget ends when nothing else limits them."""


class Level(enum.StrEnum):
    """The unit, of any enrolled client, drawn or not, whose cost of a round is bounded against clients only."""

    CLIENT = "client"
    """A whole client: drawn with probability q, for all to see, its update at most C long."""
    HIDDEN_CLIENT = "hidden_client"
    """A whole client whose draw nobody learns but it and the servers: drawn with probability q, its update at most C
    long. Only of tasks whose rounds take as long whoever is drawn."""
    DRAWN_RECORD = "drawn_record"
    """A record: its client is drawn with probability q, for all to see, and then the record. Two stages of sampling."""


def hid_draws(earlier: Iterable[EarlierTask]) -> bool:
    """Tell whether any of these tasks hid who was drawn: figures that count its actual rounds tell it."""
    return any(Level.HIDDEN_CLIENT in one.levels for one in earlier)


class Charged(NamedTuple):
    """Hold what the budgets of a task count, before its coming round. Rounds are those of the training."""

    n_drawn: int = 0
    """Rounds that were drawn, given up or not: the number of the coming round, less the evaluations charged."""
    n_charged: int = 0
    """Rounds that were charged."""
    most_of_a_client: int = 0
    """Charged rounds of the client with most of them; of records in bins, all rounds of the epochs that have any."""
    n_evaluations: int = 0
    """Evaluations that were charged."""
    most_evaluations: int = 0
    """Charged evaluations of the client with most of them."""


NOTHING_CHARGED: Final = Charged()


@dataclass(frozen=True, kw_only=True)
class Evaluations:
    """Releases of another kind among a task's rounds: evaluations of its model by the clients."""

    events: Mapping[View, SampledGaussian]
    """An evaluation as a unit of a client that takes part meets it."""
    levels: Mapping[Level, Event]
    """An evaluation as a unit of any enrolled client, drawn or not, meets it."""
    most: int
    """How many there are at most, lost ones among them; fixed before the task."""


def evaluation_fields(evaluations: Evaluations) -> dict[str, Any]:
    """Return what a ledger's header holds of a task's evaluations."""
    return {
        "events": {str(view): event_fields(event) for view, event in evaluations.events.items()},
        "levels": {str(level): event_fields(event) for level, event in evaluations.levels.items()},
        "most": evaluations.most,
    }


def evaluations_of(header: Mapping[str, Any]) -> Evaluations | None:
    """Return the evaluations in a ledger's header; None where it has none. Raises KeyError, TypeError, ValueError."""
    if (fields := header.get("evaluations")) is None:
        return None
    require_count("most", fields["most"], at_least=1)
    if not isinstance(fields["levels"], Mapping):
        raise TypeError(f"levels: expected them by name, found {type(fields['levels']).__name__}")
    return Evaluations(
        events={view: SampledGaussian(**fields["events"][view]) for view in View},
        levels={Level(level): event_of(event) for level, event in fields["levels"].items()},
        most=fields["most"],
    )


@dataclass(frozen=True, kw_only=True)
class TaskCost:
    """Epsilons of a task at its delta. Rounds are those of the training; evaluations count beside them."""

    events: Mapping[View, Release | None]
    """A step as a unit of a client that takes part meets it; None: a step costs everything."""
    delta: float
    every_round: Mapping[Level, Event] = field(default_factory=dict)
    """One round of the task as a unit meets it, by level."""
    budgets: Mapping[View | Level, float] = field(default_factory=dict)
    """The largest epsilon that any client may reach."""
    steps_per_round: int = 1
    most_rounds: int | None = None
    """How many rounds there are at most, with those that are lost. None: nothing limits them."""
    separation: int = 1
    """How many rounds apart any two rounds of a client are, at least."""
    accountant: PrivacyAccountant = field(default_factory=PldAccountant)
    slack: float = 0.0
    """Part of delta that the protocol takes, as eta (`precad.dp.accountants.slack`)."""
    earlier: tuple[EarlierTask, ...] = ()
    """Tasks that every figure counts as well. Levels then count everybody as drawn in every round."""
    evaluations: Evaluations | None = None
    """Evaluations that the task may have."""

    def epsilon(self, event: Event, rounds: int) -> float:
        """Return epsilon of so many events at the task's delta, less what the protocol takes."""
        return with_slack(self.accountant, self.slack).epsilon(event, rounds, self.delta)

    def of_view(self, view: View, rounds: int, evaluations: int = 0, *, discarded: bool = False) -> float:
        """Return epsilon of a client that was in so many rounds and evaluations, and in the most of earlier tasks.

        `discarded`: whether draws of the earlier tasks may have been discarded.
        """
        event = self.events[view]
        if self.earlier or evaluations:
            before = [(task.events[view], task.counted(discarded=discarded)) for task in self.earlier]
            of_evaluations = (self._evaluated.events[view], evaluations) if evaluations else (None, 0)
            return self._together([(event, rounds * self.steps_per_round), of_evaluations, *before])
        if event is None:
            return math.inf if rounds else 0.0
        return self.epsilon(event, rounds * self.steps_per_round)

    def of_several(self, n_tasks: int, view: View, rounds: int, *, discarded: bool = False) -> float:
        """Return epsilon of a client that was in so many rounds of n tasks like this one together.

        Each takes its part of delta, and all evaluations count that it can have. Earlier tasks count once.
        """
        together = replace(self, slack=n_tasks * self.slack)
        return together.of_view(view, rounds, n_tasks * self.most_evaluations, discarded=discarded)

    def of_level(self, level: Level, rounds: int, evaluations: int = 0) -> float:
        """Return epsilon of a unit of any enrolled client after a realised number of rounds and evaluations.

        With a budget for a view the end of the task depends on who was drawn. Hiding in the draw cannot then be
        claimed for the number of rounds that there were. Raises ValueError for a level without an account.
        """
        event, is_seen = self._event_of(level), self._ends_by_draws
        if self.earlier or evaluations:
            return self._level_together(level, rounds, evaluations, is_seen=is_seen)
        return self.epsilon(everybody_drawn(event) if is_seen else event, rounds)

    def level_after_draws(self, level: Level, n_drawn: int, n_charged: int = 0, evaluations: int = 0) -> float:
        """Return what the budget of a level is compared with: every draw counts, also of a round that was given up.

        Round numbers count draws. A server that misbehaves may skip many of them, but cannot draw more than there are.
        """
        if self.most_rounds is not None:
            n_drawn = min(n_drawn, self.most_rounds)
        return self.of_level(level, max(n_drawn, n_charged), evaluations)

    @property
    def most_evaluations(self) -> int:
        """Return how many evaluations there are at most."""
        return 0 if self.evaluations is None else self.evaluations.most

    @functools.cached_property
    def most_draws(self) -> int | None:
        """Return how many rounds can be drawn at most: those of the task, or of the budgets of its levels."""
        allowed = [self._allowed(key) for key in self.budgets if isinstance(key, Level)]
        return min([*([] if self.most_rounds is None else [self.most_rounds]), *allowed], default=None)

    @functools.cached_property
    def most_of_a_client(self) -> int | None:
        """Return in how many rounds a client can be at most: in all that are drawn and its turn, or as its budgets
        allow.

        Where its records are in bins, epochs that can begin count whole.
        """
        allowed = [self._allowed(key) for key in self.budgets if isinstance(key, View)]
        turns = [] if self.most_draws is None else [-(-self.most_draws // self.separation)]
        most = min([*turns, *allowed], default=None)
        return None if most is None else -(-most // self.bins) * self.bins

    @functools.cached_property
    def bins(self) -> int:
        """Return in how many successive rounds, by number, a record of the task is once; 1 where each round draws."""
        return bins_of(self.events.values())

    def view_if_discarded(self, view: View, rounds: int = 0) -> float:
        """Return epsilon of a client in the most rounds, or in `rounds`, those that there were, if they are more.

        All evaluations that there can be count, whatever the draws.
        """
        if self.most_of_a_client is None:
            return math.inf
        return self.of_view(view, max(rounds, self.most_of_a_client), self.most_evaluations, discarded=True)

    def level_if_discarded(self, level: Level, rounds: int = 0) -> float:
        """Return epsilon of a unit of any enrolled client over the most draws, or over `rounds` if they are more.

        All evaluations that there can be count.

        The number is fixed, so hiding in the draws can be claimed: whoever discards some learns no more than from all.
        Draws that the end of a task tells count as seen (`_of_level`).
        """
        event = self._event_of(level)
        if self.most_draws is None:
            return math.inf
        if self.earlier or self.most_evaluations:
            return self._level_together(level, max(rounds, self.most_draws), self.most_evaluations, discarded=True)
        return self.epsilon(event, max(rounds, self.most_draws))

    def rounds_left(self, key: View | Level, charged: Charged) -> int:
        """Return how many more rounds a budget allows for certain, of those that there can be.

        A view's budget allows the client with most rounds so many draws, and so at least as many rounds. A level's
        allows exactly so many, if none of them is given up. The budget has paid for all evaluations before. Where
        records are in bins, epochs are paid whole, and numbers of rounds are used up.
        """
        return max(0, self._allowed(key, self.most_evaluations) - self.rounds_counted(key, charged))

    def rounds_counted(self, key: View | Level, charged: Charged) -> int:
        """Return how many rounds a budget has counted so far, as `rounds_left` counts them."""
        if isinstance(key, View) and self.bins == 1:
            return charged.most_of_a_client
        return max(charged.n_drawn, charged.n_charged)

    def _together(self, rounds: Sequence[tuple[Event | None, int | None]]) -> float:
        """Return epsilon of rounds of several kinds or tasks; infinite where a number of them is not known.

        What their protocols take from delta adds up.
        """
        known = [(event, n) for event, n in rounds if n is not None]
        if len(known) < len(rounds):
            return math.inf
        slack = self.slack + math.fsum(task.slack for task in self.earlier)
        return least_with_slack(lambda left: composed_epsilon(known, left), self.delta, slack)

    def _level_together(
        self, level: Level, rounds: int, evaluations: int, *, discarded: bool = False, is_seen: bool = False
    ) -> float:
        """Return epsilon of a level over several kinds of rounds. is_seen: whether hiding in the draw is not claimed.

        Beside earlier tasks everybody counts as drawn.
        """
        own = [(self._event_of(level), rounds)]
        if evaluations:
            own.append((self._of_level(level, self._evaluated.levels), evaluations))
        if self.earlier or is_seen:
            own = [(everybody_drawn(event), n) for event, n in own]
        before = [(task.levels.get(level), task.counted(discarded=discarded)) for task in self.earlier]
        return self._together([*own, *before])

    def _allowed(self, key: View | Level, evaluations: int = 0) -> int:
        """Return the most rounds with which the budget is kept, beside so many evaluations."""
        cost = functools.partial(self.of_view, key) if isinstance(key, View) else functools.partial(self.of_level, key)
        return largest(lambda n: cost(n, evaluations) <= self.budgets[key], self.most_rounds or _SEARCH_END)

    @property
    def _evaluated(self) -> Evaluations:
        if self.evaluations is None:
            raise ValueError("evaluations: expected none in a task that has none, found some")
        return self.evaluations

    def _event_of(self, level: Level) -> Event:
        if level not in self.every_round:
            raise ValueError(f"level: expected one of {', '.join(self.every_round) or 'none'}, found {level}")
        return self._of_level(Level(level), self.every_round)

    def _of_level(self, level: Level, events: Mapping[Level, Event]) -> Event:
        """Return the level's event. A hidden draw is as one for all to see where the end of the task can tell it.

        A budget of a view ends the task once some client was drawn often enough. If none of those who collude was, it
        is the one that they look for, and its last draw was in the last round.
        """
        event = events[level]
        if level is Level.HIDDEN_CLIENT and self._ends_by_draws and isinstance(event, SampledGaussian):
            return TwoStageSampledGaussian(event.sampling_rate, 1.0, event.noise_multiplier)
        return event

    @property
    def _ends_by_draws(self) -> bool:
        """Whether the end of the task depends on who was drawn."""
        return any(isinstance(key, View) for key in self.budgets)


def everybody_drawn(event: Event) -> SampledGaussian:
    """Return the event of a client that is in the round for certain."""
    if isinstance(event, TwoStageSampledGaussian):
        return SampledGaussian(event.record_rate, event.noise_multiplier, event.group_size)
    return SampledGaussian(1.0, event.noise_multiplier, event.group_size)
