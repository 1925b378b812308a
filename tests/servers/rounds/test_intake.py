"""One round's uploads at one server: every reason to refuse one, what B takes from A, and when a round stops waiting.

Failure means a refused upload that leaves a trace, or an upload that counts twice or in part. It also means a round
that waits for nobody, or one that does not wait for somebody who can still come.
"""

from __future__ import annotations

import asyncio
import copy
import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.clients.submission import RoundInvitation, Submission, make_submission
from precad.mpc import ring, sharing, upload_binding
from precad.mpc.prg import Label, Seed
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2
from precad.servers.errors import NoRoomError, OverloadedError, RefusalReason, SubmissionRefusedError, WrongStateError
from precad.servers.rounds import receiving
from precad.servers.rounds.intake import Intake, PassOn
from precad.servers.rounds.transfers import Capacity
from precad.servers.rounds.uploads import MemoryPayload, Payload, Spool
from tests.harness.harness import asynchronous, small_task, until, upload_to
from tests.harness.room import roomy

MODEL_DIGEST = bytes(range(32))
ROUND = 5
SERVERS = [("masked", 0), ("shares", 0), ("shares", 1)]
"""Every (form, party) that clients call: three lengths and contents of an upload."""
SEEDS = (Seed(bytes(16)), Seed(bytes([1] * 16)))
"""Both halves of everybody's mask seed."""
SOON_S, GRACE_S = 10.0, 15.0
"""Longer than a stall of a busy machine, and how long the wait for a locked peer is unless a test says otherwise.

A round that waits for somebody takes longer than SOON_S: so long, or for all of its 20 s.
"""


@pytest.fixture(autouse=True)
def _a_long_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "PEER_LOCKED_GRACE_S", GRACE_S)


def open_intake(
    mode: str = "masked",
    party: int = 0,
    chosen: Sequence[str] = ("alice", "bob"),
    *,
    capacity: Capacity | None = None,
    relay: PassOn | None = None,
    **changes: Any,
) -> Intake:
    task = small_task(mode=mode, **changes)
    return Intake(
        task=task,
        task_id="small-1",
        party=party,
        round=ROUND,
        chosen=chosen,
        model_digest=MODEL_DIGEST,
        capacity=capacity or roomy(),
        relay=relay,
    )


def submission(client: str = "alice", mode: str = "masked", slot: int = 0) -> Submission:
    """An honest one of a vector that is not zero."""
    seeds = SEEDS if mode == "masked" else None
    invitation = RoundInvitation("small-1", ROUND, slot, MODEL_DIGEST, seeds)
    return make_submission(np.arange(24, dtype=np.int64), invitation, task=small_task(mode=mode), client=client)


def changed(binding: common_pb2.Binding, **fields: Any) -> common_pb2.Binding:
    other = common_pb2.Binding()
    other.CopyFrom(binding)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def state_of(intake: Intake) -> dict[str, Any]:
    """Everything that it holds, by value, and how much room it takes."""
    held = {
        name: value.is_set() if isinstance(value, asyncio.Event) else copy.deepcopy(value)
        for name, value in vars(intake).items()
        if name not in ("_capacity", "_receiving", "_uploads")
    }
    held["uploads"] = {client: (taken.binding, taken.payload[:]) for client, taken in intake._uploads.items()}
    return {**held, "receiving": intake.n_receiving, "room": room_of(intake)}


def room_of(intake: Intake) -> tuple[int, int]:
    """Bytes that uploads take, and places of those that come in."""
    return intake._capacity.spool._in_memory, len(intake._capacity.uploads._places)


def with_payload(upload: Submission, party: int, payload: bytes) -> Submission:
    """Other bytes to one server, under the same binding."""
    payloads = (payload, upload.payloads[1]) if party == 0 else (upload.payloads[0], payload)
    return dataclasses.replace(upload, payloads=payloads)


async def begun(intake: Intake, client: str, delay_s: float = 0.0, error: Exception | None = None) -> None:
    """An upload that has begun and does not end, or breaks off."""
    async with intake.upload(client) as coming:
        coming.begin(submission(client).binding, bytes(32))
        if error is None:
            await asyncio.Event().wait()
        await asyncio.sleep(delay_s)
        raise error


