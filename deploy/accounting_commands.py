"""`precad account` and `precad certify`: what a training costs, and what it withstands, for people and for programs.

Everything here is a function from parameters to plain data, and from that to tables. Every epsilon carries the label
of the accountant that made it; JSON has no infinity, so an infinite one is the string "inf".
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from deploy.errors import ConfigError
from dp.accountants import ACCOUNTANTS, side_by_side
from dp.accounting import (
    Event,
    Label,
    PldAccountant,
    PrivacyStatement,
    SampledGaussian,
    TwoStageSampledGaussian,
    View,
    round_event,
)
from dp.calibration import most_rounds, smallest_noise_multiplier
from dp.certified_prediction import Method, Threat, Training, certify
from dp.monte_carlo import certified_accuracy, hoeffding_class_bounds
from dp.planner import least_multiplier_for_attackers
from dp.precad_record import participation_quantile
from dp.renyi_accounting import OrderGridWarning

_QUANTILE_SHARE = 0.1  # of delta, spent on a client's taking part more often than the quantile
_POINTS = 48  # of a curve by round
_COLUMNS = {"bound": "pld", "approximation": "gdp_clt", "published": "precad"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingPlan:
    """A training as its privacy sees it. Symbols are those of PRECAD's Algorithms 1 and 2."""

    sigma: float
    """Each server's noise over the record clip."""
    q: float
    """Probability that a client is in a round."""
    p: float
    """Probability that a record is in a round of its client."""
    rounds: int
    delta: float
    participation: int | None = None
    """Rounds that the client took part in, once they are known; None plans with the expected number, q * rounds."""
    record_clip: float | None = None
    client_clip: float | None = None
    dim: int | None = None
    """With record_clip and frac_bits: what rounding to fixed point adds to the sensitivity is counted."""
    frac_bits: int = 16

    @property
    def expected_participation(self) -> int:
        """Rounds that a client takes part in: the realised number, or q * rounds, rounded up."""
        return math.ceil(self.q * self.rounds - 1e-9) if self.participation is None else self.participation

    def round_of(self, view: View, sigma: float | None = None) -> SampledGaussian:
        """One round of a client that takes part, as `view` sees it."""
        sigma = self.sigma if sigma is None else sigma
        if self.dim is None:
            return SampledGaussian(self.p, sigma if view is View.ONE_SERVER else math.sqrt(2) * sigma)
        if self.record_clip is None:
            raise ValueError("record_clip must be given with dim, got None")
        return round_event(
            view,
            record_sampling_rate=self.p,
            noise_multiplier=sigma,
            record_clip=self.record_clip,
            dim=self.dim,
            frac_bits=self.frac_bits,
        )

    def composed(self, view: View, sigma: float | None = None) -> tuple[Event, int]:
        """(event, rounds) that the view's epsilon is about.

        One server knows when the client took part, so its statement is about a client that does so in the expected,
        or realised, number of rounds. Clients who see models only get the number as well once it is given; before,
        each round is one that the client visibly is in, or is not.
        """
        event = self.round_of(view, sigma)
        if view is View.ONE_SERVER or self.participation is not None:
            return event, self.expected_participation
        return TwoStageSampledGaussian(self.q, event.sampling_rate, event.noise_multiplier), self.rounds


def account(plan: TrainingPlan, *, target_epsilon: float | None = None, is_by_round: bool = False) -> dict[str, Any]:
    """Both views by every accountant, the client level if both clips are known, and calibration for a target.

    With is_by_round also `epsilon_by_round`.

    Raises: ValueError naming a parameter outside its range.
    """
    report: dict[str, Any] = {
        "sigma": plan.sigma,
        "q": plan.q,
        "p": plan.p,
        "rounds": plan.rounds,
        "delta": plan.delta,
        "participation": plan.expected_participation,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OrderGridWarning)
        for view in View:
            report[view.value] = _view_report(plan, view)
    report["warnings"] = sorted({f"rdp: {warning.message}" for warning in caught})
    if plan.record_clip is not None and plan.client_clip is not None:
        sigma_bar = math.sqrt(2) * plan.sigma * plan.record_clip / plan.client_clip
        client = SampledGaussian(plan.q, sigma_bar)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OrderGridWarning)
            statements = side_by_side(client, plan.rounds, delta=plan.delta, view=View.CLIENTS_ONLY)
        report["client_level"] = {"noise_multiplier": sigma_bar, **_by_label(statements)}
    if target_epsilon is not None:
        report["calibrated"] = {"target_epsilon": target_epsilon} | {
            view.value: _calibrated(plan, view, target_epsilon) for view in View
        }
    if is_by_round:
        report["by_round"] = epsilon_by_round(plan)
    return report


