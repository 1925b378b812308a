"""TSGD + Gaussian and TSGD + PTR as rules: the mechanisms' own releases and bounds, of the training they are in."""

import hashlib
import itertools

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from precad.clients.errors import ArgumentError
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.accountants.ptr_loss import pld_eps_ptr
from precad.dp.accountants.ptr_privacy import eps_ptr_rounds
from precad.dp.trimmed.aggregation import Sampling, TrimmedGaussian, TrimmedPtr
from precad.dp.trimmed.propose_test_release import ProposeTestRelease
from precad.lab.simulation.rules import TsgdGaussian, TsgdPtr
from precad.lab.simulation.rules.trimmed_sums import FRAC_BITS

Q, N = 0.5, 40


def seeded(name):
    calls = itertools.count()
    return lambda n: hashlib.shake_128(f"{name}/{next(calls)}".encode()).digest(n)


def rounds(seed, n_rounds=6, d=3):
    """Updates of several rounds, an empty one among them."""
    generator = np.random.default_rng(seed)
    sizes = [20, 0, 17, 25, 1, 22][:n_rounds]
    return [generator.normal(scale=0.4, size=(m, d)) for m in sizes]


def test_the_gaussian_rule_is_the_mechanism():
    rule = TsgdGaussian(rate=Q, n_enrolled=N, clip=2.0, noise_multiplier=1.5)
    twin = TrimmedGaussian(
        sampling=Sampling(rate=Q, n_enrolled=N), clip=2.0, trim_count=5, noise_multiplier=1.5, frac_bits=FRAC_BITS
    )
    ours, theirs = seeded("noise"), seeded("noise")
    for updates in rounds(1):
        assert_array_equal(rule.aggregate(updates, ours), twin.aggregate(updates, theirs).mean)
    assert rule.epsilon(100, 1e-5) == PldAccountant().epsilon(SampledGaussian(Q, 1.5), 100, 1e-5)


def test_the_ptr_rule_is_the_mechanism_with_f_moving():
    """F starts at a quarter of q N and moves by 2 % of it, one at least, at most to q N."""
    rule = TsgdPtr(rate=Q, n_enrolled=N, noise_multiplier=4.0, tau=0.5, laplace_scale=1.0, test_failure=1e-3)
    mechanism = ProposeTestRelease(
        clip=1.0,
        frac_bits=FRAC_BITS,
        tau=0.5,
        trim_count=5,
        laplace_scale=1.0,
        test_failure=1e-3,
        noise_multiplier=4.0,
    )
    twin = TrimmedPtr(sampling=Sampling(rate=Q, n_enrolled=N), mechanism=mechanism, step=1, most=20)
    ours, theirs, seen = seeded("noise"), seeded("noise"), []
    for updates in rounds(2):
        found = twin.aggregate(updates, theirs)
        assert_array_equal(rule.aggregate(updates, ours), found.mean)
        twin = found.next_rule
        seen.append(twin.mechanism.trim_count)
        assert rule.mechanism == twin
    assert len(set(seen)) > 1
    parameters = (Q, 4.0, 0.5, 1.0, 1e-3, 100, 1e-5)
    assert rule.epsilon(100, 1e-5) == min(eps_ptr_rounds(*parameters), pld_eps_ptr(*parameters))


@pytest.mark.parametrize("kind", [TsgdGaussian, TsgdPtr])
def test_the_longest_are_dropped(kind):
    """With next to no noise: 15 of 20 updates are kept, and the five that are a thousand times longer are not."""
    rule = kind(rate=Q, n_enrolled=N, clip=1.0, noise_multiplier=1e-6)
    small = np.full((15, 2), 1e-3)
    with_large = np.vstack([np.full((5, 2), -1.0), small])
    if kind is TsgdPtr:
        rule = TsgdPtr(rate=Q, n_enrolled=N, clip=1.0, noise_multiplier=1e-6, tau=1.0)
    assert_allclose(rule.aggregate(with_large, seeded("x")), 15 * 1e-3 / 20, atol=1e-5)


@pytest.mark.parametrize("kind", [TsgdGaussian, TsgdPtr])
@pytest.mark.parametrize(("rate", "n", "message"), [(0.4, N, "rate of the rule"), (Q, N + 1, "n_enrolled of the rule")])
def test_a_training_that_the_bound_does_not_speak_of_is_refused(kind, rate, n, message):
    """An epsilon of another q or N would be untrue."""
    rule = kind(rate=Q, n_enrolled=N)
    rule.require_training(Q, N)
    with pytest.raises(ArgumentError, match=message):
        rule.require_training(rate, n)


@pytest.mark.parametrize("kind", [TsgdGaussian, TsgdPtr])
@pytest.mark.parametrize(
    "bad", [{"clip": 0.0}, {"noise_multiplier": 0.0}, {"trim": 1.5}, {"rate": 0.0}, {"n_enrolled": 0}]
)
def test_parameters_without_meaning_are_refused(kind, bad):
    with pytest.raises(ValueError, match=rf"{next(iter(bad)) if 'trim' not in bad else 'part'}"):
        kind(**{"rate": Q, "n_enrolled": N} | bad)


def test_a_rule_goes_on_from_its_state():
    """Three rounds, and the other three by a fresh rule that was told F: as if it had been one."""
    make = {"rate": Q, "n_enrolled": N, "noise_multiplier": 4.0, "tau": 0.5, "laplace_scale": 1.0, "test_failure": 1e-3}
    whole, first, second = TsgdPtr(**make), TsgdPtr(**make), TsgdPtr(**make)
    data, noise, again = rounds(2), seeded("noise"), seeded("noise")
    expected = [whole.aggregate(updates, noise) for updates in data]
    found = [first.aggregate(updates, again) for updates in data[:3]]
    assert first.state() != second.state()
    second.restore(first.state())
    found += [second.aggregate(updates, again) for updates in data[3:]]
    assert_array_equal(found, expected)
    assert TsgdGaussian(rate=Q, n_enrolled=N).state() == ()


@pytest.mark.parametrize("state", [(), (1, 2), (10**6,), (-1,)])
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(ValueError, match=r"state: expected F of the rule|most: expected|trim_count"):
        TsgdPtr(rate=Q, n_enrolled=N).restore(state)
