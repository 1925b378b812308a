"""A server's state as one value of public facts: what the dashboard, `/status.json` and `precad status` show.

Bounded whatever the task's size: the latest rounds only, and of each at most `MAX_NAMED` clients by name. Times are
seconds since the epoch, so that a snapshot in which nothing happened equals the one before it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from precad.dp.accountants.pld import Unit, View
from precad.dp.accountants.slack import why_no_bound
from precad.dp.accountants.task_cost import NOTHING_CHARGED, Charged, Level, TaskCost
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.task.task import Task
from precad.servers.telemetry.audit_figures import Audit

MAX_ROUNDS = 120
"""Rounds in a snapshot, the latest ones."""
MAX_DETAILED = 12
"""Rounds of these that name their clients."""
MAX_NAMED = 100
"""Clients that a round names; the rejected and missing come first."""


PHASE_OF_STATE = {
    "selecting": "select",
    "collecting": "collect",
    "locked": "charge",
    "proving": "prove",
    "charged": "validate",
    "validated": "open",
    "opened": "commit",
    "committed": "commit",
    "evaluated": "commit",
}
"""The phase that a server in this state is in (`precad.protos.messages.phases`). Other states are of no round."""

ACCURACY = "accuracy"
"""The figure of quality that is a share, in [0, 1]."""

Verdict = Literal["accepted", "rejected", "missing"]
VERDICTS: tuple[Verdict, ...] = ("accepted", "rejected", "missing")

NORM_EXCEEDED = "norm_exceeded"
"""Rejected: the norm check said no."""
NOT_CONNECTED = "not_connected"
"""Missing: it was drawn and had no session with this server."""
INCOMPLETE = "incomplete"
"""Missing: no complete and equal upload at both servers; this one refused none."""


def phase_of(state: str, *, is_proved: bool) -> str:
    """Return the phase that a server in this state is in; empty where that is of no round.

    In mode `proved`, one that has locked waits for the challenge before it charges.
    """
    return "prove" if is_proved and state == "locked" else PHASE_OF_STATE.get(state, "")


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")
    """An epsilon may be infinite: "Infinity" in JSON, which has no such number, and never a null."""


class ClientOutcome(_Value):
    """Outcome of a chosen client's upload."""

    client: str
    verdict: Verdict
    reason: str = ""
    """Reason of a rejected or missing one: a `RefusalReason`, or one of the three above."""


class RoundSummary(_Value):
    """A committed round."""

    round: int
    """From 0 on, as everywhere. The number of a round that was given up is not used again."""
    n_chosen: int
    n_accepted: int
    n_rejected: int
    n_missing: int
    seconds: dict[str, float]
    """By phase."""
    bytes: dict[str, int]
    """By link, as this server counts them."""
    epsilon: dict[View, float]
    """Proved bounds after this round, largest over clients, if no draw is discarded."""
    epsilon_client: float | None = None
    """That of a whole client, drawn or not, where a budget limits it."""
    model_digest: str
    quality: dict[str, float] = Field(default_factory=dict)
    """Figures of its model on public records, or on held-out records of clients; empty where it was not measured."""
    committed_at: float | None = None
    """None for a round that an earlier process of this server committed."""
    outcomes: tuple[ClientOutcome, ...] = ()
    """Outcomes of at most MAX_NAMED clients, and of the latest rounds only."""

    @property
    def seconds_total(self) -> float:
        """Return the seconds of all phases."""
        return sum(self.seconds.values())


class LiveRound(_Value):
    """The round in flight."""

    round: int
    phase: str
    """A phase's name; noise and open are one state of the server, and so are collect and lock."""
    began_at: float
    n_chosen: int
    n_complete: int
    """Uploads that this server holds whole, or was told of; from the lock on, those that both servers have."""
    n_receiving: int
    """Uploads, or proofs, that are coming in."""
    n_active: int | None = None
    """Clients of whom proofs are awaited, while they come in."""
    n_proved: int | None = None
    """Proofs that this server holds whole, or was told of, likewise."""
    waits_until: float | None = None
    """When the round goes on without those that it waits for, while uploads or proofs come in."""
    outcomes: tuple[ClientOutcome, ...] = ()
    """Once the check is over."""
    waiting_for: tuple[str, ...] = ()
    """Connected ones without a complete upload or proof, at most MAX_NAMED, while they come in."""
    absent: tuple[str, ...] = ()
    """Chosen ones that were not connected when uploads were asked for, likewise."""