async def fail(intake: Intake, client: str, delay_s: float = 0.0) -> None:
    """An upload that has begun breaks off."""
    with pytest.raises(ConnectionError):
        await begun(intake, client, delay_s, ConnectionError())


async def refusal(
    intake: Intake, client: str, binding: common_pb2.Binding, statement: bytes = bytes(32), salt: bytes = b""
) -> SubmissionRefusedError:
    """The error of a header that must be refused and change nothing."""
    before = state_of(intake)
    with pytest.raises(SubmissionRefusedError) as caught:
        async with intake.upload(client) as coming:
            coming.begin(binding, statement, salt)
    assert state_of(intake) == before
    return caught.value


async def refusal_of_bytes(intake: Intake, upload: Submission) -> RefusalReason:
    """The reason why an upload whose header is right does not count. Its client is waited for no more, and no byte of
    it is kept."""
    with pytest.raises(SubmissionRefusedError) as caught:
        await upload_to(intake, upload)
    assert (intake._uploads, room_of(intake)) == ({}, (0, 0))
    assert "alice" not in intake._expected
    return caught.value.reason


# What is taken


@pytest.mark.parametrize(("mode", "party"), SERVERS)
@asynchronous
async def test_an_honest_upload_comes_out_as_this_servers_vector(mode: str, party: int) -> None:
    """masked: b; shares: the expansion of the seed at A under the client's slot, the other share at B."""
    intake, upload = open_intake(mode, party, chosen=("alice", "bob")), submission("bob", mode, slot=1)
    await upload_to(intake, upload)
    assert intake.close() == {"bob": convert.binding_digest(upload.binding)}
    expected: RingArray
    if (mode, party) == ("shares", 0):
        expected = sharing.expand_share(Seed(upload.payloads[0]), Label("small-1", ROUND, "1"), 24)
    else:
        expected = ring.from_bytes(upload.payloads[party], n_words=24)
    assert_array_equal(intake.vector("bob")[:], expected)
    with pytest.raises(KeyError):
        intake.vector("alice")


@asynchronous
async def test_what_a_relays_comes_out_at_b_under_the_same_binding() -> None:
    upload, other = submission("bob", slot=1), submission("alice", slot=0)
    intake = open_intake(party=1)
    intake.await_relays({"alice": SEEDS[1], "bob": SEEDS[1]})
    relay(intake, upload, client="bob")
    relay(intake, other)
    assert intake.close() == {s.binding.client: convert.binding_digest(s.binding) for s in (upload, other)}
    assert_array_equal(intake.vector("bob")[:], ring.from_bytes(upload.payloads[0], n_words=24))


@asynchronous
async def test_both_shares_of_an_upload_sum_to_the_clients_vector() -> None:
    """The client splits under the label under which server A expands."""
    upload = submission("bob", "shares", slot=1)
    total = np.zeros(24, dtype=np.int64)
    for party in (0, 1):
        intake = open_intake("shares", party, chosen=("alice", "bob"))
        await upload_to(intake, upload)
        intake.close()
        total += intake.vector("bob")[:]
    assert_array_equal(total, np.arange(24))


def open_at_b(*clients: str) -> Intake:
    """Server B's, `masked` form, waiting for the relays of these clients."""
    intake = open_intake(party=1, chosen=clients)
    intake.await_relays(dict.fromkeys(clients, SEEDS[1]))
    return intake


