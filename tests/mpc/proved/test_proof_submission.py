"""Uploads and proofs as values: digests, statements, and the checks of the holder.

Failure means: a seeded server that can confirm a guess of an update, or one that counts what the client did not send.
"""

import hashlib
import hmac
from dataclasses import fields, replace

import pytest

from precad.mpc import prg
from precad.mpc.errors import ParameterError, ProofRefusedError
from precad.mpc.prg import Label, Purpose, Seed
from precad.mpc.proved.field import P
from precad.mpc.proved.submission import (
    Binding,
    PayloadIntake,
    ProofBinding,
    Relay,
    StatedBinding,
    draw_salt,
    holder_of,
    proof_statement,
    relay_of,
    require_stated,
    seeded_of,
    slot_labels,
    stated_digest,
)
from precad.mpc.upload_binding import salted_digest, statement

SEED, SALT = Seed(bytes(range(16))), bytes(range(32))
LABEL = Label("task", 3, "5")
BINDING = Binding("task", 3, "alice", b"c" * 32, b"m" * 32, 7, b"p" * 32)
PROOF_BINDING = ProofBinding("task", 3, "alice", BINDING.digest(), b"s" * 16, b"q" * 32)


def test_a_slot_has_one_holder_and_one_seeded_server():
    assert [(holder_of(slot), seeded_of(slot)) for slot in (0, 1, 2, 7)] == [(0, 1), (1, 0), (0, 1), (1, 0)]


def test_slots_are_labels_not_ranks():
    """The first places of a shuffle of all numbers, in the order of names, whoever else was drawn."""
    words = prg.stream(SEED, Purpose.SLOT_LABELS, Label("task", 3), 9).view("uint64").tolist()
    shuffled = sorted(range(9), key=lambda i: words[i])
    assert slot_labels(SEED, Label("task", 3), 9, ["bob", "alice"]) == {"alice": shuffled[0], "bob": shuffled[1]}
    assert sorted(slot_labels(SEED, Label("task", 3), 9, [f"c{i}" for i in range(9)]).values()) == list(range(9))
    with pytest.raises(ParameterError, match="clients: expected at most 1 drawn, found 2"):
        slot_labels(SEED, Label("task", 3), 1, ["bob", "alice"])


def by_definition(values):
    """SHA-256 over 4 bytes of number, 8 bytes of length, and the value."""
    parts = (k.to_bytes(4, "big") + len(v).to_bytes(8, "big") + v for k, v in values)
    return hashlib.sha256(b"".join(parts)).digest()


def test_digests_are_those_of_numbered_fields():
    common = [(1, b"precad/v2"), (2, b"task"), (3, b"3"), (4, b"alice")]
    upload = [*common, (5, b"c" * 32), (6, b"m" * 32), (7, b"7"), (8, b"proved"), (9, b"p" * 32)]
    proof = [*common, (11, BINDING.digest()), (12, b"s" * 16), (13, b"q" * 32)]
    assert BINDING.digest() == by_definition(upload)
    assert PROOF_BINDING.digest() == by_definition(proof)


def test_statements_of_uploads_and_proofs_have_different_keys():
    """A statement of one is never one of the other, even over the same digest."""
    digest = BINDING.digest()
    for make, purpose in ((statement, Purpose.STATEMENT), (proof_statement, Purpose.PROOF_STATEMENT)):
        key = prg.derive(SEED, purpose, LABEL).reveal()
        assert make(SEED, LABEL, digest) == hmac.digest(key, digest, "sha256")
    assert statement(SEED, LABEL, digest) != proof_statement(SEED, LABEL, digest)


def test_the_digest_of_a_payload_says_nothing_without_its_salt():
    payload = hashlib.sha256(b"payload").digest()
    assert salted_digest(SALT, payload) == hmac.digest(SALT, payload, "sha256")
    assert len({draw_salt() for _ in range(3)}) == 3
    with pytest.raises(ParameterError, match="salt: expected 32 bytes, found 31"):
        salted_digest(SALT[1:], payload)


def test_a_relay_has_no_place_for_a_salt():
    """The seeded server gets four values; a submission shows no salt when it is printed."""
    submission = StatedBinding(BINDING, statement(SEED, LABEL, BINDING.digest()), SALT)
    assert [f.name for f in fields(Relay)] == ["round", "client", "payload_digest", "statement"]
    assert relay_of(submission) == Relay(3, "alice", b"p" * 32, submission.statement)
    assert "salt" not in repr(submission)


