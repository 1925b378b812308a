"""`precad certify`: what predictions withstand, from confidences in a file or from the runs of one configuration.

Everything here is a function from parameters to plain data (`certificates_shown` prints it). A number of attackers is a
guarantee only if the confidences are the expected ones, or means of independent trainings with their radius. From too
few runs nothing follows. The guarantee then has a computation beside it that takes the confidences as exact. It stands
under `estimate` and is labelled an approximation.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from precad.deploy.errors import ConfigError, refusing
from precad.deploy.shown.figures import plain
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import Event, Label, SampledGaussian, TwoStageSampledGaussian
from precad.dp.accountants.task_cost import Level, TaskCost
from precad.dp.certificates.attack_inefficacy import (
    attackers_needed,
    inefficacy_bounds_over_curve,
    xie_attack_inefficacy_bounds,
    xie_corollary_k,
)
from precad.dp.certificates.monte_carlo import certified_accuracy, hoeffding_class_bounds, hoeffding_radius, require_psi
from precad.dp.certificates.planner import least_multiplier_for_attackers
from precad.dp.certificates.prediction import (
    LABELS,
    Method,
    Threat,
    Training,
    attacked_bounds,
    certify_all,
    published_epsilon,
    rests_on,
)
from precad.dp.checks import require_count, require_delta

ATTACKERS_SHOWN: Final = 20
"""Most attackers of the attack cost's curves: k = 0 .. 20."""
FRONTIER: Final = (1, 2, 4, 8, 16, 32)
"""Attackers whose least noise a plan shows."""

_MOST_ATTACKERS: Final = 10**9
"""Where a search may stop at most: no federation has more clients."""
_SUM_TOLERANCE: Final = 1e-6
_NOTHING: Final = 1e-9
"""Nearer to 0 or 1 than this, a bound is rounded outwards."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """Describe what is to be computed of the evidence."""

    delta: float
    """The delta of the published method, and of the planner's epsilons."""
    threat: Threat = Threat.ADD
    methods: tuple[Method, ...] = tuple(Method)
    at_most: int = 128
    psi: float = 0.01
    is_planning: bool = False
    with_attack_cost: bool = False
    slack: float = 0.0
    """Part that the training's protocol takes, as eta, from the delta of the planner's epsilons."""
    hides_draws: bool = True
    """Whether the planner's epsilons hold only if nobody learns who was drawn; else draws count as seen."""
    earlier: tuple[tuple[EarlierTask, ...], ...] = ()
    """By server, finished tasks of the same clients that the planner's epsilons count as well."""

    @refusing(ValueError)
    def __post_init__(self) -> None:
        """Refuse a delta, psi or at_most out of its range, also where nothing that is asked for reads them: the report
        says them. Raises ConfigError."""
        require_count("at_most", self.at_most, at_least=1, at_most=_MOST_ATTACKERS)
        require_delta(self.delta)
        require_psi(self.psi)


def methods_of(name: str) -> tuple[Method, ...]:
    """Return one method, or `all` of them."""
    return tuple(Method) if name == "all" else (Method(name),)


def request_of(threat: str, method: str, **rest: Any) -> Request:
    """Return the request with a threat and methods by name. Raises ConfigError."""
    return Request(threat=Threat(threat), methods=methods_of(method), **rest)


@refusing(ValueError)
def certify_samples(
    confidences: list[list[float]],
    labels: list[int],
    training: Training,
    request: Request,
    *,
    trainings: int | None = None,
) -> dict[str, Any]:
    """Return attackers tolerated for each sample's prediction, by method, and certified accuracy for k = 0 .. their
    largest.

    trainings  that the confidences are means of. Numbers of attackers then hold together with probability 1 - psi, and
               the bounds of the attack cost with theirs. None takes the confidences as exact.
    A sample counts at k = 0 if its prediction is right, and known to be the one of the expectation.
    Raises: ConfigError where an argument is not what it must be.
    """
    leads = [_lead(row, trainings, request.psi, len(confidences)) for row in confidences]
    correct = [winner == label for (winner, _, _), label in zip(leads, labels, strict=True)]
    # what is predicted is the argmax of the expectation; from few trainings not even that is known
    is_known = [trainings is None or low > high for _, low, high in leads]
    counted = [right and known for right, known in zip(correct, is_known, strict=True)]
    report: dict[str, Any] = {
        "threat": request.threat.value,
        "delta": request.delta,
        "confidence": None if trainings is None else 1 - request.psi,
        "at_most": request.at_most,
        "accuracy": sum(correct) / len(correct),
        "correct": correct,
        "labels": {},
        "tolerated": {},
        "certified_accuracy": {},
    }
    if request.is_planning:
        report["plan"] = plan_for_samples(correct, [(low, high) for _, low, high in leads], training, request)
    for method in request.methods:
        made = certify_all(
            [(low, high) for _, low, high in leads],
            training,
            method=method,
            threat=request.threat,
            delta=request.delta,
            at_most=request.at_most,
        )
        tolerated = [certificate.tolerated for certificate in made]
        report["labels"][method.value] = made[0].label.value
        report["tolerated"][method.value] = tolerated
        report["certified_accuracy"][method.value] = [
            certified_accuracy(tolerated, counted, k, strict=False) for k in range(max(tolerated) + 2)
        ]
    if request.with_attack_cost:
        report["attack_cost"] = attack_cost(confidences, labels, training, request, trainings)
    return report


