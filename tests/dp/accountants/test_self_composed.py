"""A round composed with itself, against dp_accounting's own composition: the same bits."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from precad.dp.accountants import pld as accounting
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.accountants.self_composed import SelfComposition


@pytest.mark.parametrize(
    "event",
    [
        SampledGaussian(0.05, 1.0),
        SampledGaussian(0.6, 0.7),
        SampledGaussian(0.001, 8.0),
        SampledGaussian(0.9, 0.3),  # losses of 700 and more
    ],
)
@pytest.mark.parametrize("rounds", [2, 7, 61, pytest.param(400, marks=pytest.mark.slow)])
def test_it_is_the_librarys_composition_to_the_bit(event, rounds):
    """Both directions: losses, masses and the mass of infinite loss, and so every epsilon."""
    one_round = accounting._one_round(event)
    assert SelfComposition(one_round).times(1) is one_round
    ours, theirs = SelfComposition(one_round).times(rounds), one_round.self_compose(rounds)
    for our, their in ((ours._pmf_remove, theirs._pmf_remove), (ours._pmf_add, theirs._pmf_add)):
        assert our._lower_loss == their._lower_loss
        assert our._infinity_mass == their._infinity_mass
        np.testing.assert_array_equal(our._probs, their._probs)
    for delta in (1e-6, 1e-9, 1e-3, 0.5, 1e-12, 1e-6):  # in any order: sums are kept from one to the next
        assert ours.get_epsilon_for_delta(delta) == theirs.get_epsilon_for_delta(delta)


def test_threads_that_ask_at_once_get_the_librarys_figures():
    """A server's ledger and its operations port ask the same distribution, which is kept."""
    one_round, deltas = accounting._one_round(SampledGaussian(0.05, 1.0)), [10.0**-k for k in range(1, 13)]
    expected = [one_round.self_compose(300).get_epsilon_for_delta(delta) for delta in deltas]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(8):
                composed = SelfComposition(one_round).times(300)
                assert list(pool.map(composed.get_epsilon_for_delta, deltas)) == expected
    finally:
        sys.setswitchinterval(interval)


def test_a_short_symmetric_distribution_is_composed_as_well():
    """The library keeps few losses apart, and one direction where both are alike."""
    one_round = privacy_loss_distribution.from_randomized_response(0.5, 4, value_discretization_interval=1e-2)
    ours, theirs = SelfComposition(one_round).times(30), one_round.self_compose(30)
    assert ours.get_epsilon_for_delta(1e-6) == theirs.get_epsilon_for_delta(1e-6)
    even = privacy_loss_distribution.from_gaussian_mechanism(2.0, value_discretization_interval=1e-3)
    assert SelfComposition(even).times(9).get_epsilon_for_delta(1e-6) == pytest.approx(
        even.self_compose(9).get_epsilon_for_delta(1e-6), rel=0
    )
