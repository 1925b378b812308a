"""Read evidence for a certificate from run folders: the training as an attacking client meets it, and its models'
confidences.

A certificate is about F_c, the expectation over trainings of the confidence in class c. One folder holds one training,
and one model is one draw. The mean over O folders estimates F_c to Hoeffding's radius, so only many independent runs of
one configuration make a guarantee. All folders must therefore have the same task, the same client section and the same
start, and be different runs. Attacks that the configuration contains are part of the training: the certificate counts
further ones.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from precad.clients.errors import ClientError
from precad.clients.models import networks
from precad.clients.models.losses import loss_of
from precad.clients.records.own import source_of
from precad.clients.training import evaluation
from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.initial_model import DIGEST
from precad.deploy.configuration.sections import Deployment
from precad.deploy.errors import ConfigError, refusing
from precad.deploy.run_files.folder import RunFolder, require_deployed
from precad.deploy.run_files.own_task import require_own_task
from precad.deploy.run_files.spent import costs_of_run, earlier_of_several, epsilon_of_several
from precad.deploy.shown.figures import plain
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import SampledGaussian, View
from precad.dp.accountants.task_cost import TaskCost
from precad.dp.certificates.monte_carlo import monte_carlo_privacy
from precad.dp.certificates.prediction import Training
from precad.dp.ledgers.ledger import Level
from precad.dp.task_privacy import budgets_of, task_cost, task_privacy
from precad.protos.messages import convert
from precad.protos.task.task import Task
from precad.servers.store.folder import ledger_path, open_ledger


@dataclass(frozen=True, slots=True)
class RunEvidence:
    """Hold the evidence of one configuration's runs."""

    confidences: list[list[float]]
    """Mean over the runs, (n samples, n classes)."""
    labels: list[int]
    training: Training
    """The training as one attacking client meets it: rate, noise of both servers over C, rounds."""
    task: Task
    provenance: dict[str, Any]
    """For the report: what was read, and what all the models together cost."""
    model_digests: tuple[str, ...]
    """SHA-256 of the models that were asked, in hex."""
    earlier: tuple[tuple[EarlierTask, ...], ...] = ()
    """By server, finished tasks that ledgers of the runs count as well, and those of a next training would."""

    @property
    def n_runs(self) -> int:
        """Return O, trainings that the confidences are means of."""
        return len(self.provenance["folders"])

    @property
    def hides_draws(self) -> bool:
        """Return whether the task hides from clients who was drawn, which no budget of a view may tell by its end."""
        is_hidden = Level.HIDDEN_CLIENT in task_privacy(self.task).every_round
        return is_hidden and not any(isinstance(key, View) for key in budgets_of(self.task))


@dataclass(frozen=True, slots=True)
class _Run:
    folder: RunFolder
    deployment: Deployment
    charged: Counter[str]
    """Rounds that each client has paid for."""
    costs: tuple[TaskCost, ...]
    """By the ledger of each server."""
    rounds: int
    model_digest: str
    ended: str


def read_runs(paths: list[Path]) -> RunEvidence:
    """Return the evidence of finished runs. Raises ConfigError naming the folder, what was expected and what was
    found."""
    for path in paths:
        require_deployed(path, f"--run {path}")
    runs = [_read(path) for path in paths]
    first = runs[0].deployment
    for run in runs[1:]:
        if (name := _difference(run.deployment, first)) is not None:
            raise ConfigError(f"--run: expected runs of one configuration, found another {name} in {run.folder.root}")
    for digest, n in Counter(run.model_digest for run in runs).items():
        if n > 1:
            raise ConfigError(f"--run: expected different runs, found model {digest[:12]} {n} times")
    task, client = first.task, first.client
    assert client is not None  # _read saw it
    if (kind := client.reacting_attack) is not None:
        raise ConfigError(
            "--run: expected a run without attackers who act upon what others send, further attackers among them, "
            f"found {kind!r} in client.attacks"
        )
    source = source_of(client, task, list(task.clients), numbers=loss_of(task.loss).wants_numbers)
    split = networks.fitted(
        networks.of_task(task), source.load(side=networks.image_side(task.model)), loss_of(task.loss)
    )
    test = split.test
    each, digests = [], []
    for run in runs:
        parameters = _parameters(run, task)
        digests.append(convert.sha256(convert.model_to_bytes(parameters)).hex())
        each.append(evaluation.confidences(parameters, networks.of_task(task), test))
    mean: NDArray[np.float64] = sum(each, np.zeros_like(each[0])) / len(runs)
    mean /= np.maximum(mean.sum(axis=1, keepdims=True), 1.0)  # never above one by rounding
    training = training_of(task, [cost for run in runs for cost in run.costs])
    return RunEvidence(
        confidences=mean.tolist(),
        labels=test.labels.tolist(),
        training=training,
        task=task,
        provenance=_provenance(runs, task, training),
        model_digests=tuple(digests),
        earlier=earlier_of_several([run.costs for run in runs]),
    )


