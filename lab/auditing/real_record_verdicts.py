"""Judge what real audit clients of a deployment showed, beside the epsilon that is printed for each seat.

Rate and clip are of what they uploaded, the noise is of canaries at the same seat. Clients see released models, too, so
their seat also has:
- how uploads arrive in the sum;
- an upper limit of the noise at all parameters;
- guesses of coins in one run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from scipy.stats import beta

from precad.dp.accountants.pld import SampledGaussian, View
from precad.dp.auditing import beside_others, per_round
from precad.dp.auditing.independence import Repetition
from precad.dp.auditing.shares import Shares
from precad.dp.task_privacy import task_privacy
from precad.lab.auditing.real_record_rounds import RealRounds
from precad.lab.auditing.real_records import SLACK, no_sum, of_the_longest
from precad.lab.auditing.seat_verdicts import in_one_run
from precad.lab.auditing.seats import Seat
from precad.protos.task.task import Task

_N_TESTS: Final = 3
"""Limits that share the chance of real records: rate, arrival, noise at all parameters."""
_EVERYTHING: Final = (-math.inf, math.inf)
_NO_REPETITION: Final = Repetition(0.0, "", 1.0, is_found=False)
"""Noise is compared across rounds at canaries, where others add nothing."""


def judged_real(
    task: Task, rounds: RealRounds | None, views: Sequence[Mapping[str, Any]], shares: Shares
) -> dict[str, Any] | None:
    """Return what real records showed; None where no real audit client was in a round.

    views: what canaries showed, by seat (`judged`), at their own share of the audit's chance.
    """
    if rounds is None:
        return None
    seats = [_of_seat(task, rounds, view, shares) for view in views]
    alarms = [no_sum(rounds.unexplained)] if rounds.unexplained > SLACK else []
    if (np.array(rounds.weights)[:, ~rounds.coins] > 0).any():
        alarms.append("coins: expected no record in an update that its coin leaves out, found one")
    return {"records": len(rounds.coins), "rounds": len(rounds.weights), "alarms": alarms, "seats": seats}


def _of_seat(task: Task, rounds: RealRounds, view: Mapping[str, Any], shares: Shares) -> dict[str, Any]:
    privacy, of_noise = task_privacy(task).of_training, float(view["limits"]["noise_chance"])
    seat, alpha = Seat(view["seat"]), shares.real / _N_TESTS
    event = privacy.events[View(seat.view)]
    assert isinstance(event, SampledGaussian)  # of the algorithm `precad`
    most = int(np.array(rounds.present).sum(axis=0).max())
    printed = privacy.epsilon(seat.view, most, task.delta)
    found = _limits(rounds, float(view["limits"]["noise_at_most"]), of_noise, alpha)
    figures, refuting = {}, list[str]()
    if seat is Seat.CLIENTS and (observed := rounds.observed()) is not None:
        at_parameters = beside_others.noise_at_most(rounds.energy, rounds.n_energy, alpha)
        arrival = beside_others.arrival(rounds.all_draws, event.sampling_rate, alpha)
        found = replace(found, noise_at_most=min(found.noise_at_most, at_parameters), arrival=arrival)
        guessed = in_one_run(observed, event, most, task.delta, shares)
        figures, refuting = guessed.figures, guessed.refuting(printed)
    per_round_figure = found.epsilon(most, task.delta, event.group_size)
    return {
        "seat": seat.value,
        "view": seat.view.value,
        "printed": printed,
        "per_round": per_round_figure,
        **figures,
        "exceeded": bool(refuting) or per_round_figure > printed,
        "alarms": per_round.alarms(replace(found, clip_at_most=rounds.excess), event, rounding=SLACK),
    }


def _limits(rounds: RealRounds, noise_at_most: float, noise_chance: float, alpha: float) -> per_round.Limits:
    """Return limits of what was uploaded, beside one of the noise."""
    weights, may_be = np.array(rounds.weights), np.array(rounds.tellable) & rounds.coins
    drawn, trials = int((weights > 0).sum()), int(may_be.sum())
    return per_round.Limits(
        observations=trials,
        drawn=drawn,
        noise_at_most=noise_at_most,
        noise_chance=noise_chance,
        rate_at_least=float(beta.ppf(alpha, drawn, trials - drawn + 1)) if 0 < drawn <= trials else float(drawn > 0),
        clip_at_least=of_the_longest(weights),
        clip_at_most=float(weights.max()),
        arrival=_EVERYTHING,
        repetition=_NO_REPETITION,
    )
