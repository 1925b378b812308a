"""A client whose records are in bins, asked for the same number again, over real gRPC with mutual TLS.

Its servers are doubles that speak the protocol. Both say the same, which one that deviates cannot bring about alone.
Failure means a record in two uploads of an epoch, or a client that stops where honest servers lose rounds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
from numpy.typing import NDArray

from precad.clients.records import Records
from precad.clients.training.record_draws import RecordDraws, draws_of
from precad.clients.upload.session import ClientSession
from precad.clients.upload_limit import UploadLimit
from precad.mpc.ring import RingArray
from tests.clients.upload.test_repeated_invitations import Inviting, Told, pki, serving
from tests.harness.harness import Pki, asynchronous, small_task, until

__all__ = ["pki"]

T = 4
TASK = small_task(["alice", "bob"], dim=1, rounds=20, record_rate=1 / T, record_bins=T)
OWN = Records(np.arange(60, dtype=np.float32)[:, None], np.zeros(60, dtype=np.int64))


class Client:
    """Alice over several lives: what she drew in each round that she uploaded for, and why not in others."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.drawn: list[list[float]] = []
        self.skipped: list[str] = []

    def train(self, draws: RecordDraws, parameters: NDArray[np.float32]) -> RingArray:
        self.drawn.append(draws.drawn("alice", OWN).records.features[:, 0].tolist())
        return np.zeros(1, dtype=np.int64)

    async def lives(self, pki: Pki, told: Sequence[Told]) -> list[int]:
        """Live once, for these invitations of both servers. Return the rounds of the uploads."""
        servers = Inviting(told, "masked"), Inviting(told, "masked")
        draws = draws_of(TASK, self.folder, ["alice"], {})
        with structlog.testing.capture_logs() as lines:
            async with serving(pki, servers) as addresses:
                session = asyncio.create_task(
                    ClientSession(
                        client="alice",
                        task=TASK,
                        addresses=addresses,
                        tls=pki.tls("alice"),
                        train=lambda parameters: self.train(draws, parameters),
                        limit=UploadLimit("alice", TASK.digest(), most=100, file=self.folder / "alice.uploads"),
                        enter=lambda task_id, number: draws.enter("alice", task_id, number),
                    ).run()
                )
                answers = {"client.submitted", "client.skipped"}
                await until(lambda: session.done() or sum(line["event"] in answers for line in lines) == len(told))
                for server in servers:
                    server.is_over.set()
                await session
        self.skipped += [line["reason"] for line in lines if line["event"] == "client.skipped"]
        return servers[0].uploads

    def times(self) -> Counter[float]:
        """In how many uploads each record was."""
        return Counter(value for one in self.drawn for value in one)


def rounds(*numbers: int, **told: Any) -> list[Told]:
    return [{"round": number, **told} for number in numbers]


@asynchronous
async def test_a_number_is_trained_for_once_whatever_servers_ask(pki: Pki, tmp_path: Path) -> None:
    """Repeated at once, later, and after another commit: each number of the epoch is taken once."""
    alice = Client(tmp_path)
    told = [*rounds(0, 0, 1), *rounds(0, 1, n_committed=1), *rounds(2, 3, 3, 2, n_committed=2)]
    assert await alice.lives(pki, told) == [0, 1, 2, 3]
    assert alice.times() == dict.fromkeys(range(60), 1)
    assert len(alice.skipped) == 5
    assert all(why.startswith("round: expected a number above") for why in alice.skipped)


@asynchronous
async def test_a_client_killed_in_every_round_trains_for_each_number_once(pki: Pki, tmp_path: Path) -> None:
    """Eight lives, each asked for the last life's number first: two epochs, and each record once in either."""
    alice = Client(tmp_path)
    for number in range(2 * T):
        asked = rounds(*([number - 1] if number else []), number)
        assert await alice.lives(pki, asked) == [number]
    for epoch in (alice.drawn[:T], alice.drawn[T:]):
        assert sorted(value for one in epoch for value in one) == list(range(60))
    assert len(alice.skipped) == 2 * T - 1


@asynchronous
async def test_lost_rounds_leave_records_out_and_stop_nobody(pki: Pki, tmp_path: Path) -> None:
    """Numbers 1, 2 and 4 are lost before they reach the client: nobody is in two rounds, and no round is repeated."""
    alice = Client(tmp_path)
    assert await alice.lives(pki, rounds(0, 3, 5)) == [0, 3, 5]
    first = [value for one in alice.drawn[:2] for value in one]
    assert len(first) == len(set(first)) < 60
    assert alice.skipped == []


@pytest.mark.parametrize("lost", [1, 2])
@asynchronous
async def test_a_client_that_lost_its_folder_is_in_no_round_of_that_epoch(pki: Pki, tmp_path: Path, lost: int) -> None:
    alice = Client(tmp_path / "first")
    await alice.lives(pki, rounds(*range(lost)))
    before = len(alice.drawn)
    alice.folder = tmp_path / "second"
    assert await alice.lives(pki, rounds(*range(lost, 2 * T))) == list(range(T, 2 * T))
    assert len(alice.skipped) == T - lost
    assert sorted(value for one in alice.drawn[before:] for value in one) == list(range(60))
