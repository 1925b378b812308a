"""An unmodified Flower ClientApp, in an interpreter that need not have precad, answers as its own code computes."""

from __future__ import annotations

import stat
import sys

import numpy as np
import pytest
import structlog
import torch
from numpy.testing import assert_allclose
from torch import nn
from torch.nn import functional

from precad.clients.errors import TrainerError
from precad.clients.external.arrays import ModelArrays
from precad.clients.external.kept_state import KeptState
from precad.clients.external.program import Program
from precad.clients.external.trainer import ExternalTrainer
from tests.harness.flower import APP, flower_python, write_app

START = np.linspace(-0.1, 0.1, 650, dtype=np.float32)


@pytest.fixture
def app(tmp_path):
    """Make a trainer of the app's module; all are closed at the end."""
    made = []
    python = flower_python()
    write_app(tmp_path / "app", 2)

    def make(module, **changes):
        program = Program(
            kind="flower",
            path=f"ward.{module}:app",
            folder=tmp_path / "app",
            python=python,
            node={"partition-id": 1, "num-partitions": 2},
            message={"local-steps": 1, "lr": 0.1},
            timeout_s=60.0,
            is_isolation_required=False,
            **changes,
        )
        made.append(ExternalTrainer(program, ModelArrays.of(nn.Linear(64, 10)), "alice"))
        return made[-1]

    yield make
    for one in made:
        one.close()


def expected(folder, monkeypatch, epochs):
    """Return what the app's own function gives in this process, which forgets the app."""
    monkeypatch.syspath_prepend(str(APP))
    for name in ("ward", "ward.task"):
        sys.modules.pop(name, None)
    from ward.task import load_data, train_epochs

    for name in ("ward", "ward.task"):
        del sys.modules[name]
    arrays = {"weight": START[:640].reshape(10, 64).copy(), "bias": START[640:].copy()}
    train_epochs(arrays, *load_data(folder / "records", 1), 0.5, epochs)
    return np.concatenate([arrays["weight"].reshape(-1), arrays["bias"]])


@pytest.mark.parametrize(("module", "epochs"), [("client_app", 3), ("client_fn_app", 5)])
def test_an_app_trains_as_its_own_code_does(app, tmp_path, monkeypatch, module, epochs):
    """By `@app.train()` and by a client function; as its `pyproject.toml` says, and as the operator says."""
    ours = app(module, config={} if epochs == 3 else {"local-epochs": epochs})
    ours.start()
    for _ in range(2):
        found = ours.train(START)
        assert_allclose(found, expected(tmp_path / "app", monkeypatch, epochs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("module", ["client_app", "client_fn_app"])
def test_an_app_counts_held_out_records_as_its_own_code_does(app, tmp_path, module):
    """By `@app.evaluate()` and by a client function's `evaluate`; PyTorch's loss and a count beside them."""
    ours = app(module)
    ours.start()
    assert ours.may_evaluate
    held = np.load(tmp_path / "app" / "records" / "site-1.npz")
    labels = torch.from_numpy(held["y"])
    weight, bias = (torch.from_numpy(START[part]).double() for part in (slice(640), slice(640, None)))
    logits = functional.linear(torch.from_numpy(held["x"]).double(), weight.reshape(10, 64), bias)
    expected = (
        float((logits.argmax(dim=1) == labels).sum()),
        float(len(labels)),
        float(functional.cross_entropy(logits, labels, reduction="sum")),
    )
    for _ in range(2):
        assert_allclose(ours.evaluate(START), expected, rtol=1e-5)
        assert ours.train(START) is not None


def test_an_app_that_does_not_evaluate_is_known_or_counts_nothing(app):
    """A missing function is seen before a round. A client function is asked, and its round's answer is none."""
    without, client = app("train_only_app"), app("fit_only_app")
    for one in (without, client):
        one.start()
    assert (without.may_evaluate, client.may_evaluate) == (False, True)
    assert client.evaluate(START) is None
    assert without.evaluate(START) is None
    assert client.train(START) is not None


def test_what_is_no_client_app_is_refused(app):
    with pytest.raises(TrainerError, match="loading: it raised TypeError"):
        app("not_an_app").start()


def test_an_app_finds_its_state_again_in_the_next_process(app, tmp_path):
    """After an end of the process, of the client, and not in another task; a state that is too long costs its round."""
    file = tmp_path / "alice.trainer-state"

    def counted(ours):
        found = ours.train(START)
        return None if found is None else int(found[0])

    ours = app("counting_app", state=KeptState(file, b"task"))
    assert [counted(ours), counted(ours)] == [1, 2]
    ours._discard()
    assert counted(ours) == 3
    ours.close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    again = app("counting_app", state=KeptState(file, b"task"))
    assert [counted(again) for _ in range(4)] == [4, 5, 6, None]
    again._discard()
    assert counted(again) is None  # the seventh, once more: the sixth's state was the last that was kept
    other = app("counting_app", state=KeptState(file, b"another task"))
    with structlog.testing.capture_logs() as lines:
        assert counted(other) == 1
    assert "client.trainer_state_left_out" in [line["event"] for line in lines]
