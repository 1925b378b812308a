"""Compute what attacks cost, by the models, and what is certified of it: the arithmetic of `xie-attack-cost`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.records import Records
from precad.clients.training import evaluation
from precad.deploy.guarantees.certificates import Request, cost_bounds
from precad.dp.accountants.pld import Label
from precad.dp.certificates.prediction import LABELS, Method, Threat, Training
from precad.lab.papers.runner import Case
from precad.lab.simulation.attackers import ATTACKERS

_TINY: Final = np.finfo(np.float64).tiny


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How near the final models of a case came to what the attackers want, (seeds,) each."""

    losses: NDArray[np.float64]
    """Mean cross-entropy, before it is cut off."""
    successes: NDArray[np.float64]
    """Share of the records that are taken for what the attackers want."""

    @classmethod
    def of(cls, folder: Path, seeds: int, model: str, wanted: Records) -> Reached:
        """Measure on `wanted`, by the models that lie in the case's folder."""
        losses, successes = np.empty(seeds), np.empty(seeds)
        for seed in range(seeds):
            with np.load(folder / f"seed-{seed}.npz", allow_pickle=False) as saved:
                confidences = evaluation.confidences(saved["parameters"], model, wanted)
            of_label = confidences[np.arange(len(wanted)), wanted.labels]
            losses[seed] = -np.log(np.maximum(of_label, _TINY)).mean()
            successes[seed] = np.mean(confidences.argmax(axis=1) == wanted.labels)
        return cls(losses=losses, successes=successes)

    def costs(self, cost_bound: float | None) -> NDArray[np.float64]:
        """Return the cost of each seed, (seeds,)."""
        return 1 - self.successes if cost_bound is None else np.minimum(self.losses, cost_bound)


def wanted_by(case: Case, test: Records) -> Records | None:
    """Return what the attackers of a case aim at, None where there is no such thing."""
    attack = case.config["simulation"].get("attack")
    return None if attack is None else ATTACKERS[attack["kind"]](**attack["parameters"]).success_records(test)


def lower_bounds(
    J: float, training: Training, *, delta: float, threat: Threat, psi: float, trainings: int | None
) -> dict[str, list[float]]:
    """Return the least expectation, of a quantity in [0, 1], after k = 0 .. 20 attackers, by method.

    J is its mean over so many trainings without attackers, or, with None, the expectation itself. The published method
    gets k as its paper has it, whatever the threat.
    """
    request = Request(delta=delta, threat=threat, methods=(Method.PLD, Method.EXACT), psi=psi)
    as_printed = replace(request, threat=Threat.ADD, methods=(Method.PUBLISHED,))
    found = [cost_bounds(J, training, each, trainings)["bounds"] for each in (as_printed, request)]
    return {method: [low for low, _ in bounds] for part in found for method, bounds in part.items()}


def attackers_for(goal: float, bounds: Sequence[float]) -> int | None:
    """Return the fewest attackers, at least one, for whom a cost of `goal` is not ruled out; None: more than are
    shown."""
    return next((k for k, low in enumerate(bounds) if k > 0 and low <= goal), None)


def by_epsilon(cases: Sequence[Mapping[str, Any]]) -> dict[str, bool]:
    """Return what the paper's Figure 7 says of the cost by epsilon, and whether it is so of each attack and k.

    `certified` is by the published formula, with the mean as J. Nothing is said of a single epsilon.
    """
    found: dict[str, bool] = {}
    for attack in dict.fromkeys(case["attack"] for case in cases):
        of_attack = sorted((case for case in cases if case["attack"] == attack), key=lambda case: case["sigma"])
        weakest, strongest = of_attack[0], of_attack[-1]
        if weakest is strongest:
            continue
        for low, high in zip(weakest["measured"][1:], strongest["measured"][1:], strict=True):
            which = f"{attack}, k = {low['k']}" + ("" if low["poison_share"] == 1 else f", {low['poison_share']:g}")
            certified = [case["certified"]["estimate"][Method.PUBLISHED][low["k"]] for case in (weakest, strongest)]
            found[f"{which}: measured, more at the least epsilon than at the most"] = high["mean"] > low["mean"]
            found[f"{which}: certified, more at the least epsilon than at the most"] = certified[1] > certified[0]
    return found


def cost_rows(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return costs.csv: a line for each training. As in curves.csv, `seed` counts them from 0, as their files do."""
    return [
        {
            "sigma": case["sigma"],
            "attack": case["attack"],
            "k": row["k"],
            "poison_share": row["poison_share"],
            "seed": seed,
            "loss": loss,
            "attack_success": success,
        }
        for row in case["measured"]
        for seed, (loss, success) in enumerate(zip(row["losses"], row["successes"], strict=True))
    ]


def bound_rows(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return certified.csv: a line for each number of attackers, by evidence and method."""
    return [
        {
            "sigma": case["sigma"],
            "attack": case["attack"],
            "evidence": evidence,
            "method": method,
            "label": LABELS[Method(method)].value if evidence == "radius" else Label.APPROXIMATION.value,
            "k": k,
            "lowest_cost": low,
        }
        for evidence, by_method in case["certified"].items()
        for method, bounds in by_method.items()
        for k, low in enumerate(bounds)
    ]
