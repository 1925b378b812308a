"""Transfers under way: who gets a place among them, and who has to make room.

Failure means more than a limit allows, or one that holds a place for longer than its pace allows while others wait. It
also means one that is cut off while nobody waits, or a client that is kept out by what others do.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from precad.protos.tls.identity import Role
from precad.servers.errors import Limit, OverloadedError
from precad.servers.rounds import memory
from precad.servers.rounds.transfers import LEAST_WAIT_S, LONGEST_RETRY_S, SHORTEST_RETRY_S, Place, Transfers
from tests.harness.clock import Clock
from tests.harness.harness import asynchronous, small_task, until
from tests.harness.pki import Pki

GRACE_S = 5.0


def transfers_of(limit: Limit, max_places: int, max_bytes: float = math.inf, **changes: Any) -> Transfers:
    """Without a least pace."""
    return Transfers(limit, max_places, max_bytes, **{"min_bytes_s": 0.0, "grace_s": GRACE_S, **changes})


@asynccontextmanager
async def held(transfers: Transfers, *clients: str, n_bytes: int = 100) -> AsyncIterator[dict[str, Place]]:
    """Transfers under way, each in a task of its own; what ended one early is raised when it is asked for."""
    places: dict[str, Place] = {}
    over = asyncio.Event()

    async def transfer(client: str) -> None:
        async with transfers.place(client, n_bytes, round=0, n_waiting=0, left_s=10.0) as places[client]:
            await over.wait()

    tasks = [asyncio.create_task(transfer(client), name=client) for client in clients]
    await until(lambda: len(places) == len(clients))
    try:
        yield places
    finally:
        over.set()
        await asyncio.gather(*tasks, return_exceptions=True)


async def refusal(transfers: Transfers, client: str, **asked: Any) -> OverloadedError:
    """Return the refusal of a transfer that wants to begin."""
    values = {"n_bytes": 100, "round": 0, "n_waiting": 0, "left_s": 10.0, **asked}
    with pytest.raises(OverloadedError) as caught:
        async with transfers.place(client, values.pop("n_bytes"), **values):
            pass
    return caught.value


@asynchronous
async def test_only_so_many_transfers_are_under_way() -> None:
    transfers = transfers_of(Limit.UPLOADS, 2)
    async with held(transfers, "alice", "bob"):
        assert (await refusal(transfers, "carol")).limit is Limit.UPLOADS
    async with held(transfers, "carol"):
        pass


@asynchronous
async def test_only_so_many_bytes_are_under_way_and_one_alone_may_have_any_length() -> None:
    transfers = transfers_of(Limit.UPLOADS, 10, max_bytes=250)
    async with held(transfers, "alice", "bob"):
        assert (await refusal(transfers, "carol", n_bytes=51)).limit is Limit.UPLOAD_BYTES
        async with transfers.place("carol", 50, round=0, n_waiting=0, left_s=10.0):
            pass
    async with transfers.place("carol", 10**12, round=0, n_waiting=0, left_s=10.0):
        assert (await refusal(transfers, "alice", n_bytes=1)).limit is Limit.UPLOAD_BYTES


@asynchronous
async def test_the_hint_grows_with_the_crowd() -> None:
    """So that all who wait ask 200 times a second together, between two bounds."""
    transfers = transfers_of(Limit.UPLOADS, 1)
    async with held(transfers, "alice"):
        hints = {n: (await refusal(transfers, "bob", n_waiting=n)).retry_after_s for n in (0, 1, 400, 10_000)}
    assert hints == {0: SHORTEST_RETRY_S, 1: SHORTEST_RETRY_S, 400: 2.0, 10_000: LONGEST_RETRY_S}


@asynchronous
async def test_hints_of_a_task_that_hides_draws_do_not_tell_how_many_wait(tmp_path: Path) -> None:
    """Colluders who take all places and ask once more could else subtract themselves.

    The hint is for a round's expected number, 450 of 900. Limits that others may meet are logged: a refusal tells, too.
    """
    clients = {f"client-{i}": 10 for i in range(900)}
    paced = {"submit_timeout_s": 1.0, "proof_timeout_s": 1.0, "round_period_s": 5.0}
    task = small_task(clients, mode="proved", frac_bits=16, client_rate=0.5, **paced)
    config = Pki.create(tmp_path / "pki", ()).aggregator(
        0, listen="127.0.0.1:1", folder=tmp_path, max_uploads=1, max_downloads=900
    )
    with structlog.testing.capture_logs() as said:
        transfers = memory.capacity_of(config, task, Role.AGGREGATOR_A).uploads
    told = [(line["limit"], line["expected_at_least"]) for line in said if line["event"] == "transfers.tell_draws"]
    assert told == [("max_uploads", 900)]
    async with held(transfers, "alice"):
        hints = {(await refusal(transfers, "bob", n_waiting=n)).retry_after_s for n in (0, 1, 400, 10_000)}
    assert hints == {450 / 200}


@asynchronous
async def test_who_sends_too_slowly_makes_room_and_nobody_else_does() -> None:
    """Cut off, among three that had their turn, the one that will not be over in time.

    Those that will be, and the young, stay.
    """
    clock = Clock()
    transfers = transfers_of(Limit.UPLOADS, 3, now=clock)
    async with held(transfers, "quick", "silent", "slow") as places:
        places["quick"].n_moved, places["slow"].n_moved = 60, 30
        clock.now += GRACE_S - 1
        await refusal(transfers, "carol", left_s=5.0)
        assert not any(place.is_cut_off for place in places.values())
        clock.now += 1
        await refusal(transfers, "carol", left_s=5.0)  # 60 of 100 bytes in 5 s: 3.3 s more; 30: 11.7 s more
        await until(lambda: len(transfers._places) == 2)
        assert [client for client, place in places.items() if place.is_cut_off] == ["silent"]
        async with transfers.place("carol", 100, round=0, n_waiting=0, left_s=5.0):
            await refusal(transfers, "dave", left_s=5.0)
            assert [client for client, place in places.items() if place.is_cut_off] == ["silent", "slow"]
            await until(lambda: len(transfers._places) == 2)
            async with transfers.place("dave", 100, round=0, n_waiting=0, left_s=5.0):
                await refusal(transfers, "erin", left_s=5.0)
                assert not places["quick"].is_cut_off


@asynchronous
async def test_a_transfer_that_is_cut_off_may_be_made_again() -> None:
    transfers = transfers_of(Limit.DOWNLOADS, 1)

    async def cut_off() -> None:
        async with transfers.place("alice", 100, round=0, n_waiting=0, left_s=1.0) as place:
            place.cut_off()
            place.cut_off()
            await asyncio.sleep(5.0)

    with pytest.raises(OverloadedError) as caught:
        await cut_off()
    assert (caught.value.limit, caught.value.retry_after_s) == (Limit.SLOW_TRANSFER, 1.0)
    async with transfers.place("alice", 100, round=0, n_waiting=0, left_s=1.0):
        pass


@asynchronous
async def test_a_clients_newer_transfer_takes_the_place_of_its_older_one() -> None:
    """Take the older one's place, since its connection may be lost, unnoticed.

    So a client is not kept out by itself, and it never has two places.
    """
    transfers = transfers_of(Limit.DOWNLOADS, 1)
    async with held(transfers, "alice") as places, transfers.place("alice", 100, round=0, n_waiting=0, left_s=1.0):
        assert places["alice"].is_cut_off
        assert (await refusal(transfers, "bob")).limit is Limit.DOWNLOADS


# -- pace and turns ----------------------------------------------------------------------------------------------------


@asynchronous
async def test_a_transfer_below_the_least_pace_makes_room_although_it_would_be_over_in_time() -> None:
    """30 of 100 bytes in 5 s: over in 12 s more, where 1000 s are left; but 10 bytes a second is the least."""
    clock = Clock()
    transfers = transfers_of(Limit.UPLOADS, 2, min_bytes_s=10.0, now=clock)
    async with held(transfers, "slow", "steady") as places:
        places["slow"].n_moved, places["steady"].n_moved = 30, 51
        clock.now += GRACE_S
        await refusal(transfers, "carol", left_s=1000.0)
        assert [client for client, place in places.items() if place.is_cut_off] == ["slow"]


@asynchronous
async def test_a_transfer_that_has_moved_all_and_does_not_end_makes_room() -> None:
    clock = Clock()
    transfers = transfers_of(Limit.UPLOADS, 1, min_bytes_s=10.0, now=clock)
    async with held(transfers, "endless") as places:
        places["endless"].n_moved = 100
        clock.now += 9.9
        await refusal(transfers, "carol", left_s=1000.0)
        assert not places["endless"].is_cut_off
        clock.now += 0.2
        await refusal(transfers, "carol", left_s=1000.0)
        assert places["endless"].is_cut_off


@asynchronous
async def test_however_slow_a_transfer_is_it_stays_while_nobody_waits() -> None:
    clock = Clock()
    transfers = transfers_of(Limit.UPLOADS, 2, min_bytes_s=1e9, now=clock)
    async with held(transfers, "slow") as places:
        clock.now += 1000 * GRACE_S
        async with transfers.place("carol", 100, round=0, n_waiting=5, left_s=0.0):
            assert not places["slow"].is_cut_off


class Crowd:
    """Clients at one server with two places, on a clock of their own, who ask ten times a second, hints or not."""

    STEP_S = 0.1

    def __init__(self, paces: dict[str, float]) -> None:
        """paces: bytes a second of each client's transfers, of 100 bytes; whoever is listed first asks first."""
        self.clock, self.paces = Clock(), paces
        self.transfers = transfers_of(Limit.UPLOADS, 2, min_bytes_s=10.0, now=self.clock)
        self.done: dict[str, float] = {}
        """Clients that have delivered all, and when."""
        self._under_way: dict[str, asyncio.Task[None]] = {}

    async def run(self, until: Callable[[], bool], limit_s: float = 200.0) -> None:
        """Steps until it holds, at most for limit_s."""
        began = self.clock.now
        while not until() and self.clock.now < began + limit_s:
            for client in self.paces:
                if client not in self.done and client not in self._under_way:
                    self._under_way[client] = asyncio.create_task(self._transfer(client))
                    await asyncio.sleep(0)
            self.clock.now += self.STEP_S
            for _ in range(5):  # whoever was woken runs, and whoever was cut off leaves
                await asyncio.sleep(0)
        for task in self._under_way.values():
            task.cancel()
        await asyncio.gather(*self._under_way.values(), return_exceptions=True)

    async def _transfer(self, client: str) -> None:
        try:
            async with self.transfers.place(client, 100, round=0, n_waiting=1, left_s=1e6) as place:
                while place.n_moved < 100:
                    await asyncio.sleep(0)
                    place.n_moved = min(100, int(self.paces[client] * (self.clock.now - place.began_at)))
                self.done[client] = self.clock.now
        except OverloadedError:
            pass
        finally:
            del self._under_way[client]


