"""Shares reconstruct to the vector, in both forms, and one share alone is uniform."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from precad.mpc import sharing
from precad.mpc.parameters import DEALT_MODES, Mode
from precad.mpc.prg import Label, Seed
from tests.mpc.fixed_randomness import are_uniform_bytes, random_bytes_of, seeds
from tests.mpc.ring_strategies import as_ring, ring_vectors, vector_pairs
from tests.mpc.streams import expand_mask

LABEL = Label("task", 3, "client")
secrets = st.binary(min_size=16, max_size=16).map(Seed)


@given(vector_pairs())
def test_reconstruct_is_the_sum_modulo_2_to_the_64(pair):
    """[x]_A + [x]_B against Python's integers."""
    expected = as_ring(int(a) + int(b) for a, b in zip(*pair, strict=True))
    assert_array_equal(sharing.reconstruct(*pair), expected)


@given(ring_vectors())
def test_split_shares_reconstruct_to_the_vector(x):
    """The `shares` form: PRG(seed) + share B = X for every ring vector."""
    seed, share_b = sharing.split(x, LABEL)
    assert_array_equal(sharing.reconstruct(sharing.expand_share(seed, LABEL, x.size), share_b), x)


@given(x=ring_vectors(), seed_a=secrets, seed_b=secrets)
def test_both_servers_shares_of_a_masked_upload_reconstruct_to_the_vector(x, seed_a, seed_b):
    """The `masked` form: server A takes b + a_A, server B takes a_B, and b = X - a_A - a_B."""
    b = sharing.mask(x, (seed_a, seed_b), LABEL)
    share_a, share_b = b + expand_mask(seed_a, LABEL, x.size), expand_mask(seed_b, LABEL, x.size)
    assert_array_equal(sharing.reconstruct(share_a, share_b), x)


def test_the_inputs_are_left_as_they_were():
    """Neither form writes into the client's vector."""
    x = np.arange(4)
    seed = Seed(bytes(16))
    b = sharing.mask(x, (seed, seed), LABEL)
    kept = b.copy()
    sharing.split(x, LABEL)
    assert_array_equal(x, np.arange(4))
    assert_array_equal(b, kept)


def test_split_draws_a_fresh_seed_each_time():
    """Sharing one vector twice gives unrelated shares."""
    x = np.zeros(8, dtype=np.int64)
    assert sharing.split(x, LABEL)[0] != sharing.split(x, LABEL)[0]


def test_halves_of_masks_and_upload_shares_are_different_streams():
    """One seed used as mask half and as upload share, or for two clients, would not repeat a word."""
    seed = Seed(bytes(16))
    streams = [
        expand_mask(seed, LABEL, 50),
        sharing.expand_share(seed, LABEL, 50),
        expand_mask(seed, Label("task", 3, "other"), 50),
        expand_mask(seed, Label("task", 4, "client"), 50),
    ]
    assert len(set(np.concatenate(streams).tolist())) == 200


@pytest.mark.parametrize("word", [0, 1, -(2**63)])
@pytest.mark.parametrize("mode", DEALT_MODES)
def test_what_a_server_receives_of_a_constant_vector_is_uniform(mode, word):
    """Share B, or b with one known mask half taken off: bytes of 100 vectors of 64 words, chi-square at 1e-6."""
    x = np.full(64, word)
    known = Seed(bytes(16))
    random_bytes = random_bytes_of(f"{mode} {word}")
    received = []
    for other in seeds(f"{mode} {word}", 100):
        if mode is Mode.SHARES:
            received.append(sharing.split(x, LABEL, random_bytes)[1])
        else:
            received.append(sharing.mask(x, (known, other), LABEL) + expand_mask(known, LABEL, 64))
    assert are_uniform_bytes(np.concatenate(received).tobytes())
