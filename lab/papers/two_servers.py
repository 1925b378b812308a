"""Train the cases of papers' experiments on two real servers, by `precad run` in place of `precad simulate`.

The dealer, both servers and four processes of clients run on this machine. Every draw is the operating system's, so
the number of a training is its name and no seed. A case's folder holds a run folder for each training, and the final
model as a simulation keeps it:

    seed-N      the run folder, as `precad run` leaves it
    seed-N.npz  `parameters`, float32, (d,)

A finished training is left as it is. One that ended early is continued.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console

from precad.clients.models import networks
from precad.deploy.configuration import initial_model
from precad.deploy.configuration.local import ids_of
from precad.deploy.errors import ConfigError
from precad.deploy.localhost.several import trained
from precad.deploy.run_files.folder import RunFolder
from precad.dp.accountants.pld import View
from precad.lab.simulation.config import SimulationSettings
from precad.protos.task.algorithms import ALIASES, AS_DEPLOYED, DEFAULT, RULES, AlgorithmRules
from precad.protos.task.task import Task

PROCESSES: Final = 4
"""Client processes of a run."""
UNBOUNDED: Final = 1000.0
"""C where a case has clients that do not clip. Honest updates are shorter, so that it changes none."""
UNBOUNDED_BITS: Final = {"masked": 16, "shares": 16, "proved": 12}
"""Fractional bits at most with that C, by mode: its square must have room in the ring or the field."""
_OF_START: Final = (initial_model.FILE, initial_model.DIGEST)
_READ_ELSEWHERE: Final = (
    "algorithm", "validation", "client_clipping", "attack", "evaluate_every", "first_seed", *_OF_START
)  # fmt: skip
"""Fields of a simulation that a deployment has in another form."""


def deployment_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of `precad run` for the training that a case simulates.

    Raises ConfigError for what two servers do not run.
    """
    task, client, simulation = (dict(config[name]) for name in ("task", "client", "simulation"))
    name = simulation.get("algorithm", DEFAULT)
    rules = RULES.get(ALIASES.get(name, name))
    if rules is None and name != AS_DEPLOYED:
        raise ConfigError(f"--deployed: expected an algorithm that two servers run, found {name!r}")
    if simulation.get("first_seed", 0):
        raise ConfigError("--deployed: expected no --first-seed, as every draw is the operating system's, found one")
    is_checked = simulation.get("validation", True) or (task.get("mode") == "proved" and "attack" not in simulation)
    task |= {} if is_checked else {"validation": "none"}  # proofs are the check: it refuses no honest update
    task |= {} if rules is None else _by_rules(rules, task, simulation)
    task |= _carried(simulation)
    ids = ids_of(task["clients"])
    if (attack := simulation.get("attack")) is not None:
        client["attacks"] = _attacks(attack, ids)
    return {
        "task": task,
        "client": client,
        "localhost": {
            "clients_per_process": math.ceil(len(ids) / PROCESSES),
            **{name: simulation[name] for name in _OF_START if name in simulation},
        },
    }


def _by_rules(rules: AlgorithmRules, task: Mapping[str, Any], simulation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task that a simulation of this algorithm does not read, or has in another way.

    A simulation of InsDP-FedAvg bounds no update. C and the fractional bits then have room for any honest one.
    """
    is_unbounded = not simulation.get("client_clipping", True) or (rules.trains_locally and rules.clients_add_noise)
    found: dict[str, Any] = {} if rules.is_default else {"algorithm": rules.name}
    found |= {"client_clip": UNBOUNDED} if is_unbounded else {}
    if is_unbounded and "frac_bits" in task:
        found["frac_bits"] = min(UNBOUNDED_BITS[task.get("mode", "masked")], task["frac_bits"])
    return found if rules.is_private else found | {"noise_multiplier": 0.0}


def _carried(simulation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that a task has under the same name. Raises ConfigError for others, unless at the default."""
    found = {}
    for name, value in simulation.items():
        if name in _READ_ELSEWHERE or value == SimulationSettings.model_fields[name].default:
            continue
        if name not in Task.model_fields:
            raise ConfigError(f"--deployed: expected what two servers run, found simulation.{name} = {value!r:.60}")
        found[name] = value
    return found


def _attacks(attack: Mapping[str, Any], ids: Sequence[str]) -> dict[str, Any]:
    """Return the attack by client."""
    n_attackers = attack["clients"]
    attackers = ids[len(ids) - n_attackers :] if isinstance(n_attackers, int) else n_attackers
    one = {"kind": attack["kind"], "parameters": dict(attack.get("parameters", {}))}
    return dict.fromkeys(attackers, one)


def train(
    config: Mapping[str, Any], folder: Path, seeds: int, console: Console
) -> tuple[int, list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """Run a case's trainings. Return d, and of each training its summary and its lines, in a simulation's form.

    Raises ConfigError, and what a run raises.
    """
    raw, every = deployment_of(config), config["simulation"]["evaluate_every"]
    dim, summaries, lines = 0, [], []
    for number in range(seeds):
        run_folder = RunFolder((folder / f"seed-{number}").absolute())
        console.print(f"training {number + 1} of {seeds}: {run_folder.root}", highlight=False, soft_wrap=True)
        summary, task = trained(raw, run_folder, console, measured_every=every)
        _keep_model(run_folder, task)
        rounds = [json.loads(line) for line in run_folder.metrics.read_text(encoding="utf-8").splitlines()]
        summaries.append(as_simulated(summary, number))
        lines.append([_line(one) for one in rounds])
        dim = task.dim
    return dim, summaries, lines


def _keep_model(folder: RunFolder, task: Task) -> None:
    model = networks.of_task(task)
    model.load_state_dict(torch.load(folder.model, weights_only=True))
    np.savez(folder.root.with_suffix(".npz"), parameters=networks.flatten(model))


def as_simulated(summary: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return a run's summary in the form of a simulation's. Epsilons are those of the rounds that were run."""
    return {
        "seed": number,
        "rounds": summary["rounds"],
        "ended": summary["ended"],
        "diverged_in_round": None if summary["model_is_finite"] else summary["rounds"] - 1,
        "accuracy": summary["accuracy"],
        "attack_success": summary.get("attack_success"),
        "accepted": summary["accepted"],
        "rejected": summary["rejected"],
        "missing": summary["missing"],
        "rejected_clients": summary["rejected_clients"],
        "guarantees": [
            {
                "against": view.value,
                "epsilon": summary[f"realised_epsilon_{view.value}"],
                "epsilon_if_discarded": summary[f"epsilon_{view.value}"],
                "delta": summary["delta"],
            }
            for view in View
        ],
    }


def _line(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return a round's line in the form of a simulation's."""
    measured = {name: metrics[name] for name in ("accuracy", "attack_success") if metrics.get(name) is not None}
    return {"round": metrics["round"], "seconds": metrics["seconds_total"], **measured}
