"""Train the cases of papers' experiments on two real servers, by `precad run` in place of `precad simulate`.

The dealer, both servers and four processes of clients run on this machine. Every draw is the operating system's, so
the number of a training is its name and no seed. A case's folder holds a run folder for each training, and the final
model as a simulation keeps it:

    seed-N      the run folder, as `precad run` leaves it
    seed-N.npz  `parameters`, float32, (d,); `clients`, and their `participation`, the rounds that drew each

A finished training is left as it is. One that ended early is continued.

A rule of one server that sees all becomes the algorithm that two servers run by. `mean` and `norm-bounding` are
`fedavg`, which divides by the number of clients that a round expects, and not by that of a round's updates.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from rich.console import Console

from precad.clients.attacks import ATTACKS, StatOpt
from precad.clients.models import networks
from precad.deploy.configuration import initial_model
from precad.deploy.configuration.client_ids import ids_of
from precad.deploy.errors import ConfigError, is_known
from precad.deploy.localhost.needs import require_startable
from precad.deploy.localhost.several import trained
from precad.deploy.run_files.folder import RunFolder
from precad.dp.accountants.pld import Unit, View
from precad.dp.task_privacy import task_privacy
from precad.lab.simulation.config import SimulationSettings
from precad.lab.simulation.rules import Krum, Mean, MultiKrum, NormBounding
from precad.protos.task.algorithms import ALIASES, AS_DEPLOYED, DEFAULT, OF_AN_ALGORITHM, RULES, TRUSTED, AlgorithmRules
from precad.protos.task.task import Task

PROCESSES: Final = 4
"""Client processes of a run."""
MOST_ALONE: Final = 10
"""Attackers that have a process each; more share some, without honest clients."""
UNBOUNDED: Final = 1000.0
"""C where a case has clients that do not clip. Honest updates are shorter, so that it changes none."""
UNBOUNDED_BITS: Final = {"masked": 16, "shares": 16, "proved": 12}
"""Fractional bits at most with that C, by mode: its square must have room in the ring or the field."""
_OF_START: Final = (initial_model.FILE, initial_model.DIGEST)
_READ_ELSEWHERE: Final = (
    "algorithm", "validation", "client_clipping", "attack", "evaluate_every", "first_seed", "aggregation_parameters",
    *_OF_START,
)  # fmt: skip
"""Fields of a simulation that a deployment has in another form."""
_BY_RULE: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    Mean.name: lambda given: {},
    NormBounding.name: lambda given: {"client_clip": given.get("bound", NormBounding().bound)},
    Krum.name: lambda given: {"algorithm": "krum", "krum_attackers": given.get("f", Krum().f)},
    MultiKrum.name: lambda given: {
        "algorithm": "multi-krum",
        "krum_attackers": given.get("f", MultiKrum().f),
        **({"krum_keep": given["keep"]} if given.get("keep") is not None else {}),
    },
}
"""Fields of a task by `fedavg`'s rule in a simulation, of the parameters that it is given."""


def deployment_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of `precad run` for the training that a case simulates.

    Raises ConfigError for what two servers do not run.
    """
    task, client, simulation = (dict(config[name]) for name in ("task", "client", "simulation"))
    name = simulation.get("algorithm", DEFAULT)
    rules = RULES.get(ALIASES.get(name, name))
    if name == TRUSTED:
        raise ConfigError(
            f"--deployed: expected no trusted server, found {name!r}: PRECAD has its noise at sigma/sqrt(2)"
        )
    if rules is None and name != AS_DEPLOYED:
        raise ConfigError(f"--deployed: expected an algorithm that two servers run, found {name!r}")
    if simulation.get("first_seed", 0):
        raise ConfigError("--deployed: expected no --first-seed, as every draw is the operating system's, found one")
    is_checked = simulation.get("validation", True) or (task.get("mode") == "proved" and "attack" not in simulation)
    task |= {} if is_checked else {"validation": "none"}  # proofs are the check: it refuses no honest update
    task |= {} if rules is None else _by_rules(rules, task, simulation)
    if rules is not None and _is_plain_averaging(rules):
        task |= _by_aggregation(simulation)
    task |= _carried(simulation, rules)
    ids = ids_of(task["clients"])
    attacks = {} if (attack := simulation.get("attack")) is None else _attacks(attack, ids)
    is_few = 0 < len(attacks) <= MOST_ALONE
    return {
        "task": {"min_clients": len(ids), **task},  # a training without some of them is no case of the paper's
        "client": {**client, "attacks": attacks} if attacks else client,
        "localhost": {
            "clients_per_process": math.ceil(len(ids) / PROCESSES),
            **({"attackers_per_process": 1} if is_few else {}),
            **{name: simulation[name] for name in _OF_START if name in simulation},
        },
    }


def require_runnable(cases: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError, naming the case, for the first of these configurations that `precad run` would refuse.

    Starts nothing. Raises DataError.
    """
    for name, config in cases.items():
        try:
            require_startable(deployment_of(config))
        except Exception as error:
            if not is_known(error):
                raise
            why = str(error).removeprefix("--deployed: ")
            raise ConfigError(f"--deployed: {name}: {why}") from None


