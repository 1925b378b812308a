"""`precad experiment xie-attack-cost`: Xie et al.'s Figures 4, 5b to 5e, 6b to 6e, 7 and 10, what attacks cost.

The cost of an attack (their attack inefficacy) is how far a model is from the attackers' aim, on the test records that
they target. It is the share of these records that the model does not take for what they want, in [0, 1] for every
model. With a C_bar, it is the paper's mean cross-entropy under the attackers' labels. That has no bound of its own, and
is cut off at C_bar. J is the cost's expectation over the training. Two things are compared, for each noise multiplier:

    certified   a lower bound on J after any attack by k attackers, from J of trainings without attackers
    measured    the mean cost of trainings with k attackers of one kind

    --level user       attackers take the places of k of UserDP-FedAvg's clients (`userdp_certified`); `stat-opt`, too
    --level instance   k poisoned records join those of one of InsDP-FedAvg's clients (`insdp_certified`)

Ten classes of MNIST are the preprint's Figures 9 and 11, of users.

Bounds are certified from the trainings' mean with Hoeffding's radius (`radius`: all J of a run together with
probability 0.99). They are also certified as if the mean were J (`estimate`). `published` is the paper's formula as
printed, which takes a client that is replaced for one step of an add-or-remove epsilon. `pld` and `exact` count it as
two
(`precad.dp.certificates.prediction`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from precad.clients.attacks import LabelFlip, StatOpt, TriangleBackdoor
from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.certificates import ATTACKERS_SHOWN
from precad.dp.accountants.pld import PldAccountant
from precad.dp.certificates.monte_carlo import hoeffding_radius
from precad.dp.certificates.prediction import Method, Training, published_epsilon
from precad.lab.papers import runner
from precad.lab.papers.runner import Case, Outcome
from precad.lab.papers.xie import attack_shown
from precad.lab.papers.xie.attack_levels import LEVELS, Figure, Level, Trained
from precad.lab.papers.xie.classes import PAIRS, TWO, Starting, require_classes, started
from precad.lab.papers.xie.cost_arithmetic import (
    Reached,
    attackers_for,
    bound_rows,
    by_epsilon,
    cost_rows,
    lower_bounds,
    wanted_by,
)
from precad.lab.simulation import simulate
from precad.lab.simulation.workers import Workers

PSI: Final = 0.01
"""All of a run's J are within their radii but for this probability."""
TAUS: Final = (1.25, 1.5, 2.0, 3.0, 5.0)
"""By what an attack shall divide J, of Figures 7d and 10."""
SEEDS, CLEAN_SEEDS = 10, 40
QUICK_SEEDS, QUICK_CLEAN_SEEDS = 2, 4
AIMLESS: Final = frozenset({StatOpt.name})
"""Attacks on the whole model: they want each test record taken for the other class, so that their cost is accuracy."""
QUICK_ATTACKERS, QUICK_ATTACKS = (10,), (LabelFlip.name, TriangleBackdoor.name)


