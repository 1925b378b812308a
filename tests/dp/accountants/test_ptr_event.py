"""Rounds of propose-test-release as ledgers hold them, alone and together with rounds of other kinds."""

from __future__ import annotations

import math
from dataclasses import replace

import dp_accounting
import pytest

from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.dp_events import dp_event
from precad.dp.accountants.pld import PldAccountant, SampledGaussian, event_fields, event_of
from precad.dp.accountants.ptr_event import SampledProposeTestRelease
from precad.dp.accountants.ptr_loss import pld_eps_ptr
from precad.dp.accountants.ptr_privacy import eps_ptr_rounds
from precad.dp.accountants.side_by_side import ACCOUNTANTS
from precad.dp.errors import UnsupportedEventError

ROUND = SampledProposeTestRelease(
    sampling_rate=1.0, noise_multiplier=6.0, tau=0.5, laplace_scale=5.0, test_failure=1e-8
)
DELTA = 1e-5


def test_a_ledger_reads_the_round_that_it_wrote() -> None:
    fields = event_fields(ROUND)
    assert fields == {
        "sampling_rate": 1.0, "noise_multiplier": 6.0, "tau": 0.5, "laplace_scale": 5.0, "test_failure": 1e-8,
    }  # fmt: skip
    assert event_of(fields) == ROUND
    for name in ("noise_multiplier", "tau", "laplace_scale", "test_failure"):
        with pytest.raises(ValueError, match=name):
            event_of({**fields, name: 0.0})


@pytest.mark.parametrize("noise", [1e-4, 0.05, 0.1])
def test_tests_that_hide_next_to_nothing_leave_no_bound_beside_other_rounds(noise: float) -> None:
    """Their loss is all but surely infinite, which is no error: a target for the noise begins down there."""
    little, other = replace(ROUND, noise_multiplier=noise), (SampledGaussian(1.0, 50.0), 2)
    assert composed_epsilon([(little, 20), other], DELTA) == math.inf
    enough = [(replace(ROUND, noise_multiplier=6.0), 20)]
    alone, together = (composed_epsilon(rounds, DELTA) for rounds in (enough, [*enough, other]))
    assert alone <= together < 1.1 * alone


@pytest.mark.parametrize("rounds", [1, 7, 40])
def test_the_default_accountant_takes_the_smaller_proved_bound(rounds: int) -> None:
    both = [f(1.0, 6.0, 0.5, 5.0, 1e-8, rounds, DELTA) for f in (pld_eps_ptr, eps_ptr_rounds)]
    assert PldAccountant().epsilon(ROUND, rounds, DELTA) == min(both)
    assert PldAccountant().epsilon(ROUND, 0, DELTA) == 0


def test_two_kinds_that_hardly_differ_cost_what_one_kind_does() -> None:
    """Composed on another grid by another library: 3 rounds and 4 nearly equal ones are 7."""
    other = replace(ROUND, noise_multiplier=ROUND.noise_multiplier * (1 + 1e-9))
    together = composed_epsilon([(ROUND, 3), (other, 4)], DELTA)
    assert together == pytest.approx(pld_eps_ptr(1.0, 6.0, 0.5, 5.0, 1e-8, 7, DELTA), rel=2e-4)


def test_rounds_of_a_gaussian_beside_it_count() -> None:
    """Beside one that shows nothing it costs what it does alone; else more, and no more than basic composition says."""
    alone = pld_eps_ptr(1.0, 6.0, 0.5, 5.0, 1e-8, 5, DELTA)
    assert composed_epsilon([(ROUND, 5), (SampledGaussian(1.0, 1e6), 1)], DELTA) == pytest.approx(alone, rel=2e-4)
    for event in (SampledGaussian(1.0, 2.0), SampledGaussian(0.3, 2.0)):
        together = composed_epsilon([(ROUND, 5), (event, 4)], DELTA)
        halves = [PldAccountant().epsilon(one, n, DELTA / 2) for one, n in ((ROUND, 5), (event, 4))]
        assert max(alone, PldAccountant().epsilon(event, 4, DELTA)) < together < sum(halves)


def test_what_has_no_account_of_it_says_so() -> None:
    for name in ("rdp", "gdp", "gdp_clt", "precad"):
        with pytest.raises(UnsupportedEventError):
            ACCOUNTANTS[name].epsilon(ROUND, 3, DELTA)
    assert isinstance(dp_event(ROUND, 3), dp_accounting.NonPrivateDpEvent)


@pytest.mark.parametrize("field", ["noise_multiplier", "laplace_scale"])
def test_numbers_without_a_square_in_float64_are_bounds_too(field: str) -> None:
    """Next to nothing hides nothing; where more noise has no square, that much less is counted."""
    assert replace(ROUND, **{field: 1e-300}).epsilon(3, DELTA) == math.inf
    much, all_of_it = (replace(ROUND, **{field: value}).epsilon(3, DELTA) for value in (1e100, 1e300))
    assert all_of_it == pytest.approx(much)
    assert 0 < replace(ROUND, tau=1e-300).epsilon(3, DELTA) < math.inf  # a test passed wrongly is a part of delta
