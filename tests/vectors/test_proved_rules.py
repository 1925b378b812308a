"""Mode `proved` against a server that deviates: every rule, with a peer that breaks it.

Each rule is also broken on purpose, and what leaks is recovered. Failure means that a peer gets something for breaking
a rule, or that a rule protects nothing.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.vectors.independent import server, streams
from tests.vectors.independent.proved_client import Client
from tests.vectors.independent.proved_field import FIELD, PROOF_SHARE, PROOF_STATEMENT, SHARE, field_stream, from_bytes
from tests.vectors.independent.proved_messages import (
    Relay,
    binding_digest,
    salted_digest,
    statement,
    submission,
)
from tests.vectors.independent.proved_proof import Masks, Parts, SilentError, project, prove
from tests.vectors.independent.proved_round import Parties
from tests.vectors.independent.proved_server import Server
from tests.vectors.independent.proved_verifier import message, opened
from tests.vectors.proved_harness import (
    AT,
    CASE,
    POINTS,
    SLOTS,
    TASK,
    UPDATES,
    P,
    careless_proof,
    refused,
    rows_of,
    shared,
    until,
)


def invitations(slot=4, seeds=(b"", b"s" * 16), **changed):
    told = {"task": TASK, "round": 7, "slot": slot, "dim": 6, "model_digest": AT.model_digest, "n_committed": 0}
    return [{**told, "share_seed": seeds[0]}, {**told, "share_seed": seeds[1], **changed}]


@pytest.mark.parametrize(
    "wrong",
    [
        invitations(seeds=(b"h" * 16, b"s" * 16)),
        invitations(seeds=(b"h" * 16, b"")),
        invitations(seeds=(b"", b"")),
        invitations(seeds=(b"", b"s" * 15)),
        invitations(slot=5),
        invitations(round=8),
        invitations(task="other"),
        invitations(dim=7),
        invitations(model_digest=bytes(32)),
        invitations(n_committed=1),
    ],
)
def test_a_client_takes_its_seed_from_the_seeded_server_alone(wrong):
    """Rule C0. With a seed of the holder's choice, the payload is X."""
    with refused("invitation"):
        Client("ada").upload(AT, wrong, UPDATES["ada"])


def test_a_holder_that_knows_the_seed_reads_the_update():
    sent = submission([3, 0, -1, 0, 0, 0], AT, 4, "ada", b"h" * 16, bytes(32))
    mask = field_stream(b"h" * 16, SHARE, TASK, 7, 4, 6)
    assert [FIELD.centred(a + b) for a, b in zip(from_bytes(sent.payload), mask, strict=True)] == [3, 0, -1, 0, 0, 0]


def test_a_client_answers_one_invitation_per_round_and_three_per_model():
    """Rule C3. A round's number counts even if task, slot or seed of the second invitation differ."""
    ada = Client("ada")
    ada.upload(AT, invitations(), UPDATES["ada"])
    with refused("invitation"):
        ada.upload(AT, invitations(seeds=(b"", b"t" * 16)), UPDATES["ada"])
    for number in (8, 9):
        told = [{**one, "round": number} for one in invitations()]
        ada.upload(replace(AT, round=number), told, UPDATES["ada"])
    with refused("invitation"):
        ada.upload(replace(AT, round=10), [{**one, "round": 10} for one in invitations()], UPDATES["ada"])


def test_a_share_seed_is_given_once():
    """Rule S0, and C1: two updates under one seed differ in the clear at the holder."""
    one = Server(1, AT, SLOTS)
    one.invite("ada")
    with refused("reused"):
        one.invite("ada")
    first, second = (
        from_bytes(submission(x, AT, 4, "ada", b"s" * 16, bytes(32)).payload) for x in ([1] * 6, [0, 2] * 3)
    )
    assert [FIELD.centred(a - b) for a, b in zip(first, second, strict=True)] == [1, -1] * 3


@pytest.mark.parametrize(
    "heard",
    [
        [(0, b"x" * 16)],
        [(0, b"x" * 16), (0, b"x" * 16)],
        [(0, b"x" * 16), (1, b"y" * 16)],
        [(0, b"x" * 16), (0, b"y" * 16), (1, b"y" * 16)],
        [(1, b"x" * 16), (0, b"z" * 16), (0, b"x" * 16)],
        [(0, b"x" * 15), (1, b"x" * 15)],
    ],
)
def test_a_client_is_silent_unless_both_servers_sent_one_challenge(heard):
    """Rule C2: one alone, one twice, two different ones, a second word, a short one."""
    ada = Client("ada")
    ada.upload(AT, invitations(), UPDATES["ada"])
    assert [ada.challenge(party, 7, seed) for party, seed in heard] == [None] * len(heard)