def training_of(task: Task, costs: Collection[TaskCost] = (), *, has_unknown_costs: bool = False) -> Training:
    """Return the task as an attacking client meets it: both servers' noise over C, an update being at most C long on
    the grid.

    T is the most rounds that can be drawn, as some may be lost for what they released. That some are lost for whom they
    drew is not covered. When a budget on realised participation can end the task, the end depends on who was drawn.
    Nothing is then claimed of the draw: the rate is 1.

    costs: by the ledgers of its runs (`cost_in`), as budgets count earlier tasks, too.
    has_unknown_costs: whether budgets count earlier tasks that are not read here. Any budget of a view may then end it.

    Raises ConfigError for a task that nothing can be certified of (`uncertifiable`).
    """
    if (why := uncertifiable(task)) is not None:
        raise ConfigError(f"--run: {why}")
    whole_client = task_privacy(task).every_round[Level.CLIENT]
    has_budget = any(isinstance(key, View) for key in budgets_of(task))
    may_end = (has_unknown_costs and has_budget) or any(map(_may_end_early, (task_cost(task), *costs)))
    rate = 1.0 if may_end else task.client_rate
    return Training(SampledGaussian(rate, whole_client.noise_multiplier), _most_draws(task))


def uncertifiable(task: Task) -> str | None:
    """Return why nothing can be certified of a task's training; None if something can.

    Where servers add no noise, a client that adds none meets what others like. Where they check no norm, nothing bounds
    an attacker. The factor of a function of the sum is the operators' word.
    """
    unmet = {
        f"without min_separation, found one of {task.min_separation}": task.min_separation > 1,
        f"whose rounds are sampled Gaussians, found one of {task.algorithm}": task.rules.trims,
        f"whose servers add noise, found one of {task.algorithm}": Level.CLIENT not in task_privacy(task).every_round,
        f"without sum_function, found {task.sum_function}": task.sum_function is not None,
        "whose servers check norms, found task.validation 'none'": not task.checks_norms,
    }
    return next((f"expected a task {expected}" for expected, is_unmet in unmet.items() if is_unmet), None)


def _most_draws(task: Task) -> int:
    most = task_cost(task).most_draws
    assert most is not None  # a task has an end
    return most


def _may_end_early(cost: TaskCost) -> bool:
    """Return whether a client in every round would spend a budget before the last one."""
    most = cost.most_draws
    assert most is not None  # a task has an end
    return any(
        isinstance(view, View) and not cost.of_view(view, most, cost.most_evaluations) <= budget
        for view, budget in cost.budgets.items()
    )


