"""`precad experiment xie-attack-cost`: Xie et al.'s Figures 4, 5b to 5e, 7 and 10, what attacks cost on MNIST.

The cost of an attack (their attack inefficacy) is how far a model is from what the attackers want, on the test records
that they aim at: the share of these that it does not take for what they want, which is in [0, 1] for every model; or,
with a C_bar, the paper's mean cross-entropy under the attackers' labels, cut off at C_bar, since it has no bound of its
own. J is the cost's expectation over the training. Two things are compared, for each noise multiplier:

    certified   a lower bound on J after any attack by k attackers, from J of trainings without attackers
    measured    the mean cost of trainings with k attackers of one kind

    --level user       attackers take the places of k of UserDP-FedAvg's 200 clients (`userdp_certified`)
    --level instance   k poisoned records join those of one of InsDP-FedAvg's 10 clients (`insdp_certified`)

Certified from the trainings' mean with Hoeffding's radius (`radius`: all J of a run together with probability 0.99),
and as if the mean were J (`estimate`). `published` is the paper's formula as printed, which takes a client that is
replaced for one step of an add-or-remove epsilon; `pld` and `exact` count it as two (`dp.certified_prediction`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from clients.attacks import ATTACKS, LabelFlip, TriangleBackdoor
from deploy import simulate
from deploy.certify_commands import ATTACKERS_SHOWN
from deploy.errors import ConfigError
from deploy.experiments import insdp_certified, runner, userdp_certified, xie_attack_figures
from deploy.experiments.attack_costs import Reached, attackers_for, bound_rows, cost_rows, lower_bounds
from deploy.experiments.attack_levels import LEVELS, Level
from deploy.experiments.runner import Case, Outcome
from deploy.workers import Workers
from dp.accounting import PldAccountant
from dp.certified_prediction import Method, Training, published_epsilon
from dp.monte_carlo import hoeffding_radius

PSI: Final = 0.01
"""All of a run's J are within their radii but for this probability."""
TAUS: Final = (1.25, 1.5, 2.0, 3.0, 5.0)
"""By what an attack shall divide J, of Figures 7d and 10."""
PAPER_TRAININGS: Final = 100
SEEDS, CLEAN_SEEDS = 10, 40
QUICK_SEEDS, QUICK_CLEAN_SEEDS = 2, 4
QUICK_ATTACKERS, QUICK_ATTACKS = (10,), (LabelFlip.name, TriangleBackdoor.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What is run. Empty sequences and no rounds: those of the level."""

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
    dataset: str = "mnist"
    device: str = "auto"

    def __post_init__(self) -> None:
        for k in self.attackers:
            if not 1 <= k <= ATTACKERS_SHOWN:
                raise ConfigError(f"--attackers: expected 1 .. {ATTACKERS_SHOWN}, found {k}")
        for attack in self.attacks:
            if attack not in self.of.attacks:
                known = ", ".join(self.of.attacks)
                raise ConfigError(f"--attack: expected one of {known} at level {self.level}, found {attack!r}")
        for field, value in (*(("--sigma", sigma) for sigma in self.sigmas), ("--cost-bound", self.largest_cost)):
            if not 0 < value < math.inf:
                raise ConfigError(f"{field}: expected a positive number, found {value}")

    @property
    def largest_cost(self) -> float:
        """What the cost of no model exceeds."""
        return 1.0 if self.cost_bound is None else self.cost_bound

    @property
    def of(self) -> Level:
        """The level."""
        return LEVELS[self.level]

    def filled(self) -> Experiment:
        """With what the level has in place of what is left out."""
        level = self.of
        return replace(
            self,
            sigmas=tuple(self.sigmas or level.sigmas),
            attackers=tuple(sorted(self.attackers or level.attackers)),
            attacks=tuple(self.attacks or level.attacks),
            rounds=self.rounds or level.rounds,
        )

    def trained(self) -> userdp_certified.Experiment | insdp_certified.Experiment:
        """What is trained without attackers."""
        rounds = self.rounds or self.of.rounds
        return self.of.trained(sigmas=self.sigmas, rounds=rounds, dataset=self.dataset, device=self.device)

    def case(self, sigma: float, attack: str | None = None, k: int = 0) -> Case:
        """Without an attack, or with k attackers of that kind."""
        clean = self.trained().case(sigma)
        name = f"{clean.name}-{'clean' if attack is None else f'{attack}-k{k}'}"
        config = {**clean.config, "task": {**clean.config["task"], "name": name}}
        if attack is not None:
            config["simulation"] = {**config["simulation"], "attack": self.of.attack(attack, k)}
        return Case(name=name, labels={"sigma": sigma, "attack": attack or "none", "k": k}, config=config)


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """All trainings, then bounds and figures; the report. Goes on with what the folder holds.

    Raises: ConfigError, DataError, ArgumentError.
    """
    experiment = experiment.filled()
    clean = [experiment.case(sigma) for sigma in experiment.sigmas]
    attacked = [
        experiment.case(sigma, attack, k)
        for sigma in experiment.sigmas
        for attack in experiment.attacks
        for k in experiment.attackers
    ]
    outcomes = [
        *runner.run_cases(clean, seeds=experiment.clean_seeds, folder=folder, console=console, workers=workers),
        *runner.run_cases(attacked, seeds=experiment.seeds, folder=folder, console=console, workers=workers),
    ]
    cases = [
        _of_case(experiment, outcomes, folder, sigma, attack)
        for sigma in experiment.sigmas
        for attack in experiment.attacks
    ]
    report = runner.report_of("xie-attack-cost", experiment, folder)
    report |= {
        "threat": experiment.of.threat.value,
        "C_bar": experiment.largest_cost,
        "psi": PSI,
        "taus": TAUS,
        "cases": cases,
    }
    report["beaten"] = [
        f"sigma = {case['sigma']:g}, {case['attack']}, k = {row['k']}"
        for case in cases
        for row in case["measured"]
        if row["beats_the_bound"]
    ]
    report["paragraph"] = paragraph(report)
    runner.write(folder, report, outcomes)
    runner.write_rows(folder / "costs.csv", [row for case in cases for row in cost_rows(case)])
    runner.write_rows(folder / "certified.csv", [row for case in cases for row in bound_rows(case)])
    xie_attack_figures.save(report, folder)
    return report


def _of_case(
    experiment: Experiment, outcomes: Sequence[Outcome], folder: Path, sigma: float, attack: str
) -> dict[str, Any]:
    """One noise multiplier and attack: J without attackers, what is certified of it, and the cost by k."""
    level, n_J = experiment.of, len(experiment.sigmas) * len(experiment.attacks)
    by_k = {0: _outcome(outcomes, sigma, "none", 0)}
    by_k |= {k: _outcome(outcomes, sigma, attack, k) for k in experiment.attackers}
    plan = simulate.resolve(by_k[0].case.config)
    wanted = ATTACKS[attack]().success_records(plan.split.test)
    assert wanted is not None  # every attack of a level has an aim
    reached = {k: Reached.of(folder / of_k.case.name, len(of_k.runs), wanted) for k, of_k in by_k.items()}
    training = experiment.trained().training(plan.task)
    J = float(reached[0].costs(experiment.cost_bound).mean())
    certified = _certified(experiment, J, training, psi=PSI / n_J)
    measured = [_measured(k, by_k[k], reached[k], reached[0], experiment.cost_bound) for k in by_k]
    radius = experiment.largest_cost * hoeffding_radius(experiment.seeds, PSI / (n_J * len(experiment.attackers)))
    for row in measured:
        proved = max(certified["radius"][method][row["k"]] for method in (Method.PLD, Method.EXACT))
        row["beats_the_bound"] = row["k"] > 0 and row["mean"] + radius < proved
    return {
        "sigma": sigma,
        "attack": attack,
        "epsilon_published": published_epsilon(training, level.delta),
        "epsilon_proved": PldAccountant().epsilon(training.event, training.rounds, level.delta),
        "J": J,
        "radius": experiment.largest_cost * hoeffding_radius(experiment.clean_seeds, PSI / n_J, n_events=2),
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
    """The lowest cost of k = 0 .. 20 attackers, by evidence and method."""
    level, largest = experiment.of, experiment.largest_cost
    share = min(J / largest, 1.0)
    return {
        evidence: {
            method: [largest * low for low in bounds]
            for method, bounds in lower_bounds(
                share, training, delta=level.delta, threat=level.threat, psi=psi, trainings=trainings
            ).items()
        }
        for evidence, trainings in (("radius", experiment.clean_seeds), ("estimate", None))
    }


def _outcome(outcomes: Sequence[Outcome], sigma: float, attack: str, k: int) -> Outcome:
    wanted = {"sigma": sigma, "attack": attack, "k": k}
    return next(outcome for outcome in outcomes if outcome.case.labels == wanted)


def _measured(k: int, outcome: Outcome, reached: Reached, clean: Reached, cost_bound: float | None) -> dict[str, Any]:
    """The cost of k attackers over the trainings; beside it, if there are as many, that of the same seeds without."""
    costs, without = reached.costs(cost_bound), clean.costs(cost_bound)[: len(reached.losses)]
    return {
        "k": k,
        "mean": float(costs.mean()),
        "standard_error": float(costs.std(ddof=1) / math.sqrt(len(costs))) if len(costs) > 1 else None,
        "same_seeds_without": float(without.mean()) if len(without) == len(costs) else None,
        "loss": float(reached.losses.mean()),
        "attack_success": float(reached.successes.mean()),
        "accuracy": outcome.over_seeds("accuracy")["mean"],
        "losses": reached.losses.tolist(),
        "successes": reached.successes.tolist(),
    }


def paragraph(report: Mapping[str, Any]) -> str:
    """What came out, beside what the paper says."""
    level = LEVELS[report["level"]]
    found = "; ".join(_sentence(case) for case in report["cases"])
    is_paper = "the" if report["rounds"] == level.rounds else "not the"
    beaten = "; ".join(report["beaten"]) or "none"
    cost = (
        "share of the records that attackers aim at which the model does not take for what they want"
        if report["cost_bound"] is None
        else f"cross-entropy on what attackers want, cut off at C_bar = {report['cost_bound']:g} (the paper's: 0.5)"
    )
    return (
        f"{level.algorithm} on {report['dataset']}, classes 0 and 1, {report['rounds']} rounds ({is_paper} paper's "
        f"{level.rounds}), {report['clean_seeds']} training(s) without attackers and {report['seeds']} of each attack "
        f"(the paper has {PAPER_TRAININGS}). Cost: {cost}; k counts {level.words}. {found}. Bounds from J with its "
        f"radius hold for all of the run together with probability {1 - report['psi']:g} over the trainings; from the "
        "mean as if it were J they are approximations, and the published formula is a reproduction, not a bound. "
        "Bounds that a measured cost is below, each with its radius, which a true bound escapes with probability "
        f"{1 - 2 * report['psi']:g} at least: {beaten}. The paper says that costs and bounds fall with k and "
        "rise as epsilon falls, that the bounds are tight for few attackers, and that under DP the kind of attack "
        "makes little difference."
    )


def _sentence(case: Mapping[str, Any]) -> str:
    last = case["measured"][-1]
    bounds = {evidence: case["certified"][evidence] for evidence in ("radius", "estimate")}
    k, paired = last["k"], last["same_seeds_without"]
    without = "" if paired is None else f" ({paired:.3f} without attackers from the same seeds)"
    return (
        f"{case['attack']}, sigma = {case['sigma']:g} (epsilon published {case['epsilon_published']:.4f}): J = "
        f"{case['J']:.3f} +- {case['radius']:.3f} without attackers; with k = {k}, {last['mean']:.3f} "
        f"measured{without}, at least {_down(bounds['radius'][Method.EXACT][k])} certified (exact), "
        f"{_down(bounds['estimate'][Method.EXACT][k])} if the mean were J and "
        f"{_down(bounds['estimate'][Method.PUBLISHED][k])} by the published formula"
    )


def _down(value: float) -> str:
    return f"{math.floor(value * 1000) / 1000:.3f}"


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """For people."""
    table = Table(title=f"Xie et al., what attacks cost, {report['level']} level", title_justify="left")
    for column in ("sigma", "attack", "k", "accuracy", "success", "cost", "error", "without"):
        table.add_column(column, justify="left" if column == "attack" else "right")
    for evidence in ("radius", "estimate"):
        for method in Method:
            table.add_column(f"{method.value}\n{evidence}", justify="right")
    for case in report["cases"]:
        for row in case["measured"]:
            bounds = (
                case["certified"][evidence][method][row["k"]]
                for evidence in ("radius", "estimate")
                for method in Method
            )
            table.add_row(
                f"{case['sigma']:g}",
                case["attack"],
                str(row["k"]),
                f"{row['accuracy']:.3f}",
                f"{row['attack_success']:.3f}",
                f"{row['mean']:.3f}",
                *(
                    "-" if row[name] is None else f"{row[name]:.3f}"
                    for name in ("standard_error", "same_seeds_without")
                ),
                *map(_down, bounds),
            )
    runner.print_result(console, table, report)
