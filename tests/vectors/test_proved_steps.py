"""Mode `proved` and a server that sends steps out of order, twice, with other payloads, or none.

Failure means that the honest server sends more than one message of a step, or that its verdict depends on an update.
"""

from __future__ import annotations

import random

import pytest

from tests.vectors.independent.proved_field import from_bytes
from tests.vectors.independent.proved_proof import Masks, prove
from tests.vectors.independent.proved_server import STEPS
from tests.vectors.independent.proved_simulator import simulated_message
from tests.vectors.independent.proved_verifier import is_valid, message, opened
from tests.vectors.proved_harness import (
    CASE,
    POINTS,
    P,
    refused,
    rows_of,
    shared,
    until,
)

CALLS = {
    "lock": lambda one: one.lock(),
    "reveal": lambda one: one.reveal(bytes(128)),
    "challenge": lambda one: one.challenge(bytes(32)),
    "proofs": lambda one: one.proofs(),
    "query": lambda one: one.query(bytes(128)),
    "verifier": lambda one: one.verifier(),
    "verdicts": lambda one: one.verdicts(b""),
    "accepted": lambda one: one.accepted(bytes(32)),
    "noisy_share": lambda one: one.noisy_share([0] * 6),
}


@pytest.mark.parametrize("step", ["reveal", "challenge", "proofs", "query", "verifier"])
def test_no_step_is_done_before_it_is_due_or_twice(step):
    """Every other call is refused: a second lock, a second pair of points, a message before or after its turn."""
    one = until(step).servers[0]
    assert one.due == step
    assert set(CALLS) == set(STEPS) - {"over"}
    for name in CALLS.keys() - {step}:
        with refused("state"):
            CALLS[name](one)
    assert one.due == step


def test_a_false_coin_ends_the_round_before_any_client_hears_a_challenge():
    """Rule S1. Nothing that comes after it can be asked for."""
    parties = until("challenge")
    one = parties.servers[0]
    with refused("commitment"):
        one.challenge(bytes(32))
    assert one.challenge_seed == b""
    for name in CALLS.keys() - {"proofs"}:
        with refused("state"):
            CALLS[name](one)


def test_a_message_of_no_elements_ends_the_task_and_verdicts_must_be_alike():
    """A word of p or more, one word too few, another digest of the accepted."""
    for wrong in (P.to_bytes(7, "little"), b""):
        parties = until("verifier")
        sent = [one.verifier() for one in parties.servers]
        with refused("malformed"):
            parties.servers[0].verdicts(wrong + sent[1][7:])
    parties = until("verifier")
    sent = [one.verifier() for one in parties.servers]
    parties.servers[0].verdicts(sent[1])
    with refused("verdicts"):
        parties.servers[0].accepted(bytes(32))


@pytest.mark.parametrize("offset", range(2 * (CASE.n_wires + 3)))
def test_an_offset_of_the_peer_rejects_whatever_the_update_is(offset):
    """The verdict is a function of what the peer knows: alike for nothing, and for an update at the bound."""
    found = []
    for x in ([0] * 6, [3, 0, 0, 0, 0, 0]):
        rows, randomness = rows_of(CASE), random.Random(offset)
        proof = prove(x, rows, CASE, Masks.fresh(CASE))
        shares, proofs = shared(x, randomness), shared(proof, randomness)
        ours, theirs = (message(i, shares[i], proofs[i], rows, POINTS, CASE) for i in (0, 1))
        theirs[offset] = (theirs[offset] + 1) % P
        found.append(is_valid(opened(ours, theirs, CASE), POINTS, CASE))
    assert found == [False, False]


def test_a_peer_that_answers_to_fit_is_believed_and_learns_nothing():
    """It sees the honest message first, and makes the sums of the simulator: valid, for a proof of anything."""
    parties = until("verifier")
    sent = from_bytes(parties.servers[0].verifier())
    length = CASE.message_elements
    nothing = [0] * length
    fitted = [
        simulated_message(parties.servers[0].points, sent[i : i + length], CASE) for i in range(0, len(sent), length)
    ]
    assert len(fitted[0]) == len(nothing)
    payload = b"".join(v.to_bytes(7, "little") for one in fitted for v in one)
    parties.servers[0].verdicts(payload)
    assert parties.servers[0].valid == [1, 4, 6]