def relay(intake: Intake, upload: Submission, **changes: Any) -> None:
    """As A hands it over, but for the changes."""
    honest = {"round": ROUND, "client": "alice", "payload": upload.payloads[0], "statement": upload.statement}
    given = {**honest, **changes}
    payload = MemoryPayload(len(given["payload"]))
    payload.write(given["payload"])
    intake.relay(given["round"], given["client"], payload, given["statement"])


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize(
    "changes",
    [
        *({"payload": other} for other in (bytes(8 * 24), bytes(8 * 23), bytes(8 * 25), b"")),
        {"payload": flipped(submission().payloads[0])},
        {"statement": flipped(submission().statement)},
        {"statement": submission().statement[:31]},
        {"statement": b""},
        {"statement": submission(slot=1).statement},
        {"statement": submission("bob").statement},
    ],
)
@asynchronous
async def test_a_relay_that_its_client_did_not_state_is_not_an_upload(changes: dict[str, bytes]) -> None:
    """Neither is it waited for any longer, nor does the honest one count after it."""
    intake = open_at_b("alice")
    relay(intake, submission(), **changes)
    await asyncio.wait_for(intake.wait(invited={"alice"}, peer_locked=asyncio.Event()), SOON_S)
    relay(intake, submission())
    assert intake.close() == {}


@pytest.mark.parametrize(
    ("field", "value"),
    [("model_digest", bytes(32)), ("config_digest", bytes(32)), ("round", ROUND + 1), ("task", "small-2")],
)
def test_a_statement_about_another_binding_is_none(field: str, value: Any) -> None:
    """A client that saw another model, or another task, than B has: A does not decide that it fits."""
    intake, upload = open_at_b("alice"), submission()
    digest = convert.binding_digest(changed(upload.binding, **{field: value}))
    relay(intake, upload, statement=upload_binding.statement(SEEDS[1], Label("small-1", ROUND, "0"), digest))
    assert not intake._uploads


def test_server_a_cannot_make_a_statement() -> None:
    """Its own seed of the client gives another one."""
    intake, upload = open_at_b("alice"), submission()
    digest = convert.binding_digest(upload.binding)
    relay(intake, upload, statement=upload_binding.statement(SEEDS[0], Label("small-1", ROUND, "0"), digest))
    assert not intake._uploads


@pytest.mark.parametrize(("round", "client"), [(ROUND - 1, "alice"), (ROUND + 1, "alice"), (ROUND, "mallory")])
def test_a_relay_of_another_round_or_client_is_dropped(round: int, client: str) -> None:
    intake = open_at_b("alice")
    relay(intake, submission(), round=round, client=client)
    assert intake._mask_seeds.keys() == {"alice"}
    assert not intake._uploads


@asynchronous
async def test_a_relay_of_a_client_that_b_did_not_invite_is_dropped() -> None:
    intake = open_intake(party=1)
    relay(intake, submission())
    assert intake.close() == {}


@asynchronous
async def test_a_relay_after_the_lock_is_dropped() -> None:
    intake = open_at_b("alice")
    assert intake.close() == {}
    relay(intake, submission())
    assert not intake._uploads


# What is refused


@asynchronous
async def test_the_certificate_decides_who_the_client_is() -> None:
    """An enrolled, chosen client cannot upload in the name of another."""
    error = await refusal(open_intake(), "bob", submission("alice").binding)
    assert error.reason is RefusalReason.WRONG_CLIENT
    assert "'bob'" in str(error)


@asynchronous
async def test_a_client_that_was_not_chosen_is_refused() -> None:
    assert (await refusal(open_intake(), "mallory", submission("mallory").binding)).reason is RefusalReason.NOT_CHOSEN


@pytest.mark.parametrize("round", [0, ROUND - 1, ROUND + 1, 2**63])
@asynchronous
async def test_another_round_is_refused(round: int) -> None:
    binding = changed(submission().binding, round=round)
    assert (await refusal(open_intake(), "alice", binding)).reason is RefusalReason.WRONG_ROUND


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("protocol_version", "precad/v0"),
        ("task", "small-2"),
        ("config_digest", bytes(32)),
        ("model_digest", bytes(32)),
        ("dim", 25),
        ("mode", "shares"),
        ("digest_a", bytes(31)),
        ("digest_a", b""),
        ("digest_b", bytes(33)),
    ],
)
@asynchronous
async def test_a_binding_to_anything_else_is_refused(field: str, value: Any) -> None:
    binding = changed(submission().binding, **{field: value})
    assert (await refusal(open_intake(), "alice", binding)).reason is RefusalReason.WRONG_BINDING


