"""Complete the configuration of a whole deployment on one machine. Where the user's file says nothing, the runner
supplies dimension, numbers of records, addresses, certificates and paths.

PyTorch and the data sets are imported where they are needed, so that `draft` says at once what is wrong with a file.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precad.clients.config import ClientConfig
from precad.clients.errors import (
    ArgumentError,
    DropoutLayerError,
    ModelInputError,
    RecordMixingLayerError,
    UnknownNameError,
)
from precad.clients.own_code import look_in, offer
from precad.deploy.configuration.auditing import audit_ids, audited_records, declared_canaries
from precad.deploy.configuration.evaluation_clip import supply_evaluation_clip
from precad.deploy.configuration.initial_model import supply_digest
from precad.deploy.configuration.sections import Deployment, parse, parse_section
from precad.deploy.configuration.update_set import draft_layer_sizes, supply_directions, supply_layer_sizes
from precad.deploy.errors import ConfigError
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.shown.found import found_shown
from precad.protos.task.evaluation import BY_CLIENTS
from precad.protos.task.proved_fields import MODE as PROVED
from precad.protos.task.quantile import BY_LAYER, LEARNT
from precad.protos.task.record_fields import RecordFields
from precad.protos.task.target import TARGET, keep_resolved
from precad.protos.task.task import Task

if TYPE_CHECKING:
    import torch

    from precad.clients.models.losses import Loss
    from precad.clients.records import DataSource, Split

HOLDOUT = 0.2
"""The share of own records that a local run keeps for testing, where the configuration says nothing."""
REJOIN_TIMEOUT_S = 60.0
"""How long a run that is continued waits for the clients that start with it."""
COLLUDERS = "colluders"
"""Folder of a run that its attackers share."""
LINGER_S = 604_800.0
"""How long dashboards stay that somebody at a terminal closes."""
DEFAULT_MODEL: str = Task.model_fields["model"].default


def draft(raw: Mapping[str, Any], folder: RunFolder) -> Deployment | None:
    """Validate what needs neither the model nor the records. Raises ConfigError.

    Return the configuration with a dimension and numbers of records that are made up where the file has none. Return
    None if those are at fault, which `resolve` finds out with the true ones.
    """
    faults: list[list[str]] = []
    for dimension in (1, 10_000):  # what is wrong with any dimension is wrong with the true one
        resolved = begun(raw, folder)
        task = resolved["task"]
        task.setdefault("dim", dimension)
        draft_layer_sizes(task)
        supply_directions(task)
        if isinstance(task.get("clients"), list | int):
            ids = ids_of(task["clients"])
            require_ids(ids)
            task["clients"] = dict.fromkeys(ids, 1)
        try:
            return finished(resolved, folder)
        except ConfigError as error:
            faults.append(str(error).splitlines())
    if certain := [fault for fault in faults[0] if fault in faults[1]]:
        raise ConfigError("\n".join(certain))
    return None


def resolve(raw: Mapping[str, Any], folder: RunFolder) -> tuple[dict[str, Any], Deployment, Split]:
    """Return the user's configuration, and where it says nothing what the runner supplies: dimension, declared numbers
    of records, gate, addresses, paths; and the data set. Raises ConfigError, DataError, SetupError."""
    resolved = begun(raw, folder)
    task = resolved["task"]
    supply_colluders(resolved["client"], folder.root)
    supply_gate(task)
    if isinstance(task.get("clients"), int):
        task["clients"] = ids_of(task["clients"])
    source, ids = _source(resolved["client"], task, folder.root), task.get("clients")
    split = complete_task(task, resolved["client"], source, ids if isinstance(ids, list) else None)
    supply_model_digest(task, split)
    deployment = supply_digest(resolved, finished(resolved, folder))
    real = audited_records(task, declared_records(with_records(deployment.task.clients, task), source, split))
    for client_id, declared in deployment.task.clients.items():
        if declared != real.get(client_id, declared):
            raise ConfigError(
                f"task.clients.{client_id}: expected the {real[client_id]} records that it has, found {declared}"
            )
    if deployment.client and deployment.client.trainer is not None:
        from precad.clients.external.training import require_task

        require_task(deployment.task)
    if deployment.client:
        from precad.deploy.conducts import conducts_of

        require_enrolled_attackers(deployment.client, deployment.task)
        conducts_of(deployment.task.clients, deployment.client, deployment.task)  # before anything starts
    return resolved, deployment, split


def begun(raw: Mapping[str, Any], folder: RunFolder) -> dict[str, Any]:
    """Lay the user's configuration over what the runner supplies, and take up records of the user's own.

    Raises ConfigError.
    """
    resolved = merged_over(supplied_by_runner(folder, raw), raw)
    supply_own_records(resolved["client"], holds_out=resolved["task"].get("evaluation") == BY_CLIENTS)
    return resolved


def finished(resolved: dict[str, Any], folder: RunFolder) -> Deployment:
    """Supply addresses, validate the whole, and write what a target of privacy came to. Raises ConfigError."""
    supply_addresses(resolved, folder)
    deployment = parse(resolved, base=folder.root)
    if TARGET in resolved["task"]:  # once, here: the processes read what it came to
        resolved["task"] = keep_resolved(resolved["task"], deployment.task)
    return deployment


def supply_gate(task: dict[str, Any]) -> None:
    """Write into a `[task]` section the gate of a run that names none; mode `proved` compares nothing."""
    from precad.mpc.gate_names import usual_gate

    if task.get("mode") != PROVED:
        task.setdefault("gate", usual_gate())


def supply_addresses(resolved: dict[str, Any], folder: RunFolder) -> None:
    """Write addresses, and what follows from nobody starting a process again, where the user wrote none."""
    if not resolved["network"]:
        resolved["network"] = _free_addresses(resolved)
    for section_of_server, name in _servers(resolved):
        server = resolved
        for key in section_of_server:
            server = server[key]
        if name in resolved["network"]:
            server.setdefault("listen", resolved["network"][name])
        server.setdefault("reconnect_timeout_s", 0.0)  # nobody starts one process of this run again
        if name != "dealer":
            server.setdefault("rejoin_timeout_s", REJOIN_TIMEOUT_S)  # but all of them, to continue the run
        server.setdefault("drain_timeout_s", 0.0)  # nor is there anybody to finish a round for
        if "operations_listen" in server:
            server.setdefault("operations_token", folder.operations_token.name)
    resolved["client"].setdefault("reconnect_timeout_s", 0.0)


_SERVERS = (
    (("aggregator", "a"), "aggregator_a"),
    (("aggregator", "b"), "aggregator_b"),
    (("dealer",), "dealer"),
)


def is_proved(raw: Mapping[str, Any]) -> bool:
    """Return whether a configuration is of mode `proved`, which has no dealer."""
    task = raw.get("task")
    return isinstance(task, Mapping) and task.get("mode") == PROVED


def _servers(raw: Mapping[str, Any]) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return the section and the name of each server that a configuration has."""
    return _SERVERS[:2] if is_proved(raw) else _SERVERS