def test_a_client_proves_once_and_repeats_its_bytes_alone():
    """A second challenge, another round's, and one before the upload get nothing."""
    ada = Client("ada")
    assert ada.challenge(0, 7, b"x" * 16) is None
    ada.upload(AT, invitations(), UPDATES["ada"])
    assert ada.challenge(0, 6, b"x" * 16) is None
    assert ada.challenge(0, 7, b"x" * 16) is None
    sent = ada.challenge(1, 7, b"x" * 16)
    assert sent is not None
    assert ada.challenge(1, 7, b"x" * 16) is None
    assert ada.challenge(0, 7, b"y" * 16) is None
    assert ada.again() is sent
    ada.end()
    assert ada.again() is None


def test_two_proofs_under_one_seed_show_bits_of_projections():
    """Rule C1 broken: the holder's payloads differ by bits minus bits, and a difference of 1 or -1 names both."""
    x, found = [3, 0, 0, 0, 0, 0], []
    for seed in (b"x" * 16, b"y" * 16):
        proof = prove(x, rows_of(CASE, seed), CASE, Masks.fresh(CASE))
        mask = field_stream(b"s" * 16, PROOF_SHARE, TASK, 7, 4, len(proof))
        found.append([(a - b) % P for a, b in zip(proof, mask, strict=True)])
    differences = [FIELD.centred(a - b) for a, b in zip(*(Parts.cut(one, CASE).bits for one in found), strict=True)]
    assert set(differences) <= {-1, 0, 1}
    assert sum(map(abs, differences)) > 20


def test_a_digest_without_its_salt_confirms_a_guess():
    """So the salt goes to the holder alone; a relay has no place for it."""
    guesses = [[3, 0, 0, 0, 0, 0], [2, 1, 0, 0, 0, 0]]
    sent = submission(guesses[1], AT, 4, "ada", b"s" * 16, b"salt" * 8)
    made = [submission(x, AT, 4, "ada", b"s" * 16, b"salt" * 8).payload for x in guesses]
    assert [salted_digest(one, sent.salt) == sent.binding["digest"] for one in made] == [False, True]
    assert "salt" not in Relay.__annotations__


def test_other_rows_at_the_server_than_at_the_client_open_a_projection():
    """Rule S2 broken: u^2 - u - Zq is a quadratic equation for the difference of one row, and has its value exactly."""
    x, client_rows = [2, -1, 0, 0, 1, 0], rows_of(CASE)
    words = list(client_rows[0])
    words[1] ^= 1  # coordinate 1, row 0
    server_rows = (words, client_rows[1])
    proof = prove(x, client_rows, CASE, Masks.fresh(CASE))
    shares, proofs = shared(x, random.Random(1)), shared(proof, random.Random(2))
    values = opened(*(message(i, shares[i], proofs[i], server_rows, POINTS, CASE) for i in (0, 1)), CASE)
    found = set()
    for guess in range(-3, 4):
        is_found = True
        for value, t in zip(values, POINTS, strict=True):
            delta = FIELD.lagrange(CASE.bit_domain, t)[0] * guess
            u = value.bits - delta
            z = pow(t, CASE.bit_domain, P) - 1
            is_found &= (u * u - u - z * value.quotient) % P == 0
        found |= {guess} if is_found else set()
    signs = [-1 if client_rows[1][0] >> i & 1 else 1 for i in range(6)]
    direction = signs[1] if words[1] & 1 else -signs[1]
    assert found == {direction * x[1]}


