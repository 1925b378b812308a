"""Deployments of Krum and multi-Krum: attackers within C, a dealer and a server B that deviate, and what runs say.

Failure means one of these:
- a model that moves by an update that the rule leaves out;
- a sum that is opened although a server's or the dealer's words do not fit;
- a run that does not say what it releases.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from rich.console import Console

from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.reporting.deployed import read_deployed
from precad.deploy.reporting.guarantees import guarantees_of, sentence
from precad.mpc.channel import Prefixed
from precad.mpc.errors import MalformedMessageError
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, Dealt
from precad.protos.task.task import Task
from precad.servers import dealer as dealer_module
from precad.servers.errors import TaskRefusedError
from precad.servers.store.folder import open_task_store
from tests.harness.harness import AGGREGATORS, asynchronous, small_task
from tests.integration.deviating import deviating_b
from tests.integration.test_deviating_server import charges, deployment, end_of_a, entries, update

CLIENTS = ("alice", "bob", "carol", "dave")
LENGTHS = {"alice": 0.10, "bob": 0.11, "carol": 0.12, "dave": -0.9}
"""Lie along one line, in units of C: a score adds up two distances, and bob's is the least."""


def task_of(clients: Sequence[str] = CLIENTS, **changes: Any) -> Task:
    fields = {"gate": "native", "krum_attackers": 0, "learning_rate": 1.0, "noise_multiplier": 0.0}
    return small_task(clients, algorithm="krum", rounds=2, lost_rounds=3, batches_ahead=0, **fields | changes)


@contextlib.asynccontextmanager
async def attacked(task: Task, folder: Path, lengths: Mapping[str, float] = LENGTHS) -> AsyncIterator[Any]:
    """Three servers and the clients."""
    vectors = {client: update(task, length) for client, length in lengths.items()}
    async with deployment(task, folder, vectors=vectors) as (servers, _):
        yield servers


def committed(task: Task, folder: Path) -> list[int]:
    """Return the rounds that server A released."""
    initial = np.zeros(task.dim, dtype=np.float32).tobytes()
    with open_task_store(folder / AGGREGATORS[0], task, initial) as store:
        return [one.number for one in store.committed()]


@pytest.mark.parametrize("gate", ["native", "crypten"])
@asynchronous
async def test_a_model_moves_by_the_update_of_least_score_alone(gate: str, tmp_path: Path) -> None:
    """Over gRPC and TLS, two rounds of four clients, of whom one is far away and within C."""
    task = task_of(gate=gate)
    async with attacked(task, tmp_path) as servers:
        await servers.finish()
    expected = 2 * np.ldexp(update(task, LENGTHS["bob"]).astype(np.float64), -task.frac_bits)
    for role in AGGREGATORS:
        assert np.load(tmp_path / role / "model.npy") == pytest.approx(expected, rel=1e-6)
    assert committed(task, tmp_path) == [0, 1]
    (first, *_) = entries(tmp_path, "validated")
    assert sorted(first["accepted"]) == sorted(CLIENTS)  # who was chosen is in no record


BESIDE_A_BOUND = {"alice": 0.24, "bob": 0.29, "carol": 0.20, "dave": 0.31, "erin": -0.20, "frank": 0.31}
"""Among all six, bob's score is the least; among those up to 0.3 C, alice's."""


@pytest.mark.parametrize(("clip", "chosen"), [(0.3, "alice"), (0.31, "bob")])
@asynchronous
async def test_krum_chooses_among_the_updates_in_a_convex_set(clip: float, chosen: str, tmp_path: Path) -> None:
    """Updates beyond a layer's bound, with which the rule would choose another, have no part in any score."""
    task = task_of(tuple(BESIDE_A_BOUND), layer_sizes=[1, 23], layer_clips=[clip, 1.0])
    async with attacked(task, tmp_path, BESIDE_A_BOUND) as servers:
        await servers.finish()
    expected = 2 * np.ldexp(update(task, BESIDE_A_BOUND[chosen]).astype(np.float64), -task.frac_bits)
    for role in AGGREGATORS:
        assert np.load(tmp_path / role / "model.npy") == pytest.approx(expected, rel=1e-6)
    (first, *_) = entries(tmp_path, "validated")
    assert sorted(first["accepted"]) == [client for client, length in BESIDE_A_BOUND.items() if length <= clip]


def fewer_pairs(b: Dealt) -> Dealt:
    return replace(b, pairs=b.pairs[:-1])


def more_pairs(b: Dealt) -> Dealt:
    return replace(b, pairs=np.append(b.pairs, np.int64(0)))