@pytest.mark.parametrize(("mode", "n_bytes"), [("masked", 0), ("masked", 31), ("masked", 33), ("shares", 32)])
@asynchronous
async def test_a_statement_goes_with_a_masked_vector(mode: str, n_bytes: int) -> None:
    error = await refusal(open_intake(mode), "alice", submission(mode=mode).binding, bytes(n_bytes))
    assert error.reason is RefusalReason.WRONG_BINDING


@pytest.mark.parametrize(
    ("mode", "party", "n_bytes"),
    [("masked", 0, 32), ("shares", 0, 32), ("shares", 1, 0), ("shares", 1, 31), ("shares", 1, 33)],
)
@asynchronous
async def test_a_salt_goes_with_the_share_of_b_alone(mode: str, party: int, n_bytes: int) -> None:
    """A refuses one that should not have come: its client shows A what hides its update from A."""
    upload = submission(mode=mode)
    error = await refusal(open_intake(mode, party), "alice", upload.binding, upload.statement, bytes(n_bytes))
    assert error.reason is RefusalReason.WRONG_BINDING


@asynchronous
async def test_b_takes_no_masked_vector_from_a_client() -> None:
    error = await refusal(open_intake(party=1), "alice", submission().binding)
    assert error.reason is RefusalReason.WRONG_SERVER


@asynchronous
async def test_every_field_of_a_binding_is_checked() -> None:
    """Whatever field the message gains: left empty, it is refused."""
    for field in common_pb2.Binding.DESCRIPTOR.fields:
        binding = submission().binding
        binding.ClearField(field.name)
        await refusal(open_intake(), "alice", binding)


@asynchronous
async def test_a_second_upload_is_refused_while_and_after_the_first() -> None:
    """Also after one that failed: the client had its one chance."""
    intake, upload = open_intake(), submission()
    async with intake.upload("alice") as coming:
        coming.begin(upload.binding, upload.statement)
        assert (await refusal(intake, "alice", upload.binding)).reason is RefusalReason.DUPLICATE
        coming.write(upload.payloads[0])
    assert (await refusal(intake, "alice", upload.binding)).reason is RefusalReason.DUPLICATE
    await fail(intake, "bob")
    assert (await refusal(intake, "bob", submission("bob").binding)).reason is RefusalReason.DUPLICATE
    assert intake.close().keys() == {"alice"}


@asynchronous
async def test_after_the_lock_nothing_begins_and_nothing_finishes() -> None:
    """Neither one whose header came before, nor one whose header comes after."""
    intake, upload = open_intake(chosen=("alice", "bob", "carol")), submission()

    async def locked_after_its_bytes() -> None:
        async with intake.upload("alice") as coming:
            coming.begin(upload.binding, upload.statement)
            coming.write(upload.payloads[0])
            assert intake.close() == {}
            assert (await refusal(intake, "bob", submission("bob").binding)).reason is RefusalReason.LATE

    async def locked_before_its_header() -> None:
        async with intake.upload("carol") as coming:
            with pytest.raises(SubmissionRefusedError, match="late"):
                await locked_after_its_bytes()
            coming.begin(submission("carol").binding, bytes(32))

    with pytest.raises(SubmissionRefusedError, match="late"):
        await locked_before_its_header()
    assert (intake._uploads, room_of(intake)) == ({}, (0, 0))


@asynchronous
async def test_the_lock_ends_downloads_of_clients_that_do_not_read() -> None:
    """They hold the round's model, and in modes with a dealer its tuples. One that has ended is left alone."""
    intake = open_intake()
    async with intake.download("alice", 100):
        pass

    async def stalled() -> None:
        async with intake.download("bob", 100):
            await asyncio.Event().wait()

    stalling = asyncio.create_task(stalled())
    await asyncio.sleep(0)
    assert len(intake._downloads) == 1
    intake.close()
    with pytest.raises(WrongStateError, match=r"^round \d+ is locked$"):
        await asyncio.wait_for(stalling, SOON_S)
    with pytest.raises(WrongStateError, match="is locked"):
        await asyncio.wait_for(stalled(), SOON_S)
    assert not intake._downloads