@pytest.mark.parametrize("pace", [0.0, 9.0, 10.5])
@asynchronous
async def test_clients_that_mean_harm_have_one_turn_each_before_the_others(pace: float) -> None:
    """Six of them compete for two places: the honest one asks last every time.

    It waits for three turns of at most 10 s, the time that 100 bytes take at the least pace, and what asking takes.
    """
    crowd = Crowd({**{f"mallory-{i}": pace for i in range(6)}, "alice": 50.0})
    began = crowd.clock.now
    await crowd.run(lambda: "alice" in crowd.done)
    turn_s = GRACE_S if pace < 10 else 10.0
    assert crowd.done["alice"] - began <= 3 * (turn_s + 2 * Crowd.STEP_S) + 2.0 + Crowd.STEP_S


@asynchronous
async def test_a_slow_client_that_made_room_delivers_when_nobody_else_waits() -> None:
    """An honest one on a bad line: it is behind everybody who had no turn, and then left in peace."""
    crowd = Crowd({"slow": 2.0, **{f"client-{i}": 20.0 for i in range(8)}})
    await crowd.run(lambda: len(crowd.done) == 9)
    assert max(crowd.done, key=crowd.done.__getitem__) == "slow"


@asynchronous
async def test_a_turn_is_of_a_round_and_those_who_wait_are_forgotten_in_time() -> None:
    """Put a client that had a turn behind whoever was refused, until that one would have asked again; in the next
    round, not.
    """
    clock = Clock()
    transfers = transfers_of(Limit.UPLOADS, 1, now=clock)
    async with held(transfers, "alice"):
        await refusal(transfers, "bob")
    assert "no turn" in str(await refusal(transfers, "alice"))
    async with transfers.place("alice", 100, round=1, n_waiting=0, left_s=1.0):
        await refusal(transfers, "bob", round=1)
    clock.now += LEAST_WAIT_S + 0.1
    async with transfers.place("alice", 100, round=1, n_waiting=0, left_s=1.0):
        pass