def other_trims(b: Dealt) -> Dealt:
    """Corrections that fit in their number alone."""
    words = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, size=b.trims.size)
    return replace(b, trims=words.astype(np.int64))


@pytest.mark.parametrize("change", [fewer_pairs, more_pairs, other_trims])
@asynchronous
async def test_no_model_moves_by_what_a_dealer_makes_up(change: Callable[[Dealt], Dealt], tmp_path: Path) -> None:
    """Words of another number are refused before a round, others with the sum that they make."""
    task = task_of()

    def lying(shape: BatchShape, random_bytes: Any) -> tuple[Dealt, Dealt]:
        a, b = deal(shape, random_bytes)
        return a, change(b)

    with patch.object(dealer_module, "deal", lying):
        async with attacked(task, tmp_path) as servers:
            (ended, *_), _ = await asyncio.wait(servers._runs[1:], return_when=asyncio.FIRST_COMPLETED)
            error = ended.exception()
    if change is other_trims:
        assert isinstance(error, TaskRefusedError)
        assert "opened sum: expected accepted updates" in str(error)
        assert charges(tmp_path)
    else:
        assert any(why in str(error) for why in ("pairs of a batch must have", "corrections exceed"))
        assert not charges(tmp_path)
    assert committed(task, tmp_path) == []


class Shortens(Prefixed):
    """A round's channel that leaves out the last byte of one step, and takes the other server's whole message."""

    def __init__(self, channel: Any, step: str) -> None:
        super().__init__(channel._inner, channel._prefix)
        self._step = step

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `Channel.exchange`."""
        if label == self._step:
            return super().exchange(label, payload[:-1], len(payload) if at_most is None else at_most)
        return super().exchange(label, payload, at_most)


@pytest.mark.parametrize(
    "step",
    [
        "robust/krum/distances/gate/blocks",
        "robust/krum/distances/bits",
        "robust/krum/choose",
        "robust/krum/scores/bits",
        "robust/krum/keep",
    ],
)
@asynchronous
async def test_a_message_that_does_not_fit_ends_the_task_paid_and_without_a_sum(step: str, tmp_path: Path) -> None:
    task = task_of()
    with deviating_b(lambda channel: Shortens(channel, step)):
        async with attacked(task, tmp_path) as servers:
            error = await end_of_a(servers)
    assert isinstance(error, MalformedMessageError)
    assert "bytes" in str(error)
    assert charges(tmp_path) == {0: sorted(CLIENTS)}
    assert committed(task, tmp_path) == []
    assert entries(tmp_path, "validated") == []  # nothing of a sum had left


@pytest.mark.slow
def test_a_run_with_attackers_over_processes_says_what_it_releases(tmp_path: Path) -> None:
    """`precad run`: two of seven clients flip their updates' signs. Summary, page and logs state the leak."""
    task = {
        "algorithm": "multi-krum", "clients": [f"c{i}" for i in range(7)], "rounds": 2, "client_rate": 1.0,
        "record_rate": 1.0, "record_clip": 1.0, "client_clip": 2.0, "noise_multiplier": 0.0, "learning_rate": 1.0,
        "gate": "native", "krum_attackers": 2,
    }  # fmt: skip
    attacks = {"attacks": {"c5": "sign-flip", "c6": "sign-flip"}}
    console, folder = Console(file=io.StringIO(), width=400), tmp_path / "run"
    config = {"task": task, "client": attacks, "localhost": {"clients_per_process": 4}}
    summary = asyncio.run(LocalRun(config, folder, console).run())
    stated = "not differentially private: a round releases the sum of all but 2 clients' updates, without noise"
    assert (summary["accepted"], summary["rejected"]) == (14, 0)  # attackers within C have good verdicts
    assert [stated in text for text in summary["rests_on"]] == [True] * len(summary["rests_on"])
    assert stated in console.file.getvalue()  # type: ignore[attr-defined]
    assert [summary[f"realised_epsilon_{view}"] for view in ("one_server", "clients_only")] == ["inf", "inf"]
    run = read_deployed(folder)
    assert stated in sentence(run, "none")
    assert sum(stated in one.rests_on for one in guarantees_of(run, "none")) == 2  # of both views
    logs = "".join(path.read_text() for path in folder.rglob("*.log"))
    for event in ("aggregator.releases_updates", "client.releases_updates"):
        assert event in logs
    assert json.loads((folder / "summary.json").read_text())["rests_on"] == summary["rests_on"]
