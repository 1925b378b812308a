"""Trainings side by side: the bits of one after the other, and errors that arrive."""

from __future__ import annotations

import csv
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tomli_w

from precad.lab.simulation.workers import _join
from tests.harness.command_line import precad
from tests.harness.examples import IS_THOROUGH
from tests.harness.waiting import is_running, wait_for
from tests.lab.simulation.test_simulate import SMALL


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workers") / "small.toml"
    path.write_text(tomli_w.dumps(SMALL))
    return path


def models(folder: Path) -> list[bytes]:
    """The final models of seeds 0, 1 and 2."""
    return [np.load(folder / f"seed-{seed}.npz")["parameters"].tobytes() for seed in range(3)]


@pytest.fixture(scope="module")
def one_after_the_other(config: Path) -> list[bytes]:
    done = precad("simulate", config, "--seeds", 3, "--output", config.parent / "alone")
    assert done.exit_code == 0, done.output
    return models(config.parent / "alone")


@pytest.mark.parametrize(
    "where",
    [
        pytest.param([], id="processes", marks=pytest.mark.slow),  # the next test's workers also go on
        pytest.param(
            ["--ray", "local"],
            id="ray",
            marks=[
                pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
                pytest.mark.flaky(reason="Ray's own server sometimes writes its port later than Ray waits for it"),
            ],
        ),
    ],
)
def test_workers_give_the_same_models(
    where: list[str], config: Path, tmp_path: Path, one_after_the_other: list[bytes]
) -> None:
    done = precad("simulate", config, "--seeds", 3, "--workers", 2, *where, "--output", tmp_path / "beside")
    assert done.exit_code == 0, done.output
    assert len(set(one_after_the_other)) == 3
    assert models(tmp_path / "beside") == one_after_the_other


def test_workers_go_on_where_a_run_stopped(config: Path, tmp_path: Path, one_after_the_other: list[bytes]) -> None:
    """Where this process stopped; by default it does not start workers twice."""
    for rounds, workers in ((2, 2 if IS_THOROUGH else 1), (6, 2)):
        arguments = ("--rounds", rounds, "--seeds", 3, "--workers", workers, "--output", tmp_path / "halted")
        assert precad("simulate", config, *arguments).exit_code == 0
    assert models(tmp_path / "halted") == one_after_the_other


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="who started whom is read from Linux's /proc")
def test_workers_end_soon_after_who_started_them_was_killed(tmp_path: Path) -> None:
    long = tmp_path / "long.toml"
    long.write_text(tomli_w.dumps({**SMALL, "task": {**SMALL["task"], "rounds": 10**6}}))
    command = ("simulate", long, "--seeds", 2, "--workers", 2, "--output", tmp_path / "run")
    starter = subprocess.Popen(
        [sys.executable, "-P", "-m", "precad.deploy.cli.main", *map(str, command)], stderr=subprocess.DEVNULL
    )
    try:
        logs = [tmp_path / f"run/seed-{seed}.jsonl" for seed in range(2)]
        wait_for("both seeds have begun", lambda: all(log.exists() for log in logs), within_s=120)
        children = Path(f"/proc/{starter.pid}/task/{starter.pid}/children").read_text().split()
    finally:
        starter.kill()
        starter.wait()
    assert len(children) >= 2
    wait_for("workers have ended", lambda: not any(is_running(int(child)) for child in children), within_s=30)


@pytest.mark.slow
def test_an_experiment_comes_to_the_same_with_workers(tmp_path: Path) -> None:
    """Every evaluation and every model, to the bit, of trainings that this process has begun."""
    pytest.importorskip("matplotlib")
    arguments = ("experiment", "precad-backdoor", "--dataset", "digits", "--model", "mlp", "--attackers", 3)
    small = (*arguments, "--seeds", 2, "--threads", 1)
    for name, rounds, workers in (("alone", 3, 1), ("beside", 1, 1), ("beside", 3, 2)):
        done = precad(*small, "--rounds", rounds, "--workers", workers, "--output", tmp_path / name)
        assert done.exit_code == 0, done.output
    alone, beside = (
        {
            path.relative_to(tmp_path / name): np.load(path)["parameters"].tobytes()
            for path in (tmp_path / name).glob("*/seed-*.npz")
        }
        for name in ("alone", "beside")
    )
    assert len(alone) == 14
    assert all(alone[path] != alone[path.with_name("seed-1.npz")] for path in alone if path.name == "seed-0.npz")
    assert alone == beside
    reports = [json.loads((tmp_path / name / "report.json").read_text()) for name in ("alone", "beside")]
    assert [report.pop("output") for report in reports] == [str(tmp_path / "alone"), str(tmp_path / "beside")]
    assert reports[0] == reports[1]
    rows = []
    for name in ("alone", "beside"):
        with (tmp_path / name / "curves.csv").open(newline="") as file:
            rows.append([row for row in csv.DictReader(file) if row["round"] != "1"])
    assert rows[0] == rows[1]


def test_an_error_in_a_worker_is_told_like_any_other(config: Path, tmp_path: Path) -> None:
    folder = tmp_path / "damaged"
    assert precad("simulate", config, "--seeds", 2, "--output", folder).exit_code == 0
    (folder / "seed-1.npz").write_bytes(b"no zip")
    done = precad("simulate", config, "--seeds", 2, "--workers", 2, "--output", folder)
    assert done.exit_code == 2
    assert "expected a training to go on with" in done.stderr
    assert "seed-1.npz" in done.stderr


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
def test_a_cluster_that_does_not_answer_is_told_at_once(config: Path, tmp_path: Path) -> None:
    done = precad("simulate", config, "--ray", "127.0.0.1:1", "--output", tmp_path / "run")
    assert done.exit_code == 2
    assert 'expected "local", "auto" or HOST:PORT of a cluster that answers, found \'127.0.0.1:1\'' in done.stderr


class _SlowRay:
    """A Ray whose node comes up at the given attempt."""

    def __init__(self, *, comes_up_at: int) -> None:
        self.comes_up_at = comes_up_at
        self.attempts = 0

    def init(self, **_settings: object) -> None:
        self.attempts += 1
        if self.attempts < self.comes_up_at:
            raise RuntimeError("Timed out waiting for file")

    def shutdown(self) -> None:
        pass


@pytest.mark.parametrize(
    ("address", "comes_up_at", "attempts"), [("local", 1, 1), ("local", 2, 2), ("local", 3, None), ("auto", 2, None)]
)
def test_a_local_cluster_is_started_a_second_time_and_no_other(
    address: str, comes_up_at: int, attempts: int | None
) -> None:
    ray = _SlowRay(comes_up_at=comes_up_at)
    if attempts is None:
        with pytest.raises(RuntimeError):
            _join(ray, address)
    else:
        _join(ray, address)
        assert ray.attempts == attempts


def test_without_ray_the_command_says_what_installs_it(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    done = precad("simulate", config, "--ray", "local", "--output", tmp_path / "run")
    assert done.exit_code == 2
    assert 'install "precad[scale]" from where precad came from' in done.stderr