def supplied_by_runner(folder: RunFolder, raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the runner makes itself, with paths inside the run folder."""
    pins = {letter: f"pki/aggregator-{letter}/cert.pem" for letter in "ab"}
    dealer = {
        **_tls("dealer"),
        **{f"aggregator_{letter}_certificate": pin for letter, pin in pins.items()},
        "state_dir": "dealer",
    }
    of_dealer = {} if is_proved(raw) else {"dealer_certificate": "pki/dealer/cert.pem"}
    return {
        "task": {},
        "network": {},
        "client": {
            "certificates": "pki",
            "authority": "pki/ca.pem",
            "state_dir": "clients",
            **{f"aggregator_{letter}_certificate": pin for letter, pin in pins.items()},
        },
        "operator": _tls("operator"),
        "localhost": {},
        **({} if is_proved(raw) else {"dealer": dealer}),
        "aggregator": {
            letter: {
                **_tls(f"aggregator-{letter}"),
                "peer_certificate": pins[other],
                **of_dealer,
                "initial_model": folder.initial_model.name,
                "state_dir": letter,
            }
            for letter, other in (("a", "b"), ("b", "a"))
        },
    }


def merged_over(supplied: Mapping[str, Any], users: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return `users` over `supplied`, section by section. Raises ConfigError where a section is expected and is
    none."""
    merged = dict(supplied)
    for key, value in users.items():
        if isinstance(merged.get(key), Mapping):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{path}{key}: expected a section, found {found_shown(value, path, key)}")
            merged[key] = merged_over(merged[key], value, f"{path}{key}.")
        elif key in merged and merged[key] != value:
            found = found_shown(value, key)
            raise ConfigError(f"{path}{key}: expected {merged[key]!r}, which precad run makes itself, found {found}")
        else:
            merged[key] = value
    return merged


def complete_task(task: dict[str, Any], client: Mapping[str, Any], source: DataSource, ids: list[Any] | None) -> Split:
    """Write into a `[task]` section what follows from its model and data set, and return the data set.

    That is the dimension and what own records have in common. With ids it is also how many records a client declares.
    Without (None), the section declares the numbers itself. client: the `[client]` section. Raises ConfigError,
    DataError.
    """
    canaries = supply_model_dimension(task)
    split = load_split(source, task)
    supply_record_fields(task, split)
    if ids is not None:
        of_audit = {client: number for client, number in canaries.items() if client in ids}
        own = declared_records(with_records(ids, task), source, split)
        task["clients"] = audited_records(task, own) | of_audit
    require_held_out(task, split, client)
    supply_evaluation_clip(task, client, declares=ids is None)
    return split


def with_records(ids: Iterable[Any], task: Mapping[str, Any]) -> list[Any]:
    """Return those of the clients that have records: all but audit clients. Raises ConfigError."""
    auditing = audit_ids(task)
    return [client for client in ids if client not in auditing]


def require_enrolled_attackers(client: ClientConfig, task: Task) -> None:
    """Raise ConfigError unless every client with an attack is one of the task's."""
    for name in client.attacks:
        if name not in task.clients:
            raise ConfigError(f"client.attacks.{name}: expected one of the task's clients, found {name!r}")


def supply_colluders(client: dict[str, Any], base: Path) -> None:
    """Write into the `[client]` section of a local run the folder that its attackers share, where they need one."""
    if not client.get("attacks") or "colluders" in client:
        return
    from precad.deploy.conducts import needs_folder

    try:
        config = parse_section(ClientConfig, client, "client", base=base)
    except ConfigError:
        return  # told with all other faults
    if needs_folder(config):
        client["colluders"] = COLLUDERS


def supply_model_dimension(task: dict[str, Any]) -> dict[str, int]:
    """Write `dim` into a `[task]` section, and return how many canaries its audit clients declare.

    Raises ConfigError where it says another one than its model has, or clips what the model has not.
    """
    from precad.clients.gradients.layers import require_layer_sizes
    from precad.clients.models import networks

    name, clipping = task.get("model", DEFAULT_MODEL), task.get("update_clipping")
    model = _model(task)
    if clipping in BY_LAYER:
        try:
            require_layer_sizes(model, "task.update_clipping")
        except ArgumentError as error:
            raise ConfigError(str(error)) from None
    supply_layer_sizes(task, model)
    supply_directions(task)
    n_learnt = int(clipping in LEARNT)
    canaries = declared_canaries(task, networks.parameter_count(model))
    dimension = networks.parameter_count(model) + n_learnt + sum(canaries.values())
    if task.setdefault("dim", dimension) != dimension:
        beside = " and a learnt bound" if n_learnt else " and the canaries" if canaries else ""
        raise ConfigError(f"task.dim: expected {dimension}, the dimension of {name!r}{beside}, found {task['dim']!r}")
    return canaries


def supply_model_digest(task: dict[str, Any], split: Split) -> None:
    """Write into a `[task]` section which model and loss of the user's own it means.

    Raises ConfigError where it says others than are here.
    """
    from precad.clients.models.fingerprint import model_digest
    from precad.clients.records import example_label_of, example_of

    name, loss = task.get("model", DEFAULT_MODEL), _loss(task)
    if ":" not in name and loss.takes_batches:
        return
    found = model_digest(_model(task), example_of(split.train), loss, example_label_of(split.train))
    if task.setdefault("model_digest", found) != found:
        raise ConfigError(f"task.model_digest: expected {found}, of {name!r} here, found {task['model_digest']!r}")


def _model(task: Mapping[str, Any]) -> torch.nn.Module:
    """Return the model of a `[task]` section. Raises ConfigError."""
    from precad.clients.models import networks
    from precad.clients.models.adapter_files import Constants

    name, arguments = task.get("model", DEFAULT_MODEL), task.get("model_arguments", {})
    try:
        if not isinstance(name, str):
            raise UnknownNameError("model", str(name), known=sorted(networks.ARCHITECTURES))
        if not isinstance(arguments, Mapping):
            raise ConfigError(f"task.model_arguments: expected a section, found {arguments!r:.60}")
        constants = Constants(task.get("base_model_sha256"), task.get("adapter_sha256"))
        return networks.build(name, arguments=arguments, constants=constants)
    except UnknownNameError:
        known = ", ".join(sorted(networks.ARCHITECTURES))
        raise ConfigError(f"task.model: expected one of {known}, or package.module:factory, found {name!r}") from None
    except ArgumentError as error:
        field = "" if str(error).startswith(("task.", "client.")) else "task.model: "
        raise ConfigError(f"{field}{error}") from None


def supply_own_records(client: dict[str, Any], *, holds_out: bool = False) -> None:
    """Write into a `[client]` section with records of its own what a local run says of them: one source is dealt.

    holds_out: whether clients evaluate models on records that they hold out, of a data set too.

    From here on, modules of the user's own are looked for in the section's folder too.
    """
    if _is_own(client):
        from precad.clients.records.own.described import CLIENT

        client.setdefault("folder", str(Path.cwd()))
        client.setdefault("dealt", CLIENT not in str(client["records"]))
    if _is_own(client) or holds_out:
        client.setdefault("holdout", HOLDOUT)
    if "folder" in client:
        look_in(Path(str(client["folder"])))
    offer(*(str(client[name]) for name in ("base_model", "adapter") if client.get(name) is not None))


def require_held_out(task: Mapping[str, Any], split: Split, client: Mapping[str, Any]) -> None:
    """Raise ConfigError where clients are to evaluate models on records that they hold out, and none is held out.

    A foreign trainer has records of its own.
    """
    is_needed = task.get("evaluation") == BY_CLIENTS and client.get("trainer") is None
    if is_needed and (split.held_out is None or not len(split.held_out)):
        raise ConfigError(
            f"client.holdout: expected a share that keeps a record with task.evaluation = {BY_CLIENTS!r}, found less"
        )


def supply_record_fields(task: dict[str, Any], split: Split) -> None:
    """Write into a `[task]` section what the clients of one source have in common, where it says nothing."""
    if split.is_own:
        task.setdefault("record_shape", list(split.train.shape))
        if split.class_names:
            task.setdefault("class_names", list(split.class_names))


def _is_own(client: Mapping[str, Any]) -> bool:
    return client.get("records") is not None


def _source(client: Mapping[str, Any], task: Mapping[str, Any], base: Path) -> DataSource:
    """Return the data source that `[client]` names. A section with faults gives the default: its faults are reported
    with all others, when the whole file is validated. Raises ConfigError for own records, which have no default."""
    from precad.clients.records import DataSource

    try:
        config = parse_section(ClientConfig, client, "client", base=base)
        return local_source(config, task)
    except ConfigError:
        if _is_own(client):
            raise
        return DataSource()


def local_source(config: ClientConfig, task: Mapping[str, Any]) -> DataSource:
    """Return the data source of a local run, in which records may name their classes. Raises ConfigError."""
    from precad.clients.records.own import source_of

    fields = parse_section(RecordFields, dict(task), "task", base=Path())
    clients = task.get("clients")
    ids = [name for name in clients if isinstance(name, str)] if isinstance(clients, list | Mapping) else []
    return source_of(config, fields, with_records(ids, task), infers_classes=True, numbers=_loss(task).wants_numbers)


def _loss(task: Mapping[str, Any]) -> Loss:
    """Return the loss of a `[task]` section. Raises ConfigError."""
    from precad.clients.models.losses import CROSS_ENTROPY, loss_of

    try:
        return loss_of(task.get("loss", CROSS_ENTROPY.name))
    except ArgumentError as error:
        raise ConfigError(f"task.loss: {error}") from None


def load_split(source: DataSource, task: Mapping[str, Any]) -> Split:
    """Return the data set, once it is sure that the model of a `[task]` section takes its records, and the loss its
    labels. Raises ConfigError, DataError."""
    from precad.clients.gradients.probe import refuse_record_mixing
    from precad.clients.gradients.record_range import require_range
    from precad.clients.models import networks

    split = source.load(side=networks.image_side(str(task.get("model", DEFAULT_MODEL))))
    try:
        built, loss = _model(task), _loss(task)
        refuse_record_mixing(built)
        split = networks.fitted(built, split, loss)
        halves = {"training half": split.train, "test half": split.test}
        require_range(built, {f"{source.name}, {name}": half for name, half in halves.items()}, loss)
    except (ModelInputError, RecordMixingLayerError, DropoutLayerError) as error:
        raise ConfigError(f"task.model: {error} ({source.name})") from None
    if not len(split.test):
        raise ConfigError(
            f"client.holdout: expected a share that keeps one of the {len(split.train)} records to measure the "
            f"accuracy, found {source.holdout:g}"
        )
    return split


def _tls(name: str) -> dict[str, str]:
    return {"certificate": f"pki/{name}/cert.pem", "key": f"pki/{name}/key.pem", "authority": "pki/ca.pem"}


def declared_records(ids: list[Any], source: DataSource, split: Split) -> dict[str, int]:
    """Return how many records each client will declare: the size of its part of the data set. Raises ConfigError."""
    require_ids(ids)
    try:
        return source.sizes(split, ids)
    except ArgumentError as error:
        raise ConfigError(f"client.partition: {error}") from None


def require_ids(ids: list[Any]) -> None:
    """Raise ConfigError unless they are distinct strings, at least one."""
    wrong = [name for name in ids if not isinstance(name, str)]
    twice = [] if wrong else [name for name, n in Counter(ids).items() if n > 1]
    if wrong or twice or not ids:
        found = f"{(wrong or twice)[0]!r:.60}{' twice' if twice else ''}" if ids else "none"
        raise ConfigError(
            "task.clients: expected a number, a table of ids and numbers of records, or a list of distinct ids, "
            f"found {found}"
        )


def ids_of(clients: object) -> list[Any]:
    """Return ids of a number of clients, or a list of them. Raises ConfigError."""
    if isinstance(clients, int) and not isinstance(clients, bool):
        if not 2 <= clients <= 1_000_000:
            raise ConfigError(f"task.clients: expected between 2 and 1000000 clients, found {clients}")
        return _numbered(clients)
    if isinstance(clients, list):
        return clients
    raise ConfigError(f"task.clients: expected a number, a list of ids or a table, found {clients!r:.60}")


def _numbered(n_clients: int) -> list[Any]:
    return [f"client-{i:0{len(str(n_clients - 1))}}" for i in range(n_clients)]


def with_clients(raw: Mapping[str, Any], n_clients: int) -> dict[str, Any]:
    """Return a configuration whose task has so many clients, by the name of `--clients`. Raises ConfigError."""
    given: object = n_clients
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        belongs = "; names of clients belong in task.clients" if isinstance(given, list | tuple | dict) else ""
        raise ConfigError(f"--clients: expected a positive integer, found {given!r:.60}{belongs}")
    task = raw.get("task", {})
    if not isinstance(task, Mapping) or "clients" in task:
        found = task["clients"] if isinstance(task, Mapping) else task
        raise ConfigError(f"task.clients: expected none beside clients, found {found!r:.60}")
    return {**raw, "task": {**task, "clients": _numbered(n_clients)}}


def with_operations(raw: Mapping[str, Any], *, stays: bool = False) -> dict[str, Any]:
    """Return the configuration with an operations port for every server that has none. Raises ConfigError.

    stays: whether the ports stay open when the task is over.
    """
    wished = dict(raw)
    for (keys, _), address in zip(_servers(raw), _free_addresses(raw).values(), strict=True):
        section = wished
        for key in keys:
            if not isinstance(inner := section.get(key, {}), Mapping):
                raise ConfigError(f"{'.'.join(keys)}: expected a section, found {inner!r}")
            section[key] = dict(inner)
            section = section[key]
        section.setdefault("operations_listen", address)
        if stays:
            section["operations_linger_s"] = LINGER_S
    return wished


def _free_addresses(raw: Mapping[str, Any]) -> dict[str, str]:
    """Return a free port of the loopback interface for each server. Another process might take one before we do; then
    it is reported."""
    names = [name for _, name in _servers(raw)]
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
