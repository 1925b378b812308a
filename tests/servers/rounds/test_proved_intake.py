"""Take uploads at one server in mode `proved`: who holds what, what a holder refuses, and what a relay may decide.

Failure means: a refusal that one server alone would know of, or a peer that decides over a slot that is held here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from precad.mpc.prg import Label, Seed
from precad.mpc.proved.client import make_upload
from precad.mpc.proved.field import P
from precad.mpc.proved.shares import payload_pieces
from precad.mpc.proved.submission import Binding, Relay, ShareSeeds, StatedBinding, relay_of
from precad.mpc.sharing import Party
from precad.mpc.upload_binding import SALT_BYTES
from precad.protos.messages import proved
from precad.servers.errors import OverloadedError, RefusalReason, SubmissionRefusedError
from precad.servers.rounds.proved_intake import ProvedUploads
from precad.servers.rounds.receiving import Upload
from tests.harness.harness import asynchronous, small_task
from tests.harness.room import roomy

TASK = small_task(("alice", "bob"), mode="proved", frac_bits=16)
ROUND = Label("small-1", 3)
SLOTS = {"alice": 0, "bob": 1}
"""A holds alice's slot, and is seeded for bob's."""
X = np.arange(TASK.dim, dtype=np.int64)


NOTHING_OF_ALICE = (0, Relay(ROUND.round, "alice", b"", b""))
TIMEOUT_S = 20.0


class AtA:
    """Server A's intake, or B's, what it told the other one, and what clients make for it."""

    def __init__(self, party: Party = 0) -> None:
        self.told: list[tuple[int, Relay]] = []
        self.told_all: list[list[tuple[int, Relay]]] = []
        """All that was told when the intake said that this is all."""
        self.tell: Callable[[int, Relay], None] = lambda phase, relay: self.told.append((phase, relay))
        self.seeds = ShareSeeds(party)
        self.intake = ProvedUploads(
            label=ROUND,
            party=party,
            slots=SLOTS,
            sizes=TASK.proof_sizes,
            seeds=self.seeds,
            bind=self.bind,
            timeout_s=TIMEOUT_S,
            capacity=roomy(),
            tell=self._say,
            told_all=lambda: self.told_all.append(list(self.told)),
        )

    def _say(self, phase: int, relay: Relay) -> None:
        self.tell(phase, relay)

    def hear(self, phase: int, relay: Relay) -> None:
        """Take the other server's word."""
        self.intake.relay(relay)

    @staticmethod
    def bind(client: str, digest: bytes) -> Binding:
        return Binding(ROUND.task, ROUND.round, client, TASK.digest(), bytes(32), TASK.dim, digest)

    def upload(self, client: str, seed: Seed) -> tuple[StatedBinding, bytes]:
        label = Label(ROUND.task, ROUND.round, str(SLOTS[client]))
        return make_upload(X, self.bind(client, b""), seed, label), b"".join(payload_pieces(X, seed, label))

    async def take(
        self, client: str, sent: StatedBinding, payload: bytes, changed: Mapping[str, Any] | None = None
    ) -> None:
        assert isinstance(sent.binding, Binding)
        message = proved.binding_message(sent.binding)
        for name, value in (changed or {}).items():
            setattr(message, name, value)
        async with self.intake.upload(client) as upload:
            upload.begin(message, sent.statement, sent.salt)
            upload.write(payload[:50])
            upload.write(payload[50:])


@asynchronous
async def test_a_holder_takes_an_upload_once_and_tells_of_it_without_data() -> None:
    at_a = AtA()
    sent, payload = at_a.upload("alice", Seed(bytes(16)))
    await at_a.take("alice", sent, payload)
    assert at_a.told == [(0, relay_of(sent))]
    assert at_a.intake.complete == {"alice"}
    with pytest.raises(SubmissionRefusedError) as refused:
        await at_a.take("alice", sent, payload)
    assert refused.value.reason is RefusalReason.DUPLICATE
    assert at_a.intake.close() == {"alice": sent.binding.digest()}


