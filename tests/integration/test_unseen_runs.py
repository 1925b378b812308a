"""Runs that are over before the runner has joined the servers, as short ones are on a busy machine.

Failure means that a user waits for two minutes, and is told that a server was lost, of a task that ended well.
"""

from __future__ import annotations

import asyncio
import io
import json
import signal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import grpc
import numpy as np
import pytest
import torch
from rich.console import Console

from precad.deploy.errors import RunFailedError
from precad.deploy.localhost import observing
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.run_files.state import RunState, state_of
from precad.protos.tls.identity import Role

TASK = {
    "clients": 2,
    "rounds": 2,
    "client_rate": 1.0,
    "record_rate": 0.5,
    "record_clip": 1.0,
    "client_clip": 8.0,
    "noise_multiplier": 1.0,
    "learning_rate": 0.1,
    "mode": "proved",
}


def elsewhere(joined: tuple[Role, ...]) -> Any:
    """Have the runner's connections to all other servers than these lead nowhere."""
    dial = observing.dial

    def dialled(address: str, role: Role, *others: Any) -> grpc.aio.Channel:
        return dial(address if role in joined else "127.0.0.1:9", role, *others)

    return patch.object(observing, "dial", dialled)


@pytest.mark.parametrize("joined", [(), (Role.AGGREGATOR_A,)])
def test_a_run_that_nobody_saw_ends_as_one_that_was_seen(joined: tuple[Role, ...], tmp_path: Path) -> None:
    """The runner's other connections lead nowhere. Its files are those of both servers all the same."""
    run = LocalRun({"task": TASK}, tmp_path / "run", Console(file=io.StringIO(), width=100))
    with elsewhere(joined):
        summary = asyncio.run(asyncio.wait_for(run.run(), observing.START_TIMEOUT_S))
    assert (summary["rounds"], state_of(tmp_path / "run")) == (2, RunState.FINISHED)
    lines = [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1]
    assert lines[-1]["accuracy"] is not None
    models = [np.load(run.folder.state_dir(letter) / "model.npy") for letter in "ab"]
    final = torch.load(run.folder.root / "model.pt", weights_only=True)
    assert np.array_equal(np.concatenate([one.numpy().ravel() for one in final.values()]), models[0])
    assert np.array_equal(*models)
    assert summary["realised_epsilon_one_server"] == pytest.approx(lines[-1]["epsilon_one_server"], rel=1e-6)


def test_servers_that_leave_in_peace_before_the_task_is_over_end_the_run_at_once(tmp_path: Path) -> None:
    """An operator stops both (SIGTERM), which is no error of theirs."""
    task = TASK | {"rounds": 10_000, "lost_rounds": 10}
    run = LocalRun({"task": task}, tmp_path / "run", Console(file=io.StringIO(), width=100))

    async def stopped() -> None:
        running = asyncio.create_task(run.run())
        while not all((run.folder.state_dir(letter) / "rounds.jsonl").exists() for letter in "ab"):
            assert not running.done()
            await asyncio.sleep(0.05)
        for child in run._children.all:
            if child.name in {Role.AGGREGATOR_A, Role.AGGREGATOR_B}:
                child.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(running, observing.START_TIMEOUT_S)

    with (
        elsewhere(()),
        pytest.raises(RunFailedError, match="both aggregators ended, and no file of theirs says that the task is over"),
    ):
        asyncio.run(stopped())