class ClientStanding(_Value):
    """An enrolled client in the rounds so far, as this server sees it."""

    client: str
    accepted: int = 0
    rejected: int = 0
    missing: int = 0
    absent_since: float | None = None
    """When it left, or this server started; None while it is connected."""


class AbsentClient(_Value):
    """An enrolled client without a session."""

    client: str
    since: float
    """When it left; where it has not been here, when this server started."""


class Epsilon(_Value):
    """Epsilon that the task has spent in one view, or of a whole client that is drawn or not."""

    view: View
    unit: Unit = Unit.RECORD
    """Unit that the epsilon is of: one record, or one whole client."""
    group_size: int = 1
    """How many records of one person it is of together, where the unit is a record."""
    is_level: bool = False
    """Whether it is about a client that is drawn or not. Else it is about one in the rounds that it was drawn for."""
    spent: float
    """Epsilon of the rounds so far. Holds if no draw is discarded."""
    if_discarded: float | None = None
    """Epsilon of the most rounds that there can be. Holds if draws are discarded as well. None: not told."""
    budget: float | None = None
    rounds_left: int | None = None
    """How many more rounds the budget allows for certain; None without one. A view counts draws of the client with most
    rounds, a level rounds."""
    rounds_counted: int | None = None
    """How many rounds the budget has counted so far, likewise."""
    delta: float
    rests_on: str = ""
    """Condition that is shown beside it; empty where none is needed, or none is told."""
    no_bound: str = ""
    """Why a figure is infinite, where the task's mode is why; empty else."""

    @property
    def name(self) -> str:
        """Return the view, or the level."""
        return Level.CLIENT if self.is_level else self.view

    @property
    def left(self) -> float | None:
        """Return what is left of the budget; None without one."""
        return None if self.budget is None else max(0.0, self.budget - self.spent)


def epsilons_of(
    task: Task, spent: Mapping[View, float], charged: Charged = NOTHING_CHARGED, cost: TaskCost | None = None
) -> tuple[Epsilon, ...]:
    """Return what the task has spent, with its budgets; a whole client's first where a budget limits it.

    spent: as the last committed round states it. Where `charged` costs more, rounds were lost after their charge.
    cost: that of the ledger, which counts earlier tasks too; None: of this task alone.
    """
    cost = cost or task_cost(task)
    privacy = task_privacy(task).beside(cost.earlier)
    counted = (charged.most_of_a_client, charged.most_evaluations)
    spent = {v: max(spent[v], cost.of_view(v, *counted)) for v in View}
    found = [
        Epsilon(
            view=v,
            unit=privacy.unit,
            group_size=privacy.group_size,
            spent=spent[v],
            if_discarded=max(spent[v], cost.view_if_discarded(v)),
            budget=cost.budgets.get(v),
            rounds_left=cost.rounds_left(v, charged) if v in cost.budgets else None,
            rounds_counted=cost.rounds_counted(v, charged) if v in cost.budgets else None,
            delta=task.delta,
            rests_on=privacy.said[v],
        )
        for v in View
    ]
    if (of_client := client_epsilon(cost, charged.n_drawn, charged.n_evaluations)) is not None:
        whole = Epsilon(
            view=View.CLIENTS_ONLY,
            unit=Unit.CLIENT,
            is_level=True,
            spent=of_client,
            if_discarded=max(of_client, cost.level_if_discarded(Level.CLIENT)),
            budget=task.epsilon_budget_client,
            rounds_left=cost.rounds_left(Level.CLIENT, charged),
            rounds_counted=cost.rounds_counted(Level.CLIENT, charged),
            delta=task.delta,
            rests_on=privacy.said[View.CLIENTS_ONLY],
        )
        found.insert(0, whole)
    return tuple(_explained(one, task) for one in found)


def _explained(epsilon: Epsilon, task: Task) -> Epsilon:
    """Say why a figure is infinite where mode `proved` leaves none at the task's delta."""
    is_of_mode = task.is_proved and task_privacy(task).events[epsilon.view] is not None
    if not is_of_mode or math.inf not in (epsilon.spent, epsilon.if_discarded):
        return epsilon
    return epsilon.model_copy(update={"no_bound": why_no_bound(task.delta, task.delta_slack)})