def epsilon_by_round(plan: TrainingPlan) -> dict[str, Any]:
    """Both views' proved bound, limit and published formula after some rounds, denser at the start.

    Rounds of the training; once a client's own number is known, rounds of that client.
    """
    is_realised = plan.participation is not None
    last = plan.expected_participation if is_realised else plan.rounds
    rounds = sorted({round(last * (i / _POINTS) ** 2) for i in range(_POINTS + 1)} | _before_each_step(plan))
    found: dict[str, Any] = {
        "is_realised": is_realised,
        "rounds": rounds,
    }
    for view in View:
        found[view.value] = {name: [] for name in _COLUMNS}
        for t in rounds:
            so_far = replace(plan, participation=t) if is_realised else replace(plan, rounds=t)
            event, composed = so_far.composed(view)
            for name, accountant in _COLUMNS.items():
                epsilon = ACCOUNTANTS[accountant].epsilon(event, composed, plan.delta)
                found[view.value][name].append(_plain(epsilon))
    return found


def _before_each_step(plan: TrainingPlan) -> set[int]:
    """Rounds before and at which the expected participation rises, if that is seldom enough to be seen in a curve."""
    if plan.participation is not None or not 0 < plan.expected_participation <= _POINTS:
        return set()
    last_of = [math.floor(n / plan.q + 1e-9) for n in range(plan.expected_participation)]
    return {t for last in last_of for t in (last, last + 1) if t <= plan.rounds}


def account_of_flags(
    given: dict[str, Any],
    task: Mapping[str, Any] | None,
    *,
    target_epsilon: float | None = None,
    is_by_round: bool = False,
) -> dict[str, Any]:
    """`account` of what was given on the command line, the rest from a task. Raises ConfigError.

    Without sigma, a target takes the least one that meets it against one corrupted server.
    """
    flags = {name: value for name, value in given.items() if value is not None}
    if task is not None:
        flags = _of_task(task) | flags
    if "sigma" not in flags and target_epsilon is not None:
        flags["sigma"] = None
    missing = [name for name in ("sigma", "q", "p", "rounds", "delta") if name not in flags]
    if missing:
        raise ConfigError("\n".join(f"{_FLAGS[name]}: expected a value, found none" for name in missing))
    try:
        if flags["sigma"] is None:
            unknown = TrainingPlan(**(flags | {"sigma": 1.0}))
            flags["sigma"] = _calibrated(unknown, View.ONE_SERVER, target_epsilon or math.nan)["smallest_sigma"]
        return account(TrainingPlan(**flags), target_epsilon=target_epsilon, is_by_round=is_by_round)
    except ValueError as error:
        raise ConfigError(str(error)) from error


_FLAGS = {"sigma": "--sigma", "q": "-q", "p": "-p", "rounds": "--rounds", "delta": "--delta"}


def _of_task(task: Mapping[str, Any]) -> dict[str, Any]:
    """What a `[task]` section says of these. The file need not be complete, so that a draft can be accounted."""
    names = {
        "noise_multiplier": "sigma",
        "client_rate": "q",
        "record_rate": "p",
        "rounds": "rounds",
        "delta": "delta",
        "record_clip": "record_clip",
        "client_clip": "client_clip",
        "dim": "dim",
        "frac_bits": "frac_bits",
    }
    return {flag: task[field] for field, flag in names.items() if field in task}


