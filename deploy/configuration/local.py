"""Complete the configuration of a whole deployment on one machine. Where the user's file says nothing, the runner
supplies dimension, numbers of records, addresses, certificates and paths."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError, ModelInputError, RecordMixingLayerError, UnknownNameError
from precad.clients.gradients.layers import require_layer_sizes
from precad.clients.gradients.probe import refuse_record_mixing
from precad.clients.gradients.record_range import require_range
from precad.clients.models import networks
from precad.clients.records import DataSource, Split
from precad.deploy.conducts import conducts_of
from precad.deploy.configuration.sections import Deployment, parse, parse_section
from precad.deploy.errors import ConfigError
from precad.deploy.run_folder import RunFolder
from precad.protos.task.task import Task

DEFAULT_MODEL: str = Task.model_fields["model"].default


def resolve(raw: Mapping[str, Any], folder: RunFolder) -> tuple[dict[str, Any], Deployment, Split]:
    """Return the user's configuration, and where it says nothing what the runner supplies: dimension, declared numbers
    of records, addresses, paths; and the data set. Raises ConfigError, DataError."""
    resolved = _merge(_supplied(folder), raw)
    task = resolved["task"]
    supply_model_dimension(task)
    source = _source(resolved["client"], folder.root)
    split = load_split(source, task.get("model", DEFAULT_MODEL))
    if isinstance(ids := task.get("clients"), list):
        task["clients"] = declared_records(ids, source, split)
    if not resolved["network"]:
        resolved["network"] = _free_addresses()
    for section_of_server, name in _SERVERS:
        server = resolved
        for key in section_of_server:
            server = server[key]
        server.setdefault("listen", resolved["network"].get(name, ""))
        server.setdefault("reconnect_timeout_s", 0.0)  # nobody starts a process of this run again
        server.setdefault("drain_timeout_s", 0.0)  # nor is there anybody to finish a round for
        if "operations_listen" in server:
            server.setdefault("operations_token", folder.operations_token.name)
    resolved["client"].setdefault("reconnect_timeout_s", 0.0)
    deployment = parse(resolved, base=folder.root)
    real = declared_records(list(deployment.task.clients), source, split)
    for client_id, declared in deployment.task.clients.items():
        if declared != real[client_id]:
            raise ConfigError(
                f"task.clients.{client_id}: expected the {real[client_id]} records that it has, found {declared}"
            )
    if deployment.client:
        for client_id in deployment.client.attacks:
            if client_id not in deployment.task.clients:
                raise ConfigError(
                    f"client.attacks.{client_id}: expected one of the task's clients, found {client_id!r}"
                )
        conducts_of(deployment.task.clients, deployment.client)  # refused here, before anything starts
    return resolved, deployment, split


_SERVERS = (
    (("aggregator", "a"), "aggregator_a"),
    (("aggregator", "b"), "aggregator_b"),
    (("dealer",), "dealer"),
)


def _supplied(folder: RunFolder) -> dict[str, Any]:
    """Return the fields that the runner makes itself, with paths inside the run folder."""
    pins = {letter: f"pki/aggregator-{letter}/cert.pem" for letter in "ab"}
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
        "dealer": {
            **_tls("dealer"),
            **{f"aggregator_{letter}_certificate": pin for letter, pin in pins.items()},
            "state_dir": "dealer",
        },
        "aggregator": {
            letter: {
                **_tls(f"aggregator-{letter}"),
                "peer_certificate": pins[other],
                "dealer_certificate": "pki/dealer/cert.pem",
                "initial_model": folder.initial_model.name,
                "state_dir": letter,
            }
            for letter, other in (("a", "b"), ("b", "a"))
        },
    }


def _merge(supplied: Mapping[str, Any], users: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return `users` over `supplied`, section by section. Raises ConfigError where a section is expected and is
    none."""
    merged = dict(supplied)
    for key, value in users.items():
        if isinstance(merged.get(key), Mapping):
            if not isinstance(value, Mapping):
                raise ConfigError(f"{path}{key}: expected a section, found {value!r}")
            merged[key] = _merge(merged[key], value, f"{path}{key}.")
        elif key in merged and merged[key] != value:
            raise ConfigError(f"{path}{key}: expected {merged[key]!r}, which precad run makes itself, found {value!r}")
        else:
            merged[key] = value
    return merged


