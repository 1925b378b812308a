"""A whole training in one process: rounds of one algorithm on virtual clients, from a seed.

    draw clients -> the algorithm's round -> now and then, evaluate

The same seed gives the same model, bit for bit, on the same machine and number of threads, also when it is resumed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from precad.clients.attacks import Attack
from precad.clients.attacks.named import ParametersError, made, wanted_of
from precad.clients.errors import (
    ArgumentError,
    DivergedError,
    ExtensionError,
    NonFiniteGradientError,
    NonFiniteModelError,
    NonFiniteUpdateError,
    UnknownNameError,
)
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.first_gradients import require_some_gradient
from precad.clients.gradients.model_stack import ModelStack, own_models
from precad.clients.gradients.record_range import require_range
from precad.clients.models.extension import imported
from precad.clients.models.learning import Learning
from precad.clients.models.metrics import has_accuracy
from precad.clients.process import engine_for
from precad.clients.records import Records, Split, joined
from precad.clients.training import evaluation
from precad.deploy.errors import refusing
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.lab.simulation.algorithms import ALGORITHMS, Algorithm
from precad.lab.simulation.algorithms.deployment import Deployed
from precad.lab.simulation.attackers import ATTACKERS
from precad.lab.simulation.config import AttackSettings, Parameters, SimulationSettings
from precad.lab.simulation.evaluations import SimulatedEvaluations
from precad.lab.simulation.federation import Federation
from precad.lab.simulation.guarantee import Guarantee
from precad.lab.simulation.randomness import Sources, drawn
from precad.lab.simulation.rules import RULES, AggregationRule
from precad.protos.task.task import Task

T = TypeVar("T")


@dataclass(slots=True)
class Progress:
    """Where a training stands: all that its next round depends on."""

    parameters: NDArray[np.float32]
    rounds: int = 0
    participation: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class RoundMetrics:
    """Hold what a round came to."""

    round: int
    n_chosen: int
    n_accepted: int
    rejected: tuple[str, ...]
    seconds: float
    """Seconds of the round itself, without evaluation."""
    accuracy: float | None
    """On the test records; None where this round was not evaluated."""
    attack_success: float | None
    """The attackers' accuracy on what they aim at, where they aim at anything."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Metrics that were asked for, by name."""
    is_evaluated: bool = False
    by_clients: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Figures of the clients' evaluation after the round, with their error bars; none where none was due."""

    def to_json(self) -> dict[str, Any]:
        """Return one line of metrics.jsonl; what was not measured is left out."""
        line: dict[str, Any] = {
            "round": self.round,
            "chosen": self.n_chosen,
            "accepted": self.n_accepted,
            "rejected": list(self.rejected),
            "seconds": round(self.seconds, 6),
        }
        usual = {"accuracy": self.accuracy, "attack_success": self.attack_success}
        line |= {name: value for name, value in usual.items() if value is not None}
        line |= {"evaluation": dict(self.by_clients)} if self.by_clients else {}
        return line | ({"metrics": dict(self.measured)} if self.measured else {})