def certify_runs(
    confidences: list[list[float]],
    labels: list[int],
    training: Training,
    request: Request,
    *,
    n_runs: int,
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """Return the guarantee that the runs prove; `estimate`, what would hold if their mean were the expectation; `run`.

    Raises: ConfigError where an argument is not what it must be.
    """
    report = certify_samples(confidences, labels, training, replace(request, is_planning=False), trainings=n_runs)
    estimate = certify_samples(confidences, labels, training, request)
    n_classes = max(map(len, confidences))
    report["run"] = provenance | {
        "rests_on": rests_on(training, request.threat),
        # a confidence and its mean are in [0, 1]: no radius says less than 1 does
        "radius": min(1.0, hoeffding_radius(n_runs, request.psi, n_events=2 * n_classes * len(confidences))),
        "runs_needed": runs_needed(n_classes, len(confidences), request.psi),
    }
    report["estimate"] = {
        "label": Label.APPROXIMATION.value,
        "of": f"expected confidence estimated from {n_runs} model{'s' if n_runs > 1 else ''}",
        "tolerated": estimate["tolerated"],
        "certified_accuracy": estimate["certified_accuracy"],
    } | ({"attack_cost": estimate["attack_cost"]} if request.with_attack_cost else {})
    if request.is_planning:  # the plan of a training is about the lead that it seems to have
        report["plan"] = estimate["plan"] | {"label": Label.APPROXIMATION.value}
    return report


def runs_needed(n_classes: int, n_samples: int, psi: float) -> int:
    """Return the least number of runs from which anything can follow: a radius below one half, were a model always
    certain."""
    return math.floor(2 * math.log(2 * n_classes * n_samples / psi)) + 1


def attack_cost(
    confidences: list[list[float]], labels: list[int], training: Training, request: Request, trainings: int | None
) -> dict[str, Any]:
    """Return `cost_bounds` of J, the expected confidence in the true class, averaged over the samples."""
    J = sum(row[label] for row, label in zip(confidences, labels, strict=True)) / len(labels)
    return cost_bounds(min(J, 1.0), training, request, trainings)


def cost_bounds(J: float, training: Training, request: Request, trainings: int | None) -> dict[str, Any]:
    """Bound what k = 0 .. 20 attackers can do to J, the expectation of a quantity that is in [0, 1] for every model.

    `confidence` is of these bounds alone. They and those of single predictions hold together with 1 - 2 psi.

    With `trainings`, J itself is known to Hoeffding's radius, by two bounds that hold together with probability 1 -
    psi; None takes J as exact. For each method, `bounds` has (lowest, highest) J after k attackers. `halved_by` has the
    fewest attackers for whom half of J is not ruled out, None if more than are shown. `published_corollary` is that
    number by Xie et al.'s formula.
    """
    radius = 0.0 if trainings is None else hoeffding_radius(trainings, request.psi, n_events=2)
    low, high = max(0.0, J - radius), min(1.0, J + radius)
    epsilon = published_epsilon(training, request.delta)
    ks = range(min(request.at_most, ATTACKERS_SHOWN) + 1)
    bounds: dict[str, list[list[float]]] = {}
    for method in request.methods:
        interval = _interval_of(method, training, request, epsilon)
        found: list[list[float]] = []
        bounds[method.value] = found
        for k in ks:  # what says nothing of k attackers says nothing of more
            is_vacuous = bool(found) and found[-1] == [0, 1]
            lowest, highest = (0.0, 1.0) if is_vacuous else (interval(low, k)[0], interval(high, k)[1])
            found.append([lowest if lowest > _NOTHING else 0.0, highest if highest < 1 - _NOTHING else 1.0])
    group = 1 if request.threat is Threat.ADD else 2
    return {
        "J": J,
        "confidence": None if trainings is None else 1 - request.psi,
        "known_to_be_in": [low, high],
        "labels": {method.value: LABELS[method].value for method in request.methods},
        "bounds": bounds,
        "halved_by": {
            name: next((k for k, (lowest, _) in enumerate(intervals) if k > 0 and lowest <= J / 2), None)
            for name, intervals in bounds.items()
        },
        "published_corollary": None
        if epsilon == 0 or not math.isfinite(epsilon)
        else attackers_needed(xie_corollary_k(J, 2.0, epsilon, request.delta, 1.0, "nonneg") / group),
    }


def _interval_of(
    method: Method, training: Training, request: Request, epsilon: float
) -> Callable[[float, int], tuple[float, float]]:
    """Return (J, k) -> (lowest, highest) J after k attackers, a quantity in [0, 1]."""
    group = 1 if request.threat is Threat.ADD else 2
    if method is Method.EXACT:
        return lambda J, k: attacked_bounds(J, k, training, request.threat)
    if method is Method.PLD:
        curve = training.one_unit_curve()
        return lambda J, k: inefficacy_bounds_over_curve(J, group * k, curve, 1.0)
    if not math.isfinite(epsilon):
        return lambda J, k: (J, J) if k == 0 else (0.0, 1.0)
    return lambda J, k: xie_attack_inefficacy_bounds(J, group * k, epsilon, request.delta, 1.0, "nonneg")


def plan_for_samples(
    correct: list[bool], leads: list[tuple[float, float]], training: Training, request: Request
) -> dict[str, Any]:
    """Plan for the median lead of the correct predictions: least sigma by number of attackers, and a unit's epsilon
    there.

    The confidences are taken to stay as they are, which more noise will not leave them: a plan, to be certified anew.
    """
    FA, FB = median_lead(correct, leads)
    q, rounds = training.event.sampling_rate, training.rounds
    rows = []
    for k in FRONTIER:
        sigma = least_multiplier_for_attackers(k, FA, FB, q, rounds, request.threat)
        epsilon = None
        if sigma is not None:
            event = SampledGaussian(q, sigma) if request.hides_draws else TwoStageSampledGaussian(q, 1.0, sigma)
            epsilon = plain(_epsilon_of_one_unit(event, rounds, request))
        rows.append({"attackers": k, "least_sigma": sigma, "epsilon_of_one_unit": epsilon})
    plan = {"lead": [FA, FB], "label": Label.BOUND.value, "hides_draws": request.hides_draws}
    if most := max(map(len, request.earlier), default=0):
        plan["earlier_tasks"] = most
    return plan | {"frontier": rows}


def _epsilon_of_one_unit(event: Event, rounds: int, request: Request) -> float:
    """Return epsilon of whoever may be drawn in so many rounds, beside earlier tasks, as a server's ledger has it."""
    return max(
        TaskCost(
            events={},
            delta=request.delta,
            every_round={Level.CLIENT: event},
            most_rounds=rounds,
            slack=request.slack,
            earlier=earlier,
        ).level_if_discarded(Level.CLIENT)
        for earlier in request.earlier or ((),)
    )


def median_lead(correct: list[bool], leads: list[tuple[float, float]]) -> tuple[float, float]:
    """Return (F_A, F_B) of the correct prediction in the middle, by F_A. Raises ValueError if none is correct."""
    right = sorted((lead for lead, ok in zip(leads, correct, strict=True) if ok), key=lambda lead: lead[0])
    if not right:
        raise ValueError("confidences: expected a correct prediction to plan for, found none")
    return right[len(right) // 2]


@refusing(ValueError)
def lead_of_confidences(confidences: list[list[float]], labels: list[int]) -> tuple[float, float]:
    """Return the median lead of these confidences, taken as exact. Raises ConfigError if no prediction is correct."""
    leads = [_lead(row, None, 1.0, len(confidences)) for row in confidences]
    return median_lead(
        [winner == label for (winner, _, _), label in zip(leads, labels, strict=True)],
        [(low, high) for _, low, high in leads],
    )


def _lead(row: list[float], trainings: int | None, psi: float, n_tests: int) -> tuple[int, float, float]:
    """Return (predicted class, F_A at least, F_B at most)."""
    if trainings is not None:
        return hoeffding_class_bounds(row, trainings, psi, n_tests=n_tests)
    winner = max(range(len(row)), key=lambda c: row[c])
    return winner, row[winner], max(value for c, value in enumerate(row) if c != winner)


def read_confidences(path: Path) -> tuple[list[list[float]], list[int]]:
    """Read `{"confidences": [[...], ...], "labels": [...]}`. Raises ConfigError naming what was expected."""
    try:
        found = json.loads(path.read_text(encoding="utf-8-sig"))
        confidences, labels = found["confidences"], found["labels"]
    except OSError as error:
        raise ConfigError(f"--confidences: expected a readable file, found {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"--confidences: expected an object with confidences and labels, found {path}") from None
    require_confidences(confidences, labels, "--confidences")
    return confidences, labels


def require_confidences(confidences: Any, labels: Any, where: str) -> None:
    """Require rows of at least two numbers in [0, 1] that sum to at most 1, and a class of each. Raises ConfigError."""
    if not isinstance(confidences, list) or not isinstance(labels, list) or not 0 < len(confidences) == len(labels):
        raise ConfigError(f"{where}: expected as many labels as confidences, at least one")
    for i, row in enumerate(confidences):
        if not isinstance(row, list) or len(row) < 2 or not all(_is_number(value) and 0 <= value <= 1 for value in row):
            raise ConfigError(f"{where}: expected at least two numbers in [0, 1] in row {i}, found {row}")
        if sum(row) > 1 + _SUM_TOLERANCE:
            raise ConfigError(f"{where}: expected a sum of at most 1 in row {i}, found {sum(row)}")
        if not isinstance(labels[i], int) or isinstance(labels[i], bool) or not 0 <= labels[i] < len(row):
            raise ConfigError(f"{where}: expected label {i} in 0 .. {len(row) - 1}, found {labels[i]}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
