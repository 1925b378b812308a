"""`precad check` of clients or a local run: the records trained on, read and verified as at the start.

Apart from the rest of the check because it needs PyTorch, which a server's machine may lack.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from precad.clients.config import ClientConfig
from precad.clients.errors import MissingDataError
from precad.clients.external.training import tried_out
from precad.clients.gradients.first_gradients import require_some_gradient
from precad.clients.loading import Loaded, load_split_of
from precad.clients.process import engine_of
from precad.clients.records import Records, Split
from precad.clients.records.own.described import CLIENT
from precad.deploy.configuration.check_earlier import with_tasks
from precad.deploy.configuration.check_holder import room_of
from precad.deploy.configuration.check_privacy import privacy_facts, promised
from precad.deploy.configuration.evaluation_clip import clip_advice
from precad.deploy.configuration.local import resolve
from precad.deploy.configuration.measures import learning_of, public_measures
from precad.deploy.configuration.model_and_records import with_records
from precad.deploy.configuration.public_records import Measure
from precad.deploy.configuration.sections import Deployment, section_of
from precad.deploy.run_files.folder import RunFolder
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.store.folder import read_earlier


def records_here(task: Task, config: ClientConfig, clients: Sequence[str]) -> dict[str, str]:
    """Return by client what is here and what it declares; what a start would download is not downloaded.

    Raises: DataError, ArgumentError, ModelInputError as the client itself.
    """
    if config.trainer is not None:
        return _read_by_trainers(task, config, clients)
    if config.records is not None:
        if not config.dealt and CLIENT not in config.records and len(clients) > 1:
            load_split_of(task, config, clients)  # which refuses: each of them has its own
        read = {client: _own(task, config, client, load_split_of(task, config, [client])) for client in clients}
        return read | _of_auditing(task, clients)
    try:
        found = load_split_of(task, config.model_copy(update={"download": False}), clients)
    except MissingDataError:
        if not config.download:
            raise
        return dict.fromkeys(clients, f"{config.dataset} is not here: downloaded at the start")
    require_trained(task, config, found.split.train)
    own = found.of_client.items()
    of_data = {c: f"{len(records)} of {config.dataset}, declares {task.clients[c]}" for c, records in own}
    here = {c: f"{said}{_held_out(task, config, c, found)}" for c, said in of_data.items()}
    return here | _of_auditing(task, clients)


def _read_by_trainers(task: Task, config: ClientConfig, clients: Sequence[str]) -> dict[str, str]:
    """Say by client who reads its records, and what this machine's kernel shuts the reader off from.

    The first one's code is loaded as at its start: programs of several differ in settings alone. Raises ArgumentError;
    TrainerError where the code does not load, or the kernel does not give a wall that is required.
    """
    walls = str(tried_out(task, config, clients[0])) if clients else ""
    return {c: f"read by {config.trainer} alone, {walls}; declares {task.clients[c]}" for c in clients}


def _of_auditing(task: Task, clients: Sequence[str]) -> dict[str, str]:
    """Return what audit clients among these declare. Which canaries are theirs is drawn when they start."""
    real = {c: f"audits with {task.clients[c]} records, about half" for c in clients if c in task.real_audit_clients}
    return real | {c: f"canaries alone, declares {task.clients[c]}" for c in clients if c in task.audit_clients}


def _audited_by(task: Task) -> str:
    """Say who audits a local run."""
    real = f"; real records of {', '.join(task.real_audit_clients)}" if task.real_audit_clients else ""
    return f"{task.n_canaries} canaries of {', '.join(task.audit_clients)}{real}"


def _held_out(task: Task, config: ClientConfig, client: str, found: Loaded) -> str:
    """Say how many records a client evaluates models on, in a task with such evaluations; else nothing."""
    if task.evaluation_round is None:
        return ""
    if not (n := len(found.held_out[client])):
        return "; WARNING: none held out to evaluate models on: set client.holdout"
    advice = clip_advice(task, config.holdout)
    return f"; {n} held out, of which {task.evaluation_round.client_clip:g} count fully{advice and f'; {advice}'}"


def local_records(raw: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return what a local run of this configuration would train on, and what a round would draw.

    Raises: as `resolve`, which the run itself starts with.
    """
    _, deployment, split = resolve(raw, RunFolder(base))
    assert deployment.client is not None  # resolve() supplied it
    learning_of(deployment.task, deployment.client, split.test)
    require_trained(deployment.task, deployment.client, split.train)
    measures = public_measures(deployment)
    task, training = deployment.task, with_records(deployment.task.clients, deployment.task.model_dump())
    sizes = sorted(task.clients[client] for client in training)
    spread = str(sizes[0]) if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    dealer, gate = ("", "") if task.is_proved else ("a dealer, ", f"; gate {task.gate}")
    drawn = sum(task.rate_of(client) * task.clients[client] for client in training) / len(sizes)
    kinds = f"of shape {split.train.shape} in {_classes(task, split)}"
    return {
        "task": task.name,
        "task_digest": task.digest().hex(),
        **privacy_facts(task),
        "runs_here": f"{dealer}two aggregators, {len(task.clients)} clients{gate}",
        "model": f"{task.model}, {task.n_parameters} parameters",
        **({} if task.model_digest is None else {"model_digest": task.model_digest}),
        "data": _data(raw, deployment.client),
        "records": f"{sum(sizes)} {kinds}; {len(split.test)} for testing",
        "clients": f"{spread} records each; a round draws {on_average(drawn)}",
        **({"audit": _audited_by(task)} if task.audit_clients else {}),
        **_trainer(task, deployment.client),
        **_room_left(deployment),
        **_evaluated_on(task, split),
        **{f"aggregator_{letter}_measures_on": shown_measure(one) for letter, one in measures.items()},
        **_with_earlier(deployment),
    }


