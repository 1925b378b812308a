"""Which tuples are used up: on disk before they are, whatever happens in between.

Failure means a seed that leaves twice, a tuple that is checked twice or for two clients, or one that is used and not
recorded. It also means a server that goes on when nothing can be recorded.
"""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precad.mpc import validation
from precad.mpc.channel import memory_pair
from precad.mpc.errors import PeerMismatchError, TupleReusedError
from precad.mpc.gate import top_bits
from precad.mpc.gate_names import make_gate
from precad.mpc.joint_coin import CoinShare
from precad.mpc.locking import Locked
from precad.mpc.norm_bound import NormBound
from precad.mpc.prg import Seed
from precad.mpc.tuples.burning import Burns, MemoryBurns, TupleUse
from precad.mpc.tuples.correlations import AndBlock, BitBlock, Block
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, Dealt, ServerTuples
from precad.servers.database import tables
from precad.servers.database.tables import Backend
from precad.servers.errors import NotDealtError, SetupError, StoreError
from precad.servers.rounds.sessions import events_of
from precad.servers.rounds.states import Collecting, RoundState
from precad.servers.store.burnt_tuples import TupleLedger
from precad.servers.store.dealt_parts import DealLedger
from precad.servers.store.folder import open_tuple_ledger
from tests.harness import hand_out
from tests.harness.hand_out import CLIENTS, KEY, PART, SHAPE
from tests.harness.harness import Pki, asynchronous, running, small_task

ROOT = Path(__file__).parents[3]
MASK, CHECK = TupleUse.MASK, TupleUse.CHECK


Places: TypeAlias = Callable[[str], Path | Backend]
"""Where a store is, for a process that has just started (`conftest`)."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tuples.sqlite"


# What is recorded


REQUESTS = st.tuples(
    st.sampled_from(["task-1", "task-2"]),
    st.integers(0, 1),
    st.dictionaries(st.integers(0, 3), st.sampled_from(CLIENTS), max_size=3).filter(
        lambda clients: len(set(clients.values())) == len(clients)
    ),
    st.sampled_from(list(TupleUse)),
)


@pytest.mark.parametrize("places", ["sqlite"], indirect=True)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(REQUESTS, max_size=12), reopen_every=st.integers(1, 5))
def test_the_ledger_refuses_what_its_twin_in_memory_refuses(requests, reopen_every, places) -> None:
    """Whatever is asked in whatever order, also across restarts; a refused request leaves no row."""
    compare_with_the_twin(requests, reopen_every, places)


@pytest.mark.parametrize("places", ["postgres"], indirect=True)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(requests=st.lists(REQUESTS, min_size=4, max_size=12), reopen_every=st.integers(2, 5))
def test_so_does_the_ledger_in_postgresql(requests, reopen_every, places) -> None:
    """Likewise, a few times: every restart is a new session."""
    compare_with_the_twin(requests, reopen_every, places)


def compare_with_the_twin(requests, reopen_every, places) -> None:
    places.clear()
    twin, expected = MemoryBurns(), Counter[tuple]()
    ledger = TupleLedger(places("tuples"))
    for i, (task, round, clients, use) in enumerate(requests):
        if i % reopen_every == 0:
            ledger.close()
            ledger = TupleLedger(places("tuples"))
        is_taken = _is_taken(twin, task, round, clients, use)
        assert _is_taken(ledger, task, round, clients, use) == is_taken
        if is_taken:
            expected.update((task, round, slot, client, use) for slot, client in clients.items())
    found = Counter((task, *row) for task in ("task-1", "task-2") for row in ledger.burnt(task))
    ledger.close()
    assert found == expected
    assert max(expected.values(), default=1) == 1


def _is_taken(burns: Burns, *request: Any) -> bool:
    try:
        burns.burn(*request)
    except TupleReusedError:
        return False
    return True


def test_of_many_at_once_one_gets_each_tuple(places: Places) -> None:
    """Threads of one server, and a second connection to the same file, or to the same session."""
    place = places("tuples")
    ledgers = [TupleLedger(place), TupleLedger(place)]
    tuples = [ServerTuples(0, SHAPE, PART, ledger) for ledger in ledgers for _ in range(4)]
    wanted = list(itertools.product(tuples, CLIENTS))

    def attempt(request: tuple[ServerTuples, str]) -> str:
        try:
            return request[0].hand_out_mask_seed(request[1]).reveal().hex()
        except TupleReusedError:
            return "refused"

    with ThreadPoolExecutor(8) as pool:
        seeds = Counter(pool.map(attempt, wanted))
    assert seeds.pop("refused") == len(wanted) - len(CLIENTS)
    assert sorted(seeds.values()) == [1] * len(CLIENTS)
    assert [client for _, _, client, _ in ledgers[0].burnt(SHAPE.task)] == list(CLIENTS)
    for ledger in ledgers:
        ledger.close()


def test_all_or_none_of_a_request_is_burnt(places: Places) -> None:
    with TupleLedger(places("tuples")) as ledger:
        ledger.burn("task", 0, {1: "bob"}, MASK)
        with pytest.raises(TupleReusedError, match="slot 1 in round 0 was used before"):
            ledger.burn("task", 0, {0: "alice", 1: "bob", 2: "carol"}, MASK)
        assert ledger.burnt("task") == [(0, 1, "bob", MASK)]


@pytest.mark.parametrize("clients", [{1: "alice"}, {0: "bob"}])
def test_a_tuple_belongs_to_one_client(clients: dict[int, str], places: Places) -> None:
    """Slot 0 is alice's: neither may bob's update be checked with it, nor alice's with another."""
    with TupleLedger(places("tuples")) as ledger:
        ledger.burn("task", 0, {0: "alice"}, MASK)
        with pytest.raises(TupleReusedError, match="bound to another client"):
            ledger.burn("task", 0, clients, CHECK)
        ledger.burn("task", 0, {0: "alice"}, CHECK)


