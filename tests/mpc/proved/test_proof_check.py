"""One round at both servers without a wire: from the lock to the accepted sum, and what a server never does.

Failure means: a server that opens its shares of a proof that was made for other rows, or at a third point. Either
gives its peer a linear function of an honest update.
"""

import gc
import hashlib
import tempfile
from dataclasses import replace
from types import FunctionType, ModuleType

import numpy as np
import pytest

from precad.mpc.errors import MalformedMessageError, ParameterError, ProofQueriedTwiceError, ProofRefusedError
from precad.mpc.local.encrypted_region import EncryptedRegion
from precad.mpc.prg import Label, Seed
from precad.mpc.proved import field, prover, query, verifier
from precad.mpc.proved.check import LockedUpload, ProofCheck
from precad.mpc.proved.field import P
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.shares import HeldBytes, PackedShare, payload_pieces, proof_payload
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.streams import FieldStream
from precad.mpc.proved.submission import ProofBinding, StatedBinding, holder_of, proof_statement
from precad.mpc.proved.sums import row_sums
from precad.mpc.upload_binding import salted_digest
from tests.mpc.fixed_randomness import random_bytes_of
from tests.mpc.proved.two_servers import ROUND, low_bits, rows_of, with_norm

SIZES = ProofSizes(1.0, 40, 8)
CHALLENGE = Seed(bytes(range(16)))
LABELS = (2, 3, 4, 9, 12)
"""Slots of v2 are labels: holders alternate by them, not by place."""


class Round:
    """A round whose clients have uploaded: both servers' checks, and what every client sends them."""

    def __init__(self, vectors, challenge=CHALLENGE):
        self.random_bytes = random_bytes_of("round")
        self.vectors = vectors
        self.seeds = {slot: Seed.random(self.random_bytes) for slot in vectors}
        self.challenge = Seed(challenge.reveal())  # each round's own: a challenge has one check at each server
        self.servers = [ProofCheck(party, ROUND, SIZES, self.challenge, self.locked(party)) for party in (0, 1)]

    def locked(self, party):
        """Return what one server has locked."""
        found = {}
        for slot, x in self.vectors.items():
            data = b"".join(payload_pieces(x, self.seeds[slot], self.label(slot)))
            held = holder_of(slot) == party
            share = PackedShare(HeldBytes(data), SIZES.dim) if held else self.seeds[slot]
            found[slot] = LockedUpload(f"client-{slot}", self.binding_digest(slot), share)
        return found

    @staticmethod
    def label(slot):
        return Label(ROUND.task, ROUND.round, str(slot))

    @staticmethod
    def binding_digest(slot):
        return hashlib.sha256(b"%d" % slot).digest()

    def proof(self, slot, challenge=CHALLENGE, **changed):
        """Return the proof of one client, for a challenge, with fields of its binding changed: (message, payload)."""
        masks = ProofMasks.draw(SIZES, self.random_bytes)
        found = prover.witness(self.vectors[slot], rows_of(challenge), SIZES, masks)
        words = prover.assemble(low_bits(found.numbers, SIZES), found.squares, SIZES, masks)
        payload, salt = proof_payload(words, self.seeds[slot], self.label(slot)), self.random_bytes(32)
        binding = ProofBinding(
            task=ROUND.task,
            round=ROUND.round,
            client=f"client-{slot}",
            binding_digest=self.binding_digest(slot),
            challenge=challenge.reveal(),
            proof_digest=salted_digest(salt, hashlib.sha256(payload).digest()),
        )
        binding = replace(binding, **changed)
        return StatedBinding(
            binding, proof_statement(self.seeds[slot], self.label(slot), binding.digest()), salt
        ), payload

    def send(self, slot):
        """Let a client send its proof to its holder, and the holder relay it."""
        holder = holder_of(slot)
        relay = self.servers[holder].take_proof(slot, *self.proof(slot))
        return self.servers[1 - holder].take_relay(slot, relay)

    def finish(self):
        """Return (verdicts, the sum of the valid vectors as integers)."""
        a, b = self.servers
        digests = a.close(), b.close()
        proved = a.proved(digests[1])
        assert proved == b.proved(digests[0])
        points = query.query_elements(query.query_seed(ROUND, (bytes(32), b"b" * 32), list(proved.values())), ROUND)
        tables = query.prepare(query.admissible_points(points, SIZES), SIZES)
        opened = [server.open(proved, tables) for server in (a, b)]
        verdicts = a.verdicts(opened[1])
        assert verdicts == b.verdicts(opened[0])
        total = field.add(a.accepted_sum(verdicts), b.accepted_sum(verdicts))
        return verdicts, field.to_integers(total)


