"""Hold what a report knows of a run, whichever command made its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from precad.clients.config import ClientConfig
from precad.deploy.reporting.answers import Estimated, QueryAnswer
from precad.dp.accountants.pld import Unit, unit_words
from precad.protos.task.task import Task

Link = Literal["clients_to_a", "clients_to_b", "a_to_b", "b_to_a", "dealer_to_a", "dealer_to_b"]
"""Links whose bytes a line of metrics.jsonl has (`precad.deploy.localhost.observing`)."""


def is_import_path(name: str) -> bool:
    """Tell whether a configuration's name is that of a user's own class, as `package.module:Class`."""
    return ":" in name


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One round of one training. Counts are of clients."""

    n_done: int
    """Rounds done with this one: 1 after round 0."""
    n_accepted: int
    n_rejected: int
    n_missing: int
    seconds: float
    accuracy: float | None
    """On the test records, in [0, 1]; None where it was not measured."""
    attack_success: float | None
    """The attackers' accuracy on what they aim at; None where it was not measured."""
    public_accuracy: Mapping[str, float] = field(default_factory=dict)
    """On public records of an aggregator's operator, by the server's letter, where it was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicQuality:
    """Figures of a model on public records of an aggregator's operator."""

    n_done: int
    """Rounds done when the model was made."""
    figures: Mapping[str, float]
    """Accuracy among them, where labels are classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Figures of a model on records that clients hold out, with error bars."""

    n_done: int
    """Rounds done when the model was made."""
    figures: Mapping[str, Estimated]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """One training: a deployment's only one, or one seed of a simulation."""

    seed: int | None
    rounds: tuple[Round, ...]
    ended: str
    accuracy: float | None
    """Accuracy of the final model; None where labels are no classes."""
    attack_success: float | None
    rejected_clients: tuple[str, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Other figures of the final model that were asked for, by name."""
    public_quality: Mapping[str, PublicQuality] = field(default_factory=dict)
    """Figures that aggregators' operators measured last, by the server's letter."""
    evaluations: tuple[Evaluation, ...] = ()
    """Those by the clients, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """Hold what is proved about one unit, of the run's costliest training."""

    unit: Unit
    against: str
    epsilon: float | None
    """An upper bound; infinite where nothing follows; None where nothing is guaranteed at all. Where there are two
    figures, the one that holds if draws are discarded as well."""
    delta: float
    note: str = ""
    """On what it rests, or why there is nothing."""
    realised: float | None = None
    """Epsilon of the rounds that there were, if no draw was discarded; None where there is no such figure."""
    most_rounds: int | None = None
    """How many rounds of a client `epsilon` counts; None where it counts those that there were."""
    by_round: tuple[tuple[int, float], ...] = ()
    """(rounds done, epsilon after them), where that is known, if no draw was discarded."""
    group_size: int = 1
    """How many records of one person it is about together, where `unit` is a record."""

    @property
    def whose(self) -> str:
        """Return one record, some records of one person, or one client."""
        return unit_words(self.unit, self.group_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Hold what a deployment took. Bytes as the servers counted them."""

    bytes_by_link: Mapping[Link, float]
    """Mean of a round."""
    seconds_by_phase: Mapping[str, float]
    """Mean of a round, of server A's clock."""
    bytes_from_clients: int
    bytes_between_servers: int
    seconds_total: float
    n_processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One folder."""

    folder: Path
    label: str
    """How the page calls it: text of whoever named the folder."""
    algorithm: str
    task: Task
    client: ClientConfig
    is_simulation: bool
    """Whether its randomness came from seeds."""
    has_two_servers: bool
    """Whether two servers hold shares of its updates, as in PRECAD."""
    is_validated: bool
    """Whether they check the norm of every upload."""
    names_other_code: bool
    """Whether the configuration names a class or a model by import path. A report imports none: the folder may be
    anybody's."""
    reacting_attack: str | None = None
    """The kind of its attackers, where they act upon what others send. Beside these nothing is certified."""
    trainings: tuple[Trained, ...]
    statements: tuple[Statement, ...]
    cost: Cost | None
    """None for a simulation, and for a run that was interrupted before its first round."""
    answer: QueryAnswer | None = None
    """None unless the run is a query, which trains nothing."""
    says_conditions: bool = False
    """Whether no figure is printed without what it rests on."""
    counts_earlier_tasks: bool = False
    """Whether servers of a simulation count finished tasks in their budgets, whose ledgers a report does not read."""
    configuration: Mapping[str, str]
    """Field to value, for people; no paths, no secrets."""
    notes: tuple[str, ...] = ()
    """Facts that could not be stated, and why."""


def names_own(run: Run) -> str | None:
    """Return what of a user's own a run's configuration names, which a report leaves alone; None: nothing."""
    if run.names_other_code:
        return "code of its own, which reports and exports do not run"
    return None if run.client.records is None else "records of its own, which reports and exports do not read"


class RunReader(Protocol):
    """Read one kind of run folder. The laboratory's readers join by the entry points `precad.run_readers`."""

    def read(self, path: Path) -> Run:
        """Return the run of a folder. Raises ConfigError where files are missing, damaged or contradict each other."""

    def completed(self, run: Run) -> Run:
        """Return the run with what has to be computed from its files. Raises ConfigError."""