@pytest.mark.parametrize("what", ["challenge", "binding", "statement", "purpose", "digest"])
def test_a_proof_counts_for_the_servers_own_challenge_and_lock_alone(what):
    """Rule S2 at the seeded server: the binding is its own, so a statement for anything else does not fit."""
    parties = until("proofs")
    bob = parties.clients["bob"]
    seed = parties.servers[0].challenge_seed
    bob.challenge(0, 7, seed)
    sent = bob.challenge(1, 7, seed)
    holder, seeded = parties.holder("bob"), parties.seeded("bob")
    relay = holder.prove("bob", sent)
    share_seed, locked = seeded._seeds[1], seeded.active[1]
    if what == "challenge":
        wrong = AT.proof_binding("bob", locked, b"z" * 16, relay.digest)
        relay = replace(relay, statement=statement(share_seed, PROOF_STATEMENT, AT, 1, wrong))
    elif what == "binding":
        wrong = AT.proof_binding("bob", bytes(32), seed, relay.digest)
        relay = replace(relay, statement=statement(share_seed, PROOF_STATEMENT, AT, 1, wrong))
    elif what == "statement":
        relay = replace(relay, statement=bytes(32))
    elif what == "purpose":
        relay = replace(relay, statement=statement(share_seed, streams.STATEMENT, AT, 1, sent.binding))
    else:
        relay = replace(relay, digest=bytes(32))
    seeded.prove_relay(relay)
    parties.exchange("proofs", [one.proofs() for one in parties.servers])
    seeded.query(parties.theirs("proofs", seeded))
    assert seeded.proved == []
    with refused("state"):
        seeded.verifier()


def changed(sent, **fields):
    return replace(sent, binding={**sent.binding, **fields})


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("wrong_client", lambda s: changed(s, client="ada")),
        ("wrong_binding", lambda s: changed(s, round=8)),
        ("wrong_binding", lambda s: changed(s, task="other")),
        ("wrong_binding", lambda s: changed(s, protocol_version="precad/v1.1")),
        ("wrong_binding", lambda s: changed(s, binding_digest=bytes(32))),
        ("wrong_binding", lambda s: changed(s, proof_digest=bytes(31))),
        ("wrong_binding", lambda s: replace(s, statement=bytes(31))),
        ("wrong_binding", lambda s: replace(s, salt=bytes(31))),
        ("wrong_challenge", lambda s: changed(s, challenge=bytes(16))),
        ("wrong_length", lambda s: replace(s, payload=s.payload[:-1])),
        ("malformed", lambda s: replace(s, payload=s.payload[:-7] + b"\xff" * 7)),
        ("wrong_digest", lambda s: replace(s, payload=s.payload[:-7] + bytes(7))),
    ],
)
def test_a_holder_takes_a_proof_of_its_own_challenge_and_lock_alone(reason, change):
    """Rule S2 at the holder. A proof whose binding was taken is the only one, whatever came of it."""
    parties = until("proofs")
    bob, seed = parties.clients["bob"], parties.servers[0].challenge_seed
    bob.challenge(0, 7, seed)
    sent = bob.challenge(1, 7, seed)
    holder = parties.holder("bob")
    with refused(reason):
        holder.prove("bob", change(sent))
    with refused("wrong_server"):
        parties.seeded("bob").prove("bob", sent)
    with refused("not_active"):
        holder.prove("mallory", sent)
    if reason in ("wrong_client", "wrong_binding", "wrong_challenge"):
        holder.prove("bob", sent)
    with refused("duplicate"):
        holder.prove("bob", sent)
    holder.proofs()
    with refused("late"):
        holder.prove("bob", sent)


@pytest.mark.parametrize(
    ("reason", "change"),
    [
        ("wrong_client", lambda s: changed(s, client="ada")),
        ("wrong_round", lambda s: changed(s, round=8)),
        ("wrong_binding", lambda s: changed(s, mode="masked")),
        ("wrong_binding", lambda s: changed(s, config_digest=bytes(32))),
        ("wrong_binding", lambda s: changed(s, digest=bytes(31))),
        ("wrong_binding", lambda s: replace(s, salt=b"")),
        ("wrong_length", lambda s: replace(s, payload=s.payload + bytes(7))),
        ("malformed", lambda s: replace(s, payload=P.to_bytes(7, "little") + s.payload[7:])),
        ("wrong_digest", lambda s: replace(s, payload=bytes(len(s.payload)))),
    ],
)
def test_a_holder_refuses_uploads_that_differ_from_their_binding(reason, change):
    parties = Parties.of(AT, SLOTS)
    told = [one.invite("bob") for one in parties.servers]
    sent = parties.clients["bob"].upload(AT, told, UPDATES["bob"])
    with refused(reason):
        parties.holder("bob").submit("bob", change(sent))
    with refused("wrong_server"):
        parties.seeded("bob").submit("bob", sent)
    if reason in ("wrong_client", "wrong_round", "wrong_binding"):
        parties.holder("bob").submit("bob", sent)
    with refused("duplicate"):
        parties.holder("bob").submit("bob", sent)
    parties.holder("bob").lock()
    with refused("late"):
        parties.holder("bob").submit("bob", sent)