def _read(path: Path) -> _Run:
    folder = RunFolder(path)
    deployment = configuration.load(folder.config)
    if deployment.client is None:
        raise ConfigError(f"--run: expected a [client] section in {folder.config}, found none")
    for state_dir in folder.state_dirs:
        require_own_task(state_dir, deployment.task, folder.config, where="--run")
    deployment.client.look_around()
    with refusing(ClientError, f"--run: expected a model that can be built in {path}"):
        networks.of_task(deployment.task)
    try:
        summary = json.loads(folder.summary.read_text(encoding="utf-8"))
        metrics = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
        charged = _charged(folder, deployment.task)
        costs = costs_of_run(folder, deployment.task)
        digest, ended = str(metrics[-1]["model_digest"]), str(summary["ended"])
        return _Run(folder, deployment, charged, costs, len(metrics), digest, ended)
    except OSError as error:
        raise ConfigError(f"--run: expected the folder of a finished run, found {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, IndexError):
        raise ConfigError(f"--run: expected a summary and metrics as precad run writes them, found {path}") from None


def _charged(folder: RunFolder, task: Task) -> Counter[str]:
    """Count charges of each client by the server's ledger that has more of them, or the only ledger that there is.

    Rounds that were given up after their charge count. Raises OSError, DpError.
    """
    ledger_path(folder.state_dir("a")).stat()
    found = Counter[str]()
    for state_dir in folder.state_dirs:
        if ledger_path(state_dir).exists():
            with open_ledger(state_dir, task, only_reads=True) as ledger:
                found |= Counter(ledger.participation)
    return found


def _parameters(run: _Run, task: Task) -> NDArray[np.float32]:
    model = networks.of_task(task)
    try:
        model.load_state_dict(torch.load(run.folder.model, weights_only=True))
    except Exception as error:
        found = f"{run.folder.model}: {error}"
        raise ConfigError(f"--run: expected parameters of the model {task.model!r}, found {found}") from error
    return networks.flatten(model)


def _difference(ours: Deployment, theirs: Deployment) -> str | None:
    """Return the first field that changes the training's law and in which two runs differ."""
    sections = (
        ("task", tuple(type(ours.task).model_fields)),
        ("client", _OF_THE_LAW),
        ("localhost", (DIGEST,)),
    )
    for section, names in sections:
        mine, other = getattr(ours, section), getattr(theirs, section)
        for name in names:
            if getattr(mine, name) != getattr(other, name):
                return f"{section}.{name}"
    return None


_OF_THE_LAW: Final = (
    *("dataset", "classes", "partition", "partition_seed", "shards_per_client", "dirichlet_alpha"),
    *("records", "label", "holdout", "holdout_seed", "dealt"),
    *("trainer", "trainer_config", "trainer_node", "adapter_rank"),
    "attacks",
)
"""Fields of `[client]` that say who holds which records, and what is sent of them. The others say where and when."""


def _attacks_of(deployment: Deployment) -> dict[str, str]:
    """Return who attacks, and how."""
    attacks = {} if deployment.client is None else deployment.client.attacks
    return {client: str(attacking) for client, attacking in attacks.items()}


def _one_by_one(epsilon: float, delta: float, n_runs: int) -> tuple[float, float]:
    """Return basic composition of so many runs; an infinite epsilon where nothing is proved of one."""
    if math.isinf(epsilon):  # as in mode `proved`, once the mode takes all of delta
        return epsilon, n_runs * delta
    return monte_carlo_privacy(epsilon, delta, n_runs)


def _provenance(runs: list[_Run], task: Task, training: Training) -> dict[str, Any]:
    """Return what was read, and the privacy of all models together: one client's rounds in all runs, composed. Earlier
    tasks count once."""
    together = sum((run.charged for run in runs), Counter[str]())
    most = max(together.values(), default=0)
    of_one = max((max(run.charged.values(), default=0) for run in runs), default=0)
    deployment, costs = runs[0].deployment, [run.costs for run in runs]
    found = task_privacy(task).beside(one for of_server in earlier_of_several(costs) for one in of_server)
    privacy: dict[str, Any] = {"unit": found.unit.value, "rounds_of_a_client": most, "delta": task.delta}
    if task.records_per_person > 1:
        privacy["records_per_person"] = task.records_per_person
    for view in View:
        epsilon_each = max(epsilon_of_several([run.costs], view, of_one) for run in runs)
        epsilon, delta = _one_by_one(epsilon_each, task.delta, len(runs))
        privacy[view.value] = {
            "epsilon": plain(epsilon_of_several(costs, view, most)),
            "epsilon_if_draws_are_discarded": plain(epsilon_of_several(costs, view, most, discarded=True)),
            "basic_composition": {"epsilon": plain(epsilon), "delta": delta},
            **({"rests_on": why} if (why := found.said[view]) else {}),
        }
    return {
        "folders": [str(run.folder.root) for run in runs],
        "task": task.name,
        "q": training.event.sampling_rate,
        "sampling_claimed": training.event.sampling_rate == task.client_rate,
        "noise_multiplier_of_one_client": training.event.noise_multiplier,
        "rounds": training.rounds,
        "rounds_realised": [run.rounds for run in runs],
        "ended": [run.ended for run in runs],
        "attacks_in_the_training": _attacks_of(deployment),
        "privacy_of_all_models": privacy,
    }
