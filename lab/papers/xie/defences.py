"""`precad experiment xie-defences`: Xie et al.'s Sec. 6.2.5 and Table 9, their certification beside empirical defences.

Clients of UserDP-FedAvg's Table 2 (`userdp_certified`), k of 200 are attackers: STAT-OPT, or flipped labels or a
triangle backdoor, both with updates scaled by 50. Robust accuracy is that on the test records as they are, of

    certification   the class with the largest mean confidence over trainings of UserDP-FedAvg, attackers in all of them
    UserDP-FedAvg   the same models, one by one
    a rule          FedAvg without privacy, the rule in place of the mean; `mean` is no defence

STAT-OPT knows who defends. Where Krum, Multi-Krum or Bulyan aggregate, it goes as far as Krum lets it pass. Where there
is a norm bound, it goes to that bound. Elsewhere it goes ten times as far as the longest honest update. Krum,
Multi-Krum, the trimmed mean and Bulyan are made for f attackers in a round. More than f of k attackers are in a round
with a chance of 1% at most. Bulyan is made for fewer where a small round has no room for f (`rule_parameters`). The
paper's own choices are in an appendix that we do not have, and so are the numbers of its Table 9.

Beside these stands what is certified of the trainings without attackers, against k clients that are replaced. Where it
is a bound (`certified_accuracy`), the robust accuracy of the certification is at least that, whatever the attack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import Console
from scipy.stats import binom

from precad.clients.attacks import LabelFlip, TriangleBackdoor
from precad.clients.records import Records
from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.certificates import Request, certify_runs
from precad.dp.accountants.pld import PldAccountant
from precad.dp.certificates.prediction import Method, Threat, published_epsilon
from precad.lab.papers import runner
from precad.lab.papers.runner import Case, Outcome
from precad.lab.papers.xie import defences_shown, userdp_certified
from precad.lab.papers.xie.attack_levels import of_clients
from precad.lab.papers.xie.classes import Classes, Starting, classes_of, started
from precad.lab.papers.xie.cost_arithmetic import wanted_by
from precad.lab.simulation import simulate
from precad.lab.simulation.attackers import StatOpt
from precad.lab.simulation.rules import Bulyan, CoordinateMedian, GeometricMedian, Krum, Mean, MultiKrum, TrimmedMean
from precad.lab.simulation.simulate import Plan
from precad.lab.simulation.workers import Workers

ATTACKERS, QUICK_ATTACKERS = (2, 3, 5, 10), (10,)
SEEDS, RULE_SEEDS = 20, 5
QUICK_SEEDS, QUICK_RULE_SEEDS = 3, 1
ATTACK_NAMES: Final = (StatOpt.name, TriangleBackdoor.name, LabelFlip.name)
CERTIFICATION: Final = "certification"
RULES: Final = (
    Mean.name,
    Krum.name,
    MultiKrum.name,
    TrimmedMean.name,
    CoordinateMedian.name,
    Bulyan.name,
    GeometricMedian.name,
)
_SELECTING: Final = (Krum.name, MultiKrum.name, Bulyan.name)
"""Those that STAT-OPT has to get past Krum for."""
SIGMA: Final[Mapping[str, float]] = {"mnist": 1.8, "cifar10": 2.3}
"""Noise multipliers of the paper's tables: epsilon = 0.6298 and 0.546."""
EXCEEDED: Final = 0.01
"""A rule's f is the least that more attackers than f in a round are less likely than this."""
_SMALL_ROUND: Final = 0.001
"""Chance of a round with fewer clients than what Bulyan is made for."""


