"""TSGD + Gaussian and TSGD + PTR: sums and noise against closed forms, F as it moves, cost against the formulas."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.accountants.ptr_loss import pld_eps_ptr
from precad.dp.accountants.ptr_privacy import eps_ptr_rounds
from precad.dp.trimmed.aggregation import Sampling, TrimmedGaussian, TrimmedPtr, clip_to_grid
from precad.dp.trimmed.propose_test_release import ProposeTestRelease
from precad.dp.trimmed.trimmed_sum import squared_norm, trimmed_sum
from tests.harness.examples import examples

SAMPLING = Sampling(rate=0.1, n_enrolled=1000)
DIM = 20_000


def fixed_stream(seed):
    """A generator of bytes for tests: numpy's, never a server's."""
    return np.random.default_rng(seed).bytes


def gaussian(**changed) -> TrimmedGaussian:
    parameters = {"sampling": SAMPLING, "clip": 2.0, "trim_count": 25, "noise_multiplier": 0.7}
    return TrimmedGaussian(**(parameters | changed))


def ptr(trim_count=40, **changed) -> TrimmedPtr:
    mechanism = ProposeTestRelease(
        clip=2.0,
        frac_bits=16,
        tau=0.5,
        trim_count=trim_count,
        laplace_scale=1.0,
        test_failure=1e-8,
        noise_multiplier=1.1,
    )
    return TrimmedPtr(**({"sampling": SAMPLING, "mechanism": mechanism, "step": 2, "most": 60} | changed))


def of_norms(norms, dim=DIM):
    """Updates along the axes, one for each norm."""
    updates = np.zeros((len(norms), dim))
    updates[np.arange(len(norms)), np.arange(len(norms)) % dim] = norms
    return updates


def test_the_paper_s_shares_are_of_the_nominal_batch():
    """q N = 100: a quarter is 25, two percent are 2, whatever came."""
    assert SAMPLING.nominal == 100
    assert (SAMPLING.share(0.25), SAMPLING.share(0.02)) == (25, 2)
    with pytest.raises(ValueError, match="rate: expected a number above 0"):
        Sampling(rate=0.0, n_enrolled=5)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), log10_size=st.floats(-6, 300), clip=st.sampled_from([0.1, 1.0, 3.0]))
def test_clipping_is_the_projection_and_never_leaves_the_ball(seed, log10_size, clip):
    """In integers norms are at most R; each coordinate is within one step of v min(1, R/|v|), towards zero."""
    rng = np.random.default_rng(seed)
    updates = rng.standard_normal((4, 30)) * 10.0**log10_size
    updates[1] = 0.0
    grid = clip_to_grid(updates, clip, 16)
    assert all(squared_norm(row) <= (Fraction(clip) * 2**16) ** 2 for row in grid)
    unit = updates / np.maximum(np.abs(updates).max(axis=1, keepdims=True), 1e-300)
    norms = np.abs(updates).max(axis=1) * np.linalg.norm(unit, axis=1)
    exact = updates * np.where(norms > clip, clip / np.where(norms > 0, norms, 1.0), 1.0)[:, None] * 2**16
    assert np.all(np.abs(grid) <= np.abs(exact) + 1e-6)
    assert np.all(np.abs(exact - grid) < 1 + 1e-6)


@pytest.mark.parametrize("largest", [1.0, -1.0, 1e200, -1e200, 1.7e308, -1.7e308, 1e-300, -1e-300])
def test_one_long_coordinate_of_either_sign_is_cut_to_the_ball(largest):
    """Also where no float64 holds its square: all that is left is the coordinate, R long, or as long as it was."""
    (row,) = clip_to_grid(np.array([[largest, 0.0, 0.0]]), 0.5, 16)
    assert row.tolist() == [math.trunc(math.copysign(min(abs(largest), 0.5), largest) * 2**16), 0, 0]


@pytest.mark.parametrize("bits", [3, 30, 31, 32, 40])
def test_squares_add_exactly_beyond_a_word(bits):
    """As Python's integers do, up to the longest coordinate that a grid may have."""
    vector = [2**bits, -(2**bits), 1 - 2**bits, 5, 0]
    assert squared_norm(np.array(vector, dtype=np.int64)) == sum(v**2 for v in vector)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), m=st.integers(0, 6), F=st.integers(0, 4))
def test_a_trimmed_sum_moves_by_one_vector_at_most(seed, m, F):
    """Adding any vector moves TSum_F by a norm of at most R, which makes TSGD + Gaussian a Gaussian mechanism."""
    vectors = clip_to_grid(np.random.default_rng(seed).standard_normal((m + 1, 3)), 1.0, 10)
    moved = trimmed_sum(vectors, F) - trimmed_sum(vectors[:-1], F)
    assert squared_norm(moved) <= 2**20


@pytest.mark.parametrize("rule", [gaussian(trim_count=3), ptr(trim_count=3)])
def test_the_sum_under_the_noise_is_exact(rule):
    """With the same stream, a round less an empty one is the sum itself over q N: trimmed; full after a failed test."""
    norms = [0.5, 1.0, 1.5, 2.0, 7.0]
    updates = of_norms(norms, 8)
    difference = rule.aggregate(updates, fixed_stream(1)).mean - rule.aggregate(updates[:0], fixed_stream(1)).mean
    kept = norms[:2] if isinstance(rule, TrimmedGaussian) else [*norms[:4], 2.0]
    expected = of_norms(kept, 8).sum(axis=0) / 100
    assert difference == pytest.approx(expected, abs=1e-12)


