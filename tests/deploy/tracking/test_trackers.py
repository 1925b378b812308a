"""Trackers, by their own libraries: what was written is read back, each number once, whenever writing was broken off.

Failure means one of these:
- a number that is missing, twice, of another round, or below a proved bound;
- a name of a client, of this machine, its user or its folders in what a tracker gets;
- an environment variable that sends a run elsewhere.
"""

from __future__ import annotations

import getpass
import os
import socket
import sys
from pathlib import Path

import pytest
from numpy.testing import assert_allclose

from precad.deploy.errors import ConfigError
from precad.deploy.tracking.points import points_of
from precad.deploy.tracking.scalars import Scalars
from tests.harness.tracked import NAMED, a_round, a_status, in_mlflow, in_tensorboard, in_wandb, wandb_records

TRAINING = "mine-aggregator-a-abababab"


class TensorBoard:
    """A folder of event files."""

    def __init__(self, folder, monkeypatch, training=TRAINING):
        pytest.importorskip("tensorboard")
        self._folder, self._training = folder, training

    def open(self):
        from precad.deploy.tracking.tensorboard import TensorBoardWriter

        return TensorBoardWriter(self._folder, self._training)

    def read(self):
        return in_tensorboard(self._folder / self._training)


class Mlflow:
    """A store in files, which MLflow takes when told so: its database takes some ten seconds to be made."""

    def __init__(self, folder, monkeypatch):
        pytest.importorskip("mlflow")
        monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", (folder / "elsewhere").as_uri())
        self._folder, self._uri = folder, (folder / "mlruns").as_uri()

    def open(self):
        from precad.deploy.tracking.mlflow import MlflowWriter

        return MlflowWriter(self._uri, TRAINING)

    def read(self):
        assert not (self._folder / "elsewhere").exists()
        return in_mlflow(self._uri)


class MlflowDatabase(Mlflow):
    """A store in SQLite, as `--to mlflow:sqlite:///FILE` names it."""

    def __init__(self, folder, monkeypatch):
        pytest.importorskip("sqlalchemy")
        pytest.importorskip("alembic")
        super().__init__(folder, monkeypatch)
        self._uri = f"sqlite:///{folder / 'mlflow.db'}"


class Wandb:
    """Offline runs of Weights & Biases; the environment says otherwise."""

    def __init__(self, folder, monkeypatch):
        pytest.importorskip("wandb")
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
        monkeypatch.setenv("WANDB_DIR", str(folder / "elsewhere"))
        self._folder = folder

    def open(self):
        from precad.deploy.tracking.weights_and_biases import WandbWriter

        return WandbWriter(
            self._folder, TRAINING, base_url="https://api.wandb.ai", entity=None, project="p", is_offline=True
        )

    def read(self):
        assert not (self._folder / "elsewhere").exists()
        return in_wandb(self._folder)


TRACKERS = [TensorBoard, Mlflow, pytest.param(MlflowDatabase, marks=pytest.mark.slow), Wandb]


@pytest.fixture(params=TRACKERS, ids=lambda kind: kind.__name__)
def tracker(request, tmp_path, monkeypatch):
    return request.param(tmp_path, monkeypatch)


def show(tracker, *statuses):
    """Follow these statuses in one process."""
    sink = Scalars(tracker.open())
    for status in statuses:
        sink.show(status, status.rounds, 5.0, are_new=True)
    sink.close()


def expected(status):
    return {(p.name, p.round): p.value for one in status.rounds for p in points_of(one, status.epsilons, 0.0)}


def test_each_number_is_there_once_after_starts_in_between(tracker):
    """The second start sees old rounds again, a figure that was measured since, and a new round."""
    rounds = [a_round(number) for number in range(3)]
    measured = a_round(1, quality={"accuracy": 0.625})
    show(tracker, a_status(), a_status(rounds[0]), a_status(*rounds[:2]))
    last = a_status(rounds[0], measured, rounds[2])
    show(tracker, a_status(rounds[0], measured), last)
    show(tracker, last)
    values, counts = tracker.read()
    assert set(counts.values()) == {1}
    assert values.keys() == expected(last).keys()
    for key, value in expected(last).items():
        assert_allclose(values[key], value, rtol=1e-6)
        if key[0].startswith("epsilon") and not key[0].endswith("budget_left"):
            assert values[key] >= value


def test_another_training_is_another_run(tmp_path, monkeypatch):
    trackers = [TensorBoard(tmp_path, monkeypatch, training) for training in ("mine", "another")]
    for tracker in trackers:
        show(tracker, a_status(a_round(0)))
    assert trackers[0].read() == trackers[1].read()
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "another"}


def test_an_event_that_a_crash_broke_off_is_written_again(tmp_path, monkeypatch):
    """Half of the last event is lost, and what came before it is not."""
    tracker = TensorBoard(tmp_path, monkeypatch)
    show(tracker, a_status(a_round(0)))
    (file,) = (tmp_path / TRAINING).iterdir()
    os.truncate(file, file.stat().st_size - 5)
    show(tracker, a_status(a_round(0)))
    values, counts = tracker.read()
    assert values.keys() == expected(a_status(a_round(0))).keys()
    assert set(counts.values()) == {1}


def test_a_run_of_wandb_says_nothing_of_this_machine(tmp_path, monkeypatch):
    """Its file has numbers and labels. Nobody's name, no folder, package or command is in what is to be sent."""
    tracker = Wandb(tmp_path, monkeypatch)
    show(tracker, a_status(a_round(0)))
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    (config,) = [r for r in wandb_records(file) if r.WhichOneof("record_type") == "config" and "labels" in str(r)]
    assert "drawn or not" in str(config)
    assert [path for path in (file.parent / "files").rglob("*") if path.is_file()] == []
    records = "".join(str(record) for record in wandb_records(file))
    assert NAMED not in records
    folders = (str(tmp_path), str(Path.cwd()), str(Path.home()))
    for secret in (socket.gethostname(), getpass.getuser(), Path(sys.argv[0]).name, *folders):
        assert f'"{secret}' not in records


def test_a_run_of_mlflow_has_no_tags_but_ours(tmp_path, monkeypatch):
    """Its other client would add the user, the program and its version in Git."""
    tracker = Mlflow(tmp_path, monkeypatch)
    show(tracker, a_status(a_round(0)))
    tags = [path.name for path in tmp_path.glob("mlruns/*/*/tags/**/*") if path.is_file()]
    assert len(tags) == 9
    assert {name for name in tags if name.startswith("mlflow.")} == {"mlflow.runName"}


def test_two_processes_do_not_write_one_run_of_wandb(tmp_path, monkeypatch):
    tracker = Wandb(tmp_path, monkeypatch)
    first = tracker.open()
    with pytest.raises(ConfigError, match="expected a folder that no other `precad track` uses"):
        tracker.open()
    first.close()