@asynchronous
async def test_a_round_that_is_given_up_may_be_closed_while_uploads_and_downloads_end() -> None:
    intake = open_intake()

    async def ends_slowly() -> None:
        async with intake.download("alice", 100):
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.1)

    ending = asyncio.create_task(ends_slowly())
    await asyncio.sleep(0)
    for _ in range(3):
        intake.close()
        await asyncio.sleep(0.02)
    with pytest.raises(WrongStateError, match="is locked"):
        await ending


@pytest.mark.parametrize(
    ("mode", "party", "n_bytes"),
    [
        *(("masked", 0, n) for n in (0, 184, 191, 193, 200)),
        *(("shares", 0, n) for n in (0, 15, 17, 192)),
        *(("shares", 1, n) for n in (0, 16, 191, 193)),
    ],
)
@asynchronous
async def test_another_length_is_refused(mode: str, party: int, n_bytes: int) -> None:
    """Even where the digest is right: 8d bytes, a seed and 8d bytes are what the three expect."""
    payload, honest = bytes(n_bytes), submission(mode=mode)
    digest, salt = convert.sha256(payload), honest.salt_to(party)
    digests = {"digest_a": digest} if party == 0 else {"digest_b": upload_binding.salted_digest(salt, digest)}
    other = dataclasses.replace(with_payload(honest, party, payload), binding=changed(honest.binding, **digests))
    assert await refusal_of_bytes(open_intake(mode, party), other) is RefusalReason.WRONG_LENGTH


@asynchronous
async def test_not_one_byte_too_many_is_kept() -> None:
    """The upload is refused when it comes, before the end."""
    intake, upload = open_intake(), submission()

    async def one_too_many() -> None:
        async with intake.upload("alice") as coming:
            coming.begin(upload.binding, upload.statement)
            coming.write(upload.payloads[0])
            try:
                coming.write(b"x")
            finally:
                assert coming.place.n_moved == 192

    with pytest.raises(SubmissionRefusedError, match="payload: expected 192 bytes, found more"):
        await one_too_many()
    assert room_of(intake) == (0, 0)


@pytest.mark.parametrize(("mode", "party"), SERVERS)
@asynchronous
async def test_other_bytes_than_announced_are_refused(mode: str, party: int) -> None:
    """One flipped bit."""
    upload = submission(mode=mode)
    other = with_payload(upload, party, flipped(upload.payloads[party]))
    assert await refusal_of_bytes(open_intake(mode, party), other) is RefusalReason.WRONG_DIGEST


@asynchronous
async def test_another_salt_than_the_binding_was_made_with_is_refused() -> None:
    """The digest that A holds too binds B's share all the same."""
    upload = submission(mode="shares")
    other = dataclasses.replace(upload, salt=flipped(upload.salt))
    assert await refusal_of_bytes(open_intake("shares", 1), other) is RefusalReason.WRONG_DIGEST


@asynchronous
async def test_an_upload_without_room_is_refused_and_its_client_not_waited_for(tmp_path: Path) -> None:
    """The spool refuses, and the caller is told so by the one reason for it."""
    intake = open_intake(capacity=roomy(Spool(tmp_path / "s", most_bytes=8, memory_bytes=0, max_memory_upload=0)))
    with pytest.raises(NoRoomError, match="no_room: upload to the spool: expected at most 8 bytes, found 192"):
        await upload_to(intake, submission())
    assert intake._expected == {"bob"}
    assert (await refusal(intake, "alice", submission().binding)).reason is RefusalReason.DUPLICATE


@asynchronous
async def test_an_upload_that_made_room_for_others_may_begin_again() -> None:
    """Its client is waited for, before and after."""
    intake, upload = open_intake(), submission()
    slow = asyncio.create_task(begun(intake, "alice"))
    await until(lambda: intake.n_receiving == 1)
    intake._capacity.uploads._places["alice"].cut_off()
    with pytest.raises(OverloadedError, match="slow_transfer"):
        await slow
    assert (intake._expected, room_of(intake)) == ({"alice", "bob"}, (0, 0))
    await upload_to(intake, upload)
    assert intake.close().keys() == {"alice"}


