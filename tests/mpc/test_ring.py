"""The ring against Python's integers."""

import struct
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from precad.mpc import ring
from precad.mpc.errors import MalformedMessageError
from tests.mpc.ring_strategies import EDGES, as_ring, ring_vectors, vector_pairs, wrapped


@given(st.integers(-(2**130), 2**130) | st.sampled_from(EDGES))
def test_centred_is_the_twos_complement_reading(value):
    """centred(v) is congruent to v and is what eight little-endian bytes of v mean as a signed word."""
    assert ring.centred(value) == wrapped(value)


@given(vector_pairs())
def test_arrays_add_and_multiply_modulo_2_to_the_64(pair):
    """Sums and products of int64 arrays are those of integers modulo 2^64, without a warning."""
    x, y = pair
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total, product = x + y, x * y
    assert_array_equal(total, as_ring(int(a) + int(b) for a, b in zip(x, y, strict=True)))
    assert_array_equal(product, as_ring(int(a) * int(b) for a, b in zip(x, y, strict=True)))


@given(vector_pairs())
def test_dot_is_the_integer_dot_product_modulo_2_to_the_64(pair):
    """dot(x, y) is sum x_i y_i over the integers, reduced once at the end."""
    x, y = pair
    assert ring.dot(x, y) == wrapped(sum(int(a) * int(b) for a, b in zip(x, y, strict=True)))


@given(ring_vectors(min_dim=0))
def test_bytes_are_signed_little_endian_words(x):
    """to_bytes writes what struct packs as <q, and from_bytes reads it back without a copy."""
    packed = ring.to_bytes(x)
    assert packed == struct.pack(f"<{x.size}q", *x.tolist())
    read = ring.from_bytes(packed, n_words=x.size)
    assert_array_equal(read, x)
    assert read.dtype == np.int64
    assert not read.flags.writeable  # a view of the message, not a copy of it


def test_bytes_of_a_strided_array_are_in_c_order():
    """A transposed matrix is written in the order in which it is indexed."""
    x = np.arange(6).reshape(2, 3).T
    assert ring.to_bytes(x) == struct.pack("<6q", 0, 3, 1, 4, 2, 5)


@pytest.mark.parametrize("length", [0, 7, 8, 15, 17, 24])
def test_bytes_of_another_length_are_refused(length):
    """from_bytes takes exactly 8 bytes per word and says how many came."""
    with pytest.raises(MalformedMessageError, match=f"ring elements: expected 16 bytes, found {length}$"):
        ring.from_bytes(bytes(length), n_words=2)
