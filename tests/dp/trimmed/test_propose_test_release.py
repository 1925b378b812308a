"""Propose-test-release: margins by brute force, the mechanism's laws, and its bounds in order."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.dp.accountants.ptr_privacy import ptr_threshold, subsampled_ptr_rdp_closed
from precad.dp.accountants.renyi import rdp_sgm_poisson
from precad.dp.noise import rounded_laplace
from precad.dp.published.propose_test_release import (
    ptr_direct_dp,
    ptr_direct_dp_refined,
    ptr_rdp,
    ptr_thm44_valid,
    subsampled_ptr_rdp_blackbox,
    subsampled_ptr_rdp_thm44,
    tsum_local_sensitivity,
    tsum_safety_margin,
)
from precad.dp.trimmed.propose_test_release import ProposeTestRelease, next_trim_count, release
from precad.dp.trimmed.trimmed_sum import trimmed_sum
from tests.harness.examples import IS_THOROUGH

NORMS = [0.0, 0.25, 0.5, 0.75, 1.0]


def fixed_stream(seed):
    """A generator of bytes for tests: numpy's, never a server's."""
    return np.random.default_rng(seed).bytes


def trimmed(norms, F):
    """The trimmed sum in one dimension, by its definition."""
    return sum(sorted(norms)[: max(0, len(norms) - F)])


def one_step(norms):
    """All neighbours: one norm less or one more."""
    for i in range(len(norms)):
        yield norms[:i] + norms[i + 1 :]
    for extra in NORMS:
        yield (*norms, extra)


@pytest.mark.parametrize("F", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_local_sensitivity_by_brute_force(F, size):
    """Within r steps no neighbouring pair of data sets moves TSum_F by more than the formula, and some pair does."""
    for norms in itertools.combinations_with_replacement(NORMS, size):
        near = {tuple(norms)}
        for r in range(2):
            worst = max(abs(trimmed(a, F) - trimmed(b, F)) for a in near for b in one_step(a))
            assert worst == pytest.approx(tsum_local_sensitivity(norms, F, r, 1.0))
            near |= {tuple(b) for a in near for b in one_step(a)}


@given(norms=st.lists(st.sampled_from(NORMS), max_size=8), F=st.integers(0, 5), tau=st.sampled_from(NORMS[1:]))
def test_margin_is_the_distance_to_a_larger_sensitivity(norms, F, tau):
    """The smallest r whose local sensitivity exceeds tau; and one more vector moves it by at most one."""
    margin = tsum_safety_margin(norms, F, tau, 1.0)
    by_sensitivity = next((r for r in range(F + 1) if tsum_local_sensitivity(norms, F, r, 1.0) > tau), math.inf)
    assert margin == by_sensitivity
    for other in one_step(tuple(norms)):
        moved = tsum_safety_margin(list(other), F, tau, 1.0)
        assert moved == margin or abs(moved - margin) <= 1


def test_trimmed_sum_drops_the_longest_and_breaks_ties_by_content():
    vectors = np.array([[3, 0], [0, 3], [1, 1], [5, 0]], dtype=np.int64)
    for order in itertools.permutations(range(4)):
        assert trimmed_sum(vectors[list(order)], 2).tolist() == trimmed_sum(vectors, 2).tolist()
    assert trimmed_sum(vectors, 1).tolist() == [4, 4]
    assert trimmed_sum(vectors, 9).tolist() == [0, 0]
    assert trimmed_sum(np.zeros((0, 2), dtype=np.int64), 1).tolist() == [0, 0]


@pytest.mark.parametrize("scale", [0.3, 1.5, 4.0])
def test_rounded_laplace_has_its_law(scale):
    """6000 draws (20 000); each probability within 5 standard deviations, false-alarm rate about 1e-5 in all."""
    n, stream = 20_000 if IS_THOROUGH else 6000, fixed_stream(1)
    counts = Counter(rounded_laplace.sample(scale, stream) for _ in range(n))
    for value in range(-5, 6):
        k = abs(value)
        below = 0.0 if k == 0 else math.exp(-(k - 0.5) / scale) / 2
        beyond = math.exp(-(k + 0.5) / scale) / 2
        p = 1 - 2 * beyond if k == 0 else below - beyond
        assert abs(counts[value] / n - p) <= 5 * math.sqrt(p * (1 - p) / n) + 1e-12


def rule(**changed):
    """A small mechanism."""
    parameters = {
        "clip": 1.0,
        "frac_bits": 16,
        "tau": 0.5,
        "trim_count": 10,
        "laplace_scale": 1.0,
        "test_failure": 0.05,
        "noise_multiplier": 1.0,
    }
    return ProposeTestRelease(**(parameters | changed))


def test_the_test_is_passed_wrongly_as_often_as_stated():
    """Margin 0: 4000 runs pass with probability delta0 = 0.05, but for the half grid step. 5 standard deviations."""
    stream, n = fixed_stream(2), 4000
    long = np.full((20, 1), 60_000, dtype=np.int64)
    passed = sum(release(long, rule(), stream).has_passed for _ in range(n))
    assert abs(passed / n - 0.05) < 5 * math.sqrt(0.05 * 0.95 / n)


def test_the_rounded_noise_passes_only_where_every_draw_that_it_may_be_does(monkeypatch):
    """A draw of n steps was n - 1/2 at least, in steps of 2^-20; the margin is 0."""
    long = np.full((20, 1), 60_000, dtype=np.int64)
    threshold = 1.7 * math.log(1 / (2 * 0.05)) * 2**20
    for steps in range(math.floor(threshold) - 2, math.ceil(threshold) + 3):
        monkeypatch.setattr(rounded_laplace, "sample", lambda scale, random_bytes, n=steps: n)
        found = release(long, rule(laplace_scale=1.7), fixed_stream(2))
        assert found.has_passed == (steps - 0.5 > threshold)
        assert found.noisy_margin == steps / 2**20


@pytest.mark.parametrize(("over", "margin"), [(0, 10), (1, 7)])
def test_vectors_of_just_the_proposed_length_do_not_count(over, margin, monkeypatch):
    """Three of them, or three that are a step longer."""
    monkeypatch.setattr(rounded_laplace, "sample", lambda scale, random_bytes: 0)
    vectors = np.array([[2**15 + over, 0]] * 3 + [[5, 5]] * 9, dtype=np.int64)
    assert release(vectors, rule(), fixed_stream(2)).noisy_margin == margin
    norms = np.linalg.norm(vectors, axis=1) / 2**16
    assert tsum_safety_margin(norms.tolist(), 10, 0.5, 1.0) == margin


def test_both_releases_carry_their_noise():
    """A passed test releases the trimmed sum with std tau sigma1 R, a failed one the full sum with sigma1 R."""
    stream, d = fixed_stream(3), 4000
    vectors = np.zeros((12, d), dtype=np.int64)
    vectors[:, 0] = 10_000
    vectors[0, 1] = 60_000
    passed = release(vectors, rule(), stream)
    assert passed.has_passed
    assert np.std(passed.total) == pytest.approx(0.5 * 2**16, rel=0.06)
    failed = release(vectors, rule(trim_count=0), stream)
    assert not failed.has_passed
    assert np.std(failed.total) == pytest.approx(2**16, rel=0.06)
    assert abs(failed.noisy_margin) < ptr_threshold(1.0, 0.05)


def test_the_sums_are_exact_under_the_noise():
    """Draw one stream with and without vectors: the difference is the sum itself, to the bit."""
    vectors = np.arange(30, dtype=np.int64).reshape(5, 6)
    empty = np.zeros((0, 6), dtype=np.int64)
    whole = rule(tau=1.0, trim_count=2)
    difference = release(vectors, whole, fixed_stream(4)).total - release(empty, whole, fixed_stream(4)).total
    assert difference.tolist() == vectors[:3].sum(axis=0).tolist()
    assert release(vectors, whole, fixed_stream(4)).noisy_margin == math.inf


def test_a_vector_over_the_clip_is_refused():
    exact = np.array([[2**16]], dtype=np.int64)
    release(exact, rule(), fixed_stream(5))
    with pytest.raises(ValueError, match=r"vectors: expected norms of at most 1\.0, found"):
        release(exact + 1, rule(), fixed_stream(5))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tau": 1.5}, "tau: expected a number in"),
        ({"clip": 0.0}, "clip: expected a finite number above 0"),
        ({"clip": 2.0**25}, r"clip: expected at most 2\^\(40 - frac_bits\)"),
        ({"noise_multiplier": 2.0**25}, r"std: expected 2\^-20 to 2\^40 grid units"),
        ({"noise_multiplier": 2.0**-36, "tau": 0.5}, r"std: expected 2\^-20 to 2\^40 grid units"),
        ({"trim_count": -1}, "trim_count: expected an integer of at least"),
        ({"laplace_scale": 0.0}, "b: expected a finite number above 0"),
        ({"test_failure": 0.5}, "delta0: expected a number in"),
        ({"noise_multiplier": math.nan}, "noise_multiplier: expected a finite number above 0"),
    ],
)
def test_parameters_are_checked(changed, message):
    with pytest.raises(ValueError, match=message):
        rule(**changed)


def test_dynamic_trim_count():
    """Up after a failed test, down after a passed one, within its range."""
    assert next_trim_count(5, has_passed=False, step=2, at_most=6) == 6
    assert next_trim_count(5, has_passed=True, step=2, at_most=6) == 3
    assert next_trim_count(1, has_passed=True, step=2, at_most=6) == 0


PARAMETERS = {
    "sigma1": st.floats(0.8, 12.0),
    "tau": st.floats(0.1, 1.0),
    "b": st.floats(0.3, 3.0),
    "delta0": st.floats(1e-10, 1e-3),
}


@settings(max_examples=40, deadline=None)
@given(alpha=st.integers(2, 24), q=st.floats(0.001, 0.5), **PARAMETERS)
def test_closed_form_is_between_the_gaussian_and_the_black_box(alpha, q, sigma1, tau, b, delta0):
    """It costs more than the sampled Gaussian alone, less than the general bound; and no more than without sampling."""
    closed = subsampled_ptr_rdp_closed(alpha, q, sigma1, tau, b, delta0)
    assert closed >= rdp_sgm_poisson(alpha, q, sigma1) * (1 - 1e-9)
    assert closed <= subsampled_ptr_rdp_blackbox(alpha, q, sigma1, tau, b, delta0) * (1 + 1e-9)
    assert closed <= ptr_rdp(alpha, sigma1, tau, b, delta0) * (1 + 1e-9)
    if ptr_thm44_valid(alpha, q, sigma1, tau, b, delta0):
        assert closed <= subsampled_ptr_rdp_thm44(alpha, q, sigma1, tau, b, delta0) * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(alpha=st.integers(2, 24), q=st.floats(0.001, 0.4), more=st.floats(1.05, 1.5), **PARAMETERS)
def test_closed_form_is_monotone(alpha, q, more, sigma1, tau, b, delta0):
    """More sampling, less noise of either kind, a likelier wrong test: never less."""
    least = subsampled_ptr_rdp_closed(alpha, q, sigma1, tau, b, delta0) * (1 - 1e-9)
    assert subsampled_ptr_rdp_closed(alpha, q * more, sigma1, tau, b, delta0) >= least
    assert subsampled_ptr_rdp_closed(alpha, q, sigma1 / more, tau, b, delta0) >= least
    assert subsampled_ptr_rdp_closed(alpha, q, sigma1, tau / more, b, delta0) >= least
    assert subsampled_ptr_rdp_closed(alpha, q, sigma1, tau, b / more, delta0) >= least
    assert subsampled_ptr_rdp_closed(alpha, q, sigma1, tau, b, delta0 * more) >= least


@given(b=st.floats(0.1, 5), sigma1=st.floats(0.5, 5), share=st.floats(0.01, 0.95), log10_delta=st.floats(-10, -2))
def test_the_refined_direct_bound_is_no_worse(b, sigma1, share, log10_delta):
    delta = 10**log10_delta
    assert ptr_direct_dp_refined(b, sigma1, share * delta, delta) <= ptr_direct_dp(b, sigma1, share * delta, delta)


def test_sampling_everybody_is_no_sampling():
    assert subsampled_ptr_rdp_closed(8, 1.0, 1.1, 0.5, 1.0, 1e-8) == pytest.approx(ptr_rdp(8, 1.1, 0.5, 1.0, 1e-8))
    assert subsampled_ptr_rdp_closed(8, 0.0, 1.1, 0.5, 1.0, 1e-8) == 0
    assert subsampled_ptr_rdp_thm44(8, 0.0, 8.0, 0.5, 1.0, 1e-8) == 0