@pytest.mark.parametrize(
    ("reason", "changed"),
    [
        (RefusalReason.WRONG_CLIENT, {"client": "bob"}),
        (RefusalReason.WRONG_ROUND, {"round": 4}),
        (RefusalReason.WRONG_BINDING, {"digest_b": bytes(32)}),
        (RefusalReason.WRONG_BINDING, {"mode": "masked"}),
        (RefusalReason.WRONG_BINDING, {"protocol_version": "precad/v1.1"}),
        (RefusalReason.WRONG_BINDING, {"dim": 25}),
        (RefusalReason.WRONG_DIGEST, {"digest_a": bytes(32)}),
    ],
)
@asynchronous
async def test_another_binding_is_refused(reason: RefusalReason, changed: dict[str, Any]) -> None:
    at_a = AtA()
    with pytest.raises(SubmissionRefusedError) as refused:
        await at_a.take("alice", *at_a.upload("alice", Seed(bytes(16))), changed)
    told = [NOTHING_OF_ALICE] if reason is RefusalReason.WRONG_DIGEST else []  # before it began, she may try again
    assert (refused.value.reason, at_a.told, at_a.intake.close()) == (reason, told, {})


@asynchronous
async def test_an_element_that_is_not_below_p_is_refused_while_it_comes() -> None:
    """Later, one server alone would know of it."""
    at_a = AtA()
    sent, payload = at_a.upload("alice", Seed(bytes(16)))
    with pytest.raises(SubmissionRefusedError) as refused:
        await at_a.take("alice", sent, payload[:-7] + P.to_bytes(7, "little"))
    assert (refused.value.reason, at_a.told) == (RefusalReason.MALFORMED, [NOTHING_OF_ALICE])


@asynchronous
async def test_servers_that_each_refuse_a_client_do_not_wait_for_each_other() -> None:
    """Each awaits the other's relay of a slot of which nothing will come. Likewise of a client that one did not invite.
    What the holder says of such a slot decides it, and an upload that fits comes too late for it."""
    for invited in ({"alice", "bob"}, set[str]()):
        a, b = AtA(), AtA(party=1)
        a.tell, b.tell = b.hear, a.hear
        seeds = {"alice": b.seeds.give(SLOTS["alice"]), "bob": a.seeds.give(SLOTS["bob"])}
        never = asyncio.Event()
        waiting = [
            asyncio.create_task(at.intake.wait(invited=invited | {other}, peer_locked=never))
            for at, other in ((a, "bob"), (b, "alice"))
        ]
        for at, client in ((a, "alice"), (b, "bob")) if invited else ():
            sent, payload = at.upload(client, seeds[client])
            with pytest.raises(SubmissionRefusedError):
                await at.take(client, sent, payload[:-1] + bytes([payload[-1] ^ 1]))
        async with asyncio.timeout(TIMEOUT_S / 2):
            await asyncio.gather(*waiting)
        late, _ = b.upload("bob", Seed(seeds["bob"].reveal()))
        a.intake.relay(relay_of(late))
        assert a.intake.close() == b.intake.close() == {}


@asynchronous
async def test_after_the_close_no_word_leaves_of_an_upload_that_is_cut_off() -> None:
    """It would be of a phase that is over, and end the task."""
    at_a = AtA()
    sent, _ = at_a.upload("alice", Seed(bytes(16)))

    async def stalls() -> None:
        assert isinstance(sent.binding, Binding)
        async with at_a.intake.upload("alice") as upload:
            upload.begin(proved.binding_message(sent.binding), sent.statement, sent.salt)
            at_a.intake.close()
            await asyncio.sleep(TIMEOUT_S)

    with pytest.raises(SubmissionRefusedError) as refused:
        await stalls()
    assert (refused.value.reason, at_a.told) == (RefusalReason.LATE, [])


@asynchronous
async def test_an_upload_that_ends_as_the_phase_is_closed_is_late() -> None:
    """In the same turn of the loop, so that nothing has cut it off: it is not in the list that was locked."""
    at_a = AtA()
    sent, payload = at_a.upload("alice", Seed(bytes(16)))

    async def ends_with_the_phase() -> None:
        assert isinstance(sent.binding, Binding)
        async with at_a.intake.upload("alice") as upload:
            upload.begin(proved.binding_message(sent.binding), sent.statement, sent.salt)
            upload.write(payload)
            assert at_a.intake.close() == {}

    with pytest.raises(SubmissionRefusedError) as refused:
        await ends_with_the_phase()
    assert (refused.value.reason, at_a.told) == (RefusalReason.LATE, [])
    assert not at_a.intake.complete


