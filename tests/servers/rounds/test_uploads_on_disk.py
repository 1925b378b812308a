"""Where uploads lie: in memory while there is room, else in a file; on real files, and with a disk that is full.

Failure means an upload that reads as another, room that is never given back, or more memory than the budget. It also
means a file that outlives its use, or a full disk that costs more than the upload that met it.
"""

from __future__ import annotations

import asyncio
import hashlib
import resource
import stat
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal
from scipy import stats

from precad.mpc.convex_set import ConvexSet
from precad.mpc.errors import MalformedMessageError
from precad.mpc.gate_names import make_gate
from precad.mpc.proved import field
from precad.mpc.proved.shares import PackedShare
from precad.mpc.ring import RingArray
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.protos.messages import convert
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.config import AggregatorConfig
from precad.servers.errors import SetupError, StoreError
from precad.servers.rounds import memory, receiving
from precad.servers.rounds.dealt_blocks import blocks_of
from precad.servers.rounds.intake import Intake
from precad.servers.rounds.relayed_uploads import RelayedUploads
from precad.servers.rounds.uploads import MemoryPayload, Payload, Spool
from precad.servers.store.folder import spool_path
from tests.harness.harness import AGGREGATORS, LeashedClient, Pki, asynchronous, running, small_task, until

SLOT = 80
CLIENTS = ("alice", "bob", "mallory")


@contextmanager
def spool(folder: Path, *, memory_bytes: int = 0, max_memory_upload: int = SLOT) -> Iterator[Spool]:
    with Spool(
        folder / "uploads.spool", most_bytes=SLOT, memory_bytes=memory_bytes, max_memory_upload=max_memory_upload
    ) as made:
        yield made


def filled(place: Payload, data: bytes) -> Payload:
    for start in range(0, len(data), 7):
        place.write(data[start : start + 7])
    return place


def kinds(payloads: list[Payload]) -> str:
    return "".join("m" if isinstance(payload, MemoryPayload) else "f" for payload in payloads)


# One upload