def test_a_peer_cannot_use_up_a_slot_that_it_does_not_hold():
    """A relay for a slot of the receiver's own, of another round, or before the invitation changes nothing."""
    parties = Parties.of(AT, SLOTS)
    holder, seeded = parties.holder("bob"), parties.seeded("bob")
    lie = Relay(7, "bob", bytes(32), bytes(32))
    seeded.submit_relay(lie)
    told = [one.invite("bob") for one in parties.servers]
    holder.submit_relay(lie)
    seeded.submit_relay(replace(lie, round=6))
    seeded.submit_relay(Relay(7, "nobody", bytes(32), bytes(32)))
    relay = holder.submit("bob", parties.clients["bob"].upload(AT, told, UPDATES["bob"]))
    seeded.submit_relay(relay)
    seeded.submit_relay(lie)
    parties.lock()
    assert list(parties.servers[0].active) == list(parties.servers[1].active) == [1]


def test_a_third_point_opens_a_linear_function_of_every_wire():
    """Rule S3 broken: the second divided difference of f / Z has no mask left in it."""
    x, rows, points = [2, -1, 0, 0, 1, 0], rows_of(CASE), (3, 5, 7)
    proof = prove(x, rows, CASE, Masks.fresh(CASE))
    openings = [message(0, [v % P for v in x], proof, rows, (t, t), CASE)[0] for t in points]
    plain = [FIELD.dot(FIELD.lagrange(CASE.wire, t), [*(v % P for v in x), *[0] * 10]) for t in points]

    def difference(values):
        found = 0
        for e, t in enumerate(points):
            others = [t - other for other in points if other != t]
            found += values[e] * pow((pow(t, CASE.wire, P) - 1) * others[0] * others[1], -1, P)
        return found % P

    assert difference(openings) == difference(plain) != 0


def test_a_prover_that_sends_bits_that_do_not_fit_shows_its_row():
    """Why a client with a row outside the window, or a norm above T, must send nothing.

    The remainder of u^2 - u opens at both points. It has one term per number that does not fit, so one such number is
    found by trying its values: here the norm.
    """
    x, rows = [3, 1, 0, 0, 0, 0], rows_of(CASE)
    with pytest.raises(SilentError):
        prove(x, rows, CASE, Masks.fresh(CASE))
    proof = careless_proof(x, rows, CASE)
    sums = opened(message(0, [v % P for v in x], proof, rows, POINTS, CASE), [0] * CASE.message_elements, CASE)
    n, at = CASE.bit_domain, CASE.n_bits - CASE.norm_bits
    found = []
    for norm in range(10, 40):
        number = (CASE.threshold - norm) % P
        lowest = (number - sum(number >> i & 1 and 1 << i for i in range(1, CASE.norm_bits))) % P
        found += [
            norm
            for v, t in zip(sums[:1], POINTS[:1], strict=True)
            if (v.bits**2 - v.bits - (pow(t, n, P) - 1) * v.quotient) % P
            == FIELD.lagrange(n, t)[at] * (lowest * lowest - lowest) % P
        ]
    assert found == [10]


def test_projections_are_those_of_the_protocols_rows():
    """The signs and bits of the first protocol, in another ring."""
    rows = rows_of(CASE)
    expected = server.project([v % 2**64 for v in UPDATES["bob"]], *rows)
    mine = project(UPDATES["bob"], rows, CASE)
    assert [FIELD.centred(v) for v in mine] == [v - 2**64 if v >> 63 else v for v in expected]


def test_a_proof_binding_is_no_binding():
    """Their fields have other numbers, so no digest of one is a digest of the other."""
    bindings = AT.binding("bob", bytes(32)), AT.proof_binding("bob", bytes(32), bytes(16), bytes(32))
    assert binding_digest(bindings[0]) != binding_digest(bindings[1])
    assert set(bindings[0]) & set(bindings[1]) == {"protocol_version", "task", "round", "client"}