@asynchronous
async def test_a_binding_that_comes_after_the_close_is_late_and_takes_no_room() -> None:
    """The call was let in before, and nothing of it was cut off: it had not begun."""
    at_a = AtA()
    sent, _ = at_a.upload("alice", Seed(bytes(16)))
    found: list[Upload] = []

    async def begins_late() -> None:
        assert isinstance(sent.binding, Binding)
        async with at_a.intake.upload("alice") as upload:
            found.append(upload)
            at_a.intake.close()
            upload.begin(proved.binding_message(sent.binding), sent.statement, sent.salt)

    with pytest.raises(SubmissionRefusedError) as refused:
        await begins_late()
    assert (refused.value.reason, at_a.told) == (RefusalReason.LATE, [])
    assert [upload.payload for upload in found] == [None]


@asynchronous
async def test_an_upload_that_made_room_for_others_comes_again_and_counts_at_both_servers() -> None:
    """No word leaves that nothing of it will come: that word would decide the slot at the other server."""
    a, b = AtA(), AtA(party=1)
    a.tell = b.hear
    sent, payload = a.upload("alice", b.seeds.give(SLOTS["alice"]))

    async def makes_room() -> None:
        assert isinstance(sent.binding, Binding)
        async with a.intake.upload("alice") as upload:
            upload.begin(proved.binding_message(sent.binding), sent.statement, sent.salt)
            upload.write(payload[:7])
            upload.place.cut_off()
            await asyncio.sleep(TIMEOUT_S)

    with pytest.raises(OverloadedError):
        await makes_room()
    await a.take("alice", sent, payload)
    assert a.intake.complete == b.intake.complete == {"alice"}


@asynchronous
async def test_a_statement_and_a_salt_are_kept_no_longer_than_the_upload() -> None:
    """Whether it counts or not: with the salt, whoever guesses an upload can confirm the guess by its digest."""
    at_a = AtA()
    sent, payload = at_a.upload("alice", Seed(bytes(16)))
    assert isinstance(sent.binding, Binding)
    for at, data in ((at_a, payload), (AtA(), payload[:-1])):
        with suppress(SubmissionRefusedError):
            async with at.intake.upload("alice") as upload:
                upload.begin(proved.binding_message(sent.binding), sent.statement, sent.salt)
                assert (upload.statement, upload.salt) == (sent.statement, sent.salt)
                upload.write(data)
        assert (upload.statement, upload.salt) == (b"", b"")
        assert ("alice" in at.intake.complete) is (data is payload)


@asynchronous
async def test_a_slot_of_the_other_server_and_no_slot_are_told_apart() -> None:
    at_a = AtA()
    for client, reason in (("bob", RefusalReason.WRONG_SERVER), ("mallory", RefusalReason.NOT_CHOSEN)):
        with pytest.raises(SubmissionRefusedError) as refused:
            async with at_a.intake.upload(client):
                raise AssertionError
        assert refused.value.reason is reason


@asynchronous
async def test_the_first_relay_of_a_slot_that_is_seeded_here_decides() -> None:
    """Rule S6, and the client's own statement: B can neither make one nor replace the first."""
    at_a = AtA()
    not_invited, _ = at_a.upload("bob", Seed(bytes(16)))
    at_a.intake.relay(relay_of(not_invited))
    assert not at_a.intake.complete
    sent, _ = at_a.upload("bob", at_a.seeds.give(1))
    at_a.intake.relay(replace(relay_of(sent), round=4))
    at_a.intake.relay(relay_of(sent))
    assert at_a.intake.complete == {"bob"}
    other = replace(relay_of(sent), payload_digest=bytes(32))
    at_a.intake.relay(other)
    assert at_a.intake.close() == {"bob": sent.binding.digest()}

    forged = AtA()
    sent, _ = forged.upload("bob", forged.seeds.give(1))
    forged.intake.relay(replace(relay_of(sent), statement=bytes(32)))
    forged.intake.relay(relay_of(sent))
    assert forged.intake.close() == {}


