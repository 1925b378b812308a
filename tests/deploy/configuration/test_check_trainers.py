"""`precad check` and `run` of foreign trainers: they are loaded as at a start, and this kernel's walls are named."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from rich.console import Console

from precad.clients.errors import ArgumentError, TrainerError
from precad.deploy.configuration.check import check_file
from precad.deploy.configuration.demo import demo_config
from precad.deploy.configuration.sections import read_local
from precad.deploy.localhost.deployment import LocalRun

WARD = """print('record of a patient')
number = 3
def train(arrays, settings): raise RuntimeError
def nothing(): pass
"""
TWO_THREADS = """#!/bin/sh
exec {python} -I -B -c '
import runpy, sys, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")' "$3" "$4" "$5" "$6"
"""
"""The kernel gives a process of two threads no namespace of users."""


def local_run(folder: Path, *, task: Any = (), **client: Any) -> Path:
    """Write a local run with a trainer, which is not asked to train."""
    (folder / "ward.py").write_text(WARD)
    raw = demo_config(n_clients=3, rounds=2)
    raw["task"] |= {"algorithm": "user-dp-fedavg", "client_clip": 0.5, "noise_multiplier": 3.0, "client_rate": 1.0}
    raw["task"] |= dict(task)
    raw["client"].pop("attacks")
    raw["client"] |= {"trainer": "ward:train", **client}
    (folder / "run.toml").write_text(tomli_w.dumps(raw))
    return folder / "run.toml"


def two_threads(folder: Path) -> str:
    """Write an interpreter without namespaces."""
    (folder / "python").write_text(TWO_THREADS.format(python=sys.executable))
    (folder / "python").chmod(0o755)
    return str(folder / "python")


def test_a_missing_wall_is_named(tmp_path: Path) -> None:
    """Also for a client whose configuration says that it starts all the same."""
    printed, python = tmp_path / "printed", two_threads(tmp_path)
    config = local_run(tmp_path, trainer_python=python, trainer_isolation="best-effort", trainer_output=str(printed))
    found = check_file(config)
    assert not printed.exists()  # a check changes nothing
    walls = "network + other processes + keys + writing to files + writing to named pipes + sockets that others make"
    assert found["trainer"].startswith(f"ward:train, NOT from {walls}")


def test_what_the_start_refuses_is_refused(tmp_path: Path) -> None:
    """Without namespaces, where they are required, as they are by default."""
    with pytest.raises(TrainerError, match="grants no namespaces"):
        check_file(local_run(tmp_path, trainer_python=two_threads(tmp_path)))


@pytest.mark.parametrize(
    ("trainer", "why"),
    [
        ("absent:train", "no module 'absent', looked in "),
        ("ward:absent", "its module has no such name"),
        ("ward:number", "it cannot be called"),
        ("ward:nothing", "it does not take"),
        ("nvflare:absent.py", "no such file in "),
    ],
)
def test_a_trainer_that_does_not_load_is_refused_before_a_run_makes_its_folder(
    tmp_path: Path, trainer: str, why: str
) -> None:
    """By the check and by the run, in the same words: a folder that was left behind would refuse the next run."""
    config = local_run(tmp_path, trainer=trainer, trainer_isolation="best-effort")
    with pytest.raises(TrainerError, match=f"found '{trainer}': loading: {why}") as refused:
        check_file(config)
    with pytest.raises(TrainerError) as refused_too:
        LocalRun(read_local(config), tmp_path / "run", Console(file=io.StringIO()))
    assert str(refused.value) == str(refused_too.value)
    assert not (tmp_path / "run").exists()


def test_a_trainer_that_cannot_evaluate_is_refused_by_the_check(tmp_path: Path) -> None:
    """Where the task's clients evaluate models, as at the client's start."""
    evaluates = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 40.0}
    with pytest.raises(ArgumentError, match="expected one that evaluates models"):
        check_file(local_run(tmp_path, task=evaluates, trainer_isolation="best-effort"))