def quick(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --quick takes in place of what is left out: of QUICK_ATTACKS those that there are on such records."""
    there = LEVELS[given["level"]].figure_of(given["dataset"], given.get("n_classes", TWO)).attacks
    attacks = tuple(attack for attack in QUICK_ATTACKS if attack in there)
    return {
        "attackers": QUICK_ATTACKERS,
        "attacks": attacks,
        "seeds": QUICK_SEEDS,
        "clean_seeds": QUICK_CLEAN_SEEDS,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Starting):
    """Describe what is run. Empty sequences and no rounds: those of the level and the data set."""

    level: str = "user"
    sigmas: Sequence[float] = ()
    attackers: Sequence[int] = ()
    """k, one after the other."""
    attacks: Sequence[str] = ()
    rounds: int | None = None
    seeds: int = SEEDS
    """Trainings of each sigma, attack and k."""
    clean_seeds: int = CLEAN_SEEDS
    """Trainings of each sigma without attackers."""
    cost_bound: float | None = None
    """C_bar of the cross-entropy, 0.5 in the paper's Table 2; None: the cost is a share."""
    poison_shares: Sequence[float] = ()
    """Shares of an attacking client's records that are poisoned, one after the other: the paper's alpha; none: all of
    them."""
    n_classes: int = TWO

    def __post_init__(self) -> None:
        require_classes(self.n_classes, self.dataset)
        if self.n_classes != TWO and self.of.ten_classes is None:
            raise ConfigError(f"--classes: expected {TWO} at level {self.level}, found {self.n_classes}")
        if self.dataset in PAIRS and self.dataset not in self.of.figures:
            known = ", ".join(self.of.figures)
            raise ConfigError(f"--dataset: expected one of {known} at level {self.level}, found {self.dataset!r}")
        for k in self.attackers:
            if not 1 <= k <= ATTACKERS_SHOWN:
                raise ConfigError(f"--attackers: expected 1 .. {ATTACKERS_SHOWN}, found {k}")
        for attack in self.attacks:
            if attack not in self.figure.attacks:
                known = ", ".join(self.figure.attacks)
                raise ConfigError(f"--attack: expected one of {known} at level {self.level}, found {attack!r}")
        for share in self.poison_shares:
            if share != 1 and AIMLESS & {*self.attacks}:
                named = " and ".join(sorted(AIMLESS))
                raise ConfigError(f"--poison-share: expected 1 with {named}, which poisons no record, found {share}")
            if share != 1 and not self.of.has_shares:
                raise ConfigError(f"--poison-share: expected 1 at level {self.level}, found {share}")
            if not 0 < share <= 1:
                raise ConfigError(f"--poison-share: expected a number in (0, 1], found {share}")
        runner.require_positive("--sigma", *self.sigmas)
        runner.require_positive("--cost-bound", self.largest_cost)

    @property
    def largest_cost(self) -> float:
        """Return the cost that no model exceeds."""
        return 1.0 if self.cost_bound is None else self.cost_bound

    @property
    def of(self) -> Level:
        """Return the level."""
        return LEVELS[self.level]

    @property
    def figure(self) -> Figure:
        """Return what the paper shows of the data set."""
        return self.of.figure_of(self.dataset, self.n_classes)

    def filled(self) -> Experiment:
        """Return the experiment with what the paper has in place of what is left out."""
        figure, poisons_all = self.figure, all(share == 1 for share in self.poison_shares)
        return replace(
            self,
            sigmas=tuple(self.sigmas or figure.sigmas),
            attackers=tuple(sorted(self.attackers or figure.attackers)),
            attacks=tuple(self.attacks or [a for a in figure.attacks if poisons_all or a not in AIMLESS]),
            rounds=self.rounds or figure.rounds,
            poison_shares=tuple(sorted(self.poison_shares or (1.0,))),
        )

    def trained(self) -> Trained:
        """Return the experiment that trains without attackers."""
        which = {} if self.n_classes == TWO else {"n_classes": self.n_classes}
        return self.of.trained(
            **which,
            sigmas=self.sigmas,
            rounds=self.rounds or self.figure.rounds,
            dataset=self.dataset,
            device=self.device,
            public_start=self.public_start,
        )

    def clean_cases(self) -> list[Case]:
        """Return the cases without attackers, of a filled experiment."""
        return [self.clean_case(sigma) for sigma in self.sigmas]

    def attacked_cases(self) -> list[Case]:
        """Return those with attackers."""
        return [
            self.case(sigma, attack, k, share)
            for sigma in self.sigmas
            for attack in self.attacks
            for share in self.poison_shares
            for k in self.attackers
        ]

    def clean_case(self, sigma: float) -> Case:
        """Return the case without an attack."""
        return self._named(sigma, "clean", attack="none", k=0, poison_share=None)

    def case(self, sigma: float, attack: str, k: int, share: float = 1.0) -> Case:
        """Return the case with k attackers of that kind."""
        which = f"{attack}-k{k}" + ("" if share == 1 else f"-share-{share:g}")
        case = self._named(sigma, which, attack=attack, k=k, poison_share=share)
        simulation = {**case.config["simulation"], "attack": self.of.attack(self.trained(), attack, k, share)}
        return replace(case, config={**case.config, "simulation": simulation})

    def _named(self, sigma: float, which: str, **labels: Any) -> Case:
        clean = self.trained().case(sigma)
        name = f"{clean.name}-{which}"
        config = {**clean.config, "task": {**clean.config["task"], "name": name}}
        return Case(name=name, labels={"sigma": sigma, **labels}, config=config)


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, make bounds and figures, and return the report. Continue what the folder holds.

    Raises: ConfigError, DataError, ArgumentError.
    """
    experiment = experiment.filled()
    runner.require_trainable([*experiment.clean_cases(), *experiment.attacked_cases()], experiment)
    start, experiment = started(experiment, folder, console, workers)
    outcomes = [
        *runner.run_cases(experiment.clean_cases(), experiment, folder, console, workers, seeds=experiment.clean_seeds),
        *runner.run_cases(experiment.attacked_cases(), experiment, folder, console, workers),
    ]
    cases = [
        _of_case(experiment, outcomes, folder, sigma, attack)
        for sigma in experiment.sigmas
        for attack in experiment.attacks
    ]
    report = runner.report_of("xie-attack-cost", replace(experiment, public_start=None), folder)
    report |= {
        "public_start": None if start is None else start.to_json(),
        "clients": experiment.trained().row.n_clients,
        "threat": experiment.of.threat.value,
        "C_bar": experiment.largest_cost,
        "psi": PSI,
        "taus": TAUS,
        "cases": cases,
        "by_epsilon": by_epsilon(cases),
    }
    report["beaten"] = [
        f"sigma = {case['sigma']:g}, {case['attack']}, k = {row['k']}, share {row['poison_share']:g}"
        for case in cases
        for row in case["measured"]
        if row["beats_the_bound"]
    ]
    runner.write(folder, report, outcomes, attack_shown.paragraph(report, start))
    runner.write_rows(folder / "costs.csv", [row for case in cases for row in cost_rows(case)])
    runner.write_rows(folder / "certified.csv", [row for case in cases for row in bound_rows(case)])
    attack_shown.save(report, folder)
    return report


def _of_case(
    experiment: Experiment, outcomes: Sequence[Outcome], folder: Path, sigma: float, attack: str
) -> dict[str, Any]:
    """Return one noise multiplier and attack: J without attackers, what is certified of it, and the cost by k."""
    row, n_J = experiment.trained().row, len(experiment.sigmas) * len(experiment.attacks)
    clean, *attacked = (
        outcome
        for outcome in outcomes
        if outcome.case.labels["sigma"] == sigma and outcome.case.labels["attack"] in ("none", attack)
    )
    plan, told = simulate.resolve(clean.case.config), experiment.trained().told
    test = plan.split.test
    wanted = told.exchanged(test) if attack in AIMLESS else wanted_by(attacked[0].case, test)
    assert wanted is not None  # every other attack of a level has an aim
    reached = [Reached.of(folder / each.case.name, len(each.runs), told.model, wanted) for each in (clean, *attacked)]
    training = experiment.trained().training(plan.task)
    J = float(reached[0].costs(experiment.cost_bound).mean())
    certified = _certified(experiment, J, training, psi=PSI / n_J)
    measured = [
        _measured(experiment, outcome, each, reached[0])
        for outcome, each in zip((clean, *attacked), reached, strict=True)
    ]
    radius = experiment.largest_cost * hoeffding_radius(experiment.seeds, PSI / (n_J * len(attacked)))
    for line in measured:
        proved = max(certified["radius"][method][line["k"]] for method in (Method.PLD, Method.EXACT))
        line["beats_the_bound"] = line["k"] > 0 and line["mean"] + radius < proved
    return {
        "sigma": sigma,
        "attack": attack,
        "epsilon_published": published_epsilon(training, row.delta),
        "epsilon_proved": PldAccountant().epsilon(training.event, training.rounds, row.delta),
        "J": J,
        # J and its mean are in [0, C_bar]: no radius says less than C_bar does
        "radius": experiment.largest_cost * min(1.0, hoeffding_radius(experiment.clean_seeds, PSI / n_J, n_events=2)),
        "measured": measured,
        "certified": certified,
        "needed": {
            evidence: {method: [attackers_for(J / tau, bounds) for tau in TAUS] for method, bounds in by_method.items()}
            for evidence, by_method in certified.items()
        },
    }


def _certified(
    experiment: Experiment, J: float, training: Training, *, psi: float
) -> dict[str, dict[str, list[float]]]:
    """Return the lowest cost of k = 0 .. 20 attackers, by evidence and method."""
    largest, delta = experiment.largest_cost, experiment.trained().row.delta
    share = min(J / largest, 1.0)
    return {
        evidence: {
            method: [largest * low for low in bounds]
            for method, bounds in lower_bounds(
                share, training, delta=delta, threat=experiment.of.threat, psi=psi, trainings=trainings
            ).items()
        }
        for evidence, trainings in (("radius", experiment.clean_seeds), ("estimate", None))
    }


def _measured(experiment: Experiment, outcome: Outcome, reached: Reached, clean: Reached) -> dict[str, Any]:
    """Return the cost over the trainings of a case.

    Beside it is the mean of the same seeds without attackers, if so many were trained. Real servers' trainings have no
    seeds.
    """
    costs = reached.costs(experiment.cost_bound)
    without = clean.costs(experiment.cost_bound)[: len(costs)]
    is_paired = not experiment.deployed and len(without) == len(costs)
    accuracies = np.array([run["accuracy"] for run in outcome.runs])
    return {
        "k": outcome.case.labels["k"],
        "poison_share": outcome.case.labels["poison_share"],
        "mean": float(costs.mean()),
        "standard_error": _standard_error(costs),
        "same_seeds_without": float(without.mean()) if is_paired else None,
        "loss": float(reached.losses.mean()),
        "attack_success": float(reached.successes.mean()),
        "accuracy": float(accuracies.mean()),
        "accuracy_standard_error": _standard_error(accuracies),
        "losses": reached.losses.tolist(),
        "successes": reached.successes.tolist(),
    }


def _standard_error(values: NDArray[np.float64]) -> float | None:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else None


print_report = attack_shown.print_report
