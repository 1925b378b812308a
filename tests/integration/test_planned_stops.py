"""Server A is stopped by its operator between rounds, and started again, over real sockets, TLS, lane and disk.

Failure means: planned stops end a task of the default form, or a stop costs more numbers than were drawn ahead.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from precad.dp.ledgers.ledger import Ledger
from precad.servers.aggregator import Aggregator
from precad.servers.errors import StoppedError
from precad.servers.rounds.equipment import Randomness
from precad.servers.store.folder import ledger_path
from tests.harness.harness import Deployment, asynchronous, small_task, until
from tests.integration.test_deviating_server import CLIENTS, A, deployment, silence, states


async def stopped(server: Aggregator, run: asyncio.Task[None], n_committed: int) -> None:
    """SIGTERM, once it has committed that many rounds."""
    await until(lambda: run.done() or len(server._telemetry.records) >= n_committed)
    server.drain()
    with pytest.raises(StoppedError):
        await run


def started_again(servers: Deployment) -> tuple[Aggregator, asyncio.Task[None]]:
    """Server A, from its folder."""
    config = servers.pki.aggregator(0, listen=servers.addresses[0], folder=servers.folder, reconnect_timeout_s=30.0)
    others = (servers.addresses[1], servers.dealer_address)
    a = Aggregator(party=0, task=servers.task, config=config, addresses=others, randomness=Randomness(noise=silence))
    return a, asyncio.create_task(a.run())


@pytest.mark.parametrize(
    ("n_stops", "changes"),
    [(1, {"lost_rounds": 2}), pytest.param(3, {"rounds": 10}, marks=pytest.mark.slow)],
    ids=["once", "three times"],
)
@asynchronous
async def test_a_task_survives_planned_stops_each_of_which_loses_what_was_drawn_ahead(
    n_stops: int, changes: dict[str, Any], tmp_path: Path
) -> None:
    """B goes on to the next draw before it hears that A has left; A never answers it."""
    task = small_task(CLIENTS, **{"rounds": 3, "gate": "native", **changes})
    async with deployment(task, tmp_path) as (servers, _):
        a, (_, run, b) = servers.aggregators[0], servers._runs
        for stop in range(1, n_stops + 1):
            await stopped(a, run, stop)
            a, run = started_again(servers)
        try:
            await asyncio.gather(run, b)
        finally:
            run.cancel()
    found = list(states(tmp_path).values())
    assert found.count("committed") == task.rounds
    assert set(found) <= {"committed", "reserved"}
    assert found.count("reserved") <= n_stops * task.batches_ahead


@asynchronous
async def test_a_stop_just_before_a_round_begins_costs_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM while A reads its ledger before round 1: that round does not begin, only to be given up in its midst."""
    task = small_task(CLIENTS, rounds=3, gate="native", lost_rounds=2)
    ask, of_a = Ledger.would_exceed, opened_ledgers(ledger_path(tmp_path / A), monkeypatch)
    async with deployment(task, tmp_path) as (servers, _):
        a, (_, run, b) = servers.aggregators[0], servers._runs
        loop = asyncio.get_running_loop()

        def signal_then_ask(ledger: Ledger, *about: Any, **kind: bool) -> bool:
            if ledger in of_a and about[1:] == (1,) and not a._drain.is_requested:
                loop.call_soon_threadsafe(a.drain)
                time.sleep(0.02)  # the signal is there first
            return ask(ledger, *about, **kind)

        monkeypatch.setattr(Ledger, "would_exceed", signal_then_ask)
        with pytest.raises(StoppedError):
            await run
        assert list(states(tmp_path).values()) == ["committed", "reserved"]  # round 1 was drawn ahead, round 2 was not
        _, run = started_again(servers)
        try:
            await asyncio.gather(run, b)
        finally:
            run.cancel()
    assert list(states(tmp_path).values()) == ["committed", "reserved", "committed", "committed"]


def opened_ledgers(path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Ledger]:
    """Return a list that every ledger which is opened at `path` from now on joins."""
    opened, init = list[Ledger](), Ledger.__init__

    def note(ledger: Ledger, at: Path | None, **about: Any) -> None:
        init(ledger, at, **about)
        if at == path:
            opened.append(ledger)

    monkeypatch.setattr(Ledger, "__init__", note)
    return opened