class Simulation:
    """One training. `records` of every client of the task, before any attack on them."""

    def __init__(
        self,
        *,
        task: Task,
        settings: SimulationSettings,
        records: Mapping[str, Records],
        test: Records,
        randomness: Sources,
        attacks: Mapping[str, Attack] | None = None,
        held_out: Mapping[str, Records] | None = None,
        device: str = "auto",
        memory_mb: int | None = None,
        adapter_rank: int | None = None,
        engine: RecordEngine | None = None,
        initial: NDArray[np.float32] | None = None,
        learning: Learning | None = None,
        earlier: Sequence[Sequence[EarlierTask]] = (),
    ) -> None:
        """`attacks`: malicious clients beside those of the settings. `held_out`: records of each client that it
        evaluates models on, where the task has such evaluations. `engine`: one for the task's model that exists
        already. `initial`: in place of the task's initial model. `learning`: in place of the model and loss that the
        task names, with what else is measured. `earlier`: by server, finished tasks of the same clients that its ledger
        would count as well.

        Raises: ArgumentError (also UnknownNameError, ExtensionError), RecordMixingLayerError.
        """
        self.task, self.settings, self.test = task, settings, test
        self.attacks = {**(attacks or {}), **attacks_of(settings.attack, sorted(task.clients))}
        require_simulated(self.attacks.values())
        self.learning = learning = Learning.of_task(task) if learning is None else learning
        if engine is None:
            some = next(iter(records.values()))
            engine = engine_for(learning, some, device=device, memory_mb=memory_mb, adapter_rank=adapter_rank)
        trained = trained_on(records, self.attacks)
        of_clients = {f"records of {c}": own for c, own in trained.items()}
        require_range(engine.model_copy(), {"test records": test, **of_clients}, learning.loss)
        require_some_gradient(engine, of_clients)
        self.federation = Federation(
            task=task,
            settings=settings,
            records=trained,
            attacks=self.attacks,
            engine=engine,
            own_models=cache(partial(own_models, engine, one_by_one=settings.batching == "client")),
            randomness=randomness,
            rule=rule_of(settings, task),
            earlier=earlier,
        )
        self.algorithm = algorithm_of(settings.algorithm)(self.federation)
        self._ids = sorted(task.clients)
        self._evaluations = self._evaluations_on(held_out or {}, device)
        self._success = wanted_of(self.attacks, test)
        self.progress = Progress(learning.initial_vector(task) if initial is None else initial.copy())
        self.diverged: DivergedError | None = None
        """Why `run` ended before its time, if it did."""

    def _evaluations_on(self, records: Mapping[str, Records], device: str) -> SimulatedEvaluations | None:
        """Return what evaluates models, where the task has evaluations by clients. Raises ArgumentError."""
        if self.task.evaluation_round is None:
            return None
        if not isinstance(self.algorithm, Deployed):
            raise ArgumentError(
                f"task.evaluation: expected 'none' with simulation.algorithm {self.algorithm.name!r}, which has no two "
                "servers, found 'clients'"
            )
        if missing := [client for client in self._ids if client not in records]:
            raise ArgumentError(
                "client.holdout: expected records that each client holds out with task.evaluation = 'clients', found "
                f"none of {missing[0]!r}"
            )
        return SimulatedEvaluations(
            task=self.task,
            settings=self.settings,
            records=records,
            randomness=self.federation.randomness,
            learning=self.learning,
            device=device,
        )

    def run(self) -> Iterator[RoundMetrics]:
        """Yield the rounds that are left, one by one; `progress` is that after the last one given. Ends with the task's
        rounds, before the round that a budget does not allow, or before the one in which the training diverges."""
        while self.progress.rounds < self.task.rounds and self.may_start():
            try:
                done = self.run_round()
            except DivergedError as error:
                self.diverged = error
                return
            yield done

    def may_start(self) -> bool:
        """Return whether the algorithm's budget allows another round."""
        return self.algorithm.may_start(self.progress.rounds, self.progress.participation)

    def run_round(self) -> RoundMetrics:
        """Run the next round. Raises DivergedError; then `progress` is as it was, the last model that is one."""
        t, now = self.progress.rounds, self.progress
        start = time.perf_counter()
        past = self.algorithm.past
        chosen = drawn(self.federation.randomness, self.task, t)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what they lead to is looked for below
                outcome = self.algorithm.run_round(t, now.parameters, chosen)
        except (NonFiniteGradientError, NonFiniteModelError, NonFiniteUpdateError) as error:
            raise DivergedError(t, str(error)) from None
        if not np.isfinite(outcome.parameters).all():
            self.algorithm.past = past
            raise DivergedError(t, "the model's parameters are not finite")
        seconds = time.perf_counter() - start
        now.participation.update(chosen)
        now.parameters, now.rounds = outcome.parameters, t + 1
        is_evaluated = now.rounds % self.settings.evaluate_every == 0 or now.rounds == self.task.rounds
        return RoundMetrics(
            round=t,
            n_chosen=len(chosen),
            n_accepted=len(outcome.accepted),
            rejected=outcome.rejected,
            seconds=seconds,
            accuracy=self.accuracy() if is_evaluated else None,
            attack_success=self.attack_success() if is_evaluated else None,
            measured=self.measured() if is_evaluated else {},
            is_evaluated=is_evaluated,
            by_clients=self._by_clients(),
        )

    def _by_clients(self) -> Mapping[str, Mapping[str, float]]:
        """Evaluate the model as the clients of a deployment do, where that is due and no budget forbids it."""
        now, evaluations = self.progress, self._evaluations
        if evaluations is None or not evaluations.is_due(now.rounds):
            return {}
        if not self.algorithm.may_evaluate(now.rounds, now.participation):
            return {}
        return evaluations.evaluate(now.rounds, now.parameters)

    def accuracy(self) -> float | None:
        """Return the accuracy of the model as it is, on the test records; None where labels are no classes."""
        if not has_accuracy(self.learning.loss, self.test.labels):
            return None
        return evaluation.accuracy(self._model, self.learning.build(0), self.test, device=self.federation.engine.device)

    def measured(self) -> dict[str, float]:
        """Return the metrics that were asked for, on the test records."""
        device, wanted = self.federation.engine.device, self.learning.metrics
        found = evaluation.measured(self._model, self.learning.build(0), self.test, wanted, device=device)
        return evaluation.finite(found)

    def is_finite(self) -> bool:
        """Tell whether the model as it is, and what it says of some test records, is within the finite numbers."""
        return evaluation.is_finite(self._model, self.learning.build(0), self.test, self.learning.loss)

    def attack_success(self) -> float | None:
        """See RoundMetrics."""
        device = self.federation.engine.device
        return evaluation.attack_success(self._model, self.learning.build(0), self._success, device=device)

    @property
    def _model(self) -> NDArray[np.float32]:
        """Return the part of the progress that is the model, without a bound that is learnt."""
        return self.progress.parameters[: self.task.n_parameters]

    def guarantees(self) -> list[Guarantee]:
        """Return what is guaranteed after the rounds so far.

        Guarantees are in real arithmetic where one client's, or one record's, part in the calculation can change how
        another's is rounded. That is so in a stack of models, and on devices that do not repeat.
        """
        found = self.algorithm.guarantees(self.progress.rounds, self.progress.participation)
        is_stacked = self.algorithm.trains_locally and isinstance(self.federation.own_models(), ModelStack)
        if self.federation.engine.passes.is_bit_exact and not is_stacked:
            return found
        return [replace(guarantee, in_real_arithmetic=True) for guarantee in found]


