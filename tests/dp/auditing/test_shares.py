"""Shares of one chance of a false alarm: they add up, and three seats of a sound training use no more than it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, chi2, t

from precad.dp.accountants.pld import SampledGaussian
from precad.dp.auditing import per_round
from precad.dp.auditing.observed import Observed
from precad.dp.auditing.shares import Shares
from tests.dp.auditing.canaries import observed


@pytest.mark.parametrize("has_real", [True, False])
@pytest.mark.parametrize("seats", [1, 2, 3])
def test_all_parts_of_an_audit_add_up_to_its_chance(seats: int, has_real: bool) -> None:
    """Two figures of guesses at every seat; real records have two more at most. Real records that are not have none."""
    shares = Shares.of(0.95, seats, has_real=has_real)
    assert shares.canaries + shares.real + 2 * (seats + has_real) * shares.guesses == pytest.approx(0.05)
    assert (shares.real > 0) == has_real
    assert shares.figure == pytest.approx(0.05)
    assert shares.canaries >= 0.8 * 0.05 - 1e-12


def test_shares_of_no_seat_or_of_certainty_are_refused() -> None:
    with pytest.raises(ValueError, match="seats: expected"):
        Shares.of(0.95, 0, has_real=False)
    with pytest.raises(ValueError, match="draws: expected"):
        Shares.of(0.95, 1, has_real=False, draws=0)
    with pytest.raises(ValueError, match="delta: expected"):
        Shares.of(1.0, 1, has_real=False)


def test_limits_of_the_noise_and_tests_are_divided_among_seats_and_the_rate_among_tables_of_draws() -> None:
    """Seats that saw the same rounds have the same draws: an alarm at all of them is one event."""
    for seats, draws in ((1, 1), (3, 1), (3, 2)):
        noise, rate = per_round.chances(1000, 300, 0.25, 0.05, seats, draws)
        assert seats * noise + draws * rate == pytest.approx(0.6 * 0.05)


@pytest.mark.parametrize(("seats", "draws"), [(1, 1), (3, 1), (3, 2)])
def test_limits_fail_with_the_chances_of_their_seats_and_draws(seats: int, draws: int) -> None:
    """Each read off the law that it was made of: the other way round, from the limit to its chance."""
    seen, event = observed(0.25, 1.5, m=60, T=5, seed=3), SampledGaussian(0.25, 1.5)
    found = per_round.limits(seen, event, 0.95, seats, draws)
    energy, trials = float(np.square(seen.residuals).sum()), int((seen.present & seen.coins).sum())
    of_noise = chi2.cdf(energy / found.noise_at_most**2, 300)
    of_rate = binom.sf(found.drawn - 1, trials, found.rate_at_least)
    assert of_noise == pytest.approx(found.noise_chance, rel=1e-6)
    assert seats * of_noise + draws * of_rate == pytest.approx(0.6 * 0.05, rel=1e-6)
    factor = float((seen.contributions * seen.scores).sum() / np.square(seen.contributions).sum())
    left = float(np.square(seen.scores - factor * seen.contributions).sum()) / 299
    error = math.sqrt(left / float(np.square(seen.contributions).sum()))
    of_arrival = [2 * t.sf(abs(end - factor) / error, 299) for end in found.arrival]
    assert of_arrival == pytest.approx([0.1 * 0.1 * 0.05 / seats] * 2, rel=1e-6)


def seats_of(seed: int) -> dict[float, Observed]:
    """Both servers' seats and the clients', of one training with one table of draws, by the noise multiplier."""
    draws, seen = np.random.default_rng(10_000 + seed), observed(1.0, 1.0, m=24, T=4, seed=seed)
    other = draws.normal(0, 1, seen.scores.shape)
    added, of_a = seen.contributions, seen.residuals
    scores = {1.0: added + of_a, 1.0 + 1e-12: added + other, math.sqrt(2): added + of_a + other}
    return {noise: Observed(found, added, seen.present, seen.coins) for noise, found in scores.items()}


@pytest.mark.slow  # the two tests of sums above are the quick ones
@pytest.mark.parametrize(("seats", "is_kept"), [(3, True), (1, False)])
def test_a_sound_training_is_accused_by_any_of_three_seats_in_a_twentieth_of_runs(seats: int, is_kept: bool) -> None:
    """And in more, were each seat to have the whole chance. Seeds are fixed; chance has 10^-4, and 10^-3 beside it."""
    accused = 0
    for seed in range(500):
        accused += any(
            per_round.alarms(per_round.limits(found, event, 0.95, seats), event)
            for noise, found in seats_of(seed).items()
            for event in [SampledGaussian(1.0, noise)]
        )
    chance = 1e-4 if is_kept else 1e-3
    assert (accused <= int(binom.ppf(1 - chance, 500, 0.05))) == is_kept