@asynchronous
async def test_what_a_takes_goes_on_to_b_and_nothing_else() -> None:
    """Once, when it counts, with the client's statement."""
    relayed: list[tuple[int, str, bytes, bytes]] = []
    upload, other = submission("alice", slot=0), submission("bob", slot=1)

    def relay(round: int, client: str, payload: Payload, statement: bytes) -> None:
        relayed.append((round, client, payload[:], statement))

    intake = open_intake(relay=relay)
    await upload_to(intake, upload)
    with pytest.raises(SubmissionRefusedError):
        await upload_to(intake, with_payload(other, 0, flipped(other.payloads[0])))
    assert relayed == [(ROUND, "alice", upload.payloads[0], upload.statement)]


@asynchronous
async def test_a_refusal_shows_no_byte_of_the_upload() -> None:
    """Reasons are public; payloads, digests of payloads and representations of intakes are not texts for anybody."""
    intake, upload = open_intake(), submission()
    with pytest.raises(SubmissionRefusedError) as caught:
        await upload_to(intake, Submission(upload.binding, (bytes([0xAB]) * 192, b""), upload.statement))
    submit_text = f"{caught.value} {upload!r} {intake!r} {intake._uploads!r}"
    for secret in (upload.payloads[0], bytes([0xAB]) * 8, upload.statement):
        assert secret.hex()[:16] not in submit_text
        assert repr(secret[:8])[2:-1] not in submit_text


# How long a round waits


async def wait(intake: Intake, invited: Collection[str], peer_locked: asyncio.Event | None = None) -> float:
    """Seconds that `wait` took."""
    loop = asyncio.get_running_loop()
    start = loop.time()
    await intake.wait(invited=invited, peer_locked=peer_locked or asyncio.Event())
    return loop.time() - start


async def after(delay_s: float, action: Any, *args: Any) -> None:
    await asyncio.sleep(delay_s)
    if (waiting := action(*args)) is not None:
        await waiting


@asynchronous
async def test_a_round_without_clients_does_not_wait() -> None:
    assert await wait(open_intake(chosen=()), {"alice"}) < SOON_S