def trained_on(records: Mapping[str, Records], attacks: Mapping[str, Attack]) -> dict[str, Records]:
    """Return what every client trains on. Records that an attack hoards go from the others to each of its clients, and
    malicious clients make of theirs what they like. Declared numbers of records stay as they are."""
    hoards = {
        c: {client: attack.hoarded(own) for client, own in records.items()}
        for c, attack in sorted(attacks.items())
        if type(attack).hoarded is not Attack.hoarded  # 6000 attackers among 60 000 clients are asked for nothing
    }
    result = {}
    for client, own in records.items():
        if client in attacks:
            found = hoards.get(client, {})
            others = [records[c].take(np.flatnonzero(is_wanted)) for c, is_wanted in found.items() if c != client]
            result[client] = attacks[client].on_records(joined([own, *(taken for taken in others if len(taken))]))
        else:
            is_hoarded = np.any([np.zeros(len(own), dtype=np.bool_), *(h[client] for h in hoards.values())], axis=0)
            result[client] = own.take(np.flatnonzero(~is_hoarded)) if is_hoarded.any() else own
    return result


def records_of(split: Split, parts: Sequence[NDArray[np.int64]], clients: Sequence[str]) -> dict[str, Records]:
    """Return each client's own records, the parts dealt in the order of ids."""
    return {client: split.train.take(part) for client, part in zip(sorted(clients), parts, strict=True)}


def algorithm_of(name: str) -> Callable[[Federation], Algorithm]:
    """Return the class of that name, or import path. Raises UnknownNameError, ExtensionError."""
    found = _registered_or_imported("algorithm", name, ALGORITHMS)
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ExtensionError("algorithm", name, "it is no subclass of precad.lab.simulation.algorithms.Algorithm")
    return found


def rule_of(settings: SimulationSettings, task: Task) -> AggregationRule | None:
    """Return a rule of its own for one training of the task; None for the sum. Raises ArgumentError."""
    if settings.aggregation == "sum":
        if settings.aggregation_parameters:
            raise ArgumentError("simulation.aggregation_parameters: expected none for 'sum'")
        return None
    kind = _registered_or_imported("aggregation rule", settings.aggregation, RULES)
    rule = _made("simulation.aggregation_parameters", kind, settings.aggregation_parameters)
    if not isinstance(rule, AggregationRule):
        why = "it is no subclass of precad.lab.simulation.rules.AggregationRule"
        raise ExtensionError("aggregation rule", settings.aggregation, why)
    rule.require_training(task.client_rate, len(task.clients))
    return rule


def attacks_of(settings: AttackSettings | None, clients: Sequence[str]) -> dict[str, Attack]:
    """Return the malicious clients among `clients`, and what each does. Raises ArgumentError."""
    if settings is None:
        return {}
    if isinstance(settings.clients, int):
        if settings.clients > len(clients):
            raise ArgumentError(f"simulation.attack.clients: expected at most {len(clients)}, found {settings.clients}")
        malicious = clients[len(clients) - settings.clients :]
    else:
        malicious = settings.clients
        if unknown := [client for client in malicious if client not in clients]:
            raise ArgumentError(f"simulation.attack.clients: expected clients of the task, found {unknown[0]!r}")
        if len(set(malicious)) < len(malicious):
            raise ArgumentError(f"simulation.attack.clients: expected each client once, found {malicious}")
    try:
        each = made(settings.kind, settings.parameters, ATTACKERS)
    except ParametersError as error:
        raise ArgumentError(f"simulation.attack.{error}") from None
    return {client: each.of_attacker(i) for i, client in enumerate(malicious)}


def require_simulated(attacks: Iterable[Attack]) -> None:
    """Raises ArgumentError for an attack on uploads: there are none here."""
    for attack in attacks:
        if attack.is_deployed_only:
            raise ArgumentError(
                f"attack {attack.name!r} forges uploads, which a simulation does not have: expected a deployment "
                "(`precad run`, client.attacks)"
            )


def _registered_or_imported(what: str, name: str, known: Mapping[str, T]) -> T | object:
    if ":" in name:
        return imported(what, name)
    if name not in known:
        raise UnknownNameError(what, name, known=[*sorted(known), "package.module:Class"])
    return known[name]


def _made(field_name: str, kind: object, parameters: Parameters) -> object:
    assert callable(kind)  # a class of a registry, or what `imported` found callable
    with refusing((TypeError, ValueError), field_name, ArgumentError):
        made: object = kind(**parameters)
    return made
