"""Mode `proved` against a server that deviates: the simulator's argument, and every rule with its break.

Failure means that a view depends on an update, or that a peer that breaks a rule gets something for it. Each rule is
also broken on purpose, and what leaks is recovered: failure there means a rule that protects nothing.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import pytest

from tests.vectors.independent import digests, server, streams
from tests.vectors.independent.proved_client import Client
from tests.vectors.independent.proved_field import FIELD, PROOF_SHARE, PROOF_STATEMENT, SHARE, field_stream, from_bytes
from tests.vectors.independent.proved_messages import (
    Relay,
    Round,
    binding_digest,
    salted_digest,
    slot_labels,
    statement,
    submission,
)
from tests.vectors.independent.proved_parameters import Sizes, sizes
from tests.vectors.independent.proved_proof import Masks, Parts, SilentError, project, prove
from tests.vectors.independent.proved_round import Parties
from tests.vectors.independent.proved_server import STEPS, Server
from tests.vectors.independent.proved_simulator import masks_that_open_to, simulated_message, simulated_sums
from tests.vectors.independent.proved_verifier import is_valid, message, opened
from tests.vectors.independent.ring import RefusedError
from tests.vectors.test_proved_twin import careless_proof, shared

P = FIELD.modulus
TASK = "attack-0123456789abcdef"
CASE = sizes(3.0, 0, 6)
AT = Round(TASK, 7, digests.sha256(b"config"), digests.sha256(b"model"), CASE)
SLOTS = {"ada": 4, "bob": 1, "eve": 6}
UPDATES = {"ada": [3, 0, 0, 0, 0, 0], "bob": [0, -1, 2, 0, 0, 2], "eve": [0, 0, 0, 1, 1, 0]}
POINTS = (11, 2**40 + 7)
FAST = Sizes(dim=3, threshold=1, window_bits=1, n_rows=1, least_wire=4)
"""One row, and the real field: a proof of 32 elements, for counts."""


def rows_of(case, seed=b"challenge's seed"):
    return server.row_streams(seed, TASK, 7, case.dim)


def refused(kind):
    return pytest.raises(RefusedError, match=f"^{kind}$")


# Honest rounds


def test_a_round_accepts_who_is_within_the_bound_and_opens_the_sum():
    """Holders A and B mixed; one update is too long, and its client silent; the sum is that of the others."""
    parties = Parties.of(AT, SLOTS)
    parties.upload({**UPDATES, "eve": [9, 9, 9, 9, 9, 9]})
    parties.lock()
    parties.prove()
    assert parties.check() == [1, 4]
    assert parties.servers[1].valid == [1, 4]
    assert parties.open([[1, 2, 3, 4, 5, -6], [0] * 6]) == [4, 1, 5, 4, 5, -4]
    assert len(parties.sent[0]["verifier"]) == 14 * (CASE.n_wires + 3) * 2
    assert [len(one["proofs"]) for one in parties.sent] == [32 + 32 * 3] * 2


@pytest.mark.parametrize("who", [(), ("bob",)])
def test_steps_fall_away_without_a_client(who):
    """No active slot, and one that is active and not proved."""
    parties = Parties.of(AT, SLOTS)
    parties.upload({name: UPDATES[name] for name in who})
    parties.lock()
    assert parties.check() == []
    assert ("proofs" in parties.sent[0]) == bool(who)
    assert parties.open([[0] * 6, [1] * 6]) == [1] * 6


def test_slots_are_labels_that_say_nothing_of_other_draws():
    """Distinct, below the number enrolled, in the order of names, and even for every client over many coins."""
    enrolled = [f"client-{i}" for i in range(6)]
    found = Counter()
    for seed in range(1200):
        slots = slot_labels(seed.to_bytes(16, "big"), TASK, 7, enrolled, ["client-3", "client-1"])
        assert len(set(slots.values())) == 2
        found[slots["client-3"]] += 1
    assert set(found) == set(range(6))
    assert sum((n - 200) ** 2 / 200 for n in found.values()) < 50  # of 5 degrees: chance is below 2e-9


# The simulator


@pytest.mark.parametrize("deviates", [0, 1])
@pytest.mark.parametrize("points", [POINTS, (0, 1 << 20), (5, P - 5)])
def test_every_view_of_one_server_fits_every_update(deviates, points):
    """A perfect simulation: for each view there is one choice of the honest randomness per update that makes it.

    The deviating server's shares are bytes that it sees, as the holder, or chose, as the seeded server. It may choose
    points and its own message as it likes: both are functions of bytes that are equal here. So are the honest server's
    verdict and everything that follows from it.
    """
    randomness, rows = random.Random(str((deviates, points))), rows_of(CASE)
    wanted = simulated_sums(points, CASE)
    theirs = [[randomness.randrange(P) for _ in range(n)] for n in (CASE.dim, CASE.n_elements)]
    proper, sent = message(deviates, *theirs, rows, points, CASE), []
    for x in ([0] * 6, [3, 0, 0, 0, 0, 0], [-1, 2, 0, 0, 0, -2]):
        proof = prove(x, rows, CASE, masks_that_open_to(x, rows, wanted, points, CASE))
        ours = [[(a - b) % P for a, b in zip(*both, strict=True)] for both in zip((x, proof), theirs, strict=True)]
        sent.append(message(1 - deviates, *ours, rows, points, CASE))
        assert is_valid(opened(sent[-1], proper, CASE), points, CASE)
    assert sent[0] == sent[1] == sent[2]


def cells(values):
    """Return how many values lie in each sixteenth of the field."""
    found = Counter(16 * value // P for value in values)
    return [found[i] for i in range(16)]


def uneven(values):
    """Return the chi-square value of even cells, 15 degrees."""
    expected = len(values) / 16
    return sum((n - expected) ** 2 / expected for n in cells(values))


def apart(first, second):
    """Return the chi-square value of two samples of one law, 15 degrees."""
    return sum((a - b) ** 2 / (a + b) for a, b in zip(cells(first), cells(second), strict=True) if a + b)


FALSE_ALARM = 80.0
"""A chi-square value of 15 degrees is above this with probability 8e-11. The test below makes 36 comparisons."""


def test_openings_of_two_updates_and_of_the_simulator_have_one_law():
    """800 honest proofs each, with masks of the operating system: a false alarm with probability below 4e-9.

    Squares F(t) are no uniform elements, so laws are compared with one another; f(t) and u(t) with the uniform one.
    """
    rows = rows_of(FAST)
    samples = [[sums_of(x, rows, Masks.fresh(FAST)) for _ in range(800)] for x in ([0, 0, 0], [1, 0, 0])]
    nothing = [0] * FAST.message_elements
    samples.append([simulated_message(POINTS, nothing, FAST) for _ in range(800)])
    by_word = [list(zip(*sample, strict=True)) for sample in samples]
    for word in range(FAST.message_elements):
        pairs = itertools.combinations([sample[word] for sample in by_word], 2)
        assert max(apart(a, b) for a, b in pairs) < FALSE_ALARM
        if word % 4 in (0, 2):
            assert max(uneven(sample[word]) for sample in by_word) < FALSE_ALARM


def test_the_comparison_finds_a_prover_that_keeps_its_masks():
    """Rule C3 broken: two updates under one set of masks open to one value each."""
    rows, masks = rows_of(FAST), Masks.fresh(FAST)
    values = [[sums_of(x, rows, masks)[0]] * 100 for x in ([0, 0, 0], [1, 0, 0])]
    assert values[0] != values[1]
    assert min(map(uneven, values)) > FALSE_ALARM


def sums_of(x, rows, masks):
    """Return the opened elements of an honest proof: as A holding all, B nothing."""
    proof = prove(x, rows, FAST, masks)
    ours = message(0, [v % P for v in x], proof, rows, POINTS, FAST)
    assert is_valid(opened(ours, [0] * len(ours), FAST), POINTS, FAST)
    return ours


# A peer that deviates: the honest side sends nothing more


def until(step):
    """Return parties that are about to do a step."""
    parties = Parties.of(AT, SLOTS)
    parties.upload(UPDATES)
    parties.exchange("lock", [one.lock() for one in parties.servers])
    if step == "reveal":
        return parties
    parties.exchange("reveal", [one.reveal(parties.theirs("lock", one)) for one in parties.servers])
    if step == "challenge":
        return parties
    for one in parties.servers:
        one.challenge(parties.theirs("reveal", one))
    if step == "proofs":
        return parties
    parties.prove()
    parties.exchange("proofs", [one.proofs() for one in parties.servers])
    if step == "query":
        return parties
    for one in parties.servers:
        one.query(parties.theirs("proofs", one))
    return parties


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


# Rule by rule: refused, and what its absence gives


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
