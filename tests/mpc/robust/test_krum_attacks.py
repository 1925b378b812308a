"""Attacks on Krum on shares: clients that deviate, changed messages, correlations used twice or not dealt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from precad.mpc.channel import run_pair
from precad.mpc.errors import MalformedMessageError, MpcError, ParameterError, TupleReusedError
from precad.mpc.gate_names import make_gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import DEALT_MODES
from precad.mpc.robust.distances import squared_distance_shares
from precad.mpc.robust.krum import Krum, KrumRound, selected_share_sum
from precad.mpc.robust.proposal import Accepted
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import MAX_OF_PAIRS, BatchShape, ServerTuples
from tests.mpc.attack_vectors import FRAC_BITS, cases
from tests.mpc.robust.krum_rounds import Round, in_the_clear, run, shape_of
from tests.mpc.robust.test_robust_attacks import honest, tampered

GATE = make_gate("native")


@pytest.mark.parametrize("mode", DEALT_MODES)
@pytest.mark.parametrize("n_kept", [1, 4])
def test_a_client_that_deviates_changes_nothing_but_its_own_vector(mode, n_kept):
    """Every class of attack vectors in one slot: the round is that of the rule with this vector, or without it."""
    krum = Krum(NormBound(1.0, 5, FRAC_BITS), 1, n_kept)
    for case in cases(5, 1.0):
        it = Round(np.vstack([honest(5), np.asarray(case.vector, dtype=np.int64)]), krum, mode)
        accepted, _, total = in_the_clear(it)
        assert (6 in accepted) is case.is_within
        for outcome in run(it, GATE):
            assert outcome.accepted == tuple(f"c{i:03d}" for i in accepted)
            assert outcome.total.tolist() == total


ROUND = Round(honest(5), Krum(NormBound(1.0, 5, FRAC_BITS), 1, 2))
N_STEPS = sum("robust/" in label for label, _ in run(ROUND, GATE)[0].sent)


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize(
    "change", [lambda p: p[:-1], lambda p: p + b"\0", lambda p: b""], ids=["short", "long", "none"]
)
def test_a_message_of_another_length_ends_the_round(change, party):
    for step in range(N_STEPS):
        with pytest.raises(MalformedMessageError, match="bytes"):
            run(ROUND, GATE, wrap=tampered(step, party, change))


@pytest.mark.parametrize("place", [0, -1])
def test_a_changed_bit_in_any_message_ends_the_round_or_gives_both_servers_one_sum(place):
    """No server is left with a result of its own: the sum is opened to both, or to nobody."""
    differing = 0
    for step in range(N_STEPS):
        try:
            a, b = run(ROUND, GATE, wrap=tampered(step, 0, lambda p, place=place: _flipped(p, place)))
        except MpcError:
            continue
        assert a.total.tolist() == b.total.tolist()
        differing += a.total.tolist() != in_the_clear(ROUND)[2]
    assert differing > 0  # what a server that deviates can do is on the page of the protocol


def _flipped(payload: bytes, place: int) -> bytes:
    changed = bytearray(payload)
    changed[place] ^= 1
    return bytes(changed)


def a_side(n: int = 4, **changes) -> tuple[ServerTuples, KrumRound]:
    krum = Krum(NormBound(1.0, 2, 6), 1, 1)
    shape = replace(shape_of(n, krum, GATE), **changes)
    tuples = ServerTuples(0, shape, deal(shape)[0])
    zeros = np.zeros(2, dtype=np.int64)
    accepted = Accepted(shape.clients, (zeros,) * n, np.zeros(n, dtype=np.int64), zeros)
    return tuples, KrumRound(accepted, krum, tuples, GATE)


def alone(it: KrumRound, channel) -> None:
    """Take the steps as server A, of a B that takes none: what is refused is refused before a word of it."""
    if channel.party == 0:
        selected_share_sum(it, channel)


def test_correlations_serve_once_and_in_their_order():
    """Before the check, after a choice, or without words for pairs nothing leaves."""
    _, it = a_side()
    with pytest.raises(ParameterError, match="the check of round 1 comes first"):
        run_pair(lambda channel: alone(it, channel))
    with pytest.raises(TupleReusedError, match="no trim tuples left"):
        run_pair(lambda channel: alone(it, channel))
    for changes, error, said in (
        ({"pairs": False}, ParameterError, "words for pairs of clients in the order of slots only"),
        ({"trims": False}, TupleReusedError, "no trim tuples left"),
    ):
        _, lacking = a_side(**changes)
        with pytest.raises(error, match=said):
            run_pair(lambda channel, it=lacking: alone(it, channel))


def test_parameters_are_checked():
    bound = NormBound(1.0, 2, 6)
    for f, n_kept in ((-1, 1), (0, 0)):
        with pytest.raises(
            ParameterError, match=f"n_attackers, n_kept: expected at least 0 and at least 1, found {f} and {n_kept}"
        ):
            Krum(bound, f, n_kept)
    with pytest.raises(
        ParameterError,
        match=f"clients: expected at most {MAX_OF_PAIRS} in a batch with pairs, found {MAX_OF_PAIRS + 1}",
    ):
        BatchShape("t", 0, tuple(map(str, range(MAX_OF_PAIRS + 1))), 2, (), pairs=True)
    tuples, it = a_side()
    with pytest.raises(MalformedMessageError, match="words"):
        KrumRound(replace(it.accepted, opened=(np.zeros(3, dtype=np.int64),) * 4), it.krum, tuples, GATE)
    with pytest.raises(ParameterError, match="in the order of slots only"):
        tuples.mask_product_shares(("c002", "c001"))


def masks_of(sides: list[ServerTuples], dim: int):
    masks = np.zeros((len(sides[0].shape.clients), dim), dtype=np.int64)
    for side in sides:
        for i, client in enumerate(side.shape.clients):
            words = np.empty(dim, dtype=np.int64)
            side.mask_share(client).fill(words)
            masks[i] += words
    return masks


@pytest.mark.parametrize("dim", [3, 20_000])
def test_words_of_pairs_are_inner_products_of_masks(dim):
    """For every subset of the slots, in their order; a batch without pairs has none."""
    shape = BatchShape("t", 0, ("a", "b", "c", "d", "e"), dim, (), trims=True, pairs=True)
    dealt = deal(shape)
    sides = [ServerTuples(party, shape, dealt[party]) for party in (0, 1)]
    masks = [[int(word) for word in mask] for mask in masks_of(sides, dim)]
    for some in ((0, 1, 2, 3, 4), (1, 3, 4), (0, 4), (2,), ()):
        found = sum(side.mask_product_shares([shape.clients[i] for i in some]) for side in sides)
        expected = [sum(x * y for x, y in zip(masks[i], masks[j], strict=True)) for i in some for j in some if i < j]
        assert [int(word) % 2**64 for word in found] == [word % 2**64 for word in expected]
    assert (dealt[0].pairs.size, dealt[1].pairs.size) == (0, 10)
    assert deal(replace(shape, pairs=False))[1].pairs.size == 0
    with pytest.raises(MalformedMessageError, match="pairs of a batch: expected 10 words, found 9"):
        ServerTuples(1, shape, replace(dealt[1], pairs=dealt[1].pairs[:-1]))
    with pytest.raises(MalformedMessageError, match="pairs of a batch: expected 0 words, found 10"):
        ServerTuples(0, shape, replace(dealt[0], pairs=dealt[1].pairs))


def test_distances_are_shares_of_the_distances():
    """Both servers' matrices add up to the squared distances, also of a part of the slots, and change no state."""
    rng = np.random.default_rng(0)
    vectors = rng.integers(-1000, 1000, (5, 300))
    shape = BatchShape("t", 0, tuple("abcde"), 300, (), pairs=True)
    dealt, found = deal(shape), []
    sides = [ServerTuples(party, shape, dealt[party]) for party in (0, 1)]
    opened = vectors - masks_of(sides, 300)
    some, own = [0, 2, 3], rng.integers(-(2**62), 2**62, 3)
    norms = (vectors[some] ** 2).sum(axis=1)
    for side, share in zip(sides, (own, norms - own), strict=True):
        accepted = Accepted(tuple(shape.clients[i] for i in some), tuple(opened[some]), share, opened[0])
        found.append([squared_distance_shares(accepted, side) for _ in range(2)])
    expected = ((vectors[some][:, None] - vectors[some][None]) ** 2).sum(axis=2)
    for once in range(2):
        assert (found[0][once] + found[1][once]).tolist() == expected.tolist()
