"""Judge what one seat saw of the canaries, beside the epsilon that is printed for it."""

from __future__ import annotations

from typing import Any

from precad.dp.accountants.pld import SampledGaussian
from precad.dp.auditing import f_dp, per_round, strict
from precad.dp.auditing.observed import Observed
from precad.dp.auditing.plans import planned
from precad.dp.task_privacy import task_privacy
from precad.lab.auditing.seats import Seat
from precad.protos.task.task import Task


def judged(seat: Seat, task: Task, observed: Observed, confidence: float) -> dict[str, Any]:
    """Return the printed epsilon of a seat, three lower figures, and what contradicts the printed round."""
    privacy = task_privacy(task)
    event, rounds = privacy.events[seat.view], observed.most_rounds
    assert isinstance(event, SampledGaussian)  # of the algorithm `precad`
    printed = privacy.epsilon(seat.view, rounds, task.delta)
    found = per_round.limits(observed, event, confidence)
    figures = {"per_round": found.epsilon(rounds, task.delta, event.group_size)} | in_one_run(
        observed, event, rounds, task.delta, confidence
    )
    return {
        "seat": seat.value,
        "view": seat.view.value,
        "participation": rounds,
        "printed": printed,
        "figures": figures,
        "exceeded": sorted(name for name, figure in figures.items() if figure > printed),
        "alarms": per_round.alarms(found, event, rounding=2.0 ** -(task.frac_bits + 1) / task.record_clip),
        "finds_noise_below": 1 - per_round.least_deficit(found.observations, found.noise_chance),
        "limits": {
            "noise_at_most": found.noise_at_most,
            "noise_chance": found.noise_chance,
            "rate_at_least": found.rate_at_least,
            "clip_at_least": found.clip_at_least,
            "clip_at_most": found.clip_at_most,
            "arrival": list(found.arrival),
        },
    }


def in_one_run(
    observed: Observed, event: SampledGaussian, rounds: int, delta: float, confidence: float
) -> dict[str, float]:
    """Return the two figures of guesses in one run."""
    by_curves = planned(observed.present, event, lambda found: f_dp.best_of(found, event, rounds, confidence))
    strictly = planned(observed.present, event, lambda found: strict.best_of(found, delta, confidence))
    return {
        "f_dp": f_dp.refuted_epsilon(observed.guesses(event, by_curves), event, rounds, delta, confidence),
        "strict": strict.refuted_epsilon(observed.guesses(event, strictly), delta, confidence),
    }