def client_epsilon(cost: TaskCost, n_drawn: int, evaluations: int = 0) -> float | None:
    """Return what a budget for a whole client is compared with after so many draws; None for a task without one.

    n_drawn: of the training's rounds.
    """
    if Level.CLIENT not in cost.budgets:
        return None
    return cost.level_after_draws(Level.CLIENT, n_drawn, evaluations=evaluations)


def rounds_left_in_budget(epsilons: Iterable[Epsilon]) -> int | None:
    """Return the smallest number of rounds that any of the budgets allows; None without one."""
    return min((one.rounds_left for one in epsilons if one.rounds_left is not None), default=None)


def seconds_left(task: Task, rounds: Sequence[RoundSummary], n_done: int, epsilons: Iterable[Epsilon]) -> float | None:
    """Return how long the rounds that are still to come take: those planned, or as many as the budgets allow.

    A client is drawn in a share q of its turns: a budget of k draws is one of about b k / q rounds.
    """
    times = [round.committed_at for round in rounds if round.committed_at is not None]
    share = task.client_rate / task.min_separation
    allowed = [one.rounds_left / (1.0 if one.is_level else share) for one in epsilons if one.rounds_left is not None]
    left = min([task.rounds - n_done, *allowed])
    if len(times) < 2 or left <= 0:
        return None
    return (times[-1] - times[0]) / (len(times) - 1) * left


class Queue(_Value):
    """Things that wait."""

    name: str
    depth: int


class Checkpoint(_Value):
    """A file of the state folder that the operations port gives out."""

    name: str
    n_bytes: int
    modified_at: float


class Status(_Value):
    """The snapshot."""

    role: str
    version: str
    task: str = ""
    """Its id; empty until both servers have agreed on one."""
    state: str
    since: float
    """When the state began."""
    started_at: float
    is_ready: bool
    is_draining: bool = False
    ended: str = ""
    """Why the task is over."""
    is_finished: bool = False
    """Whether it ended as it should."""
    rounds_planned: int = 0
    rounds_done: int = 0
    rounds_left_in_budget: int | None = None
    """How many more rounds the budgets allow for certain, the smallest over them; None without a budget."""
    seconds_left: float | None = None
    """How long the rounds that are left take, by those that this process committed; None before two, and at the end."""
    evaluation: str = "none"
    """Measuring of models (`task.evaluation`)."""
    evaluations_done: int = 0
    """Evaluations by clients that are over."""
    last_commit_at: float | None = None
    """When the latest model was committed, also by an earlier process; None before the first."""
    rounds_lost: int = 0
    """Drawn, and not committed."""
    rounds_lost_at_most: int = 0
    """Number of lost rounds that ends the task."""
    verdicts_unknown: dict[str, int] = Field(default_factory=dict)
    """Uploads of each client whose check began in a lost round, and whose verdict this server never saw. At most
    MAX_NAMED clients, those with most."""
    n_enrolled: int = 0
    n_connected: int = 0
    """Clients; of a dealer, aggregators."""
    absent: tuple[AbsentClient, ...] = ()
    """The first few enrolled clients that are not connected, longest absence first; `n_enrolled` less `n_connected`
    says how many they are."""
    clients: tuple[ClientStanding, ...] = ()
    """Enrolled clients, at most MAX_NAMED: those that were rejected or missing most often first."""
    audit: Audit | None = None
    """An audit of this task; None where there is none."""
    live: LiveRound | None = None
    hides_draws: bool = False
    """Whether a figure of the task, or of one that it counts, rests on draws that clients do not learn. Counts, times
    and epsilons of rounds tell them."""
    checks_norms: bool = True
    """Whether an update beyond the bound stays out of the sum."""
    uploads: dict[str, int] = Field(default_factory=dict)
    """Uploads of all committed rounds, by verdict."""
    refused: dict[str, int] = Field(default_factory=dict)
    """Uploads that this process refused before the check, by reason."""
    bytes: dict[str, int] = Field(default_factory=dict)
    """Bytes of all committed rounds, by link."""
    epsilons: tuple[Epsilon, ...] = ()
    measuring_fault: str = ""
    """Why the latest model that was to be measured has no figure; empty if it has, or none was to be measured."""
    queues: tuple[Queue, ...] = ()
    rounds: tuple[RoundSummary, ...] = ()
    """The latest, oldest first."""
    checkpoints: tuple[Checkpoint, ...] = ()
    n_batches_dealt: Annotated[int, Field(ge=0)] = 0
    """Parts of batches that left a dealer."""
