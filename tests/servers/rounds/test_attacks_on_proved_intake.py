"""One phase of a round of mode `proved` at one server, without a wire: what clients and a deviating peer can do to it.

Failure means that a peer decides a slot that this server holds, or one twice. Or a proof waits for turns of the
uploads, or a refusal names another reason than the protocol's first.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precad.mpc.prg import Label, Seed
from precad.mpc.proved.check import ProofCheck
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.submission import Binding, ProofBinding, Relay, ShareSeeds, StatedBinding, proof_statement
from precad.mpc.upload_binding import salted_digest, statement
from precad.protos.messages import proved
from precad.servers.errors import Limit, OverloadedError, RefusalReason, SubmissionRefusedError
from precad.servers.rounds.proved_intake import Proofs, ProvedUploads
from precad.servers.rounds.transfers import Capacity, Transfers
from precad.servers.rounds.uploads import Spool
from tests.harness.harness import asynchronous

ROUND = Label("task", 3)
SIZES = ProofSizes(1.0, 4, 8)
SLOTS = {"alice": 0, "bob": 1, "carol": 2, "dora": 3}
"""Server A holds the slots of alice and carol, and gave bob's seed. It has not invited dora."""
BLANK = Binding(
    task="task", round=3, client="", config_digest=b"c", model_digest=b"m", dim=SIZES.dim, payload_digest=b""
)
PAYLOAD = bytes(SIZES.upload_bytes)


class Server:
    """Server A, with its seeds, its spool and what it tells B."""

    def __init__(self, folder: Path, n_places: int = 4) -> None:
        spool = Spool(folder / "spool", most_bytes=1 << 16, memory_bytes=1 << 16, max_memory_upload=1 << 16)
        places = Transfers(Limit.UPLOADS, n_places, min_bytes_s=0.0, grace_s=60.0)
        self.capacity, self.told = Capacity(spool, places, places), list[tuple[int, Relay]]()
        self.seeds = ShareSeeds(0)
        self.seed = self.seeds.give(SLOTS["bob"])
        self.common: dict[str, Any] = {
            "label": ROUND,
            "party": 0,
            "sizes": SIZES,
            "timeout_s": 10.0,
            "capacity": self.capacity,
            "tell": lambda phase, relay: self.told.append((phase, relay)),
            "told_all": lambda: None,
        }
        self.uploads = self.fresh_uploads()

    def fresh_uploads(self) -> ProvedUploads:
        """Return an intake of uploads into which nothing has come."""
        return ProvedUploads(slots=SLOTS, seeds=self.seeds, bind=bound, **self.common)

    def proofs(self, *active: str) -> Proofs:
        """Return the intake of proofs, once the uploads of these clients are locked."""
        check = ProofCheck(0, ROUND, SIZES, Seed(bytes(16)), self.uploads.locked(active))
        return Proofs(slots={client: SLOTS[client] for client in active}, check=check, **self.common)


def bound(client: str, payload_digest: bytes) -> Binding:
    return replace(BLANK, client=client, payload_digest=payload_digest)


def submission(client: str, payload: bytes = PAYLOAD, **changed: Any) -> StatedBinding:
    """Return what a client sends beside the payload. Its holder cannot check the statement."""
    salt = bytes(32)
    binding = replace(bound(client, salted_digest(salt, hashlib.sha256(payload).digest())), **changed)
    return StatedBinding(binding, bytes(32), salt)


async def send(
    server: Server, client: str, sent: StatedBinding, payload: bytes = PAYLOAD, *, digest_b: bytes = b""
) -> None:
    assert isinstance(sent.binding, Binding)
    message = proved.binding_message(sent.binding)
    message.digest_b = digest_b
    async with server.uploads.upload(client) as upload:
        upload.begin(message, sent.statement, sent.salt)
        upload.write(payload)


async def refusal(
    server: Server, client: str, sent: StatedBinding, payload: bytes = PAYLOAD, **other: Any
) -> RefusalReason:
    with pytest.raises(SubmissionRefusedError) as caught:
        await send(server, client, sent, payload, **other)
    return caught.value.reason


def relay(seed: Seed, client: str = "bob", **changed: Any) -> Relay:
    """Return an honest holder's word of an upload, with other fields."""
    binding = bound(client, bytes(range(32)))
    said = statement(seed, Label("task", 3, str(SLOTS[client])), binding.digest())
    return replace(Relay(3, client, binding.payload_digest, said), **changed)


@asynchronous
async def test_the_first_reason_of_the_protocol_is_named(tmp_path: Path) -> None:
    """A binding with a second digest is of another mode; who sent it, and for which round, is looked at before."""
    server = Server(tmp_path)
    other = {"digest_b": bytes(32)}
    assert await refusal(server, "alice", submission("carol"), **other) == RefusalReason.WRONG_CLIENT
    assert await refusal(server, "alice", submission("alice", round=2), **other) == RefusalReason.WRONG_ROUND
    assert await refusal(server, "alice", submission("alice"), **other) == RefusalReason.WRONG_BINDING
    assert await refusal(server, "bob", submission("bob")) == RefusalReason.WRONG_SERVER
    assert await refusal(server, "dave", submission("dave")) == RefusalReason.NOT_CHOSEN
    above = b"\xff" * 7 + bytes(SIZES.upload_bytes - 7)
    assert await refusal(server, "alice", submission("alice", above), above) == RefusalReason.MALFORMED
    assert await refusal(server, "alice", submission("alice")) == RefusalReason.DUPLICATE
    assert server.told == [(0, Relay(3, "alice", b"", b""))]  # of her whose bytes were refused, and nobody else