@asynchronous
async def test_a_relay_of_a_slot_that_is_held_here_changes_nothing() -> None:
    """Rule S6."""
    at_a = AtA()
    sent, payload = at_a.upload("alice", Seed(bytes(16)))
    at_a.intake.relay(replace(relay_of(sent), payload_digest=bytes(32)))
    await at_a.take("alice", sent, payload)
    at_a.intake.relay(replace(relay_of(sent), payload_digest=bytes(32)))
    assert at_a.intake.close() == {"alice": sent.binding.digest()}


@asynchronous
async def test_the_holder_says_when_the_seeded_server_has_been_told_all() -> None:
    """The word of the last held slot waits for no other: the seeded server is waiting for it, and for nothing else."""
    taken, left, absent = AtA(), AtA(), AtA()
    sent, payload = taken.upload("alice", Seed(bytes(16)))
    await taken.take("alice", sent, payload)
    left.intake.hung_up("alice")
    waiting = asyncio.create_task(absent.intake.wait(invited={"bob"}, peer_locked=asyncio.Event()))
    await asyncio.sleep(0)
    for at, told in ((taken, [(0, relay_of(sent))]), (left, []), (absent, [NOTHING_OF_ALICE])):
        assert at.told_all == [told]
        at.intake.relay(Relay(ROUND.round, "bob", b"", b""))  # of a slot that is held there says nothing of ours
        at.intake.hung_up("alice")
        assert at.told_all == [told]
    waiting.cancel()


@asynchronous
async def test_the_word_of_a_refused_upload_waits_for_no_other() -> None:
    """It is the last one that the seeded server waits for."""
    at_a = AtA()
    sent, payload = at_a.upload("alice", Seed(bytes(16)))
    with pytest.raises(SubmissionRefusedError, match="wrong_digest"):
        await at_a.take("alice", replace(sent, salt=bytes(32)), payload)
    assert at_a.told_all == [[NOTHING_OF_ALICE]]


@asynchronous
async def test_a_phase_is_looked_at_again_when_it_may_be_over_and_not_before() -> None:
    at_a = AtA()
    at_a.seeds.give(1)
    waiting = asyncio.create_task(at_a.intake.wait(invited=SLOTS.keys(), peer_locked=asyncio.Event()))
    await asyncio.sleep(0)
    await at_a.take("alice", *at_a.upload("alice", Seed(bytes(16))))
    assert not at_a.intake._changed.is_set()
    at_a.intake.relay(Relay(ROUND.round, "bob", b"", b""))
    assert at_a.intake._changed.is_set()
    async with asyncio.timeout(TIMEOUT_S / 2):
        await waiting


@asynchronous
async def test_the_holders_salt_is_in_no_relay() -> None:
    at_a = AtA()
    sent, payload = at_a.upload("alice", Seed(bytes(16)))
    await at_a.take("alice", sent, payload)
    message = proved.relay_message(*at_a.told[0])
    assert sent.salt not in message.SerializeToString()
    assert len(sent.salt) == SALT_BYTES
    assert proved.relay_of(message) == relay_of(sent)


@asynchronous
async def test_retry_hints_count_who_may_still_begin_here() -> None:
    """Neither slots that the other server holds, nor a client whose session ended in the middle of its upload."""
    server = AtA()
    held = {client for client in SLOTS if server.intake.is_held(client)}
    assert server.intake.n_waiting == len(held) < len(SLOTS)
    sent, payload = server.upload("alice", Seed(bytes(16)))
    async with server.intake.upload("alice") as upload:
        upload.begin(proved.binding_message(sent.binding), sent.statement, sent.salt)
        assert server.intake.n_waiting == len(held) - 1
        server.intake.hung_up("alice")
        assert server.intake.n_waiting == len(held) - 1
        upload.write(payload)
    assert server.intake.n_waiting == len(held) - 1
    assert server.intake.complete == {"alice"}