def _by_rules(rules: AlgorithmRules, task: Mapping[str, Any], simulation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task that a simulation of this algorithm does not read, or has in another way.

    A simulation of InsDP-FedAvg, FedAvg or nothing private bounds no update. C and the fractional bits then have room
    for any honest one.
    """
    bounds_none = rules.clients_add_noise if rules.trains_locally else not rules.is_private
    is_unbounded = not simulation.get("client_clipping", True) or bounds_none or _is_plain_averaging(rules)
    found: dict[str, Any] = {} if rules.is_default else {"algorithm": rules.name}
    found |= {"client_clip": UNBOUNDED} if is_unbounded else {}
    if is_unbounded and "frac_bits" in task:
        found["frac_bits"] = min(UNBOUNDED_BITS[task.get("mode", "masked")], task["frac_bits"])
    return found if rules.is_private else found | {"noise_multiplier": 0.0}


def _is_plain_averaging(rules: AlgorithmRules) -> bool:
    """Tell whether it is FedAvg: differences of models are added up as they are."""
    return rules.trains_locally and not rules.is_private and not rules.keeps_some


def _by_aggregation(simulation: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a task for the rule of one server. Raises ConfigError for a rule that two do not run."""
    rule, given = simulation.get("aggregation", "sum"), simulation.get("aggregation_parameters", {})
    if rule == "sum":
        return {}
    if rule not in _BY_RULE:
        raise ConfigError(f"--deployed: expected one of sum, {', '.join(_BY_RULE)}, found aggregation = {rule!r}")
    return _BY_RULE[rule](given)


def _carried(simulation: Mapping[str, Any], rules: AlgorithmRules | None) -> dict[str, Any]:
    """Return the fields that a task has under the same name. Raises ConfigError for others, unless at the default.

    A simulation ignores fields of other algorithms, which a task refuses.
    """
    found = {}
    for name, value in simulation.items():
        if name in _READ_ELSEWHERE or value == SimulationSettings.model_fields[name].default:
            continue
        if rules is not None and rules.name not in OF_AN_ALGORITHM.get(name, (rules.name,)):
            continue
        if name == "aggregation" and rules is not None and _is_plain_averaging(rules):
            continue
        if name not in Task.model_fields:
            raise ConfigError(f"--deployed: expected what two servers run, found simulation.{name} = {value!r:.60}")
        found[name] = value
    return found


def _attacks(attack: Mapping[str, Any], ids: Sequence[str]) -> dict[str, Any]:
    """Return the attack by client. Who sees every update in a simulation sees the other attackers' here."""
    n_attackers = attack["clients"]
    attackers = ids[len(ids) - n_attackers :] if isinstance(n_attackers, int) else n_attackers
    kind, parameters = attack["kind"], dict(attack.get("parameters", {}))
    if kind in ATTACKS and ATTACKS[kind].needs_company:
        parameters.setdefault("sees", "colluders")
    if kind == StatOpt.name and parameters.get("rule") == "bound":
        del parameters["rule"]  # the only one of a deployment's
    elif kind == StatOpt.name and "rule" in parameters:
        kind = "precad.lab.simulation.attackers:StatOpt"
    one = {"kind": kind, "parameters": parameters}
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
        summaries.append(as_simulated(summary, number, task_privacy(task).unit))
        lines.append([_line(one) for one in rounds])
        dim = task.dim
    return dim, summaries, lines


def _keep_model(folder: RunFolder, task: Task) -> None:
    model = networks.of_task(task)
    model.load_state_dict(torch.load(folder.model, weights_only=True))
    drawn = Counter(dict.fromkeys(task.clients, 0))
    for line in (folder.root / "a" / "rounds.jsonl").read_text(encoding="utf-8").splitlines():
        drawn.update(json.loads(line).get("chosen", ()))  # a round that drew nobody has no such field
    np.savez(
        folder.root.with_suffix(".npz"),
        parameters=networks.flatten(model),
        clients=np.array(list(drawn), dtype=np.str_),
        participation=np.array(list(drawn.values()), dtype=np.int64),
    )


def as_simulated(summary: Mapping[str, Any], number: int, unit: Unit) -> dict[str, Any]:
    """Return a run's summary in the form of a simulation's. Epsilons are of one unit, over the rounds that were run."""
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
                "unit": unit.value,
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