def test_noise_over_the_nominal_number():
    """sigma R/(q N); after a passed test tau of that, after a failed one all of it. To 5 standard deviations."""
    short, long = of_norms([0.1] * 80), of_norms([1.9] * 80)
    slack = 5 / math.sqrt(2 * DIM)
    assert np.std(gaussian().aggregate(short[:0], fixed_stream(1)).mean) == pytest.approx(0.7 * 2 / 100, rel=slack)
    passed, failed = ptr().aggregate(short, fixed_stream(2)), ptr().aggregate(long, fixed_stream(3))
    assert passed.has_passed
    assert not failed.has_passed
    assert np.std(passed.mean[80:]) == pytest.approx(1.1 * 2 * 0.5 / 100, rel=slack)
    assert np.std(failed.mean[80:]) == pytest.approx(1.1 * 2 / 100, rel=slack)


def test_dynamic_trim_count():
    """Up by the step after a failed test, down after a passed one, within 0 .. most; the Gaussian rule stays."""
    short, long, stream = of_norms([0.1] * 80, 80), of_norms([1.9] * 80, 80), fixed_stream(6)
    assert ptr().aggregate(short, stream).next_rule.mechanism.trim_count == 38
    assert ptr().aggregate(long, stream).next_rule.mechanism.trim_count == 42
    assert ptr(trim_count=60).aggregate(long, stream).next_rule.mechanism.trim_count == 60
    rule, trimmed, stream = ptr(trim_count=0), [], fixed_stream(5)
    for _ in range(14):
        rule = rule.aggregate(short, stream).next_rule
        trimmed.append(rule.mechanism.trim_count)
    assert trimmed[:8] == [2, 4, 6, 8, 10, 12, 14, 16]  # below the threshold of 17.7
    assert max(trimmed) >= 18
    fixed = gaussian()
    assert fixed.aggregate(short, stream).next_rule is fixed


def test_long_updates_are_trimmed():
    """With F at least their number, corrupted updates leave no trace: the round is that of the honest ones."""
    rng = np.random.default_rng(2)
    honest = rng.standard_normal((30, 50)) * 0.05
    corrupted = rng.standard_normal((5, 50)) * 100
    rule = gaussian(trim_count=5)
    with_them = rule.aggregate(np.concatenate([corrupted, honest]), fixed_stream(3)).mean
    without = gaussian(trim_count=0).aggregate(honest, fixed_stream(3)).mean
    assert with_them.tolist() == without.tolist()


@pytest.mark.filterwarnings("ignore::precad.dp.accountants.renyi_accounting.OrderGridWarning")
@examples(4, 15)
@given(F=st.integers(0, 60), rounds=st.integers(1, 400), log10_delta=st.floats(-7, -4))
def test_what_a_round_costs(F, rounds, log10_delta):
    """The smaller of two bounds, whatever F is; more than the Gaussian mechanism of the same noise would."""
    delta = 10**log10_delta
    rule = ptr(trim_count=F)
    assert rule.event == ptr().event
    both = [bound(0.1, 1.1, 0.5, 1.0, 1e-8, rounds, delta) for bound in (eps_ptr_rounds, pld_eps_ptr)]
    assert rule.epsilon(rounds, delta) == min(both)
    assert rule.epsilon(rounds, delta) > PldAccountant().epsilon(SampledGaussian(0.1, 1.1), rounds, delta)
    assert gaussian(trim_count=F).event == SampledGaussian(0.1, 0.7)


def test_gaussian_costs_what_the_default_accountant_says():
    assert gaussian().epsilon(30, 1e-5) == PldAccountant().epsilon(SampledGaussian(0.1, 0.7), 30, 1e-5)


@pytest.mark.parametrize("rule", [gaussian(), ptr()])
def test_noise_is_the_stream_s(rule):
    """Two rounds with the same stream are equal; the next of that stream is another."""
    updates, stream = of_norms([0.1] * 3, 50), fixed_stream(4)
    first, second, again = (rule.aggregate(updates, draws).mean for draws in (stream, stream, fixed_stream(4)))
    assert first.tolist() == again.tolist() != second.tolist()


@pytest.mark.parametrize("rule", [gaussian(), ptr()])
def test_updates_are_checked(rule):
    with pytest.raises(ValueError, match=r"updates: expected shape \(m, d\), found \(3,\)"):
        rule.aggregate(np.zeros(3), fixed_stream(4))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rule", [gaussian(), ptr()])
def test_an_update_that_is_not_finite_counts_as_zero(rule, bad):
    """Under the same noise it is released as a zero is, and no error tells of it."""
    updates = of_norms([0.1] * 3, 50)
    released = []
    for value in (0.0, bad):
        updates[1] = 0.0
        updates[1, 0] = value
        released.append(rule.aggregate(updates, fixed_stream(4)).mean.tolist())
    assert released[0] == released[1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gaussian(clip=0.0), "clip: expected a finite number above 0"),
        (lambda: gaussian(trim_count=-1), "trim_count: expected an integer of at least"),
        (lambda: gaussian(noise_multiplier=math.nan), "noise_multiplier: expected a finite number above 0"),
        (lambda: gaussian(clip=2.0**25), r"clip: expected at most 2\^\(40 - frac_bits\)"),
        (lambda: gaussian(frac_bits=2000), r"clip: expected at most 2\^\(40 - frac_bits\)"),
        (lambda: gaussian(noise_multiplier=2.0**24), r"std: expected 2\^-20 to 2\^40 grid units"),
        (lambda: ptr(step=0), "step: expected an integer of at least 1"),
        (lambda: ptr(most=39), "most: expected at least trim_count = 40, found 39"),
        (lambda: Sampling(rate=1.5, n_enrolled=5), "rate: expected a number in"),
        (lambda: Sampling(rate=0.5, n_enrolled=0), "n_enrolled: expected an integer of at least 1"),
    ],
)
def test_parameters_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
