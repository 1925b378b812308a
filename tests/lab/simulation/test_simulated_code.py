"""A folder holds trainings of one model. Failure means that seeds of two models are shown as those of one."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.harness.command_line import precad

MODEL = """from torch import nn


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.{})
"""
TASK = """[task]
clients = 2
rounds = 1
client_rate = 1.0
record_rate = 0.01
record_clip = 1.0
client_clip = 8.0
noise_multiplier = 4.0
learning_rate = 1.0
model = "ward_model:net"

[client]
dataset = "digits"
"""


def write_model(folder: Path, last: str) -> None:
    """Write the module, and forget the one that was imported."""
    (folder / "ward_model.py").write_text(MODEL.format(last))
    sys.modules.pop("ward_model", None)
    importlib.invalidate_caches()


def test_a_folder_is_not_continued_with_another_model_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder of an earlier version, which says no digest, goes on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "task.toml").write_text(TASK)
    write_model(tmp_path, "Tanh()")
    run = ("simulate", "task.toml", "--output", "out")
    assert precad(*run).exit_code == 0
    write_model(tmp_path, "Sigmoid()")
    refused = precad(*run, "--seeds", "2")
    assert refused.exit_code == 2
    assert "task.model_digest: expected" in refused.stderr
    assert not list((tmp_path / "out").glob("seed-1*"))
    config = tmp_path / "out" / "config.toml"
    lines = config.read_text().splitlines(keepends=True)
    config.write_text("".join(line for line in lines if not line.startswith("model_digest")))
    assert precad(*run, "--seeds", "2").exit_code == 0
    assert "model_digest" in config.read_text()