class OnDisk:
    """Bytes in an encrypted file, as a server's spool has them."""

    def __init__(self, data, file):
        file.truncate(len(data))
        self._region = EncryptedRegion(file, len(data))
        self._region.append(data)

    held = None

    def __len__(self):
        return len(self._region)

    def read_into(self, position, buffer):
        self._region.read_into(position, buffer)


def test_a_holder_reads_its_share_of_a_proof_from_disk():
    """The parts are those of a server that has the bytes in memory."""
    made = Round(vectors(1))
    (slot,) = made.vectors
    holder, sent = holder_of(slot), made.proof(slot)
    twin = ProofCheck(holder, ROUND, SIZES, CHALLENGE, made.locked(holder))
    with tempfile.TemporaryFile(buffering=0) as file:
        for server, payload in ((made.servers[holder], OnDisk(sent[1], file)), (twin, sent[1])):
            server.take_proof(slot, sent[0], payload)
            server.close()
        tables = query.prepare((12_345, P - 2), SIZES)
        proved = {slot: sent[0].binding.digest()}
        on_disk, in_memory = (server.open(proved, tables) for server in (made.servers[holder], twin))
    assert np.array_equal(on_disk[slot], in_memory[slot])
    assert len(set(on_disk[slot].reshape(-1).tolist())) > SIZES.n_wires


def vectors(n=5, too_long=()):
    """Return vectors at the exact bound, or one above it, by slot."""
    return {s: with_norm(SIZES, SIZES.threshold + (s in too_long), f"v{s}") for s in LABELS[:n]}


@pytest.mark.parametrize(("n", "too_long"), [(1, ()), (4, (3,)), (5, ()), (5, (2, 4, 12)), (5, LABELS)])
def test_a_round_from_the_lock_to_the_accepted_sum(n, too_long):
    """Holders mixed; the valid vectors add up, whether the rejected are few or most."""
    round_ = Round(vectors(n, too_long))
    assert all(round_.send(slot) for slot in round_.vectors)
    verdicts, total = round_.finish()
    assert verdicts == {slot: slot not in too_long for slot in round_.vectors}
    expected = sum((x for slot, x in round_.vectors.items() if verdicts[slot]), np.zeros(SIZES.dim, dtype=np.int64))
    assert total.tolist() == expected.tolist()


def test_who_does_not_prove_is_not_in_the_sum():
    """No proof came from one client, and a relay that was forged by the holder of another does not count."""
    round_ = Round(vectors())
    for slot in LABELS[:3]:
        assert round_.send(slot)
    message, payload = round_.proof(LABELS[3])
    relay = round_.servers[1].take_proof(LABELS[3], message, payload)
    assert not round_.servers[0].take_relay(LABELS[3], replace(relay, client="client-4"))  # which changes nothing
    assert not round_.servers[0].take_relay(LABELS[3], replace(relay, statement=bytes(32)))
    assert not round_.servers[0].take_relay(LABELS[3], relay)  # the first relay of a slot decides
    verdicts, total = round_.finish()
    assert verdicts == dict.fromkeys(LABELS[:3], True)
    assert total.tolist() == sum(round_.vectors[slot] for slot in LABELS[:3]).tolist()


def test_nobody_proves():
    verdicts, total = Round(vectors(3)).finish()
    assert verdicts == {}
    assert not total.any()


def test_a_proof_for_another_challenge_is_never_opened():
    """S2, as the holder and as the seeded server: client and server must hold the same rows."""
    round_ = Round(vectors(1))
    slot, other = LABELS[0], Seed(bytes(16))
    message, payload = round_.proof(slot, other)
    with pytest.raises(ProofRefusedError, match="wrong_challenge"):
        round_.servers[0].take_proof(slot, message, payload)
    careless = ProofCheck(0, ROUND, SIZES, other, round_.locked(0))  # a holder that passes another challenge on
    relay = careless.take_proof(slot, message, payload)
    assert not round_.servers[1].take_relay(slot, relay)
    assert round_.servers[1].proved([message.binding.digest()]) == {}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"binding_digest": bytes(32)}, "wrong_binding"),
        ({"client": "client-3"}, "wrong_client"),
        ({"round": 4}, "wrong_binding"),
        ({"proof_digest": bytes(32)}, "wrong_digest"),
    ],
)
def test_a_proof_of_another_upload_is_refused(changed, reason):
    round_ = Round(vectors(1))
    with pytest.raises(ProofRefusedError, match=reason):
        round_.servers[0].take_proof(LABELS[0], *round_.proof(LABELS[0], **changed))


