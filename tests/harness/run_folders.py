"""Run folders as commands leave them, from made-up records, by the runner's own functions."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import tomli_w
import torch

from precad.clients.models import networks
from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.local import resolve
from precad.deploy.localhost.observing import round_metrics
from precad.deploy.run_files.folder import RunFolder
from precad.dp.accountants.pld import View
from precad.dp.ledgers.ledger import Level
from precad.dp.task_privacy import task_cost
from precad.protos.precad.v1 import control_pb2
from precad.protos.task.query import Query
from precad.servers.store.folder import open_ledger
from tests.harness.command_line import precad

TASK: dict[str, Any] = {
    "name": "small",
    "clients": ["a", "b", "c"],
    "rounds": 3,
    "client_rate": 0.5,
    "record_rate": 0.5,
    "record_clip": 1.0,
    "client_clip": 8.0,
    "noise_multiplier": 4.0,
    "learning_rate": 1.0,
}


ATTACKED: dict[str, Any] = {
    "task": TASK
    | {"name": "attacked", "clients": 10, "rounds": 4, "client_rate": 0.4, "record_rate": 0.2, "noise_multiplier": 1.0},
    "simulation": {"evaluate_every": 2, "attack": {"kind": "pixel-backdoor", "clients": 2}},
}


ROUNDS = (
    {"accepted": ["a", "b"], "rejected": [], "missing": [], "accuracy": 0.25, "epsilons": (0.5, 0.31)},
    {"accepted": ["a"], "rejected": ["c"], "missing": [], "accuracy": 0.5, "epsilons": (0.75, 0.41)},
    {"accepted": ["b"], "rejected": ["c"], "missing": ["a"], "accuracy": 0.625, "epsilons": (1.0001, 0.6)},
)


def deployed(root: Path, **task: Any) -> Path:
    """A run folder as `precad run` leaves it."""
    root.mkdir()
    folder = RunFolder(root)
    resolved, deployment, _ = resolve({"task": TASK | task, "client": {"attacks": {"c": "scaled"}}}, folder)
    folder.write_config(resolved)
    parameters = networks.initial_parameters("mlp", seed=1) * 50
    torch.save(networks.unflatten(torch.from_numpy(parameters), networks.build("mlp")), folder.model)
    lines = [round_metrics(_record(t), _record(t), accuracy=ROUNDS[t]["accuracy"]) for t in range(3)]
    for line in lines:
        folder.append_metrics(line)
    with open_ledger(folder.state_dir("a"), deployment.task) as ledger:
        for line in lines:
            ledger.charge(line["round"], line["participants"])
    folder.write_summary(
        {
            "rounds": 3,
            "clients": 3,
            "processes": 6,
            "accuracy": 0.625,
            "epsilon_one_server": 1.5,
            "epsilon_clients_only": 0.9,
            "epsilon_client": 61.31,
            "realised_epsilon_one_server": 1.0001,
            "realised_epsilon_clients_only": 0.6,
            "realised_epsilon_client": 45.671,
            "most_rounds_of_a_client": 33,
            "rounds_of_a_client": 2,
            "discarded_draws": 1,
            "delta": 1e-5,
            "accepted": 4,
            "rejected": 2,
            "missing": 1,
            "rejected_clients": ["c"],
            "seconds_total": 12.5,
            "seconds_per_round": 0.6,
            "bytes_client_up": 3 * (1000 + 2000),
            "bytes_server_link": 3 * 2 * 512,
            "gate": "crypten",
            "mode": "masked",
            "task": "small-0123",
            "ended": "3 rounds done",
            "output": str(root),
        }
    )
    return root


def asked(root: Path, kind: str, **answer: Any) -> Path:
    """A run folder as `precad query` leaves it: `deployed`, of one round, with a question and its answer."""
    query = {"kind": kind, "column": "age", "low": 0.0, "high": 30.0, **({"bins": 3} if kind == "histogram" else {})}
    made = deployed(root)
    raw = tomllib.loads((made / "config.toml").read_text())
    raw["task"] |= dict.fromkeys(("client_rate", "record_rate", "learning_rate"), 1.0)
    raw["task"] |= {"query": query, "dim": Query.model_validate(query).encoding(0).dim, "rounds": 1, "lost_rounds": 1}
    RunFolder(made).write_config(raw)
    first = lines_of(made)[0]
    (made / "metrics.jsonl").write_text(json.dumps(first | {"accuracy": None}) + "\n")
    summary = json.loads((made / "summary.json").read_text())
    del summary["accuracy"]
    realised = {f"realised_{name}": first[name] for name in ("epsilon_one_server", "epsilon_clients_only")}
    counts = {name: len(first[name]) for name in ("accepted", "rejected", "missing")}
    told = {"rounds": 1, "query": query, "estimate": None, "bins": [], "level": 0.9, **counts, **realised, **answer}
    (made / "summary.json").write_text(json.dumps(summary | told))
    costing_more(made)
    return made


def of_bins(*values: float, reach: float = 1.0) -> list[dict[str, float]]:
    """Estimates with error bars of one length."""
    return [{"value": value, "low": value - reach, "high": value + reach} for value in values]


def costing_more(folder: Path) -> None:
    """Raise the figures of a folder to what its task costs, where it costs more than they say."""
    run, last = RunFolder(folder), lines_of(folder)[-1]
    cost, summary = task_cost(configuration.load(run.config).task), json.loads(run.summary.read_text())
    n_most = max(Counter(client for line in lines_of(folder) for client in line["participants"]).values())
    for view in View:
        last[f"epsilon_{view}"] = max(float(last[f"epsilon_{view}"]), cost.of_view(view, n_most))
        summary[f"realised_epsilon_{view}"] = last[f"epsilon_{view}"]
        summary[f"epsilon_{view}"] = max(summary[f"epsilon_{view}"], cost.view_if_discarded(view, n_most))
    summary["epsilon_client"] = max(summary["epsilon_client"], cost.level_if_discarded(Level.CLIENT))
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in [*lines_of(folder)[:-1], last]))
    run.summary.write_text(json.dumps(summary))


def _record(t: int) -> control_pb2.RoundRecord:
    """Return what both servers say of a round. Phases take 0.1 (t + 1) and 0.2 s."""
    told = ROUNDS[t]
    one_server, clients_only = told["epsilons"]
    return control_pb2.RoundRecord(
        round=t,
        chosen=sorted([*told["accepted"], *told["rejected"], *told["missing"]]),
        accepted=told["accepted"],
        rejected=told["rejected"],
        missing=told["missing"],
        bytes_by_link={"from_clients": 1000 * (t + 1), "to_peer": 512, "from_dealer": 32},
        seconds={"collect": 0.1 * (t + 1), "validate": 0.2},
        epsilon_one_server=one_server,
        epsilon_clients_only=clients_only,
        model_digest=bytes([t]),
    )


def changed(path: Path, **values: Any) -> None:
    """Other values in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def lines_of(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def simulated(root: Path, raw: dict[str, Any], *, seeds: int = 1) -> Path:
    """A folder of `precad simulate`."""
    config = root.with_suffix(".toml")
    config.write_text(tomli_w.dumps(raw))
    done = precad("simulate", config, "--seeds", seeds, "--output", root)
    assert done.exit_code == 0, done.output
    return root
