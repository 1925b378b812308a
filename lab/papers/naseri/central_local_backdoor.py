"""`precad experiment central-local-backdoor`: central and local DP, and weaker defences, against backdoors on MNIST.

Federated averaging: 1000 clients with 60 records each, 50 of them in a round in expectation, each of whom takes five
steps of 20 records. K of the clients have a white triangle in a corner of half of what they train on. Each K and
each defence has one training for each seed:

    non-private     the average of the clients' updates
    norm bounding   the average of updates clipped to S
    weak DP         the same with a tenth of the noise that central DP has
    central DP      a trusted server clips to S and adds noise, and stops at its budget (the paper's algorithm)
    local DP        every client runs DP-SGD: with attackers who follow the protocol, and with attackers who do not

Attackers replace the model by a backdoored one, within whatever bound somebody enforces. They do so together if as many
of them are in the round as are expected. In one case they follow local DP's protocol instead, clipping and noise
included, with poisoned records.

We know the source's algorithm, its data sets (EMNIST, CIFAR-10, Reddit, Sentiment140) and what it concludes. We do not
know its attackers and numbers: sizes, rates, S, noise and K are ours. S was not tuned.
Source: Naseri, Hayes and De Cristofaro, "Local and Central Differential Privacy for Robustness and Privacy in Federated
Learning", NDSS '22. Norm bounding and weak DP are from Sun, Kairouz, Suresh and McMahan, "Can You Really Backdoor
Federated Learning?", 2019.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from precad.deploy.shown.figures import at_most
from precad.lab.papers import backdoors, runner
from precad.lab.papers.runner import Case, Outcome
from precad.lab.simulation.workers import Workers

ROUNDS, QUICK_ROUNDS, EVALUATE_EVERY = 200, 40, 10
N_CLIENTS, CLIENT_RATE = 1000, 0.05
LOCAL_STEPS, LOCAL_BATCH, LOCAL_RATE = 5, 20, 0.1
RECORD_RATE: Final = 1 / 3
"""Rate of local DP's Poisson samples: 20 of 60 records in expectation."""
ATTACK_STEPS: Final = 20
"""Steps of an attacker on half stamped images: four times an honest client's."""
UPDATE_CLIP: Final = 0.3
"""S."""
ATTACKERS: Final = (20, 100)
"""K: one of a round's 50 clients in expectation, and a tenth of them."""
BUDGET: Final = 2.0
CLIENT_DELTA, RECORD_DELTA = 5e-4, 1e-5
"""1000^-1.1, the rule of McMahan et al., ICLR '18; and what other statements about records here have."""


@dataclass(frozen=True, slots=True)
class Defence:
    """An algorithm of `precad simulate`, what it protects, and by how much noise."""

    name: str
    words: str
    simulation: Mapping[str, Any]
    noise_multiplier: float = 1.0
    delta: float = CLIENT_DELTA
    has_budget: bool = False
    has_obedient_attackers: bool = False


