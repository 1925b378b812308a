"""C of evaluations by clients, chosen from what they hold out: in runs and simulations, never in the text of a task."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.records.holdout import is_kept_aside
from precad.clients.records.records import Records
from precad.deploy.configuration.check_records import local_records
from precad.deploy.configuration.demo import demo_config
from precad.deploy.configuration.evaluation_clip import clip_advice, most_held_out
from precad.deploy.configuration.local import resolve
from precad.deploy.run_files.folder import RunFolder
from precad.dp.accountants.pld import View
from precad.dp.task_privacy import task_privacy
from precad.lab.simulation import simulate
from precad.protos.task.task import Task
from tests.harness.harness import small_task

EVALUATED = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 40.0}


def config(task: dict[str, Any], **client: Any) -> dict[str, Any]:
    """Return a local run of four clients."""
    raw = demo_config(n_clients=4)
    raw["task"] |= EVALUATED | task
    raw["client"] = client
    return raw


def resolved(raw: dict[str, Any]) -> Task:
    """Return the task that a local run makes of it."""
    return resolve(raw, RunFolder(Path("/nowhere/run")))[1].task


@pytest.mark.parametrize("holdout", [0.1, 0.5, 0.75])
def test_clients_hold_out_as_many_as_is_said(holdout: float) -> None:
    """By the hash itself, over 20,000 records: within five standard deviations of the binomial."""
    features = np.arange(20_000, dtype=np.float32)[:, None]
    kept = is_kept_aside(Records(features, np.zeros(20_000, np.int64)), holdout, 0)
    n_trained, n_held = int((~kept).sum()), int(kept.sum())
    slack = 5 * math.sqrt(20_000 * holdout * (1 - holdout)) / (1 - holdout)
    assert most_held_out([3, n_trained], holdout) == pytest.approx(n_held, abs=slack + 1)


def test_a_local_run_and_a_simulation_write_it_into_the_task() -> None:
    """A fifth is held out where nothing is said; more than the half is more than is declared."""
    found = resolved(config({}))
    most = max(found.clients.values())
    assert found.evaluation_clip == math.ceil(most / 4)
    assert simulate.resolve(config({})).task.evaluation_clip == found.evaluation_clip
    assert resolved(config({}, holdout=0.75)).evaluation_clip > most / 4 * 3
    said = local_records(config({}), Path("/nowhere"))["evaluation"]
    assert f"{found.evaluation_clip:g} of a client count fully" in said


def test_what_a_configuration_says_stays() -> None:
    """Its own C; a table of clients, as in a run folder; and a foreign trainer, whose records are not known."""
    assert resolved(config({"evaluation_clip": 77.0})).evaluation_clip == 77.0
    declared = resolved(config({})).clients
    assert resolved(config({"clients": dict(declared)})).evaluation_clip is None
    foreign = config({"algorithm": "user-dp-fedavg"}, trainer="mine:train")
    assert resolved(foreign).evaluation_clip is None


def test_a_task_without_it_means_what_it_meant() -> None:
    """Its text has no C, its evaluations have the most that a client declares, whatever clients hold out."""
    task = small_task(**EVALUATED, clients={"anna": 400, "bert": 1000, "cleo": 30})
    assert "evaluation_clip" not in task.canonical()
    assert task.evaluation_round is not None
    assert task.evaluation_round.client_clip == 1000.0


def test_others_are_told_what_would_do() -> None:
    """Where C is not said and is larger than needed; and following the advice costs a whole client less."""
    task = small_task(**EVALUATED, clients={"anna": 400, "bert": 1000})
    said = clip_advice(task, 0.2)
    assert "C is 1000, the most that a client declares" in said
    assert "evaluation_clip = 250" in said
    chosen = small_task(**EVALUATED, evaluation_clip=250.0, clients={"anna": 400, "bert": 1000})
    for silent, holdout in ((chosen, 0.2), (task, None), (task, 0.0), (task, 0.6), (small_task(), 0.2)):
        assert clip_advice(silent, holdout) == ""
    client = {"algorithm": "user-dp-fedavg", "client_clip": 1.0}
    costs = []
    for clip in (None, 250.0):
        whole = small_task(**EVALUATED, **client, evaluation_clip=clip, clients={"anna": 400, "bert": 1000})
        costs.append(task_privacy(whole).epsilon(View.ONE_SERVER, whole.rounds_of_a_client, whole.delta))
    assert costs[1] < costs[0]
