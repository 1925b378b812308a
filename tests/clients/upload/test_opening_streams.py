"""Thousands of clients in one process, which must not all knock at once.

Failure means a handshake that waits behind thousands of others until it counts as lost, so that no client connects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from precad.clients.errors import ServerUnreachableError
from precad.clients.upload import patience as patience_module
from precad.clients.upload import session as session_module
from precad.clients.upload.patience import Patience, Turns
from precad.clients.upload.session import ClientSession
from tests.clients.upload.test_undecodable_replies import GOODBYE, TASK, WELCOME, Scripted, listening, trained
from tests.harness.clock import Clock
from tests.harness.harness import AGGREGATORS, Pki, asynchronous

N_CLIENTS = 12


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), ["alice"])


class Slow(Scripted):
    """An aggregator that welcomes nobody before `n_awaited` wait at once, and ends the task when all are there."""

    def __init__(self, n_awaited: int) -> None:
        super().__init__(WELCOME)
        self.n_opening = self.n_welcome = self.most = 0
        self._n_awaited, self._are_here = n_awaited, asyncio.Event()

    async def join(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        self.n_opening += 1
        self.most = max(self.most, self.n_opening)
        if self.n_opening == self._n_awaited:
            self._are_here.set()
        await self._are_here.wait()
        await asyncio.sleep(0.05)  # for more than these
        self.n_opening, self.n_welcome = self.n_opening - 1, self.n_welcome + 1
        yield WELCOME
        if self.n_welcome == N_CLIENTS:
            self.is_over.set()
        await self.is_over.wait()
        yield GOODBYE


async def all_join(pki: Pki, turns: list[Turns], *, n_awaited: int) -> tuple[int, int]:
    """Let a client join for each turn. Return how many each server saw opening at once; it awaits n_awaited."""
    slow = (Slow(n_awaited), Slow(n_awaited))
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(60):
        a, b = [
            await stack.enter_async_context(listening(pki, role, server))
            for role, server in zip(AGGREGATORS, slow, strict=True)
        ]
        parts: dict[str, Any] = {"client": "alice", "task": TASK, "addresses": (a, b), "train": trained}
        sessions = [ClientSession(**parts, tls=pki.tls("alice"), turns=own) for own in turns]
        await asyncio.gather(*(session.run() for session in sessions))
    return slow[0].most, slow[1].most


@asynchronous
async def test_a_process_opens_few_streams_at_once_and_all_in_the_end(pki: Pki) -> None:
    assert await all_join(pki, [Turns(3)] * N_CLIENTS, n_awaited=3) == (3, 3)


@asynchronous
async def test_processes_do_not_wait_for_one_another(pki: Pki) -> None:
    assert min(await all_join(pki, [Turns(3) for _ in range(N_CLIENTS)], n_awaited=4)) > 3


def test_the_time_to_connect_begins_with_the_first_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience_module, "time", SimpleNamespace(monotonic=(clock := Clock())))
    patience = Patience(0.05, 0.0)
    clock.now += 0.06  # behind other clients
    patience.asks()
    assert patience.next_pause_s() is not None
    clock.now += 0.06
    patience.asks()
    assert patience.next_pause_s() is None


class Mute(Scripted):
    """Takes every call, and never says a word."""

    async def join(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield WELCOME


class Quiet(Scripted):
    """Welcomes a client, and invites it to nothing."""

    async def join(self, _: bytes, __: Any) -> AsyncIterator[bytes]:
        yield WELCOME
        await asyncio.Event().wait()


@asynchronous
async def test_a_server_that_takes_a_call_and_says_nothing_is_none(pki: Pki, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the time of one that nobody can reach, and keeps no turn for ever."""
    monkeypatch.setattr(session_module, "WELCOME_S", 0.2)
    turns = Turns(1)
    async with listening(pki, AGGREGATORS[0], Quiet(b"")) as a, listening(pki, AGGREGATORS[1], Mute(b"")) as b:
        parts: dict[str, Any] = {"client": "alice", "task": TASK, "addresses": (a, b), "train": trained}
        session = ClientSession(**parts, tls=pki.tls("alice"), turns=turns, connect_timeout_s=0.5)
        with pytest.raises(ServerUnreachableError, match=r"^aggregator-b: expected a first word within 0\.2 s, found"):
            await asyncio.wait_for(session.run(), 20.0)
    assert not turns[1].locked()
