"""Complete the configuration of a whole deployment on one machine, where the user's file says nothing.

The runner supplies certificates and paths here. `model_and_records` supplies what a task's model and records say,
`local_servers` the addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precad.clients.config import ClientConfig
from precad.deploy.configuration.auditing import audited_records
from precad.deploy.configuration.client_ids import ids_of, require_ids
from precad.deploy.configuration.initial_model import supply_digest
from precad.deploy.configuration.local_servers import is_proved, supply_addresses
from precad.deploy.configuration.model_and_records import (
    complete_task,
    declared_records,
    source_here,
    supply_model_digest,
    supply_own_records,
    with_records,
)
from precad.deploy.configuration.sections import Deployment, parse, parse_section
from precad.deploy.configuration.update_set import draft_layer_sizes, supply_directions
from precad.deploy.errors import ConfigError
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.shown.found import found_shown
from precad.protos.task.evaluation import BY_CLIENTS
from precad.protos.task.proved_fields import MODE as PROVED
from precad.protos.task.target import TARGET, keep_resolved
from precad.protos.task.task import Task

if TYPE_CHECKING:
    from precad.clients.records import Split

COLLUDERS = "colluders"
"""Folder of a run that its attackers share."""


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
    source, ids = source_here(resolved["client"], task, folder.root), task.get("clients")
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


def _tls(name: str) -> dict[str, str]:
    return {"certificate": f"pki/{name}/cert.pem", "key": f"pki/{name}/key.pem", "authority": "pki/ca.pem"}