def _data(raw: Mapping[str, Any], config: ClientConfig) -> str:
    """Say whose records they are, and where nobody chose them."""
    is_chosen = section_of(raw, "client").keys() & {"dataset", "records"}
    return config.data_name + ("" if is_chosen else ", the default: client names neither dataset nor records")


def _trainer(task: Task, config: ClientConfig) -> dict[str, str]:
    """Say what the foreign trainers of a local run are shut off from, where it has any. Raises as `tried_out`."""
    if config.trainer is None:
        return {}
    return {"trainer": f"{config.trainer}, {tried_out(task, config, next(iter(task.clients)))}"}


def _room_left(deployment: Deployment) -> dict[str, Any]:
    """Say how much room the clients' own ledgers have, where they have any. Raises as `room_of`."""
    assert deployment.client is not None  # resolve() supplied it
    if deployment.client.holder is None:
        return {}
    return {"holder": room_of(deployment.task, deployment.client, deployment.task.clients)}


def _with_earlier(deployment: Deployment) -> dict[str, str]:
    """Say what the servers' ledgers state with earlier tasks, where they count any. Raises: SetupError, DpError."""
    servers = {Role.AGGREGATOR_A: deployment.aggregator.a, Role.AGGREGATOR_B: deployment.aggregator.b}
    return {
        f"{role.value.replace('-', '_')}_{name}": said
        for role, own in servers.items()
        if own is not None
        for name, said in with_tasks(deployment.task, read_earlier(own, role) or ()).items()
    }


def _evaluated_on(task: Task, split: Split) -> dict[str, str]:
    """Say on what the clients of a local run evaluate models, where they do."""
    if task.evaluation_round is None or split.held_out is None:
        return {}
    held = f"{len(split.held_out)} records that clients hold out, every {task.evaluation_every} rounds"
    return {"evaluation": f"{held}; {task.evaluation_round.client_clip:g} of a client count fully"}


def shown_measure(found: Measure) -> str:
    """Say on how many public records an aggregator measures models, and what."""
    return f"{len(found.records)} public records of shape {found.records.shape}: {', '.join(found.metrics)}"


def require_trained(task: Task, config: ClientConfig, records: Records, of: str = "records") -> None:
    """Refuse a model or a loss that a client's start refuses: each record needs a gradient of its own, and some
    record a finite one.

    A task without training passes. Raises ClientError.
    """
    if config.trainer is None and task.query is None:
        engine = engine_of(
            task, records, device=config.device, memory_mb=config.memory_mb, adapter_rank=config.adapter_rank
        )
        require_some_gradient(engine, {of: records})


def _columns_to_agree_on(columns: Sequence[str]) -> str:
    """Say by a digest which columns the features are, where no task names them: a file's header is not for all eyes."""
    if not columns:
        return ""
    digest = hashlib.sha256("\n".join(columns).encode()).hexdigest()[:16]
    return f"; task.columns is not set: features are {len(columns)} columns in the file's order, SHA-256 {digest}"


def on_average(drawn: float) -> str:
    """Return a number of records in four digits at least, and never as a power of ten."""
    return f"{drawn:.0f} on average" if drawn >= 1000 else f"{drawn:.4g} on average"


def own_privacy(task: Task, client: str) -> str:
    """Say what a record of a client with a rate of its own is proved; nothing of others, whose figure is the task's."""
    if client not in task.record_rates:
        return ""
    rate = task.rate_of(client)
    return f", at its own rate {rate:g}: {promised(task.model_copy(update={'record_rate': rate}))}"


def _own(task: Task, config: ClientConfig, client: str, found: Loaded) -> str:
    """Say how many records there are, of what shape and classes, and what a round would draw. No more of them."""
    require_trained(task, config, found.of_client[client], f"records of {client}")
    own, test = found.of_client[client], found.split.test
    classes = _classes(task, found.split)
    aside = "" if test is found.split.train or not len(test) else f", {len(test)} more kept for testing"
    digest = f"{_held_out(task, config, client, found)}{_columns_to_agree_on(found.split.columns)}"
    drawn = f"a round draws {on_average(task.rate_of(client) * len(own))}{own_privacy(task, client)}"
    return f"{len(own)} of shape {own.shape} in {classes}{aside}; declares {task.clients[client]}; {drawn}{digest}"


def _classes(task: Task, split: Split) -> str:
    """Say what the labels are."""
    if split.train.labels.dtype == np.float32:
        return "numbers"
    named = f" ({', '.join(task.class_names)})" if task.class_names else ""
    missing = split.n_logits - len(np.unique(split.train.labels)) if split.train.labels.ndim == 1 else 0
    return f"{split.n_logits} classes{named}" + (f", {missing} of them without a record" if missing > 0 else "")