def test_a_proof_is_taken_once_by_its_holder_before_the_end_of_the_phase():
    round_ = Round(vectors(2))
    a, b = round_.servers
    message, payload = round_.proof(LABELS[0])
    with pytest.raises(ProofRefusedError, match="wrong_server"):
        b.take_proof(LABELS[0], message, payload)
    with pytest.raises(ProofRefusedError, match="not_active"):
        a.take_proof(77, message, payload)
    relay = a.take_proof(LABELS[0], message, payload)
    with pytest.raises(ProofRefusedError, match="duplicate"):
        a.take_proof(LABELS[0], message, payload)
    assert not a.take_relay(LABELS[0], relay)  # the holder is told nothing of its own slots
    assert not b.take_relay(77, relay)  # nor the seeded server of one that is not locked
    for server in (a, b):
        server.close()
    with pytest.raises(ProofRefusedError, match="late"):
        b.take_proof(LABELS[1], *round_.proof(LABELS[1]))
    assert not b.take_relay(LABELS[0], relay)


def test_a_malformed_proof_is_refused_by_the_holder_and_no_second_one_is_taken():
    """Each as the first message of a round, and then the proof as it should have been."""
    for reason, change in (
        ("malformed", lambda message, payload: (message, b"\xff" * 7 + payload[7:])),
        ("wrong_length", lambda message, payload: (message, payload + b"\0")),
        ("wrong_length", lambda message, payload: (message, payload[:-1])),
    ):
        round_ = Round(vectors(1))
        proof = round_.proof(LABELS[0])
        for expected, sent in ((reason, change(*proof)), ("duplicate", proof)):
            with pytest.raises(ProofRefusedError) as refused:
                round_.servers[0].take_proof(LABELS[0], *sent)
            assert refused.value.reason == expected
    for changed in ({"statement": b"short"}, {"salt": b"short"}):
        with pytest.raises(ProofRefusedError, match="wrong_binding"):
            Round(vectors(1)).servers[0].take_proof(LABELS[0], replace(proof[0], **changed), proof[1])


def test_proofs_are_queried_once():
    """S3: neither at other points nor at the same ones; not after a failed verdict either."""
    round_ = Round(vectors(2))
    for slot in round_.vectors:
        round_.send(slot)
    a, b = round_.servers
    proved = a.proved(b.close())
    tables = query.prepare((12_345, 54_321), SIZES)
    a.open(proved, tables)
    for points in ((12_345, 54_321), (12_345, 3)):
        with pytest.raises(ProofQueriedTwiceError, match="query: expected one pair"):
            a.open(proved, query.prepare(points, SIZES))


@pytest.mark.parametrize("projected", [(0,), (1,), (0, 1)])
def test_rows_that_were_computed_ahead_change_no_verdict_and_no_sum(projected):
    """Before any proof is here, and once more; one client too long, one without a proof, whose rows are unused."""
    round_, twin = (Round(vectors(4, (LABELS[1],))) for _ in range(2))
    for party in (*projected, *projected):
        round_.servers[party].project()
    for one in (round_, twin):
        for slot in LABELS[:3]:
            one.send(slot)
    (verdicts, total), (expected, its_sum) = round_.finish(), twin.finish()
    assert verdicts == expected == {slot: slot != LABELS[1] for slot in LABELS[:3]}
    assert total.tolist() == its_sum.tolist()


def test_row_values_are_those_that_the_query_would_have_computed():
    """Word for word, in the message that leaves: whether or not rows were computed ahead, of more slots than prove."""
    opened = []
    for is_ahead in (False, True):
        round_ = Round(vectors(5))
        if is_ahead:
            round_.servers[0].project()
        for slot in LABELS[:3]:
            round_.send(slot)
        a, b = round_.servers
        found = a.open(a.proved(b.close()), query.prepare((12_345, 54_321), SIZES))
        opened.append({slot: part.tolist() for slot, part in found.items()})
    assert opened[0] == opened[1]
    assert list(opened[0]) == sorted(LABELS[:3])


