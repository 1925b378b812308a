"""What malicious clients upload, and why the check of the paper, taken literally, needs help against one of them."""

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from clients.attacks import ATTACKS, Honest, ScaledModelReplacement, WrapAround
from clients.config import AttackName
from clients.errors import ArgumentError

SCALE_BITS = 16


def encoded_honest_update(seed, dim, bound):
    """An update of norm <= C, C = bound, in fixed point with 16 bits, rounded toward zero as clients do."""
    update = np.random.default_rng(seed).normal(size=dim)
    return np.trunc(update * bound / np.linalg.norm(update) * (1 - 1e-9) * 2**SCALE_BITS).astype(np.int64)


def squared_norm(vector):
    """x.x over the integers."""
    return sum(int(x) ** 2 for x in vector)


def squared_norm_mod_2_64(vector):
    """x.x as two servers that compute in Z_2^64 see it."""
    words = vector.astype(np.uint64)
    return int(np.sum(words * words, dtype=np.uint64))


def test_the_registry_names_attacks_as_they_name_themselves():
    assert {name: make().name for name, make in ATTACKS.items()} == {name: name for name in ATTACKS}


def test_a_deployment_offers_the_attacks_that_need_only_their_own_data():
    assert set(get_args(AttackName)) == {name for name, kind in ATTACKS.items() if not kind.is_simulated_only}


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_attacks_leave_their_argument_alone_and_keep_shape_and_dtype(name):
    update, encoded = np.linspace(-1, 1, 6), np.arange(-3, 3)
    attack = ATTACKS[name]()
    on_update, on_encoded = attack.on_update(update), attack.on_encoded(encoded)
    assert (on_update.shape, on_update.dtype) == ((6,), np.float64)
    assert (on_encoded.shape, on_encoded.dtype) == ((6,), np.int64)
    on_update[:], on_encoded[:] = 9, 9
    assert_array_equal(update, np.linspace(-1, 1, 6))
    assert_array_equal(encoded, np.arange(-3, 3))


def test_the_honest_client_changes_nothing():
    assert_array_equal(Honest().on_update(np.array([0.5, -2.0])), [0.5, -2.0])
    assert_array_equal(Honest().on_encoded(np.array([5, -2])), [5, -2])


def test_scaled_model_replacement_multiplies_the_update():
    """By 100 unless told otherwise: beyond C for every honest norm above C / 100; the encoding is left alone."""
    update = np.array([0.03, -0.04])
    assert_array_equal(ScaledModelReplacement().on_update(update), 100.0 * update)
    assert_array_equal(ScaledModelReplacement(gamma=-2.0).on_update(update), -2.0 * update)
    assert_array_equal(ScaledModelReplacement().on_encoded(np.array([7, -7])), [7, -7])
    assert np.linalg.norm(ScaledModelReplacement().on_update(update)) > 1.0


@pytest.mark.parametrize("gamma", [math.nan, math.inf])
def test_a_factor_that_is_not_finite_is_refused(gamma):
    with pytest.raises(ArgumentError, match="gamma must be finite"):
        ScaledModelReplacement(gamma=gamma)


@given(seed=st.integers(0, 2**32), dim=st.integers(2, 500), bound=st.floats(0.5, 1000))
def test_wrap_around_is_invisible_to_a_check_modulo_2_64(seed, dim, bound):
    """x.x mod 2^64 <= C^2 2^32, so the literal check accepts; the integer norm exceeds 2^33, that is 2^17 in reals."""
    forged = WrapAround().on_encoded(encoded_honest_update(seed, dim, bound))
    assert squared_norm_mod_2_64(forged) == squared_norm(forged) % 2**64
    assert squared_norm_mod_2_64(forged) <= bound**2 * 2 ** (2 * SCALE_BITS)
    assert math.isqrt(squared_norm(forged)) > 2**33


def test_wrap_around_overwrites_two_coordinates_and_leaves_the_update_before_encoding():
    assert_array_equal(WrapAround().on_encoded(np.array([5, -6, 7])), [2**32, 3 * 2**32, 7])
    assert_array_equal(WrapAround().on_update(np.array([0.5])), [0.5])


def test_wrap_around_needs_two_coordinates():
    with pytest.raises(ArgumentError, match="at least 2 coordinates, got 1"):
        WrapAround().on_encoded(np.array([5]))