def supply_model_dimension(task: dict[str, Any]) -> None:
    """Write `dim` into a `[task]` section. Raises ConfigError where it says another one than its model has, or clips
    what the model has not."""
    name, clipping = task.get("model", DEFAULT_MODEL), task.get("update_clipping")
    model = _model(name)
    if clipping == "per-layer":
        try:
            require_layer_sizes(model, "task.update_clipping")
        except ArgumentError as error:
            raise ConfigError(str(error)) from None
    n_learnt = int(clipping == "private-quantile")
    dimension = networks.parameter_count(model) + n_learnt
    if task.setdefault("dim", dimension) != dimension:
        beside = " and a learnt bound" if n_learnt else ""
        raise ConfigError(f"task.dim: expected {dimension}, the dimension of {name!r}{beside}, found {task['dim']!r}")


def _model(name: object) -> torch.nn.Module:
    """Raises ConfigError."""
    try:
        if not isinstance(name, str):
            raise UnknownNameError("model", str(name), known=sorted(networks.ARCHITECTURES))
        return networks.build(name)
    except UnknownNameError:
        known = ", ".join(sorted(networks.ARCHITECTURES))
        raise ConfigError(f"task.model: expected one of {known}, or package.module:factory, found {name!r}") from None
    except ArgumentError as error:
        raise ConfigError(f"task.model: {error}") from None


def _source(client: Mapping[str, Any], base: Path) -> DataSource:
    """Return the data source that `[client]` names. A section with faults gives the default: its faults are reported
    with all others, when the whole file is validated."""
    try:
        return DataSource.of(parse_section(ClientConfig, client, "client", base=base))
    except ConfigError:
        return DataSource()


def load_split(source: DataSource, model: str) -> Split:
    """Return the data set, once it is sure that the model takes its records. Raises ConfigError, DataError."""
    split = source.load(side=networks.image_side(model))
    try:
        built = networks.build(model)
        refuse_record_mixing(built)
        some = split.train
        networks.require_fit(built, some.shape, is_text=some.is_text, n_logits=split.n_logits)
        halves = {"training half": some, "test half": split.test}
        require_range(built, {f"client.dataset {source.dataset}, {name}": half for name, half in halves.items()})
    except (ModelInputError, RecordMixingLayerError) as error:
        raise ConfigError(f"task.model: {error} (client.dataset = {source.dataset!r})") from None
    return split


def _tls(name: str) -> dict[str, str]:
    return {"certificate": f"pki/{name}/cert.pem", "key": f"pki/{name}/key.pem", "authority": "pki/ca.pem"}


def declared_records(ids: list[Any], source: DataSource, split: Split) -> dict[str, int]:
    """Return how many records each client will declare: the size of its part of the data set. Raises ConfigError."""
    if not all(isinstance(name, str) for name in ids) or len(set(ids)) != len(ids) or not ids:
        raise ConfigError("task.clients: expected a table of ids and numbers of records, or a list of distinct ids")
    try:
        return source.sizes(split, ids)
    except ArgumentError as error:
        raise ConfigError(f"client.partition: {error}") from None


def with_operations(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration with an operations port for every server that has none. Raises ConfigError."""
    wished = dict(raw)
    for (keys, _), address in zip(_SERVERS, _free_addresses().values(), strict=True):
        section = wished
        for key in keys:
            if not isinstance(inner := section.get(key, {}), Mapping):
                raise ConfigError(f"{'.'.join(keys)}: expected a section, found {inner!r}")
            section[key] = dict(inner)
            section = section[key]
        section.setdefault("operations_listen", address)
    return wished


def _free_addresses() -> dict[str, str]:
    """Return three free ports of the loopback interface. Another process might take one before we do; then it is
    reported."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    names = ("aggregator_a", "aggregator_b", "dealer")
    return {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