def rule_parameters(rule: str, k: int, client_rate: float, n_clients: int) -> dict[str, Any]:
    """Return the parameters of a rule that expects k of the clients to be attackers, each of whom a round draws with
    that rate."""
    f = int(binom.ppf(1 - EXCEEDED, k, client_rate))
    match rule:
        case Krum.name | MultiKrum.name:
            return {"f": f}
        case Bulyan.name:  # 4f + 3 clients
            least = int(binom.ppf(_SMALL_ROUND, n_clients, client_rate))
            return {"f": max(0, min(f, (least - 3) // 4))}
        case TrimmedMean.name:
            return {"beta": min(f / (client_rate * n_clients), 0.45)}
        case _:
            return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(Starting):
    """Describe what is run. No sigma and no rounds: those of the data set."""

    sigma: float | None = None
    attackers: Sequence[int] = ATTACKERS
    """k, one after the other."""
    attacks: Sequence[str] = ATTACK_NAMES
    rules: Sequence[str] = RULES
    rounds: int | None = None
    seeds: int = SEEDS
    """Trainings whose mean confidence predicts, of each attack and k."""
    rule_seeds: int = RULE_SEEDS
    """Trainings of each rule, attack and k."""

    def __post_init__(self) -> None:
        for k in self.attackers:
            if not 1 <= k <= self.row.n_clients // 2:
                raise ConfigError(f"--attackers: expected 1 .. {self.row.n_clients // 2}, found {k}")
        for option, found, known in (("--attack", self.attacks, ATTACK_NAMES), ("--rule", self.rules, RULES)):
            runner.require_known(option, found, known)
        if self.sigma is not None:
            runner.require_positive("--sigma", self.sigma)

    @property
    def row(self) -> userdp_certified.Row:
        """Return the row of the paper's Table 2."""
        return userdp_certified.row_of(self.dataset)

    @property
    def noise_multiplier(self) -> float:
        """Return the noise multiplier of the certification."""
        return self.sigma or SIGMA["cifar10" if self.dataset == "cifar10" else "mnist"]

    def filled(self) -> Experiment:
        """Return the experiment with the data set's sigma and rounds in place of what is left out."""
        rounds, attackers = self.rounds or self.row.rounds, tuple(sorted(self.attackers))
        return replace(self, sigma=self.noise_multiplier, rounds=rounds, attackers=attackers)

    def trained(self) -> userdp_certified.Experiment:
        """Return the experiment that the certification trains."""
        return userdp_certified.Experiment(
            sigmas=(self.noise_multiplier,),
            rounds=self.rounds,
            seeds=self.seeds,
            dataset=self.dataset,
            device=self.device,
            public_start=self.public_start,
        )

    def cases(self, *defences: str) -> list[Case]:
        """Return the cases of these defences: without an attack, and with each attack and k."""
        attacked = [(attack, k) for attack in self.attacks for k in self.attackers]
        grid: list[tuple[str | None, int]] = [(None, 0), *attacked]
        return [self.case(defence, attack, k) for defence in defences for attack, k in grid]

    def case(self, defence: str, attack: str | None = None, k: int = 0) -> Case:
        """Return the certification, or a rule, without an attack or with k attackers of that kind. Without, a rule is
        made for as many as there are at most."""
        of_paper, made_for = self.trained().case(self.noise_multiplier), k or max(self.attackers)
        name = f"{defence}-{attack or 'clean'}"
        simulation = dict(of_paper.config["simulation"])
        if attack is not None or defence != CERTIFICATION:
            name += f"-k{made_for}"
        if defence != CERTIFICATION:
            parameters = rule_parameters(defence, made_for, self.row.client_rate, self.row.n_clients)
            simulation |= {"algorithm": "fedavg", "aggregation": defence, "aggregation_parameters": parameters}
        if attack is not None:
            simulation["attack"] = self._attack(defence, attack, k)
        config = {**of_paper.config, "task": {**of_paper.config["task"], "name": name}, "simulation": simulation}
        return Case(name=name, labels={"defence": defence, "attack": attack or "none", "k": k}, config=config)

    def _attack(self, defence: str, attack: str, k: int) -> dict[str, Any]:
        if attack == StatOpt.name:
            rule = "krum" if defence in _SELECTING else "bound"
            return {"kind": attack, "clients": k, "parameters": {"rule": rule}}
        return of_clients(attack, k, self.row, classes_of(self.dataset))


def quick(_given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what --quick takes in place of what is left out."""
    return {"attackers": QUICK_ATTACKERS, "seeds": QUICK_SEEDS, "rule_seeds": QUICK_RULE_SEEDS}


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, make accuracies and the figure, and return the report. Continue what the folder holds.

    Raises: ConfigError, DataError, ArgumentError.
    """
    experiment = experiment.filled()
    runner.require_trainable([*experiment.cases(CERTIFICATION), *experiment.cases(*experiment.rules)], experiment)
    start, experiment = started(experiment, folder, console, workers)
    ours, theirs = experiment.cases(CERTIFICATION), experiment.cases(*experiment.rules)
    outcomes = [
        *runner.run_cases(ours, experiment, folder, console, workers),
        *runner.run_cases(theirs, experiment, folder, console, workers, seeds=experiment.rule_seeds),
    ]
    plan = simulate.resolve(ours[0].config)
    report = runner.report_of("xie-defences", replace(experiment, public_start=None), folder)
    report |= {
        "public_start": None if start is None else start.to_json(),
        "cases": [_of_case(outcome, folder, plan, classes_of(experiment.dataset)) for outcome in outcomes],
        "certified": _certified(experiment, plan, folder / ours[0].name),
    }
    runner.write(folder, report, outcomes, defences_shown.paragraph(report, start))
    runner.write_rows(folder / "defences.csv", report["cases"])
    defences_shown.save(report, folder)
    return report


def _of_case(outcome: Outcome, folder: Path, plan: Plan, told: Classes) -> dict[str, Any]:
    """Return robust accuracy, and how often attackers got what they want; of the certification also by its mean
    prediction."""
    labels, seeds, of_case = outcome.case.labels, len(outcome.runs), folder / outcome.case.name
    accuracies, attackers = [run["accuracy"] for run in outcome.runs], sorted(plan.task.clients)[-labels["k"] :]
    found = {
        **labels,
        "trainings": seeds,
        "attackers_drawn": _drawn(of_case, seeds, attackers) if labels["k"] else 0.0,
        "accuracy": float(np.mean(accuracies)),
        "least": min(accuracies),
        "most": max(accuracies),
        "attack_success": outcome.over_seeds("attack_success")["mean"],
        "diverged": outcome.diverged,
    }
    if labels["defence"] == CERTIFICATION:
        test = plan.split.test
        found["accuracy_of_mean_confidence"] = _share_right(told, of_case, seeds, test)
        wanted = wanted_by(outcome.case, test)
        if wanted is not None:
            found["attack_success_of_mean_confidence"] = _share_right(told, of_case, seeds, wanted)
    return found


def _drawn(folder: Path, seeds: int, attackers: Sequence[str]) -> float:
    """Return how often a round of a training had one of them, mean over a case's trainings."""
    total = 0
    for seed in range(seeds):
        with np.load(folder / f"seed-{seed}.npz", allow_pickle=False) as saved:
            total += int(saved["participation"][np.isin(saved["clients"], attackers)].sum())
    return total / seeds


def _share_right(told: Classes, folder: Path, seeds: int, records: Records) -> float:
    """Return the share of the records whose label has the larger mean confidence."""
    predicted = told.mean_confidences(folder, seeds, records).argmax(axis=1)
    return float(np.mean(predicted == told.indices(records)))


def _certified(experiment: Experiment, plan: Plan, clean: Path) -> dict[str, Any]:
    """Certify the trainings without attackers: certified accuracy against k replaced clients, by evidence and
    method."""
    told, test = classes_of(experiment.dataset), plan.split.test
    training = experiment.trained().training(plan.task)
    confidences = told.mean_confidences(clean, experiment.seeds, test)
    delta = experiment.row.delta
    found = certify_runs(
        confidences.tolist(),
        told.indices(test).tolist(),
        training,
        Request(delta=delta, threat=Threat.REPLACE),
        n_runs=experiment.seeds,
        provenance={},
    )
    curves = {"radius": found["certified_accuracy"], "estimate": found["estimate"]["certified_accuracy"]}
    return {
        "epsilon_published": published_epsilon(training, delta),
        "epsilon_proved": PldAccountant().epsilon(training.event, training.rounds, delta),
        "runs_needed": found["run"]["runs_needed"],
        **{
            evidence: {
                method.value: [_at(by_method[method.value], k) for k in experiment.attackers] for method in Method
            }
            for evidence, by_method in curves.items()
        },
    }


def _at(curve: Sequence[float], k: int) -> float:
    """Return certified accuracy of k attackers; nothing is certified beyond the curve's end."""
    return curve[k] if k < len(curve) else 0.0


print_report = defences_shown.print_report