def test_a_check_is_burnt_before_anything_of_it_leaves(path: Path) -> None:
    """A second check with the same batch, as after a restart, sends nothing: no coin, no opening, no carries."""
    gate, bound = make_gate("native"), NormBound(clip_norm=1.0, dim=24)
    shape = BatchShape("task", 0, ("alice",), 24, top_bits.blocks(gate, 1, bound.low_bits))
    locked = Locked(("alice",), CoinShare(0, "task", bytes(32)), bytes(32), b"")
    dealt, vector = deal(shape)[0], np.zeros(24, dtype=np.int64)
    revealed = validation.Revealed(("alice",), (vector,), Seed(bytes(16)))
    with TupleLedger(path) as ledger:
        ledger.burn("task", 0, {0: "alice"}, CHECK)
        steps = (
            lambda tuples, channel: validation.reveal(locked, {"alice": vector}, tuples, channel),
            lambda tuples, channel: validation.reveal_and_open(locked, {"alice": vector}, tuples, channel),
            lambda tuples, channel: validation.validate(revealed, tuples, bound, gate, channel),
        )
        for step in steps:
            channel, tuples = memory_pair()[0], ServerTuples(0, shape, dealt, ledger)
            with pytest.raises(TupleReusedError, match=r"\(check\)"):
                step(tuples, channel)
            assert channel.bytes_sent == 0


# Killed


