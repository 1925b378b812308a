"""Mode `proved` and a server that sends steps out of order, twice, with other payloads, or none.

Failure means that the honest server sends more than one message of a step, or that its verdict depends on an update.
"""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import pytest

from tests.vectors.independent.proved_field import from_bytes
from tests.vectors.independent.proved_proof import Masks, prove
from tests.vectors.independent.proved_round import Parties
from tests.vectors.independent.proved_server import STEPS
from tests.vectors.independent.proved_simulator import simulated_message
from tests.vectors.independent.proved_verifier import is_valid, message, opened
from tests.vectors.proved_harness import (
    AT,
    CASE,
    POINTS,
    SLOTS,
    UPDATES,
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


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_slot_is_active_only_where_both_listed_one_binding(at):
    """The peer lists another digest for one slot, or none. The others go on."""
    parties = Parties.of(AT, SLOTS)
    parties.upload(UPDATES)
    one, peer = parties.servers
    one.lock()
    listed = bytearray(peer.lock())
    for value in (bytes(32), b"x" * 32):
        listed[32 + 32 * at : 64 + 32 * at] = value
        fresh = copy.deepcopy(one)
        fresh.reveal(bytes(listed))
        assert list(fresh.active) == [slot for i, slot in enumerate(sorted(SLOTS.values())) if i != at]


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_slot_is_proved_only_where_both_listed_one_proof(at):
    """No message is computed for the slot whose proof the peer names otherwise."""
    parties = until("query")
    one, listed = parties.servers[0], bytearray(parties.theirs("proofs", parties.servers[0]))
    for value in (bytes(32), b"x" * 32):
        listed[32 + 32 * at : 64 + 32 * at] = value
        fresh = copy.deepcopy(one)
        fresh.query(bytes(listed))
        assert fresh.proved == [slot for i, slot in enumerate(sorted(SLOTS.values())) if i != at]
        assert len(fresh.verifier()) == 2 * 7 * CASE.message_elements


def test_the_first_relay_of_a_slot_decides():
    """A holder that lies first cannot correct itself, so it has one attempt at a statement."""
    parties = Parties.of(AT, SLOTS)
    told = [one.invite("bob") for one in parties.servers]
    relay = parties.holder("bob").submit("bob", parties.clients["bob"].upload(AT, told, UPDATES["bob"]))
    seeded = parties.seeded("bob")
    seeded.submit_relay(replace(relay, statement=bytes(32)))
    seeded.submit_relay(relay)
    parties.lock()
    assert not seeded.active


def test_a_relay_after_the_lock_or_after_the_proofs_is_dropped():
    """Its slot is not active; with a proof that comes too late, it is not proved."""
    parties = Parties.of(AT, SLOTS)
    told = [one.invite("bob") for one in parties.servers]
    relay = parties.holder("bob").submit("bob", parties.clients["bob"].upload(AT, told, UPDATES["bob"]))
    parties.exchange("lock", [one.lock() for one in parties.servers])
    parties.seeded("bob").submit_relay(relay)
    parties.seeded("bob").reveal(parties.theirs("lock", parties.seeded("bob")))
    assert not parties.seeded("bob").active

    parties = until("proofs")
    bob, seed = parties.clients["bob"], parties.servers[0].challenge_seed
    bob.challenge(0, 7, seed)
    relay = parties.holder("bob").prove("bob", bob.challenge(1, 7, seed))
    parties.exchange("proofs", [one.proofs() for one in parties.servers])
    parties.seeded("bob").prove_relay(relay)
    parties.seeded("bob").query(parties.theirs("proofs", parties.seeded("bob")))
    assert parties.seeded("bob").proved == []
