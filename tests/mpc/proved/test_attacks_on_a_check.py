"""A server's check, called in ways that nobody should call it: what is refused, and what a failure leaves behind.

Failure means a proof for other rows than the servers', or an opening where nothing is masked. Or a sum holds a rejected
upload, or a compiled loop reads behind an array's end.
"""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from precad.mpc.errors import MalformedMessageError, ParameterError, ProofQueriedTwiceError, ProofRefusedError
from precad.mpc.prg import Seed
from precad.mpc.proved import field, prover, query, sums, verifier
from precad.mpc.proved.check import ProofCheck
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.shares import HeldBytes, PackedShare, seeded_share
from precad.mpc.proved.submission import Binding, PayloadIntake, holder_of
from precad.mpc.upload_binding import salted_digest
from tests.mpc.fixed_randomness import random_bytes_of
from tests.mpc.proved.test_proof_check import CHALLENGE, LABELS, ROUND, SIZES, Round, vectors
from tests.mpc.proved.two_servers import rows_of

POINTS = (12_345, 54_321)


def closed(n=2, too_long=()):
    """Return both servers of a round whose proofs are all taken, and the proved slots."""
    round_ = Round(vectors(n, too_long))
    assert all(round_.send(slot) for slot in round_.vectors)
    a, b = round_.servers
    b.close()
    return a, b, a.proved(b.close())


def test_rows_that_were_read_before_give_the_same_proof():
    """Rows are a stream. From the middle of it on, they are not the servers', and the openings are not masked."""
    x, masks = vectors(1)[LABELS[0]], ProofMasks.draw(SIZES, random_bytes_of("masks"))
    used = rows_of(CHALLENGE)
    proofs = [prover.prove(x, used, SIZES, masks) for _ in range(2)]
    used.read(SIZES.dim)
    proofs.append(prover.prove(x, used, SIZES, masks))
    assert all(np.array_equal(proof, proofs[0]) for proof in proofs[1:])
    shares, tables = [seeded_share(CHALLENGE, ROUND)], query.prepare(POINTS, SIZES)
    found = [sums.share_sums(shares, rows, tables, SIZES).rows for rows in (used, rows_of(CHALLENGE))]
    assert np.array_equal(*found)


def test_points_of_other_sizes_are_refused_and_there_is_no_second_try():
    """They may be roots of unity for these sizes, and the tables have other lengths than the loops expect."""
    smaller, larger = replace(SIZES, clip_norm=1 / 64), replace(SIZES, dim=1000)
    assert smaller.bit_domain < SIZES.bit_domain
    assert larger.wire_length > SIZES.wire_length
    root = field.root_of_unity(SIZES.bit_domain)
    with pytest.raises(ParameterError, match="points: expected two different elements outside both domains"):
        query.prepare((root, 5), SIZES)
    for tables in (query.prepare((root, 5), smaller), query.prepare(POINTS, larger)):
        a, _, proved = closed()
        with pytest.raises(ParameterError, match="query: expected points for these sizes"):
            a.open(proved, tables)
        with pytest.raises(ProofQueriedTwiceError):
            a.open(proved, query.prepare(POINTS, SIZES))


def test_a_share_that_fails_in_the_pass_leaves_no_verdict_no_sum_and_no_second_query():
    """The disk fails after the points were used; the round is lost, and nothing of it is half there."""

    class Broken(HeldBytes):
        held = None

        def read_into(self, position, buffer):
            raise MalformedMessageError("the spool file ends")

    round_ = Round(vectors(1))
    slot = LABELS[0]
    data = Broken(bytes(SIZES.upload_bytes))
    locked = {slot: replace(round_.locked(0)[slot], share=PackedShare(data, SIZES.dim))}
    server = ProofCheck(0, ROUND, SIZES, Seed(CHALLENGE.reveal()), locked)
    message, payload = round_.proof(slot)
    server.take_proof(slot, message, payload)
    proved = server.proved([message.binding.digest()])
    tables = query.prepare(POINTS, SIZES)
    with pytest.raises(MalformedMessageError, match="the spool file ends"):
        server.open(proved, tables)
    with pytest.raises(ProofQueriedTwiceError):
        server.open(proved, tables)
    for call in (server.verdicts, server.accepted_sum):
        with pytest.raises(ParameterError, match="for each opened slot"):
            call({})


def test_the_sum_is_of_this_servers_own_verdicts():
    """Neither of verdicts that were never given, nor with one that was turned round, nor twice."""
    a, b, proved = closed(2, too_long=LABELS[:1])
    tables = query.prepare(POINTS, SIZES)
    a.open(proved, tables)
    theirs = b.open(proved, tables)
    with pytest.raises(ParameterError, match="accepted: expected this server's verdict"):
        a.accepted_sum(dict.fromkeys(proved, True))
    verdicts = a.verdicts(theirs)
    assert verdicts == {LABELS[0]: False, LABELS[1]: True}
    for wrong in ({**verdicts, LABELS[0]: True}, {LABELS[1]: True}, {}):
        with pytest.raises(ParameterError, match="accepted: expected this server's verdict"):
            a.accepted_sum(wrong)
    assert a.accepted_sum(verdicts).shape == (SIZES.dim,)
    with pytest.raises(ParameterError, match="once"):
        a.accepted_sum(verdicts)


