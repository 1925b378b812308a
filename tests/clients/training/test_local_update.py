"""Algorithm 2, lines 1 to 7: sampling, sign, projection."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal

from precad.clients import records as datasets
from precad.clients.errors import ArgumentError, NonFiniteModelError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.models import networks
from precad.clients.training.evaluation import accuracy
from precad.clients.training.local_update import local_updates, sample_records
from precad.clients.training.projection import project
from tests.harness.gradient_sums import clipped_gradient_sum
from tests.harness.models import dimension_of

ENGINE = RecordEngine(networks.build("mlp"), torch.zeros(1, 8, 8), device="cpu")
bounds = st.floats(1e-3, 1e6)
vectors = arrays(np.float64, st.integers(0, 40), elements=st.floats(-1e9, 1e9))


def words(*values):
    """A generator that returns these 64-bit words, once."""

    def random_bytes(n):
        assert n == 8 * len(values)
        return b"".join(value.to_bytes(8, "little") for value in values)

    return random_bytes


def never(_n):
    raise AssertionError("no randomness is needed here")


def norm_is_at_most(vector, bound):
    """Whether ||v||_2 <= C, in exact rational arithmetic."""
    return sum(Fraction(float(entry)) ** 2 for entry in vector) <= Fraction(bound) ** 2


# Line 1


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_sampling_rate(rate):
    """10^6 records: the count is Binomial(10^6, p); six standard deviations, false alarm 2e-9 per rate."""
    n = 10**6
    count = len(sample_records(n, rate))
    assert abs(count - n * rate) <= 6 * math.sqrt(n * rate * (1 - rate))


def test_every_record_is_sampled_at_the_same_rate_and_independently():
    """20 000 samples of 8 records at p = 0.3: 8 frequencies and 28 pair frequencies, each within 6 sigma; 36 * 2e-9."""
    n_samples, rate = 20_000, 0.3
    chosen = np.zeros((n_samples, 8))
    for sample in range(n_samples):
        chosen[sample, sample_records(8, rate)] = 1
    single = chosen.mean(axis=0)
    pairs = (chosen.T @ chosen / n_samples)[np.triu_indices(8, k=1)]
    assert np.all(np.abs(single - rate) <= 6 * math.sqrt(rate * (1 - rate) / n_samples))
    assert np.all(np.abs(pairs - rate**2) <= 6 * math.sqrt(rate**2 * (1 - rate**2) / n_samples))


def test_a_record_is_in_exactly_when_its_word_is_below_the_threshold():
    """p = 0.5: threshold 2^63."""
    generator = words(2**63 - 1, 2**63, 0, 2**64 - 1)
    assert_array_equal(sample_records(4, 0.5, generator), [0, 2])


@given(rate=st.floats(2**-63, 1, exclude_max=True))
def test_the_threshold_is_the_integer_part_of_p_times_2_to_64(rate):
    threshold = int(Fraction(rate) * 2**64)
    assert_array_equal(sample_records(2, rate, words(threshold - 1, threshold)), [0])


def test_rate_one_takes_all_and_rate_zero_none():
    assert_array_equal(sample_records(5, 1.0, never), np.arange(5))
    assert_array_equal(sample_records(2, 0.0, words(0, 2**64 - 1)), [])


@pytest.mark.parametrize("rate", [0.0, 0.5, 1.0])
def test_no_records_give_an_empty_sample(rate):
    sample = sample_records(0, rate)
    assert (sample.shape, sample.dtype) == ((0,), np.int64)


@pytest.mark.parametrize("rate", [-0.1, 1.1, math.nan, math.inf])
def test_rates_outside_their_range_are_refused(rate):
    with pytest.raises(ArgumentError, match=r"sample_rate: expected a number in \[0, 1\]"):
        sample_records(5, rate)


def test_a_negative_count_and_a_short_generator_are_refused():
    with pytest.raises(ArgumentError, match="n_records: expected at least 0, found -1"):
        sample_records(-1, 0.5)
    with pytest.raises(ArgumentError, match="random_bytes: expected 40 bytes, found 39"):
        sample_records(5, 0.5, lambda n: bytes(n - 1))


# Line 7


@given(vector=vectors, bound=bounds)
def test_projection_ends_inside_the_ball(vector, bound):
    """As computed by NumPy, and exactly."""
    projected = project(vector, bound)
    assert projected.dtype == np.float64
    assert np.linalg.norm(projected) <= bound
    assert norm_is_at_most(projected, bound)


@settings(max_examples=5)
@given(seed=st.integers(0, 2**32), bound=bounds)
def test_projection_ends_inside_the_ball_in_high_dimension(seed, bound):
    """d = 26 010, the CNN, where rounding errors have most opportunity to add up."""
    vector = np.random.default_rng(seed).normal(size=26_010) * bound
    assert norm_is_at_most(project(vector, bound), bound)


@pytest.mark.parametrize("bound", [1.0, 0.7, 3e-5, 1e6])
def test_projection_ends_inside_the_ball_from_a_rounding_above_it(bound):
    """The norm of such a vector may be computed as the bound: only what is surely within is left as it was."""
    above = Fraction(bound) ** 2 * Fraction(1 + 2**48, 2**48)
    for seed in range(100):
        direction = np.random.default_rng(seed).normal(size=7)
        vector = direction * (bound / math.sqrt(math.fsum(direction * direction)) * (1 + 2.0**-50))
        assert Fraction(bound) ** 2 < sum(Fraction(float(entry)) ** 2 for entry in vector) < above
        assert norm_is_at_most(project(vector, bound), bound)


@given(vector=vectors, bound=bounds)
def test_projection_is_idempotent(vector, bound):
    once = project(vector, bound)
    assert_array_equal(project(once, bound), once)


@given(data=st.data(), n=st.integers(1, 20), bound=bounds)
def test_projection_is_1_lipschitz(data, n, bound):
    """Up to its own rounding slack of 2^-40 C and to that of the norms compared here."""
    v, w = (data.draw(arrays(np.float64, n, elements=st.floats(-1e7, 1e7))) for _ in range(2))
    moved = np.linalg.norm(project(v, bound) - project(w, bound))
    assert moved <= np.linalg.norm(v - w) * (1 + 1e-12) + 2 * bound * 2**-40


@given(vector=vectors, bound=bounds)
def test_projection_is_the_formula(vector, bound):
    """v * min(1, C / ||v||), within the slack, or one step of a subnormal; nothing changes well inside the ball."""
    norm = math.sqrt(math.fsum(entry * entry for entry in vector))
    expected = vector * min(1.0, bound / norm) if norm > 0 else vector
    np.testing.assert_allclose(project(vector, bound), expected, rtol=2 * 2**-40, atol=2 * 2.0**-1074)
    if norm < bound * (1 - 2**-39):
        assert_array_equal(project(vector, bound), vector)


def test_projection_of_extreme_vectors():
    """Squares that overflow or vanish; zero; nothing."""
    np.testing.assert_allclose(project(np.array([3e200, 4e200]), 5.0), [3.0, 4.0], rtol=1e-11)
    np.testing.assert_allclose(project(np.array([3e-200, 4e-200]), 5e-201), [3e-201, 4e-201], rtol=1e-11)
    assert_array_equal(project(np.zeros(3), 1.0), np.zeros(3))
    assert project(np.zeros(0), 1.0).shape == (0,)


def test_projection_returns_a_vector_of_its_own():
    vector = np.array([0.1, 0.2])
    project(vector, 1.0)[:] = 7.0
    assert_array_equal(vector, [0.1, 0.2])


@pytest.mark.parametrize("entry", [math.nan, math.inf, -math.inf, 1.7e308])
def test_vectors_without_a_finite_norm_are_refused(entry):
    with pytest.raises(ArgumentError, match=r"vector to project: expected a finite norm, found (nan|inf)"):
        project(np.array([entry, 1.7e308]), 1.0)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.inf, math.nan])
def test_bounds_outside_their_range_are_refused(bound):
    with pytest.raises(ArgumentError, match="bound: expected a finite number above 0"):
        project(np.ones(2), bound)


# The whole of it


@pytest.fixture(scope="module")
def split():
    return datasets.digits()


def update(records, *, rate, client_bound, random_bytes=never, parameters=None):
    (own,) = local_updates(
        networks.initial_parameters("mlp", seed=1) if parameters is None else parameters,
        [records],
        engine=ENGINE,
        sample_rate=rate,
        record_clip=RecordClip(0.5),
        client_clip_norm=client_bound,
        random_bytes=random_bytes,
    )
    return own


def test_the_update_is_the_negative_sum_over_the_sample(split):
    """Words 0 and 2^64 - 1 put records 0 and 2 in and record 1 out; C is too large to matter."""
    records = split.train.take(np.arange(3))
    uploaded = update(records, rate=0.5, client_bound=10.0, random_bytes=words(0, 2**64 - 1, 0))
    gradient_sum = clipped_gradient_sum(
        networks.initial_parameters("mlp", seed=1),
        records.take(np.array([0, 2])),
        model=networks.build("mlp"),
        record_clip_norm=0.5,
        device="cpu",
    )
    assert_array_equal(uploaded, -gradient_sum)


def test_clients_draw_their_own_records_in_their_order(split):
    """Two clients, one pass: each the update that it would have alone."""
    clients = [split.train.take(np.arange(3)), split.train.take(np.arange(3, 5))]
    draws = iter([(0, 2**64 - 1, 0), (2**64 - 1, 0)])

    def random_bytes(n):
        return words(*next(draws))(n)

    together = local_updates(
        networks.initial_parameters("mlp", seed=1),
        clients,
        engine=ENGINE,
        sample_rate=0.5,
        record_clip=RecordClip(0.5),
        client_clip_norm=0.4,
        random_bytes=random_bytes,
    )
    alone = [
        update(clients[0], rate=0.5, client_bound=0.4, random_bytes=words(0, 2**64 - 1, 0)),
        update(clients[1], rate=0.5, client_bound=0.4, random_bytes=words(2**64 - 1, 0)),
    ]
    np.testing.assert_allclose(together, alone, rtol=0, atol=1e-6)
    assert all(norm_is_at_most(own, 0.4) for own in together)


def test_the_update_ends_on_the_ball_when_the_bound_is_tight(split):
    """The direction stays."""
    free = update(split.train.take(np.arange(50)), rate=1.0, client_bound=1e6)
    tight = update(split.train.take(np.arange(50)), rate=1.0, client_bound=0.25)
    assert np.linalg.norm(free) > 0.25
    assert norm_is_at_most(tight, 0.25)
    np.testing.assert_allclose(tight, free * 0.25 / np.linalg.norm(free), rtol=1e-11)


def test_an_empty_sample_uploads_zeros(split):
    uploaded = update(split.train.take(np.arange(2)), rate=0.5, client_bound=1.0, random_bytes=words(2**63, 2**63))
    assert_array_equal(uploaded, np.zeros(dimension_of("mlp")))


def test_diverged_parameters_are_an_error_and_not_an_upload(split):
    diverged = np.full(dimension_of("mlp"), np.nan, dtype=np.float32)
    with pytest.raises(NonFiniteModelError):
        update(split.train.take(np.arange(2)), rate=1.0, client_bound=1.0, parameters=diverged)


def test_following_the_update_learns_the_digits(split):
    """Without noise, 30 full steps of one client that holds everything."""
    parameters = networks.initial_parameters("mlp", seed=1)
    before = accuracy(parameters, "mlp", split.test)
    for _ in range(30):
        step = update(split.train, rate=1.0, client_bound=1e6, parameters=parameters)
        parameters = (parameters + 10.0 / len(split.train) * step).astype(np.float32)
    assert before < 0.3
    assert accuracy(parameters, "mlp", split.test) > 0.85


def test_accuracy_counts_the_largest_logit(split):
    """Zero weights, a bias on the logit of class 3: right exactly where the label is 3. More than one batch."""
    parameters = np.zeros(dimension_of("mlp"), dtype=np.float32)
    parameters[-10 + 3] = 1.0
    share = np.count_nonzero(split.train.labels == 3) / len(split.train)
    assert accuracy(parameters, "mlp", split.train) == share


def test_accuracy_of_no_records_is_refused(split):
    with pytest.raises(ArgumentError, match="at least one record"):
        accuracy(networks.initial_parameters("mlp", seed=0), "mlp", split.test.take(np.arange(0)))
