"""Destinations that `--to` takes, and what it says otherwise; nothing is imported or opened before one is sound."""

from __future__ import annotations

import sys

import pytest

from precad.deploy.cli import main as cli
from precad.deploy.errors import ConfigError, RunFailedError
from precad.deploy.tracking.destinations import destination_of, using
from tests.harness.command_line import CliRunner

SECRET = "hunter2-of-the-operator"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tensorboard",
        "tensorboard:",
        "neptune:place",
        "mlflow:",
        "mlflow:./mlruns",
        f"mlflow:postgresql://me:{SECRET}@db/mlflow",
        f"mlflow:https://me:{SECRET}@tracking.example",
        "mlflow:http://tracking.example:5000",
        "mlflow:https://",
        "wandb:",
        "wandb:a/b/c",
        "wandb:project name",
        f"wandb:https://me:{SECRET}@host/project",
        "wandb:http://host.example/project",
        "otlp:",
        "otlp:collector:4318",
        "otlp:grpc://127.0.0.1:4317",
        "otlp:http://collector.example:4318",
        f"otlp:https://collector.example/?token={SECRET}",
        "otlp:https://collector.example:port",
    ],
)
def test_everything_else_is_refused_and_no_secret_is_repeated(text, tmp_path):
    with pytest.raises(ConfigError, match=r"--to.*: expected ") as refused:
        destination_of(text, tmp_path, is_offline=False)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "tensorboard:events",
        "mlflow:https://tracking.example/prefix",
        "mlflow:http://127.0.0.1:5000",
        "mlflow:sqlite:///mlflow.db",
        "wandb:project",
        "wandb:team/project",
        "wandb:https://wandb.example/team/project",
        "otlp:http://[::1]:4318",
        "otlp:http://localhost:4318/v1/traces",
        "otlp:https://collector.example",
    ],
)
def test_these_are_taken_without_a_look_at_them(text, tmp_path):
    assert destination_of(text, tmp_path, is_offline=False).kind == text.partition(":")[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "place"), [("tensorboard", "f"), ("mlflow", "sqlite:///f"), ("wandb", "p")])
def test_a_missing_library_is_named_with_what_installs_it(kind, place, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == kind or "deploy.tracking." in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, kind, None)
    from precad.deploy.tracking.destinations import destination_of, using

    destination = destination_of(f"{kind}:{place}", tmp_path, is_offline=True)
    said = rf"--to {kind}: expected its library.* install 'precad\[{kind}\]' from where"
    with pytest.raises(ConfigError, match=said), using(kind):
        destination.opened("mine")


def test_a_fault_of_ours_is_not_taken_for_a_trackers():
    """A traceback is what helps then; a network that fails is said in a line."""
    with pytest.raises(KeyError), using("wandb"):
        raise KeyError("ours")
    with pytest.raises(RunFailedError, match="wandb: no route"), using("wandb"):
        raise OSError("no route\nand more")


def test_the_command_says_what_it_takes():
    done = CliRunner().invoke(cli.app, ["track", "--to", "neptune:place"], terminal_width=200)
    assert done.exit_code == 2
    assert "--to: expected tensorboard:FOLDER, mlflow:URL" in done.stderr