@pytest.mark.parametrize("point", ["before", "burnt", "replied"])
def test_no_seed_leaves_twice_however_the_process_dies(point: str, tmp_path: Path) -> None:
    """Processes are killed at this point of a client's turn, one after the other; the last one runs to the end."""
    command = [sys.executable, "-m", hand_out.__name__, str(tmp_path), point, CLIENTS[1], CLIENTS[3], "nobody"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    replies = [(client, reply) for client, reply in map(str.split, done.stdout.splitlines())]
    assert [code for key, code in replies if key == "exit"] == ["-9", "-9", "0"], done.stderr
    replies = [(client, reply) for client, reply in replies if client != "exit"]
    seeds = [(client, reply) for client, reply in replies if reply != "refused"]
    assert len(seeds) == len(set(seeds)) == len({seed for _, seed in seeds})
    with open_tuple_ledger(tmp_path) as ledger:
        assert [client for _, _, client, _ in ledger.burnt(SHAPE.task)] == list(CLIENTS)
    n_lost = 2 if point == "burnt" else 0  # burnt and never seen
    assert len(seeds) == len(CLIENTS) - n_lost


# When nothing can be recorded


def test_a_full_disk_hands_nothing_out(path: Path) -> None:
    with TupleLedger(path) as ledger:
        (n_pages,) = ledger._backend._connection.execute("PRAGMA page_count").fetchone()
        ledger._backend._connection.execute(f"PRAGMA max_page_count={n_pages}")
        clients = tuple(f"client-{i:04d}" for i in range(1000))
        shape = BatchShape("task", 0, clients, 24, ())
        with pytest.raises(StoreError, match="nothing was recorded: database or disk is full"):
            ServerTuples(0, shape, Dealt(KEY, bytes(32 * 1000)), ledger).hand_out_mask_seeds(clients)
        assert ledger.burnt("task") == []
        ledger._backend._connection.execute("PRAGMA max_page_count=100000")
        assert len(ServerTuples(0, shape, Dealt(KEY, bytes(32 * 1000)), ledger).hand_out_mask_seeds(clients)) == 1000


def test_a_file_that_somebody_else_holds_hands_nothing_out(path: Path) -> None:
    with TupleLedger(path, busy_timeout_s=0.05) as ledger:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        tuples = ServerTuples(0, SHAPE, PART, ledger)
        with pytest.raises(StoreError, match="database is locked"):
            tuples.hand_out_mask_seed("alice")
        other.execute("ROLLBACK")
        other.close()
        assert ledger.burnt(SHAPE.task) == []
        tuples.hand_out_mask_seed("alice")


@asynchronous
async def test_a_round_whose_tuples_cannot_be_recorded_invites_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both whole servers, over TLS: the task ends with the reason, and no seed has left. A client is not told how the
    server's files and databases are called."""
    monkeypatch.setattr(TupleLedger.__init__, "__kwdefaults__", {"busy_timeout_s": 0.1})
    task, pki = small_task(("alice", "bob"), registration_timeout_s=0.5), Pki.create(tmp_path / "pki", ())
    task = task.model_copy(update={"min_clients": 0})
    path = tmp_path / "aggregator-a" / "tuples.sqlite"

    def hold(party: int, state: RoundState) -> None:
        if party == 0 and isinstance(state, Collecting):
            other = stack.enter_context(contextlib.closing(sqlite3.connect(path, isolation_level=None)))
            other.execute("BEGIN IMMEDIATE")

    with contextlib.ExitStack() as stack:
        async with running(task, pki, tmp_path, noises=(no_noise, no_noise), on_state=hold) as deployment:
            sessions = deployment.aggregators[0]._sessions
            events = [event async for event in events_of(sessions.enter("alice"))]
            sessions.leave("alice")
            await sessions.notify()
            with pytest.raises(StoreError, match=r"nothing was recorded: database is locked"):
                await deployment._runs[1]
    (last,) = events
    assert last.goodbye.reason == "aggregator-a cannot read or write what it must; its log says more"


def no_noise(std: float, dim: int) -> np.ndarray:
    return np.zeros(dim, dtype=np.int64)


# What is no ledger


def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    TupleLedger(path).close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=7")
    connection.close()
    with pytest.raises(SetupError, match="expected version 1 or older, found 7"):
        TupleLedger(path)


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(SetupError, match="expected a database of this program"):
        TupleLedger(path)
    assert path.read_bytes() == b"not a database" * 100


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match="expected a database to write to"):
        TupleLedger(tmp_path / "file" / "tuples.sqlite")


def test_transactions_are_synced(path: Path) -> None:
    """FULL: SQLite syncs its log at every commit."""
    with TupleLedger(path) as ledger:
        assert ledger._backend._connection.execute("PRAGMA synchronous").fetchone() == (2,)
        assert ledger._backend._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert tables.BUSY_TIMEOUT_S > 0


# The dealer's


def shape(n_clients: int = 2, round: int = 0, blocks: tuple[Block, ...] = (AndBlock(130),)) -> BatchShape:
    return BatchShape.anonymous("task", round, n_clients, 24, blocks)


def test_a_part_leaves_once_also_after_a_restart(places: Places) -> None:
    with DealLedger(places("deals")) as ledger:
        for party in (0, 1):
            ledger.record(party, shape())
        with pytest.raises(NotDealtError, match="was dealt to this server before"):
            ledger.record(0, shape())
    with DealLedger(places("deals")) as ledger:
        for party in (0, 1):
            with pytest.raises(NotDealtError, match="was dealt to this server before"):
                ledger.record(party, shape(n_clients=3))


def test_a_restarted_dealer_does_not_deal_the_other_half_of_a_lost_batch(places: Places) -> None:
    """It would be of other keys. The next round is a new batch."""
    with DealLedger(places("deals")) as ledger:
        ledger.record(0, shape())
    with DealLedger(places("deals")) as ledger:
        with pytest.raises(NotDealtError, match="is gone with the dealer that made it"):
            ledger.record(1, shape())
        ledger.record(1, shape(round=1))
        ledger.record(0, shape(round=1))


@pytest.mark.parametrize("other", [shape(3), shape(blocks=()), shape(blocks=(BitBlock(130),))])
def test_a_round_has_one_shape(other: BatchShape, places: Places) -> None:
    with DealLedger(places("deals")) as ledger:
        ledger.record(0, shape())
        with pytest.raises(PeerMismatchError, match="batch of round 0 differs"):
            ledger.record(1, other)
        ledger.record(1, shape())


def test_tasks_do_not_meet(places: Places) -> None:
    with DealLedger(places("deals")) as ledger:
        ledger.record(0, shape(round=5))
        ledger.record(0, BatchShape.anonymous("another", 0, 2, 24, ()))