@pytest.mark.parametrize(
    "changed",
    [
        replace(BINDING, client="bob"),
        replace(BINDING, round=4),
        replace(BINDING, model_digest=b"n" * 32),
        replace(BINDING, payload_digest=b"x" * 32),
    ],
)
def test_the_seeded_server_counts_what_the_client_states_alone(changed):
    """It makes the binding itself; another binding, seed or label does not fit, nor does the other kind's statement."""
    relay = relay_of(StatedBinding(BINDING, statement(SEED, LABEL, BINDING.digest()), SALT))
    assert stated_digest(relay, BINDING, SEED, LABEL) == BINDING.digest()
    assert stated_digest(relay, changed, SEED, LABEL) is None
    assert stated_digest(relay, BINDING, Seed(bytes(16)), LABEL) is None
    assert stated_digest(relay, BINDING, SEED, replace(LABEL, client="6")) is None
    assert stated_digest(relay, PROOF_BINDING, SEED, LABEL) is None
    other_kind = replace(relay, statement=proof_statement(SEED, LABEL, BINDING.digest()))
    assert stated_digest(other_kind, BINDING, SEED, LABEL) is None


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"client": "bob", "round": 4}, "wrong_client"),
        ({"task": "other"}, "wrong_binding"),
        ({"round": 2}, "wrong_binding"),
        ({"protocol_version": "precad/v1.1"}, "wrong_binding"),
        ({"binding_digest": bytes(32)}, "wrong_binding"),
        ({"proof_digest": b"short"}, "wrong_binding"),
        ({"challenge": bytes(15)}, "wrong_binding"),
        ({"challenge": bytes(16)}, "wrong_challenge"),
        ({"challenge": bytes(16), "task": "other"}, "wrong_binding"),
    ],
)
def test_a_proof_for_something_else_is_refused(changed, reason):
    message = StatedBinding(PROOF_BINDING, b"s" * 32, SALT)
    require_stated(message, PROOF_BINDING)
    with pytest.raises(ProofRefusedError, match=reason) as refused:
        require_stated(replace(message, binding=replace(PROOF_BINDING, **changed)), PROOF_BINDING)
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("client", "bob", "wrong_client"),
        ("round", 4, "wrong_round"),
        ("task", "other", "wrong_binding"),
        ("config_digest", bytes(32), "wrong_binding"),
        ("model_digest", bytes(32), "wrong_binding"),
        ("dim", 8, "wrong_binding"),
        ("mode", "masked", "wrong_binding"),
        ("payload_digest", b"short", "wrong_binding"),
    ],
)
def test_an_upload_for_something_else_is_refused(name, value, reason):
    message = StatedBinding(BINDING, b"s" * 32, SALT)
    require_stated(message, replace(BINDING, payload_digest=b"x" * 32))
    with pytest.raises(ProofRefusedError, match=reason):
        require_stated(replace(message, binding=replace(BINDING, **{name: value})), BINDING)
    for short in ({"statement": b"short"}, {"salt": b"short"}, {"binding": PROOF_BINDING}):
        with pytest.raises(ProofRefusedError, match="wrong_binding"):
            require_stated(replace(message, **short), BINDING)


# Payloads while they come


def announced(payload):
    return salted_digest(SALT, hashlib.sha256(payload).digest())


@pytest.mark.parametrize("piece", [1, 2, 6, 7, 8, 13, 15, 1000])
def test_a_payload_is_taken_in_pieces_of_any_length(piece):
    payload = b"".join(value.to_bytes(7, "little") for value in (0, 1, P - 1, 2**55))
    intake = PayloadIntake(4)
    for start in range(0, len(payload), piece):
        intake.take(payload[start : start + piece])
    intake.finish(SALT, announced(payload))


@pytest.mark.parametrize("piece", [1, 7, 100])
def test_an_element_of_p_or_above_is_malformed_at_once(piece):
    payload = (5).to_bytes(7, "little") + P.to_bytes(7, "little")
    intake = PayloadIntake(4)
    *before, last = (payload[start : start + piece] for start in range(0, len(payload), piece))
    for data in before:
        intake.take(data)
    with pytest.raises(ProofRefusedError, match="malformed: payload: expected elements below p"):
        intake.take(last)


@pytest.mark.parametrize("piece", range(1, 23))
@pytest.mark.parametrize("at", range(4))
def test_an_element_of_p_is_found_wherever_pieces_are_cut(piece, at):
    """By the piece that completes it: before it, and within it, nothing is wrong."""
    payload = bytearray(28)
    payload[7 * at : 7 * at + 7] = P.to_bytes(7, "little")
    intake = PayloadIntake(4)
    for start in range(0, 28, piece):
        if start + piece >= 7 * at + 7:
            with pytest.raises(ProofRefusedError, match="malformed"):
                intake.take(bytes(payload[start : start + piece]))
            return
        intake.take(bytes(payload[start : start + piece]))
    pytest.fail("the element was not found")


def test_a_payload_of_another_length_or_digest_is_refused():
    intake = PayloadIntake(2)
    intake.take(bytes(13))
    with pytest.raises(ProofRefusedError, match="wrong_length: payload: expected 14 bytes, found 13"):
        intake.finish(SALT, announced(bytes(13)))
    with pytest.raises(ProofRefusedError, match="wrong_length: payload: expected 14 bytes, found more"):
        intake.take(bytes(2))
    intake = PayloadIntake(2)
    intake.take(bytes(14))
    with pytest.raises(ProofRefusedError, match="wrong_digest"):
        intake.finish(SALT, announced(b"other"))
