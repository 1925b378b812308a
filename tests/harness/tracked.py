"""Statuses to track, and readers of what trackers wrote: the libraries' own, or by the files' published form."""

from __future__ import annotations

import json
import struct
from collections import Counter
from pathlib import Path
from typing import Any

from precad.dp.accountants.pld import Unit, View
from precad.servers.telemetry.status import ClientOutcome, Epsilon, RoundSummary, Status

DIGEST = "ab" * 32
NAMED = "st-mary-of-the-lake"
"""A client, in every status here: no tracker may have it."""
Written = dict[tuple[str, int], float]


def a_round(number: int, **changes: Any) -> RoundSummary:
    """Return a round of five clients, whose figures follow from its number."""
    fields: dict[str, Any] = {
        "round": number,
        "n_chosen": 5,
        "n_accepted": 3,
        "n_rejected": 1,
        "n_missing": 1,
        "seconds": {"collect": 0.25, "validate": 0.5, "select": 0.125},
        "bytes": {},
        "epsilon": {View.ONE_SERVER: 0.1 * (number + 1), View.CLIENTS_ONLY: 0.05 * (number + 1)},
        "epsilon_client": 0.3 * (number + 1),
        "model_digest": DIGEST if number == 0 else f"{number:064x}",
        "committed_at": 1_700_000_000.5 + number,
        "outcomes": (ClientOutcome(client=NAMED, verdict="rejected", reason="norm_exceeded"),),
    }
    return RoundSummary(**{**fields, **changes})


def a_status(*rounds: RoundSummary, **changes: Any) -> Status:
    """Return the status of an aggregator whose task has a budget for one view."""
    common: dict[str, Any] = {"delta": 1e-5, "unit": Unit.RECORD}
    epsilons = (
        Epsilon(view=View.CLIENTS_ONLY, unit=Unit.CLIENT, is_level=True, spent=0.9, budget=1.0, delta=1e-5),
        Epsilon(view=View.ONE_SERVER, spent=0.3, if_discarded=2.5, budget=0.25, **common),
        Epsilon(view=View.CLIENTS_ONLY, spent=0.15, if_discarded=1.25, **common),
    )
    fields: dict[str, Any] = {
        "role": "aggregator-a",
        "version": "0",
        "task": "mine",
        "state": "selecting",
        "since": 0.0,
        "started_at": 0.0,
        "is_ready": True,
        "rounds_done": len(rounds),
        "epsilons": epsilons,
        "rounds": rounds,
    }
    return Status(**{**fields, **changes})


def in_tensorboard(folder: Path) -> tuple[Written, Counter[tuple[str, int]]]:
    """Return values by name and step, and how often each is there, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    found.Reload()
    events = [(tag, event) for tag in found.Tags()["scalars"] for event in found.Scalars(tag)]
    return {(tag, e.step): e.value for tag, e in events}, Counter((tag, e.step) for tag, e in events)


def in_mlflow(uri: str, experiment: str = "precad") -> tuple[Written, Counter[tuple[str, int]]]:
    """Return metrics by name and step over all runs of the experiment, by MLflow's own client."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    number = client.get_experiment_by_name(experiment).experiment_id
    runs = client.search_runs([number])
    found = [m for run in runs for name in run.data.metrics for m in client.get_metric_history(run.info.run_id, name)]
    return {(m.key, m.step): m.value for m in found}, Counter((m.key, m.step) for m in found)


def wandb_records(file: Path) -> list[Any]:
    """Return the records of an offline run's file: LevelDB's log format, with W&B's own messages inside."""
    from wandb.proto import wandb_internal_pb2

    raw, position, parts, found = file.read_bytes(), 7, b"", []
    assert raw[:4] == b":W&B"
    while position + 7 <= len(raw):
        if (left := 32768 - position % 32768) < 7:
            position += left
            continue
        length, kind = struct.unpack("<HB", raw[position + 4 : position + 7])
        parts += raw[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in {1, 4}:  # whole, or the last part
            found.append(wandb_internal_pb2.Record.FromString(parts))
            parts = b""
    return found


def in_wandb(folder: Path) -> tuple[Written, Counter[tuple[str, int]]]:
    """Return logged values by name and round, of all offline runs below a folder."""
    rows = []
    for file in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in wandb_records(file):
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                rows.append({"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items})
    named = [
        ((name, row["round"]), value)
        for row in rows
        for name, value in row.items()
        if name[0] != "_" and name != "round"
    ]
    return dict(named), Counter(name for name, _ in named)