@asynchronous
async def test_a_peer_decides_slots_that_it_holds_and_each_once(tmp_path: Path) -> None:
    """Rule S6: neither one that is held here, nor a second time, nor one that was not drawn or invited."""
    server = Server(tmp_path)
    honest = relay(server.seed)
    for unwanted in (
        relay(server.seed, "alice"),
        replace(honest, client="dave"),
        relay(Seed(bytes(16)), "dora"),
        Relay(3, "dora", b"", b""),
        replace(honest, round=2),
        replace(honest, round=4),
    ):
        server.uploads.relay(unwanted)
    assert not server.uploads.complete
    assert server.uploads._expected == SLOTS.keys()
    server.uploads.relay(replace(honest, statement=bytes(32)))
    server.uploads.relay(honest)
    assert not server.uploads.complete


@asynchronous
async def test_a_peer_cannot_say_that_a_proof_which_is_due_here_is_over(tmp_path: Path) -> None:
    """Rule S6, of proofs: alice is awaited all the same, and bob, whose holder speaks for him, is not."""
    server = Server(tmp_path)
    await send(server, "alice", submission("alice"))
    server.uploads.relay(relay(server.seed))
    server.uploads.close()
    proofs = server.proofs("alice", "bob")
    proofs.relay(Relay(3, "alice", b"", b""))
    assert proofs._expected == {"alice", "bob"}
    locked, digest = bound("bob", bytes(range(32))).digest(), bytes(32)
    binding = ProofBinding("task", 3, "bob", locked, challenge=bytes(16), proof_digest=digest)
    said = proof_statement(server.seed, Label("task", 3, str(SLOTS["bob"])), binding.digest())
    proofs.relay(Relay(3, "bob", digest, said))
    proofs.relay(Relay(3, "bob", b"", b""))  # the first word of a slot decides
    assert (proofs._expected, proofs.n_waiting) == ({"alice"}, 1)
    assert proofs.complete == {"bob"}


@asynchronous
async def test_a_word_after_the_lock_changes_nothing(tmp_path: Path) -> None:
    """The binding was sent without it: whoever counts it later holds another list than the one that is locked."""
    server = Server(tmp_path)
    assert server.uploads.close() == {}
    server.uploads.relay(relay(server.seed))
    assert not server.uploads.complete
    assert server.uploads._expected == SLOTS.keys()


@pytest.mark.parametrize("length", [0, 31, 33])
@asynchronous
async def test_a_digest_of_another_length_counts_for_nothing(tmp_path: Path, length: int) -> None:
    server = Server(tmp_path)
    binding = bound("bob", bytes(length))
    said = statement(server.seed, Label("task", 3, "1"), binding.digest())
    server.uploads.relay(Relay(3, "bob", bytes(length), said))
    assert not server.uploads.complete


@asynchronous
async def test_proofs_do_not_wait_for_who_had_no_turn_among_the_uploads(tmp_path: Path) -> None:
    """Carol's upload found no room and the round was locked without it: alice, who had a turn, proves at once."""
    server = Server(tmp_path, n_places=1)
    sent = submission("alice")
    assert isinstance(sent.binding, Binding)
    async with server.uploads.upload("alice") as upload:
        with pytest.raises(OverloadedError):
            await send(server, "carol", submission("carol"))
        upload.begin(proved.binding_message(sent.binding), sent.statement, sent.salt)
        upload.write(PAYLOAD)
    server.uploads.close()
    proofs = server.proofs("alice")
    async with proofs._place(server.capacity.uploads, "alice", proofs.payload_bytes) as place:
        assert not place.is_cut_off


@asynchronous
async def test_a_proof_needs_a_locked_upload_its_holder_and_an_open_phase(tmp_path: Path) -> None:
    """Said before a message is read, also to one that was drawn and never uploaded."""
    server = Server(tmp_path)
    await send(server, "alice", submission("alice"))
    server.uploads.relay(relay(server.seed))
    server.uploads.close()
    proofs, found = server.proofs("alice", "bob"), list[RefusalReason]()
    for client in ("carol", "dave", "bob"):
        with pytest.raises(SubmissionRefusedError) as caught:
            async with proofs.upload(client):
                pass
        found.append(caught.value.reason)
    assert found == [RefusalReason.NOT_ACTIVE, RefusalReason.NOT_ACTIVE, RefusalReason.WRONG_SERVER]
    proofs.close()
    with pytest.raises(SubmissionRefusedError) as caught:
        async with proofs.upload("alice"):
            pass
    assert caught.value.reason == RefusalReason.LATE


@asynchronous
async def test_at_a_rounds_end_seeds_and_shares_are_erased(tmp_path: Path) -> None:
    """Rule S4."""
    server = Server(tmp_path)
    await send(server, "alice", submission("alice"))
    server.uploads.relay(relay(server.seed))
    assert server.uploads.complete == {"alice", "bob"}
    server.uploads.close()
    proofs = server.proofs("alice", "bob")
    for intake in (server.uploads, proofs):
        intake.close()
        intake.forget()
    assert server.seeds.given(SLOTS["bob"]) is None
    assert not proofs._check._locked
    assert not server.uploads._uploads
    assert not server.uploads.complete  # nor is known of whom the other server spoke