def test_a_share_that_cannot_be_read_ahead_cannot_be_opened_either():
    """An upload whose file was cut short: nobody waits for `project`, so that its error must come again."""
    round_ = Round(vectors(1))
    locked = round_.locked(0)
    with tempfile.TemporaryFile(buffering=0) as file:
        data = bytes(SIZES.upload_bytes)
        cut = replace(locked[LABELS[0]], share=PackedShare(OnDisk(data, file), SIZES.dim))
        server = ProofCheck(0, ROUND, SIZES, Seed(CHALLENGE.reveal()), {LABELS[0]: cut})
        server.take_proof(LABELS[0], *round_.proof(LABELS[0]))
        file.truncate(len(data) // 2)
        for read in (server.project, lambda: server.open(server.proved(server.close()), query.prepare((2, 3), SIZES))):
            with pytest.raises(MalformedMessageError, match="the spool file ends"):
                read()


def test_a_round_that_is_given_up_stops_what_runs_ahead_of_it(monkeypatch):
    """S4: erasure waits for one tile, not for the pass. Half a row is no row: an `open` all the same begins anew."""
    round_, twin = Round(vectors(2)), Round(vectors(2))
    server, tiles = round_.servers[0], []
    read = PackedShare.fill

    def stopping(self, out):
        tiles.append(out.size)
        server.stop()
        read(self, out)

    with monkeypatch.context() as patch:
        patch.setattr(PackedShare, "fill", stopping)
        server.project()
        row_sums([server._share(LABELS[0])], rows_of(CHALLENGE), SIZES, is_wanted=lambda: False)
    assert len(tiles) == 1
    assert server._rows == {}
    for one in (round_, twin):
        for slot in LABELS[:2]:
            one.send(slot)
    (verdicts, total), (expected, its_sum) = round_.finish(), twin.finish()
    assert verdicts == expected
    assert total.tolist() == its_sum.tolist()


def test_no_row_value_is_left_after_the_round():
    """S4: they are a linear function of a share. After the end there is nothing to compute them from."""
    server = Round(vectors(2)).servers[0]
    server.project()
    assert set(server._rows) == set(LABELS[:2])
    server.forget()
    server.project()
    assert server._rows == {}


def reached(check):
    """Return every object that a check holds, but the round's challenge and query, which are public by then."""
    waiting = [value for name, value in vars(check).items() if name not in {"_challenge", "_query"}]
    found = {}
    while waiting:
        one = waiting.pop()
        if id(one) not in found and not isinstance(one, type | ModuleType | FunctionType):
            found[id(one)] = one
            waiting += gc.get_referents(one)
    return list(found.values())


def test_no_seed_share_or_opening_is_left_after_the_round():
    """S4, of a round that came to its end and of one that did not: whatever still holds a check holds no secret."""
    ended, given_up = Round(vectors(2)), Round(vectors(2))
    for round_ in (ended, given_up):
        for slot in LABELS[:2]:
            round_.send(slot)
        for server in round_.servers:
            server.project()
    ended.finish()
    secret = (Seed, PackedShare, FieldStream, np.ndarray)
    for server in (*ended.servers, *given_up.servers):
        assert any(isinstance(one, secret) for one in reached(server))
        server.forget()
        assert not [one for one in reached(server) if isinstance(one, secret)]
        with pytest.raises(ProofRefusedError, match="late"):
            server.require_header(LABELS[0], given_up.proof(LABELS[0])[0])


def test_nothing_is_opened_before_the_intake_is_closed_or_without_a_proof():
    round_ = Round(vectors(2))
    round_.send(LABELS[0])
    a, b = round_.servers
    tables = query.prepare((12_345, 54_321), SIZES)
    with pytest.raises(ParameterError, match="after the intake was closed"):
        a.open({}, tables)
    proved = a.proved(b.close())
    for wrong in ({**proved, LABELS[1]: bytes(32)}, {LABELS[0]: bytes(32)}):
        with pytest.raises(ParameterError, match="proved: expected slots whose proof was taken"):
            a.open(wrong, tables)
    with pytest.raises(ParameterError, match="verdicts: expected the peer's part"):
        a.verdicts({})
    with pytest.raises(MalformedMessageError, match="proofs: expected 2 digests"):
        a.proved([bytes(32)])


def test_a_verifier_part_is_the_same_whatever_the_peer_sent():
    """The verdict is computed from parts that were already sent; a peer that sends others changes verdicts alone."""
    round_ = Round(vectors(1))
    round_.send(LABELS[0])
    a, b = round_.servers
    proved = a.proved(b.close())
    opened = a.open(proved, query.prepare((12_345, 54_321), SIZES))
    zeros = {LABELS[0]: np.zeros((2, SIZES.opened_elements), dtype=np.uint64)}
    assert a.verdicts(zeros) == {LABELS[0]: False}
    with pytest.raises(ParameterError, match="for each opened slot"):
        a.verdicts({})
    assert opened[LABELS[0]].shape == (2, SIZES.n_wires + 3)


def test_a_second_check_of_a_round_is_refused_before_it_holds_anything():
    """S3: what one check opens once, two would open at two pairs of points, which gives a function of an update."""
    round_ = Round(vectors(1))
    for party in (0, 1):
        with pytest.raises(ProofQueriedTwiceError, match="challenge: expected one check of a round's proofs"):
            ProofCheck(party, ROUND, SIZES, round_.challenge, round_.locked(party))


def test_each_server_has_its_own_kind_of_share():
    uploads = Round(vectors(1)).locked(0)
    with pytest.raises(ParameterError, match="slot 2: expected the share of its seeded server"):
        ProofCheck(1, ROUND, SIZES, CHALLENGE, uploads)


# The message between the servers


@pytest.mark.parametrize("n", [0, 1, 3])
def test_the_verifier_message_there_and_back(n, monkeypatch):
    """Slot after slot, in pieces that cut no element; 14 (c + 3) bytes per slot."""
    monkeypatch.setattr(verifier, "PIECE_ELEMENTS", 10)
    parts = [field.random_elements(2 * SIZES.opened_elements, random_bytes_of(str(i))).reshape(2, -1) for i in range(n)]
    pieces = list(verifier.message_pieces(parts))
    assert all(len(piece) == 70 for piece in pieces[:-1])
    assert b"".join(pieces) == b"".join(field.to_bytes(part.reshape(-1)) for part in parts)
    assert sum(map(len, pieces)) == n * 14 * SIZES.opened_elements
    found = verifier.read_message(iter(pieces), n, SIZES)
    assert len(found) == n
    assert all(np.array_equal(one, part) for one, part in zip(found, parts, strict=True))


def test_a_verifier_message_of_another_length_or_with_p_in_it_is_malformed():
    piece = bytes(14 * SIZES.opened_elements)
    for pieces in ([piece[:-1]], [], [piece, b"x"], [b"\xff" * len(piece)]):
        with pytest.raises(MalformedMessageError, match="validation/verifier"):
            verifier.read_message(iter(pieces), 1, SIZES)


def test_a_piece_that_is_too_long_is_refused_before_the_next_one_is_taken(monkeypatch):
    """By a byte or by an element: whoever cut it off would read the peer's message as another than was sent."""
    monkeypatch.setattr(verifier, "PIECE_ELEMENTS", SIZES.opened_elements)
    whole = bytes(7 * verifier.PIECE_ELEMENTS)
    for more in (bytes(1), bytes(7), whole):
        pieces = iter([whole + more, whole])
        with pytest.raises(MalformedMessageError, match=f"validation/verifier: expected {len(whole)} bytes"):
            verifier.read_message(pieces, 1, SIZES)
        assert list(pieces) == [whole]
        with pytest.raises(MalformedMessageError, match=f"validation/verifier: expected {len(whole)} bytes"):
            verifier.read_message(iter([whole, whole + more]), 1, SIZES)


def test_the_query_seed_is_of_both_coins_and_of_all_proofs():
    """Another coin, order or list gives other points; a coin of another length is malformed."""
    coins = (bytes(32), b"b" * 32)
    seeds = [
        query.query_seed(ROUND, coins, [b"1" * 32, b"2" * 32]),
        query.query_seed(ROUND, coins, [b"2" * 32, b"1" * 32]),
        query.query_seed(ROUND, coins[::-1], [b"1" * 32, b"2" * 32]),
        query.query_seed(Label("task", 4), coins, [b"1" * 32, b"2" * 32]),
    ]
    assert len({seed.reveal() for seed in seeds}) == 4
    with pytest.raises(MalformedMessageError, match="expected a coin of 32 bytes, found 31"):
        query.query_seed(ROUND, (bytes(31), bytes(32)), [])
