"""Deployments of Krum and multi-Krum: attackers within C, a dealer and a server B that deviate, and what runs say.

Failure means one of these:
- a model that moves by an update that the rule leaves out;
- a sum that is opened although a server's or the dealer's words do not fit;
- a run that does not say what it releases.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from structlog.testing import capture_logs

from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.reporting.guarantees import guarantees_of, sentence
from precad.deploy.reporting.run_folder import read_deployed
from precad.mpc.errors import MalformedMessageError
from precad.mpc.tuples.held import Dealt
from precad.protos.task.task import Task
from tests.harness.harness import AGGREGATORS, asynchronous, small_task
from tests.integration.deviating_robust import (
    attacked,
    committed,
    other_trims,
    require_no_model_by_a_lying_dealer,
    require_the_end_of_a_paid_task_without_a_sum,
)
from tests.integration.test_deviating_server import entries, update

CLIENTS = ("alice", "bob", "carol", "dave")
LENGTHS = {"alice": 0.10, "bob": 0.11, "carol": 0.12, "dave": -0.9}
"""Lie along one line, in units of C: a score adds up two distances, and bob's is the least."""


def task_of(clients: Sequence[str] = CLIENTS, **changes: Any) -> Task:
    fields = {"gate": "native", "krum_attackers": 0, "learning_rate": 1.0, "noise_multiplier": 0.0}
    return small_task(clients, algorithm="krum", rounds=2, lost_rounds=3, batches_ahead=0, **fields | changes)


@pytest.mark.parametrize("gate", ["native", "crypten"])
@asynchronous
async def test_a_model_moves_by_the_update_of_least_score_alone(gate: str, tmp_path: Path) -> None:
    """Over gRPC and TLS, two rounds of four clients, of whom one is far away and within C."""
    task = task_of(gate=gate)
    async with attacked(task, tmp_path, LENGTHS) as servers:
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
    with capture_logs() as logs:
        async with attacked(task, tmp_path, BESIDE_A_BOUND) as servers:
            await servers.finish()
    expected = 2 * np.ldexp(update(task, BESIDE_A_BOUND[chosen]).astype(np.float64), -task.frac_bits)
    for role in AGGREGATORS:
        assert np.load(tmp_path / role / "model.npy") == pytest.approx(expected, rel=1e-6)
    (first, *_) = entries(tmp_path, "validated")
    accepted = [client for client, length in BESIDE_A_BOUND.items() if length <= clip]
    assert sorted(first["accepted"]) == accepted
    said = [log for log in logs if log["event"] == "round.below_krums_guarantee"]
    assert len(said) == (4 if len(accepted) < 3 else 0)  # by both servers, in both rounds
    assert all((log["accepted"], log["needed"]) == (len(accepted), 3) for log in said)


def fewer_pairs(b: Dealt) -> Dealt:
    return replace(b, pairs=b.pairs[:-1])


def more_pairs(b: Dealt) -> Dealt:
    return replace(b, pairs=np.append(b.pairs, np.int64(0)))


@pytest.mark.parametrize("change", [fewer_pairs, more_pairs, other_trims])
@asynchronous
async def test_no_model_moves_by_what_a_dealer_makes_up(change: Callable[[Dealt], Dealt], tmp_path: Path) -> None:
    """Words of another number are refused before a round, others with the sum that they make."""
    await require_no_model_by_a_lying_dealer(task_of(), tmp_path, LENGTHS, change, sum_of="", words="pairs")


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
    error = await require_the_end_of_a_paid_task_without_a_sum(
        task_of(), tmp_path, LENGTHS, step, lambda payload: payload[:-1]
    )
    assert isinstance(error, MalformedMessageError)
    assert "bytes" in str(error)


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
