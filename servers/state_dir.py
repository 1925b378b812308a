"""What an aggregator keeps on disk: the ledger, the record of burnt tuples, the records of its rounds, the model.

And the model that it starts from.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from google.protobuf.json_format import MessageToJson
from numpy.typing import NDArray

from dp.accounting import Event, SampledGaussian, TwoStageSampledGaussian, View, round_event
from dp.ledger import Ledger, Level
from dp.precad_client import client_noise_multiplier
from protos.precad.v1 import control_pb2
from protos.task import Task
from servers.errors import SetupError
from servers.tuple_ledger import TupleLedger


def require_unused(state_dir: Path) -> None:
    """Raises SetupError when the folder cannot be made or written, or holds a ledger. Changes nothing.

    A second task on the same records has to be accounted together with the first: that is for the operator to decide.
    """
    existing = next(folder for folder in (state_dir, *state_dir.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise SetupError(f"state_dir: expected a folder to write to, found {existing}")
    if (path := ledger_path(state_dir)).exists():
        raise SetupError(f"state_dir: expected no ledger of an earlier task, found {path}")


def ledger_path(state_dir: Path) -> Path:
    """Of the task in this folder."""
    return state_dir / "ledger.jsonl"


def open_ledger(state_dir: Path, task: Task) -> Ledger:
    """The task's ledger, for both views and every level, in a folder that is made where there is none."""
    state_dir.mkdir(parents=True, exist_ok=True)
    events = {
        view: round_event(
            view,
            record_sampling_rate=task.record_rate,
            noise_multiplier=task.noise_multiplier,
            record_clip=task.record_clip,
            dim=task.dim,
            frac_bits=task.frac_bits,
        )
        for view in View
    }
    client_multiplier = client_noise_multiplier(task.noise_multiplier, task.record_clip, task.client_clip)
    every_round: dict[Level, Event] = {
        Level.CLIENT: SampledGaussian(task.client_rate, client_multiplier),
        Level.DRAWN_RECORD: TwoStageSampledGaussian(
            task.client_rate, task.record_rate, events[View.CLIENTS_ONLY].noise_multiplier
        ),
    }
    limits: dict[View | Level, float | None] = {
        View.ONE_SERVER: task.epsilon_budget_one_server,
        View.CLIENTS_ONLY: task.epsilon_budget_clients_only,
        Level.CLIENT: task.epsilon_budget_client,
    }
    budgets = {key: limit for key, limit in limits.items() if limit is not None}
    return Ledger(ledger_path(state_dir), events=events, delta=task.delta, budgets=budgets, every_round=every_round)


def open_tuple_ledger(state_dir: Path) -> TupleLedger:
    """The record of burnt tuples, of every task that this folder has seen. Raises SetupError."""
    return TupleLedger(state_dir / "tuples.sqlite")


def spool_path(state_dir: Path) -> Path:
    """Of uploads that memory has no room for."""
    return state_dir / "uploads.spool"


def load_initial_model(path: Path, dim: int) -> NDArray[np.float32]:
    """A flat float32 vector, (dim,). Raises SetupError naming what was expected."""
    try:
        parameters = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SetupError(f"initial_model: expected a .npy file, found {path}: {error}") from None
    if (
        not isinstance(parameters, np.ndarray)
        or parameters.dtype != np.float32
        or parameters.shape != (dim,)
        or not np.isfinite(parameters).all()
    ):
        raise SetupError(f"initial_model: expected {dim} finite float32 values, found something else in {path}")
    return parameters


def write_round(state_dir: Path, record: control_pb2.RoundRecord, parameters: NDArray[np.float32]) -> None:
    """Appends the record to rounds.jsonl and replaces model.npy as a whole."""
    temporary = state_dir / "model.npy.tmp"
    with temporary.open("wb") as file:
        np.save(file, parameters)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(state_dir / "model.npy")
    with (state_dir / "rounds.jsonl").open("a") as lines:
        lines.write(MessageToJson(record, preserving_proto_field_name=True, indent=None) + "\n")
