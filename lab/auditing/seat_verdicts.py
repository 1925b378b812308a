"""Judge what one seat saw of the canaries, beside the epsilon that is printed for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from precad.dp.accountants.pld import SampledGaussian
from precad.dp.auditing import f_dp, per_round, strict
from precad.dp.auditing.observed import Observed
from precad.dp.auditing.plans import planned
from precad.dp.auditing.shares import Shares
from precad.dp.task_privacy import task_privacy
from precad.lab.auditing.seats import Seat
from precad.protos.task.task import Task


def judged(seat: Seat, task: Task, observed: Observed, shares: Shares) -> dict[str, Any]:
    """Return the printed epsilon of a seat, three lower figures, and what contradicts the printed round.

    All that accuses shares one chance. Each figure of guesses holds by itself, and accuses only where it is too large
    at its share, too.
    """
    privacy = task_privacy(task).of_training
    event, rounds = privacy.events[seat.view], observed.most_rounds
    assert isinstance(event, SampledGaussian)  # of the algorithm `precad`
    printed = privacy.epsilon(seat.view, rounds, task.delta)
    found = per_round.limits(observed, event, 1 - shares.canaries, shares.seats, shares.draws)
    per_round_figure = found.epsilon(rounds, task.delta, event.group_size)
    guessed = in_one_run(observed, event, rounds, task.delta, shares)
    rounding = 2.0 ** -(task.frac_bits + 1) / task.record_clip
    return {
        "seat": seat.value,
        "view": seat.view.value,
        "participation": rounds,
        "printed": printed,
        "figures": {"per_round": per_round_figure} | guessed.figures,
        "exceeded": [*guessed.refuting(printed), *(["per_round"] if per_round_figure > printed else [])],
        "alarms": per_round.alarms(found, event, rounding, least=1 - 2 * rounding - per_round.CLIP_SLACK),
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


@dataclass(frozen=True, slots=True)
class InOneRun:
    """Hold the two figures of guesses in one run."""

    figures: dict[str, float]
    """Each with the audit's confidence by itself."""
    at_share: Mapping[str, Callable[[], float]]
    """Likewise at its share of the audit's chance: a lower one, computed when it is asked for."""

    def refuting(self, printed: float) -> list[str]:
        """Return the names of those that contradict the printed epsilon."""
        return [name for name, figure in self.figures.items() if figure > printed and self.at_share[name]() > printed]


def in_one_run(observed: Observed, event: SampledGaussian, rounds: int, delta: float, shares: Shares) -> InOneRun:
    """Guess coins by two plans, and return what the guesses refute."""
    confidence = 1 - shares.figure
    by_curves = planned(observed.present, event, lambda found: f_dp.best_of(found, event, rounds, confidence))
    strictly = planned(observed.present, event, lambda found: strict.best_of(found, delta, confidence))
    of_curves, of_strict = observed.guesses(event, by_curves), observed.guesses(event, strictly)
    refuted: dict[str, Callable[[float], float]] = {
        "f_dp": lambda level: f_dp.refuted_epsilon(of_curves, event, rounds, delta, level),
        "strict": lambda level: strict.refuted_epsilon(of_strict, delta, level),
    }
    at_share = 1 - shares.guesses
    return InOneRun(
        {name: at(confidence) for name, at in refuted.items()},
        {name: partial(at, at_share) for name, at in refuted.items()},
    )