def certify_file(
    path: Path,
    *,
    q: float,
    sigma: float,
    rounds: int,
    delta: float,
    threat: str,
    method: str,
    at_most: int,
    trainings: int | None,
    psi: float,
    is_planning: bool = False,
) -> dict[str, Any]:
    """`certify_samples` of a file of confidences. Raises ConfigError."""
    confidences, labels = read_confidences(path)
    try:
        return certify_samples(
            confidences,
            labels,
            Training(SampledGaussian(q, sigma), rounds),
            delta=delta,
            threat=Threat(threat),
            methods=list(Method) if method == "all" else [Method(method)],
            at_most=at_most,
            trainings=trainings,
            psi=psi,
            is_planning=is_planning,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _view_report(plan: TrainingPlan, view: View) -> dict[str, Any]:
    event, rounds = plan.composed(view)
    report = _by_label(side_by_side(event, rounds, delta=plan.delta, view=view))
    if plan.participation is None:
        one_round = plan.round_of(view)
        beta = _QUANTILE_SHARE * plan.delta
        most = participation_quantile(plan.rounds, plan.q, beta)
        pld = PldAccountant()
        visible = TwoStageSampledGaussian(plan.q, plan.p, one_round.noise_multiplier)
        report["bound_by_participation"] = {
            "expected": _plain(pld.epsilon(one_round, plan.expected_participation, plan.delta)),
            "random": _plain(pld.epsilon(visible, plan.rounds, plan.delta)),
            "quantile": _plain(pld.epsilon(one_round, most, plan.delta - beta)),
            "quantile_rounds": most,
        }
    return report


def _by_label(statements: dict[str, PrivacyStatement]) -> dict[str, Any]:
    return {
        **{name: _plain(statements[accountant].epsilon) for name, accountant in _COLUMNS.items()},
        "accountants": {
            name: {"epsilon": _plain(made.epsilon), "label": made.label.value} for name, made in statements.items()
        },
    }


def _calibrated(plan: TrainingPlan, view: View, target_epsilon: float) -> dict[str, Any]:
    """The least sigma for all rounds, and the most rounds of a client that takes part, for this sigma."""
    _, rounds = plan.composed(view)
    pld = PldAccountant()
    sigma = smallest_noise_multiplier(
        target_epsilon, lambda sigma: plan.composed(view, sigma)[0], rounds, plan.delta, pld
    )
    return {
        "smallest_sigma": sigma,
        "most_rounds_of_a_client": most_rounds(target_epsilon, plan.round_of(view), plan.delta, pld),
    }


def certify_samples(
    confidences: list[list[float]],
    labels: list[int],
    training: Training,
    *,
    delta: float,
    threat: Threat,
    methods: list[Method],
    at_most: int = 128,
    trainings: int | None = None,
    psi: float = 0.01,
    is_planning: bool = False,
) -> dict[str, Any]:
    """Attackers tolerated for each sample's prediction, by method, and certified accuracy for k = 0 .. their largest.

    trainings  that the confidences are means of; all bounds then hold together with probability 1 - psi. None takes
               the confidences as exact.
    """
    leads = [_lead(row, trainings, psi, len(confidences)) for row in confidences]
    correct = [winner == label for (winner, _, _), label in zip(leads, labels, strict=True)]
    report: dict[str, Any] = {
        "threat": threat.value,
        "delta": delta,
        "confidence": None if trainings is None else 1 - psi,
        "at_most": at_most,
        "accuracy": sum(correct) / len(correct),
        "correct": correct,
        "labels": {},
        "tolerated": {},
        "certified_accuracy": {},
    }
    if is_planning:
        bounds = [(low, high) for _, low, high in leads]
        report["plan"] = plan_for_samples(report, bounds, training, delta=delta, threat=threat)
    for method in methods:
        made = [
            certify(low, high, training, method=method, threat=threat, delta=delta, at_most=at_most)
            for _, low, high in leads
        ]
        tolerated = [certificate.tolerated for certificate in made]
        report["labels"][method.value] = made[0].label.value
        report["tolerated"][method.value] = tolerated
        report["certified_accuracy"][method.value] = [
            certified_accuracy(tolerated, correct, k, strict=False) for k in range(max(tolerated) + 2)
        ]
    return report


def plan_for_samples(
    report: dict[str, Any], leads: list[tuple[float, float]], training: Training, *, delta: float, threat: Threat
) -> dict[str, Any]:
    """For the median lead of the correct predictions: least sigma by number of attackers, and a unit's epsilon there.

    The confidences are taken to stay as they are, which more noise will not leave them: a plan, to be certified anew.
    """
    right = sorted((lead for lead, ok in zip(leads, report["correct"], strict=True) if ok), key=lambda lead: lead[0])
    if not right:
        raise ValueError("confidences must have a correct prediction to plan for, got none")
    FA, FB = right[len(right) // 2]
    q, rounds = training.event.sampling_rate, training.rounds
    rows = []
    for k in (1, 2, 4, 8, 16, 32):
        sigma = least_multiplier_for_attackers(k, FA, FB, q, rounds, threat)
        epsilon = None if sigma is None else _plain(PldAccountant().epsilon(SampledGaussian(q, sigma), rounds, delta))
        rows.append({"attackers": k, "least_sigma": sigma, "epsilon_of_one_unit": epsilon})
    return {"lead": [FA, FB], "label": Label.BOUND.value, "frontier": rows}


def _lead(row: list[float], trainings: int | None, psi: float, n_tests: int) -> tuple[int, float, float]:
    """(predicted class, F_A at least, F_B at most)."""
    if trainings is not None:
        return hoeffding_class_bounds(row, trainings, psi, n_tests=n_tests)
    winner = max(range(len(row)), key=lambda c: row[c])
    return winner, row[winner], max(value for c, value in enumerate(row) if c != winner)


def read_confidences(path: Path) -> tuple[list[list[float]], list[int]]:
    """`{"confidences": [[...], ...], "labels": [...]}`. Raises ConfigError naming what was expected."""
    try:
        found = json.loads(path.read_text())
        confidences, labels = found["confidences"], found["labels"]
    except OSError as error:
        raise ConfigError(f"--confidences: expected a readable file, found {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"--confidences: expected an object with confidences and labels, found {path}") from None
    if not isinstance(confidences, list) or not isinstance(labels, list) or not 0 < len(confidences) == len(labels):
        raise ConfigError("--confidences: expected as many labels as confidences, at least one")
    for i, row in enumerate(confidences):
        if not isinstance(row, list) or len(row) < 2 or not all(_is_number(value) and 0 <= value <= 1 for value in row):
            raise ConfigError(f"--confidences: expected at least two numbers in [0, 1] in row {i}, found {row}")
        if sum(row) > 1 + 1e-6:
            raise ConfigError(f"--confidences: expected a sum of at most 1 in row {i}, found {sum(row)}")
        if not isinstance(labels[i], int) or isinstance(labels[i], bool) or not 0 <= labels[i] < len(row):
            raise ConfigError(f"--confidences: expected label {i} in 0 .. {len(row) - 1}, found {labels[i]}")
    return confidences, labels


def print_account(console: Console, report: dict[str, Any]) -> None:
    """Both views, every accountant, strongest label first."""
    words = {View.ONE_SERVER.value: "one server corrupted", View.CLIENTS_ONLY.value: "only clients corrupted"}
    table = Table(title=f"epsilon at delta = {report['delta']:g}, add/remove one record", title_justify="left")
    table.add_column("accountant")
    table.add_column("what it is")
    for view in words.values():
        table.add_column(view, justify="right")
    first, second = (report[view]["accountants"] for view in words)
    for label in Label:
        for name in first | second:
            shown = [rows.get(name) for rows in (first, second)]
            if any(row is not None and row["label"] == label.value for row in shown):
                cells = [_shown(row["epsilon"], label) if row else "-" for row in shown]
                table.add_row(name, label.value.replace("_", " "), *cells)
    console.print(table)
    console.print(
        f"one server: a client that takes part in {report['participation']} of {report['rounds']} rounds",
        highlight=False,
    )
    if found := report[View.ONE_SERVER.value].get("bound_by_participation"):
        console.print(
            f"  in a random number of rounds, seen: {_shown(found['random'], Label.BOUND)}; in any number up to "
            f"{found['quantile_rounds']}: {_shown(found['quantile'], Label.BOUND)}",
            highlight=False,
        )
    for warning in report["warnings"]:
        console.print(warning, highlight=False)
    if client := report.get("client_level"):
        console.print(
            f"a whole client, multiplier {client['noise_multiplier']:.3g}: {_shown(client['bound'], Label.BOUND)}",
            highlight=False,
        )
    if found := report.get("calibrated"):
        for view, who in words.items():
            console.print(
                f"epsilon <= {found['target_epsilon']:g}, {who}: sigma >= {found[view]['smallest_sigma']:.4g}, "
                f"or with this sigma {found[view]['most_rounds_of_a_client']} rounds of a client",
                highlight=False,
            )


def print_certificates(console: Console, report: dict[str, Any]) -> None:
    """Certified accuracy by number of attackers, one column per method."""
    curves = report["certified_accuracy"]
    table = Table(title=f"accuracy certified against k attackers that {report['threat']}", title_justify="left")
    table.add_column("k", justify="right")
    for method in curves:
        table.add_column(f"{method} ({report['labels'][method].replace('_', ' ')})", justify="right")
    for k in range(max(map(len, curves.values()))):
        table.add_row(str(k), *(f"{curve[k]:.3f}" if k < len(curve) else "0.000" for curve in curves.values()))
    console.print(table)
    if found := report.get("plan"):
        FA, FB = found["lead"]
        plan = Table(title=f"least sigma for a prediction of {FA:.3f} against {FB:.3f}", title_justify="left")
        for column in ("attackers", "sigma at least", "epsilon of one unit"):
            plan.add_column(column, justify="right")
        for row in found["frontier"]:
            sigma = row["least_sigma"]
            cells = (
                ("none does", "-")
                if sigma is None
                else (f"{sigma:.3f}", _shown(row["epsilon_of_one_unit"], Label.BOUND))
            )
            plan.add_row(str(row["attackers"]), *cells)
        console.print(plan)
    for method, tolerated in report["tolerated"].items():
        if not any(tolerated):
            console.print(f"{method}: VACUOUS, no prediction survives even one attacker", highlight=False)


def to_json(report: dict[str, Any]) -> str:
    """One line, without NaN or infinity."""
    return json.dumps(report, allow_nan=False)


def _plain(epsilon: float) -> float | str:
    return epsilon if math.isfinite(epsilon) else "inf"


def _shown(epsilon: float | str, label: Label) -> str:
    """Three decimals, a bound rounded up and marked <=, all else marked ~."""
    if isinstance(epsilon, str):
        return "inf (vacuous)"
    return f"<= {math.ceil(epsilon * 1000) / 1000:.3f}" if label is Label.BOUND else f"~ {epsilon:.3f}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
