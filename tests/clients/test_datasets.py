"""The bundled digits and their partition over clients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from sklearn.datasets import load_digits

from clients import datasets
from clients.datasets import Records
from clients.errors import ArgumentError


@pytest.fixture(scope="module")
def split():
    return datasets.digits()


def rows(records):
    """The records as a sorted list, to compare as multisets."""
    return sorted((image.tobytes(), int(label)) for image, label in zip(records.features, records.labels, strict=True))


def numbered(n):
    """n records that can be told apart."""
    return Records(np.arange(n, dtype=np.float32).reshape(n, 1, 1, 1), np.arange(n) % 10)


def test_digits_are_all_of_scikit_learn_s_split_1437_to_360(split):
    """Train and test together are every bundled image once, pixels / 16."""
    pixels, labels = load_digits(return_X_y=True)
    everything = Records((pixels / 16).astype(np.float32).reshape(-1, 1, 8, 8), labels)
    assert (len(split.train), len(split.test)) == (1437, 360)
    assert sorted(rows(split.train) + rows(split.test)) == rows(everything)


def test_digits_have_the_dtypes_and_the_range_that_models_expect(split):
    for records in (split.train, split.test):
        assert records.features.dtype == np.float32
        assert records.labels.dtype == np.int64
        assert (records.features.min(), records.features.max()) == (0.0, 1.0)


def test_the_split_is_stratified_and_always_the_same(split):
    """Each class has within one record its share of the test set."""
    share = np.bincount(split.train.labels) + np.bincount(split.test.labels)
    assert np.all(np.abs(np.bincount(split.test.labels) - share * 360 / 1797) < 1)
    assert_array_equal(datasets.digits().test.labels, split.test.labels)


def test_enlarged_digits_keep_range_mean_and_labels(split):
    """28x28 images for the CNN. A bilinear enlargement moves the mean of an image by little: its borders count less."""
    large = datasets.digits(side=28)
    assert large.train.features.shape == (1437, 1, 28, 28)
    assert large.train.features.dtype == np.float32
    assert large.train.features.min() >= 0.0
    assert large.train.features.max() <= 1.0
    assert_array_equal(large.test.labels, split.test.labels)
    moved = large.test.features.mean(axis=(1, 2, 3)) - split.test.features.mean(axis=(1, 2, 3))
    assert np.abs(moved).max() < 0.02


def test_digits_are_not_made_smaller():
    with pytest.raises(ArgumentError, match="side must be >= 8, got 7"):
        datasets.digits(side=7)


@settings(max_examples=50)
@given(n=st.integers(1, 60), data=st.data(), seed=st.integers(0, 2**32))
def test_partition_deals_every_record_once_in_equal_parts(n, data, seed):
    n_clients = data.draw(st.integers(1, n))
    parts = datasets.partition(numbered(n), n_clients, seed=seed)
    sizes = [len(part) for part in parts]
    assert len(parts) == n_clients
    assert max(sizes) - min(sizes) <= 1
    assert sorted(row for part in parts for row in rows(part)) == rows(numbered(n))


def test_partition_depends_on_the_seed_alone(split):
    first, again, other = (datasets.partition(split.train, 8, seed=seed) for seed in (1, 1, 2))
    assert all(rows(a) == rows(b) for a, b in zip(first, again, strict=True))
    assert rows(first[0]) != rows(other[0])


@pytest.mark.parametrize("n_clients", [-1, 0, 6])
def test_partition_refuses_clients_without_records(n_clients):
    with pytest.raises(ArgumentError, match=rf"n_clients must be in \[1, 5\], got {n_clients}"):
        datasets.partition(numbered(5), n_clients, seed=0)


def test_take_copies():
    records = numbered(4)
    taken = records.take(np.array([2, 0]))
    taken.features[:] = -1.0
    assert_array_equal(taken.labels, [2, 0])
    assert records.features.min() == 0.0


@pytest.mark.parametrize(
    ("features", "labels", "message"),
    [
        (np.zeros((2, 64), np.float32), np.zeros(2, np.int64), "features must have shape"),
        (np.zeros((2, 1, 8, 8), np.float32), np.zeros(3, np.int64), "features must have shape"),
        (np.zeros((1, 1, 8, 8), np.float32), np.array([10]), r"labels must be in \[0, 9\]"),
        (np.zeros((1, 1, 8, 8), np.float32), np.array([-1]), r"labels must be in \[0, 9\]"),
    ],
)
def test_malformed_records_are_refused(features, labels, message):
    with pytest.raises(ArgumentError, match=message):
        Records(features, labels)


def test_records_do_not_print_pixels():
    assert repr(numbered(3)) == "Records(n=3, features=(1, 1, 1))"