@pytest.mark.parametrize("invited", [{"alice", "bob"}, {"alice", "bob", "mallory"}])
@asynchronous
async def test_the_last_upload_ends_the_wait(invited: set[str]) -> None:
    """Clients that were not chosen are not waited for."""
    intake = open_intake()
    await upload_to(intake, submission("alice"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(after(0.05, upload_to, intake, submission("bob")))
        assert 0.04 < await wait(intake, invited) < SOON_S


@asynchronous
async def test_the_last_relay_ends_the_wait_at_b() -> None:
    intake = open_at_b("alice")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(after(0.05, relay, intake, submission()))
        assert 0.04 < await wait(intake, {"alice"}) < SOON_S


@asynchronous
async def test_a_failed_upload_is_not_waited_for() -> None:
    intake = open_intake()
    await upload_to(intake, submission("alice"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail(intake, "bob", 0.05))
        assert 0.04 < await wait(intake, {"alice", "bob"}) < SOON_S


@asynchronous
async def test_a_client_that_hangs_up_is_not_waited_for() -> None:
    intake = open_intake()
    await upload_to(intake, submission("alice"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(after(0.05, intake.hung_up, "bob"))
        assert 0.04 < await wait(intake, {"alice", "bob"}) < SOON_S


@asynchronous
async def test_a_client_that_was_not_connected_when_the_round_opened_is_not_waited_for() -> None:
    intake = open_intake()
    await upload_to(intake, submission("alice"))
    assert await wait(intake, {"alice"}) < SOON_S


@asynchronous
async def test_a_client_that_comes_back_is_not_waited_for_in_the_round_in_progress() -> None:
    """It is not invited again. An upload that it still makes is taken all the same."""
    intake = open_intake()
    await upload_to(intake, submission("alice"))
    intake.hung_up("bob")  # and is connected again before the round starts to wait
    assert await wait(intake, {"alice", "bob"}) < SOON_S
    await upload_to(intake, submission("bob"))
    assert intake.close().keys() == {"alice", "bob"}


@asynchronous
async def test_b_waits_for_the_relay_of_a_client_that_has_left() -> None:
    """Whether it comes is for server A to say: the client may have uploaded before."""
    intake = open_at_b("alice")
    intake.hung_up("alice")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(after(0.05, relay, intake, submission()))
        assert 0.04 < await wait(intake, {"alice"}) < SOON_S
    assert intake.close().keys() == {"alice"}


@asynchronous
async def test_b_does_not_wait_long_for_relays_of_clients_that_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that lost B alone may never have heard that it is invited, and A cannot know.

    A round is not longer for it than for the others.
    """
    monkeypatch.setattr(receiving, "PEER_LOCKED_GRACE_S", 0.2)
    intake = open_at_b("alice", "bob")
    intake.hung_up("bob")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(after(0.3, relay, intake, submission()))
        assert 0.49 < await wait(intake, {"alice", "bob"}) < SOON_S
    assert intake.close().keys() == {"alice"}


@asynchronous
async def test_b_waits_for_nobody_once_a_has_closed_the_round() -> None:
    """All that A took came before that word."""
    intake, peer_locked = open_at_b("alice", "bob"), asyncio.Event()
    relay(intake, submission())
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(after(0.05, peer_locked.set))
        assert 0.04 < await wait(intake, {"alice", "bob"}, peer_locked) < SOON_S
    assert intake.close().keys() == {"alice"}


@asynchronous
async def test_the_deadline_ends_the_wait_for_a_silent_client() -> None:
    intake = open_intake(submit_timeout_s=0.2)
    assert 0.19 < await wait(intake, {"alice", "bob"}) < SOON_S


@pytest.mark.parametrize("locked_before", [False, True])
@asynchronous
async def test_a_locked_peer_leaves_a_moment_for_uploads_under_way(
    locked_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "PEER_LOCKED_GRACE_S", 0.2)
    intake, peer_locked = open_intake(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(after(0.0 if locked_before else 0.05, peer_locked.set))
        tasks.create_task(after(0.1, upload_to, intake, submission("alice")))
        assert 0.19 < await wait(intake, {"alice", "bob"}, peer_locked) < SOON_S
    assert intake.left_s == 0  # by which transfers are judged
    assert intake.close().keys() == {"alice"}


@asynchronous
async def test_a_locked_peer_does_not_move_the_deadline_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "PEER_LOCKED_GRACE_S", 30.0)
    intake, peer_locked = open_intake(submit_timeout_s=0.1), asyncio.Event()
    peer_locked.set()
    assert await wait(intake, {"alice", "bob"}, peer_locked) < SOON_S


# How long an upload may take


@asynchronous
async def test_the_lock_cuts_off_every_upload_that_still_comes_in() -> None:
    """Whatever it waits for, at once, as late; what is complete stays."""
    intake = open_intake(chosen=("alice", "bob", "mallory"))
    await upload_to(intake, submission("alice"))
    uploads = [asyncio.create_task(begun(intake, client)) for client in ("bob", "mallory")]
    await asyncio.sleep(0.01)
    assert intake.close().keys() == {"alice"}
    for error in await asyncio.wait_for(asyncio.gather(*uploads, return_exceptions=True), SOON_S):
        assert isinstance(error, SubmissionRefusedError)
        assert error.reason is RefusalReason.LATE


@asynchronous
async def test_a_call_that_is_cancelled_is_not_a_late_upload() -> None:
    """The caller hung up, before or after the lock: its call ends as cancelled, and it is not waited for."""
    for locked_first in (False, True):
        intake = open_intake(chosen=("alice",))
        call = asyncio.create_task(begun(intake, "alice"))
        await asyncio.sleep(0.01)
        if locked_first:
            intake.close()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert await wait(intake, {"alice"}) < SOON_S


@asynchronous
async def test_an_upload_that_is_complete_at_the_lock_is_not_cut_off() -> None:
    """Leave to the call what it does after the lock, like its answer, which is not the intake's any more."""
    intake, upload = open_intake(chosen=("alice",)), submission()
    await upload_to(intake, upload)
    assert intake.close().keys() == {"alice"}
    await asyncio.sleep(0.01)  # a cancellation would arrive here