def test_parts_of_another_shape_are_refused():
    a, _, proved = closed()
    tables = query.prepare(POINTS, SIZES)
    opened = a.open(proved, tables)
    for shape in ((2, SIZES.opened_elements - 1), (1, SIZES.opened_elements), (2 * SIZES.opened_elements,)):
        with pytest.raises(ParameterError, match="validation/verifier: expected parts of shape"):
            a.verdicts(dict.fromkeys(opened, np.zeros(shape, dtype=np.uint64)))
    with pytest.raises(ParameterError, match="expected parts of shape"):
        verifier.is_valid(np.zeros((2, 3), dtype=np.uint64), np.zeros((2, 3), dtype=np.uint64), tables)
    for operation in (field.add, field.subtract):
        with pytest.raises(ParameterError, match="elements: expected arrays of one shape"):
            operation(np.zeros(8, dtype=np.uint64), np.zeros(7, dtype=np.uint64))


def test_nothing_of_another_shape_is_opened():
    """The loops read what the sizes say, so that a short array would be read behind its end. A query is for sizes."""
    tables, other = query.prepare(POINTS, SIZES), replace(SIZES, dim=SIZES.dim + 1)
    rows, wires = np.zeros(64, dtype=np.uint64), np.zeros((2, SIZES.n_wires), dtype=np.uint64)
    proof, room = np.zeros(SIZES.proof_elements, dtype=np.uint64), np.zeros(SIZES.dim, dtype=np.uint64)
    assert verifier.opened_share(0, rows, wires, proof, tables, SIZES).shape == (2, SIZES.opened_elements)
    for wrong in ((rows[1:], wires, proof), (rows, wires[:, 1:], proof), (rows, wires[:1], proof), (rows, wires, rows)):
        with pytest.raises(ParameterError, match="proof: expected rows, wires and elements of shapes"):
            verifier.opened_share(0, *wrong, tables, SIZES)
    assert (other.n_wires, other.proof_elements) == (SIZES.n_wires, SIZES.proof_elements)
    with pytest.raises(ParameterError, match="and a query for them"):
        verifier.opened_share(0, rows, wires, proof, tables, other)
    for wrong_room in (room[1:], np.zeros(SIZES.dim + 1, dtype=np.uint64), room.reshape(1, -1)):
        with pytest.raises(ParameterError, match="share_sum: expected 40 elements, found shape"):
            sums.wire_sums([seeded_share(CHALLENGE, ROUND)], tables, SIZES, wrong_room)


def test_the_binding_of_an_upload_is_no_proofs():
    """With a payload of a proof's length, from a caller that has both kinds."""
    round_ = Round(vectors(1))
    message, payload = round_.proof(LABELS[0])
    upload = Binding(ROUND.task, ROUND.round, "client-2", bytes(32), bytes(32), SIZES.dim, message.binding.proof_digest)
    with pytest.raises(ProofRefusedError, match="wrong_binding: binding: expected that of a proof"):
        round_.servers[0].take_proof(LABELS[0], replace(message, binding=upload), payload)
    round_.servers[0].take_proof(LABELS[0], message, payload)


def test_a_payload_with_an_element_that_is_none_stays_refused():
    """Whoever goes on after the refusal, with bytes and a digest that fit, is refused at the end, too."""
    intake, salt = PayloadIntake(2), bytes(32)
    data = b"\xff" * 7 + bytes(7)
    for piece in (data[:7], data[7:]):
        with pytest.raises(ProofRefusedError, match="malformed"):
            intake.take(piece)
    with pytest.raises(ProofRefusedError, match="malformed"):
        intake.finish(salt, salted_digest(salt, bytes(32)))


def test_a_proof_that_is_too_short_and_malformed_is_too_short():
    """The protocol's order: the length is looked at before an element is."""
    round_ = Round(vectors(1))
    message, payload = round_.proof(LABELS[0])
    with pytest.raises(ProofRefusedError, match="wrong_length"):
        round_.servers[0].take_proof(LABELS[0], message, b"\xff" * (len(payload) - 7))


def test_proofs_wait_for_the_query_without_being_expanded():
    """The seeded server keeps a key for each, and the holder 7 bytes an element."""
    slots = range(2, 42)
    x = vectors(1)[LABELS[0]]
    round_ = Round(dict.fromkeys(slots, x))
    sent = {slot: round_.proof(slot) for slot in slots}
    tracemalloc.start()
    try:
        relays = {slot: round_.servers[holder_of(slot)].take_proof(slot, *sent[slot]) for slot in slots}
        assert all(round_.servers[1 - holder_of(slot)].take_relay(slot, relay) for slot, relay in relays.items())
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < len(slots) * SIZES.proof_bytes / 2