NOTHING: Final = Defence("non-private", "non-private", {"algorithm": "fedavg"})
BOUNDED: Final = Defence(
    "norm-bounding",
    "norm bounding",
    {
        "algorithm": "fedavg",
        "aggregation": "norm-bounding",
        "aggregation_parameters": {"bound": UPDATE_CLIP},
    },
)
WEAK: Final = Defence("weak-dp", "weak DP", {"algorithm": "user-dp-fedavg"}, noise_multiplier=0.1)
CENTRAL: Final = Defence("central-dp", "central DP", {"algorithm": "central-dp"}, has_budget=True)
_LOCAL: Final = {"algorithm": "ins-dp-fedavg"}
LOCAL: Final = Defence(
    "local-dp", "local DP", _LOCAL, noise_multiplier=5.0, delta=RECORD_DELTA, has_obedient_attackers=True
)
LOCAL_DEFIED: Final = Defence(
    "local-dp-defied", "local DP, attackers do not follow it", _LOCAL, noise_multiplier=5.0, delta=RECORD_DELTA
)
DEFENCES: Final = (NOTHING, BOUNDED, WEAK, CENTRAL, LOCAL, LOCAL_DEFIED)
PAPER: Final = (
    "The paper concludes that both local and central DP defend against backdoors, with varying trade-offs between "
    "protection and utility, and more effectively than other defences; its numbers are not known to us, and its data "
    "sets are EMNIST, CIFAR-10, Reddit comments and Sentiment140. Central DP's epsilon is a client's, local DP's a "
    "record's: they do not compare."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(runner.DatasetExperiment):
    """Describe what is run."""

    attackers: Sequence[int] = ATTACKERS
    budget: float = BUDGET
    """Central DP's epsilon."""
    rounds: int = ROUNDS
    model: str = "cnn-half"

    def __post_init__(self) -> None:
        runner.require_positive("--epsilon", self.budget)

    def case(self, defence: Defence, n_attackers: int) -> Case:
        """Return one defence against so many attackers."""
        name = f"{defence.name}-k{n_attackers}"
        task = {
            "name": name,
            "clients": N_CLIENTS,
            "rounds": self.rounds,
            "client_rate": CLIENT_RATE,
            "record_rate": RECORD_RATE,
            "record_clip": 1.0,
            "client_clip": UPDATE_CLIP,
            "noise_multiplier": defence.noise_multiplier,
            "learning_rate": 1.0,
            "delta": defence.delta,
            "model": self.model,
        }
        if defence.has_budget:
            task["epsilon_budget_clients_only"] = self.budget
        simulation = {
            **defence.simulation,
            "local_steps": LOCAL_STEPS,
            "local_batch": LOCAL_BATCH,
            "local_rate": LOCAL_RATE,
            "evaluate_every": EVALUATE_EVERY,
            "attack": _attack(n_attackers, replaces=not defence.has_obedient_attackers),
        }
        client = {"dataset": self.dataset, "device": self.device}
        return Case(
            name=name,
            labels={"defence": defence.words, "attackers": n_attackers},
            config={"task": task, "client": client, "simulation": simulation},
            rounds_per_epoch=1,
        )


def _attack(n_attackers: int, *, replaces: bool) -> dict[str, Any]:
    """Return the attack, in which as many attackers as a round expects replace the model together."""
    together = {
        "gamma": 1 / max(1.0, CLIENT_RATE * n_attackers),
        "divides": False,  # by the expected number of them instead: nobody knows who else is drawn
        "steps": ATTACK_STEPS,
        "rate": LOCAL_RATE,
        "replaces": replaces,
    }
    return {"kind": "triangle-backdoor", "clients": n_attackers, "parameters": together}


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    return runner.reported(
        "central-local-backdoor",
        experiment,
        [experiment.case(defence, k) for k in experiment.attackers for defence in DEFENCES],
        folder,
        console,
        workers,
        found=lambda outcomes: {
            "cases": [_of_case(outcome) for outcome in outcomes],
            "clean_accuracy_floor": backdoors.CLEAN_ACCURACY_FLOOR,
        },
        paragraph=paragraph,
        draw=lambda outcomes, _: backdoors.save_figures(
            folder / "backdoor", outcomes, experiment.attackers, [defence.words for defence in DEFENCES], N_CLIENTS
        ),
    )


def _of_case(outcome: Outcome) -> dict[str, Any]:
    return {
        # trainings that a budget ends have few evaluations to average
        **backdoors.of_case(outcome, backdoors.final_models(outcome)),
        "rounds": max(run["rounds"] for run in outcome.runs),
        "epsilon": runner.largest_epsilon(outcome),
        "epsilon_is_of_a": outcome.runs[0]["guarantees"][0]["unit"],
    }


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out, beside what the paper says."""
    stopped = sorted({case["rounds"] for case in report["cases"] if case["defence"] == CENTRAL.words})
    return (
        f"Triangle on {report['dataset']}, model {report['model']}, {N_CLIENTS} clients, {report['rounds']} "
        f"rounds, {report['seeds']} seed(s); central DP stopped after {' and '.join(map(str, stopped))} rounds, budget "
        f"{report['budget']:g}. Backdoor accuracy of the final models: {backdoors.in_words(report)}. "
        f"{backdoors.floor_in_words()} "
        f"{''.join(_verdict(report, k) for k in report['attackers'])}{PAPER}"
    )


def _verdict(report: Mapping[str, Any], k: int) -> str:
    """Return whether the order that the paper claims is there with K attackers."""
    at = {case["defence"]: case["backdoor"]["mean"] for case in report["cases"] if case["attackers"] == k}
    if any(mean is None for mean in at.values()):
        return ""
    others = min(at[BOUNDED.words], at[WEAK.words])
    holds = {
        f"{defence.words} below non-private": at[defence.words] < at[NOTHING.words] for defence in (CENTRAL, LOCAL)
    } | {f"{defence.words} below norm bounding and weak DP": at[defence.words] < others for defence in (CENTRAL, LOCAL)}
    return f"At K = {k}: " + ", ".join(f"{what}: {'yes' if is_so else 'NO'}" for what, is_so in holds.items()) + ". "


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    extra: dict[str, backdoors.Shown] = {"rounds": lambda case: str(case["rounds"]), "epsilon": _epsilon}
    backdoors.print_cases(console, report, title="Central and local DP under backdoors", extra=extra)


def _epsilon(case: Mapping[str, Any]) -> str:
    return "-" if case["epsilon"] is None else f"{at_most(case['epsilon'])} of a {case['epsilon_is_of_a']}"
