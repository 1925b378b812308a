"""One server deviates at the end of a round: it says another sum, model or evaluation, or adds more than noise.

Failure means: a server goes on from a model that the other one does not hold, or takes in numbers that no clients gave.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.mpc.channel import MemoryChannel
from precad.mpc.errors import PeerMismatchError
from precad.servers.errors import TaskRefusedError
from precad.servers.store.rounds import CommittedRound, EvaluatedRound
from tests.harness.harness import asynchronous, small_task
from tests.servers.rounds.test_round import both_servers

TASK = small_task(rounds=1, batches_ahead=0, evaluation="clients", evaluation_every=1, evaluation_noise=5.0)
STEPS = ("model", "evaluation")
"""The last step of round 0, which is of the training, and of round 1, the evaluation of its model."""


def silent(std: float, dim: int) -> NDArray[np.int64]:
    """Add nothing."""
    return np.zeros(dim, dtype=np.int64)


async def outcomes(folder: Path, *, n_rounds: int, noise: Any = silent) -> tuple[list[Any], list[Any]]:
    """Return what became of the last round at A and at B, to which no client came, and what each holds then."""
    async with both_servers(TASK, folder, noise=noise) as servers:
        for t in range(n_rounds):
            ran = (server.runner.run_round(t) for server in servers)
            found = await asyncio.gather(*ran, return_exceptions=t == n_rounds - 1)
        return list(found), [server.state.store.evaluations() for server in servers]


@pytest.mark.parametrize("deviating", [0, 1])
@pytest.mark.parametrize("n_rounds", [1, 2], ids=STEPS)
@asynchronous
async def test_a_server_that_says_another_outcome_ends_the_task(
    n_rounds: int, deviating: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the honest server alone, since it deviates in what it says alone."""
    swap = MemoryChannel._swap

    def says_another(channel: MemoryChannel, label: str, payload: bytes, *more: Any, **named: Any) -> bytes:
        if channel.party == deviating and label.endswith(f"/{n_rounds - 1}/{STEPS[n_rounds - 1]}"):
            payload = bytes([payload[0] ^ 1]) + payload[1:]
        return swap(channel, label, payload, *more, **named)

    monkeypatch.setattr(MemoryChannel, "_swap", says_another)
    found, _ = await outcomes(tmp_path, n_rounds=n_rounds)
    assert isinstance(found[deviating], (CommittedRound, EvaluatedRound)[n_rounds - 1])
    error = found[1 - deviating]
    assert isinstance(error, PeerMismatchError)
    assert str(error).startswith(("model after the round", "evaluation of the model")[n_rounds - 1])


@pytest.mark.parametrize("deviating", [0, 1])
@pytest.mark.parametrize("n_rounds", [1, 2], ids=STEPS)
@asynchronous
async def test_a_server_that_shows_another_share_of_the_sum_ends_the_task(
    n_rounds: int, deviating: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At both: each has opened a sum of its own, and none of the two is what the other server holds."""
    swap = MemoryChannel._swap

    def shows_another(channel: MemoryChannel, label: str, payload: bytes, *more: Any, **named: Any) -> bytes:
        if channel.party == deviating and label.endswith(f"/{n_rounds - 1}/noisy sum"):
            payload = bytes([payload[0] ^ 1]) + payload[1:]
        return swap(channel, label, payload, *more, **named)

    monkeypatch.setattr(MemoryChannel, "_swap", shows_another)
    found, _ = await outcomes(tmp_path, n_rounds=n_rounds)
    expected = ("model after the round", "evaluation of the model")[n_rounds - 1]
    assert all(isinstance(error, PeerMismatchError) and str(error).startswith(expected) for error in found)


@pytest.mark.parametrize("n_rounds", [1, 2], ids=STEPS)
@asynchronous
async def test_a_sum_that_is_longer_than_clients_and_noise_allow_is_taken_in_by_nobody(
    n_rounds: int, tmp_path: Path
) -> None:
    """Servers that add more than their noise bring it about, by little: three were drawn, and none was accepted."""
    of_round = TASK if n_rounds == 1 else TASK.evaluation_round
    assert of_round is not None

    def too_loud(std: float, dim: int) -> NDArray[np.int64]:
        of_server = silent(std, dim)
        of_server[0] = int(0.505 * of_round.sum_bound(0)) if dim == of_round.dim else 0
        return of_server

    found, evaluated = await outcomes(tmp_path, n_rounds=n_rounds, noise=too_loud)
    assert [type(error) for error in found] == [TaskRefusedError] * 2
    assert all(str(error).startswith("opened sum") for error in found)
    assert evaluated == [[], []]


@asynchronous
async def test_servers_that_add_nothing_take_in_the_evaluation(tmp_path: Path) -> None:
    """Without a word too many, the same two evaluate."""
    found, evaluated = await outcomes(tmp_path, n_rounds=2)
    assert [record.noisy_sum for record in found] == [(0, 0, 0)] * 2
    assert [[record.number for record in of_one] for of_one in evaluated] == [[1], [1]]