@pytest.mark.parametrize("memory_bytes", [0, SLOT])
@pytest.mark.parametrize("n_bytes", [0, 16, SLOT])
def test_what_is_written_is_read(n_bytes: int, memory_bytes: int, tmp_path: Path) -> None:
    data = bytes(range(n_bytes))
    with spool(tmp_path, memory_bytes=memory_bytes) as uploads:
        payload = filled(uploads.new(n_bytes), data)
        assert len(payload) == n_bytes
        assert payload.digest() == convert.sha256(data)
        assert payload[:] == data
        assert payload[3:11] == data[3:11]
        assert b"".join(convert.pieces(payload)) == data
        assert_array_equal(payload.words(n_bytes // 8)[:], np.frombuffer(data, dtype="<i8"))
        assert str(n_bytes) in repr(payload)


@pytest.mark.parametrize("memory_bytes", [0, SLOT])
def test_the_room_of_an_upload_is_written_over(memory_bytes: int, tmp_path: Path) -> None:
    """Where a vector lies, and where a seed does that a vector comes from."""
    with spool(tmp_path, memory_bytes=memory_bytes) as uploads:
        for data in (bytes(range(SLOT)), bytes(16), b""):
            payload = filled(uploads.new(SLOT), data)
            words = payload.room(10)
            if len(data) == SLOT:
                assert_array_equal(words[:], payload.words(10)[:])
            words[:] = np.arange(10)
            words[2:4] = np.array([-1, -(2**63)])
            assert_array_equal(words[:], [0, 1, -1, -(2**63), 4, 5, 6, 7, 8, 9])
            if len(data) == SLOT:
                assert_array_equal(payload.words(10)[:], words[:])
            payload.discard()


@pytest.mark.parametrize("memory_bytes", [0, SLOT])
def test_a_longer_upload_than_a_slot_is_refused(memory_bytes: int, tmp_path: Path) -> None:
    with spool(tmp_path, memory_bytes=memory_bytes) as uploads:
        if not memory_bytes:
            with pytest.raises(StoreError, match="upload to the spool: expected at most 80 bytes, found 81"):
                uploads.new(SLOT + 1)
        payload = uploads.new(16)
        payload.write(bytes(16))
        with pytest.raises(StoreError, match="at most 16 bytes"):
            payload.write(b"x")
        with pytest.raises(MalformedMessageError):
            payload.words(1000)


def test_room_in_memory_that_nobody_wrote_to_is_not_in_use() -> None:
    """A caller who begins the longest upload, and sends nothing, holds no page of it."""
    before = resident_bytes()
    payload = MemoryPayload(1 << 28)
    assert resident_bytes() - before < 1 << 24
    payload.write(bytes(1 << 25))
    assert resident_bytes() - before > 1 << 24  # the measure sees what is written
    payload.discard()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# Many


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(st.one_of(st.binary(max_size=SLOT), st.integers(0, 20)), max_size=30),
    memory_bytes=st.sampled_from([0, 50, 200]),
    longest=st.sampled_from([0, 30, SLOT]),
)
def test_uploads_come_and_go_and_never_mix(steps, memory_bytes, longest, tmp_path_factory) -> None:
    """Let uploads come and go: bytes are an upload that comes, a number is one of those there that goes.

    What lies in memory keeps to both limits. The file is as long as it must be at most, and empty when nobody uses it.
    """
    folder = tmp_path_factory.mktemp("spool")
    held: list[tuple[Payload, bytes]] = []
    with spool(folder, memory_bytes=memory_bytes, max_memory_upload=longest) as uploads:
        for step in steps:
            if isinstance(step, bytes):
                held.append((filled(uploads.new(len(step)), step), step))
            elif held:
                held.pop(step % len(held))[0].discard()
            in_memory = [data for payload, data in held if isinstance(payload, MemoryPayload)]
            assert sum(map(len, in_memory)) == uploads._in_memory <= memory_bytes
            assert all(len(data) <= longest for data in in_memory)
            assert [payload[:] for payload, _ in held] == [data for _, data in held]
            assert uploads.n_in_file == len(held) - len(in_memory)
            if (folder / "uploads.spool").exists():
                assert (folder / "uploads.spool").stat().st_size == max((stop for _, stop in uploads._used), default=0)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("memory_bytes", [0, 1000])
def test_a_share_that_was_given_up_is_not_read(memory_bytes: int, tmp_path: Path) -> None:
    """Neither in memory, where a share is read in place, nor from the file, once it is closed."""
    values, out = np.arange(100, 108, dtype=np.uint64), np.empty(8, dtype=np.uint64)
    with spool(tmp_path, memory_bytes=memory_bytes) as uploads:
        payload = filled(uploads.new(56), field.to_bytes(values))
        share, again = PackedShare(payload, 8), PackedShare(payload, 8)
        share.fill(out)
        assert_array_equal(out, values)
        payload.discard()
    with pytest.raises((ValueError, OSError)):
        again.fill(out)
    assert_array_equal(out, values)


def test_memory_first_then_the_file_and_memory_again(tmp_path: Path) -> None:
    with spool(tmp_path, memory_bytes=100, max_memory_upload=60) as uploads:
        places = [uploads.new(n) for n in (50, 60, 50, 10)]
        assert kinds(places) == "mfmf"
        places[0].discard()
        places[0].discard()
        assert kinds([uploads.new(61), uploads.new(50), uploads.new(1)]) == "fmf"


def test_slots_are_used_again(tmp_path: Path) -> None:
    with spool(tmp_path) as uploads:
        places = [filled(uploads.new(SLOT), bytes([i] * SLOT)) for i in range(3)]
        places[1].discard()
        places.append(filled(uploads.new(SLOT), bytes([9] * SLOT)))
        assert (tmp_path / "uploads.spool").stat().st_size == 3 * SLOT
        assert [places[i][:1] for i in (0, 2, 3)] == [b"\x00", b"\x02", b"\x09"]


def test_an_upload_that_is_discarded_again_takes_nobodys_room(tmp_path: Path) -> None:
    """Its extent is another's by then, and would be given away once more under it."""
    with spool(tmp_path) as place:
        first = filled(place.new(SLOT), b"1" * SLOT)
        first.discard()
        second = filled(place.new(SLOT), b"2" * SLOT)
        first.discard()
        third = filled(place.new(SLOT), b"3" * SLOT)
        assert [bytes(one[0:SLOT]) for one in (second, third)] == [b"2" * SLOT, b"3" * SLOT]
        assert place.n_in_file == 2


def test_short_uploads_take_the_gap_of_a_long_one(tmp_path: Path) -> None:
    """As proofs do, which come when uploads are there, and are far shorter."""
    with spool(tmp_path) as uploads:
        places = [filled(uploads.new(n), bytes([n] * n)) for n in (SLOT, SLOT, 30)]
        assert (tmp_path / "uploads.spool").stat().st_size == 2 * SLOT + 30
        places[0].discard()
        places += [filled(uploads.new(n), bytes([n] * n)) for n in (50, 30, 40)]
        assert (tmp_path / "uploads.spool").stat().st_size == 2 * SLOT + 30 + 40
        assert [place[:] for place in places[1:]] == [bytes([n] * n) for n in (SLOT, 30, 50, 30, 40)]


def test_the_file_is_private_and_goes_with_the_spool(tmp_path: Path) -> None:
    with spool(tmp_path) as uploads:
        assert not list(tmp_path.iterdir())
        uploads.new(SLOT)
        assert stat.S_IMODE((tmp_path / "uploads.spool").stat().st_mode) == 0o600
    assert not list(tmp_path.iterdir())


def test_what_a_crash_left_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    """A process that writes an upload twice and is killed: the file does not say what, nor that both are the same. Then
    another process."""
    code = (
        "import os, signal; from pathlib import Path; from precad.servers.rounds.uploads import Spool\n"
        f"path = Path({str(tmp_path)!r}) / 'uploads.spool'\n"
        "uploads = Spool(path, most_bytes=80, memory_bytes=0, max_memory_upload=0)\n"
        "uploads.new(80).write(bytes(80)); uploads.new(80).write(bytes(80))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == -9
    left = (tmp_path / "uploads.spool").read_bytes()
    assert len({bytes(SLOT), left[:SLOT], left[SLOT:]}) == 3, "the uploads lie in the clear, or under one key"
    assert len(left) == 2 * SLOT
    with spool(tmp_path):
        assert not list(tmp_path.iterdir())


def test_a_folder_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "uploads.spool").mkdir()
    with pytest.raises(SetupError, match="expected a spool file"), spool(tmp_path):
        pass


# A full disk


@contextmanager
def no_file_beyond(n_bytes: int) -> Iterator[None]:
    """Writes beyond that length fail for this process, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_refuses_the_upload_that_meets_it_and_no_other(tmp_path: Path) -> None:
    with spool(tmp_path) as uploads:
        first = filled(uploads.new(SLOT), b"a" * SLOT)
        with no_file_beyond(SLOT), pytest.raises(StoreError, match="no room for an upload: File too large"):
            uploads.new(SLOT)
        assert first[:] == b"a" * SLOT
        assert filled(uploads.new(SLOT), b"b" * SLOT)[:] == b"b" * SLOT


def test_a_relay_without_room_comes_empty_and_the_next_one_whole(tmp_path: Path) -> None:
    """B's side: vectors of two clients, of which the first meets a full disk, and one that is too long."""
    n, delivered = 1 << 20, list[tuple[int, str, bytes]]()
    with Spool(tmp_path / "uploads.spool", most_bytes=n, memory_bytes=0, max_memory_upload=0) as uploads:
        relays = RelayedUploads(uploads, n, lambda t, client, payload, _: delivered.append((t, client, payload[:])))
        with no_file_beyond(n - 1):
            relays.take(3, "alice", bytes(n // 2), False, b"")
        relays.take(3, "alice", bytes(n // 2), True, b"")
        relays.take(3, "bob", b"b" * (n // 2), False, b"")
        relays.take(3, "bob", b"b" * (n // 2), True, b"")
        relays.take(3, "mallory", bytes(n + 1), True, b"")
        relays.take(3, "dave", bytes(10), False, b"")  # never ends
        relays.take(3, "carol", b"", True, b"")
        assert uploads.n_in_file == 2  # bob's and carol's
        assert delivered == [(3, "alice", b""), (3, "bob", b"b" * n), (3, "mallory", b""), (3, "carol", b"")]


LARGE = 40_000
"""Words of a vector whose length the limit can tell from whatever else is written."""


@pytest.mark.parametrize("mode", ["masked", "shares"])
@asynchronous
async def test_a_full_disk_costs_one_upload_and_the_round_goes_on(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both whole servers, over TLS, all uploads in the file: there is room for two of three."""
    monkeypatch.setattr(receiving, "PEER_LOCKED_GRACE_S", 0.1)
    pki = Pki.create(tmp_path / "pki", CLIENTS)
    task = small_task(CLIENTS, dim=LARGE, rounds=2, mode=mode)
    async with running(task, pki, tmp_path, noises=(no_noise, no_noise), max_upload_in_memory_mb=0) as deployment:
        clients = [LeashedClient(name, deployment) for name in CLIENTS]
        await asyncio.gather(*(client.join() for client in clients))
        submissions = [client.make(ones(LARGE), await client.invitation()) for client in clients]
        with no_file_beyond(2 * 8 * LARGE):
            for client, submission in zip(clients[:2], submissions, strict=False):
                await client.submit(submission)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await clients[2].submit(submissions[2])
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert caught.value.details() == "no_room: no room for an upload: File too large"
            if mode == "masked":
                second = [client.make(ones(LARGE), await client.invitation()) for client in clients]
        if mode == "shares":
            second = [client.make(ones(LARGE), await client.invitation()) for client in clients]
        assert {path.stat().st_size for path in tmp_path.glob("aggregator-*/uploads.spool")} <= {0}
        await asyncio.gather(*(c.submit(s) for c, s in zip(clients, second, strict=True)))
        goodbyes = await asyncio.gather(*(client.goodbye() for client in clients))
        assert {goodbye.finished for goodbye in goodbyes} == {True}
        await deployment.finish()
        for party, role in enumerate(AGGREGATORS):
            rounds = deployment.rounds(party)
            assert [record["accepted"] for record in rounds] == [["alice", "bob"], list(CLIENTS)]
            assert [record["missing"] for record in rounds] == [["mallory"], []]
            assert not spool_path(tmp_path / role).exists()


@pytest.mark.parametrize("mode", ["masked", "shares"])
@asynchronous
async def test_an_upload_lies_on_no_servers_disk_in_the_clear(mode: str, tmp_path: Path) -> None:
    """Search both whole servers' files, with all uploads in the file, while the round waits for another client.

    No 16 bytes of what was uploaded are in any file of theirs. (By chance: 2**-90.)
    """
    pki = Pki.create(tmp_path / "pki", CLIENTS)
    task = small_task(CLIENTS, dim=LARGE, rounds=1, mode=mode)
    async with running(task, pki, tmp_path, noises=(no_noise, no_noise), max_upload_in_memory_mb=0) as deployment:
        clients = [LeashedClient(name, deployment) for name in CLIENTS]
        await asyncio.gather(*(client.join() for client in clients))
        submissions = [client.make(ones(LARGE), await client.invitation()) for client in clients]
        await clients[0].submit(submissions[0])
        for party in (0, 1):
            await until(lambda spool=deployment.aggregators[party]._capacity.spool: spool.n_in_file == 1)
        found = deployment.state_on_disk()
        assert all(len(found[f"{role}/uploads.spool"]) == 8 * LARGE for role in AGGREGATORS)
        for payload in submissions[0].payloads:
            for start in range(0, len(payload), 8 * 1000):
                piece = payload[start : start + 16]
                assert not any(piece in content for content in found.values())
        await asyncio.gather(*(c.submit(s) for c, s in zip(clients[1:], submissions[1:], strict=True)))
        assert {goodbye.finished for goodbye in await asyncio.gather(*(c.goodbye() for c in clients))} == {True}
        await deployment.finish()
        assert deployment.rounds(1)[0]["accepted"] == list(CLIENTS)


def no_noise(std: float, dim: int) -> RingArray:
    return np.zeros(dim, dtype=np.int64)


def ones(dim: int) -> RingArray:
    x = np.zeros(dim, dtype=np.int64)
    x[:100] = 1
    return x


# The budget


def taken(config: AggregatorConfig, plain: Task, task: Task, role: Role = Role.AGGREGATOR_A) -> int:
    """Return by how much the task leaves uploads less than a plain one."""
    return memory.of_server(config, plain, role) - memory.of_server(config, task, role)


def test_what_all_proofs_open_to_comes_before_uploads(tmp_path: Path) -> None:
    """Keep three times 1960 opened elements of 8 bytes a proof, d = 10^6. Its share lies where uploads lie."""
    config = Pki.create(tmp_path / "pki", CLIENTS).aggregator(0, listen="127.0.0.1:1", folder=tmp_path)
    clients = [f"c{i}" for i in range(1000)]
    tasks = [small_task(clients, dim=10**6, frac_bits=16, mode=mode) for mode in ("masked", "proved")]
    masked, proved = (memory.of_server(config, task, Role.AGGREGATOR_A) for task in tasks)
    assert abs(masked - proved - 1000 * 3 * 8 * 1960) <= memory.MIB


@pytest.mark.parametrize("in_memory_mb", [0, 16])
def test_a_seed_has_room_beside_a_vector_of_one_coordinate(in_memory_mb: int, tmp_path: Path) -> None:
    """In the `shares` form the vector that is opened later, 8 bytes, lies where the seed's 16 lay."""
    pki = Pki.create(tmp_path / "pki", CLIENTS)
    more = {"max_upload_in_memory_mb": in_memory_mb}
    config = pki.aggregator(0, listen="127.0.0.1:1", folder=tmp_path).model_copy(update=more)
    task = small_task(dim=1, mode="shares", accept_weak_wire_form=True)
    capacity = memory.capacity_of(config, task, Role.AGGREGATOR_A)
    intake = Intake(
        task=task, task_id="t", round=1, party=0, chosen=CLIENTS[:1], model_digest=bytes(32), capacity=capacity
    )
    config.state_dir.mkdir(exist_ok=True)
    with capacity.spool:
        payload = filled(intake._room(), bytes(range(16)))
        assert payload[:] == bytes(range(16))
        payload.room(1)[:] = np.array([5])
        assert_array_equal(payload.words(1)[:], [5])


def test_directions_come_before_uploads(tmp_path: Path) -> None:
    """A server holds those of all half-spaces from its start, whatever integers the file has."""
    config = Pki.create(tmp_path / "pki", CLIENTS).aggregator(0, listen="127.0.0.1:1", folder=tmp_path)
    dim, directions = 10**6, tmp_path / "directions.npy"
    np.save(directions, np.ones((3, dim), dtype=np.int8))
    digest = hashlib.sha256(directions.read_bytes()).hexdigest()
    cut: dict[str, Any] = {"half_spaces": [-20.0] * 3, "directions_sha256": digest, "directions": directions}
    plain, task = (small_task(dim=dim, frac_bits=16, **more) for more in ({}, cut))
    assert isinstance(task.update_set, ConvexSet)
    held = sum(one.direction.nbytes for one in task.update_set.half_spaces)
    assert abs(taken(config, plain, task) - held) <= memory.MIB


@pytest.mark.parametrize("gate", ["native", "crypten"])
def test_the_tuples_of_krums_comparisons_come_before_uploads(gate: str, tmp_path: Path) -> None:
    """Two batches for 64 expected clients, as a server holds them while one round runs and the next is drawn."""
    config = Pki.create(tmp_path / "pki", CLIENTS).aggregator(0, listen="127.0.0.1:1", folder=tmp_path)
    clients = [f"c{i}" for i in range(64)]
    plain = small_task(clients, gate=gate)
    task = small_task(clients, gate=gate, algorithm="krum", noise_multiplier=0.0)
    blocks = blocks_of(task, make_gate(gate), len(clients))
    shape = BatchShape("t", 0, tuple(clients), task.dim, blocks, trims=True, pairs=True)
    of_a, _ = deal(shape)
    tracemalloc.start()
    tuples = ServerTuples(0, shape, of_a)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del tuples
    assert held > 10 * memory.MIB
    assert abs(taken(config, plain, task) - 2 * held) <= 2 * memory.MIB


@pytest.mark.parametrize("algorithm", ["krum", "tsgd-ptr"])
def test_corrections_of_trim_tuples_come_before_uploads_at_server_b(algorithm: str, tmp_path: Path) -> None:
    """It holds d + 1 words of each client in two batches, and a third of them while one arrives. A derives its own."""
    config = Pki.create(tmp_path / "pki", CLIENTS).aggregator(0, listen="127.0.0.1:1", folder=tmp_path)
    plain, dim = small_task(dim=10**5, frac_bits=16), 10**5
    more: dict[str, Any] = {"noise_multiplier": 0.0, "krum_attackers": 0} if algorithm == "krum" else {"trim_count": 1}
    task = small_task(dim=dim, frac_bits=16, algorithm=algorithm, **more)
    shape = BatchShape(
        "t", 0, CLIENTS, dim, blocks_of(task, make_gate(task.gate), len(CLIENTS)), True, task.rules.selects
    )
    messages = [reply.corrections for reply in convert.dealt_to_messages(deal(shape)[1], 0)][1:]  # behind the key
    tracemalloc.start()
    parts = {name: bytearray() for name in convert.DEALT_PARTS}
    for message in messages:
        for name, received in parts.items():
            received.extend(getattr(message, name))
    dealt = convert.dealt_from_parts(bytes(16), {name: bytes(part) for name, part in parts.items()})
    _, peak = tracemalloc.get_traced_memory()
    held = dealt.trims.nbytes
    tracemalloc.stop()
    assert held == 8 * len(CLIENTS) * (dim + 1)
    assert peak >= 2 * held
    assert abs(taken(config, plain, task, Role.AGGREGATOR_B) - 3 * held) <= memory.MIB
    assert taken(config, plain, task) <= memory.MIB


def test_a_round_rarely_has_more_clients_than_the_budget_counts() -> None:
    """By the binomial law: fewer than one round in a thousand."""
    for n, rate in ((1000, 0.1), (200, 0.5), (64, 1.0)):
        task = small_task([f"c{i}" for i in range(n)], client_rate=rate)
        assert stats.binom.sf(memory._clients_of_a_round(task), n, rate) < 1e-3


def test_the_model_comes_first_and_uploads_get_the_rest() -> None:
    assert memory.for_uploads(4096, 26_010) == (4096 - 768 - 1) * memory.MIB
    assert memory.for_uploads(769, 26_010) == 0
    with_adam = memory.for_uploads(4096, 10 * memory.MIB, n_moments=2)
    assert with_adam == memory.for_uploads(4096, 10 * memory.MIB) - 160 * memory.MIB
    assert memory.for_uploads(4096, 26_010, n_clients=10_000) == memory.for_uploads(4096, 26_010)
    assert memory.for_uploads(4096, 26_010, n_clients=10_000, n_threads=3) == (4096 - 768 - 314) * memory.MIB
    with pytest.raises(
        SetupError, match="memory_budget_mb: expected at least 3057 for 100000000 parameters, found 3056"
    ):
        memory.for_uploads(3056, 100_000_000)
