"""Configure a run or a client by an app: a module's object that names model, records, loss and metrics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precad.clients.app import App
from precad.clients.config import ClientConfig
from precad.clients.models.extension import imported
from precad.clients.own_code import look_in
from precad.deploy.configuration.client_ids import with_clients
from precad.deploy.configuration.sections import (
    Deployment,
    load,
    read_local,
    read_toml,
    section,
    section_of,
    with_folder,
)
from precad.deploy.errors import ConfigError
from precad.protos.task.task import Task


def read_local_with_app(config: Path, path: str | None, n_clients: int | None = None) -> dict[str, Any]:
    """Return the contents of a local run's file, with an app that is looked for in its folder first, if one is named.

    n_clients: how many, where the file names none. Raises ConfigError, ExtensionError.
    """
    if path is None:
        raw = read_local(config)
    else:
        look_in(config.parent)
        raw = with_folder(with_app(read_toml(config), path), config.parent.absolute())
        if n_clients is None and "clients" not in section_of(raw, "task"):
            raise ConfigError(f"--clients: expected a number, or task.clients in {config}, found neither")
    return raw if n_clients is None else with_clients(raw, n_clients)


def with_app(raw: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the configuration of a local run with an app, `module:name`, in the place of model, loss and records.

    Raises ConfigError where the configuration has others; ExtensionError.
    """
    app = app_at(path)
    sections = dict(raw)
    for part, own in (("task", _of_task(app, path)), ("client", _of_client(app, path))):
        given = section_of(raw, part)
        for name, value in own.items():
            if given.get(name, value) != value:
                raise ConfigError(f"{part}.{name}: expected {value!r}, of the app {path}, found {given[name]!r}")
        sections[part] = {**given, **own}
    sections["client"].setdefault("holdout", 0.0)
    return sections


def load_with_app(config: Path, path: str | None) -> Deployment:
    """Return the validated file of a deployment, whose client takes its records from an app if one is named.

    Raises ConfigError, ExtensionError.
    """
    deployment = load(config)
    if path is None:
        _require_records_of_app(deployment, config.parent)
        return deployment
    look_in(config.parent)
    own = client_of_app(deployment.task, section(deployment.client, "client"), path)
    return deployment.model_copy(update={"client": own})


def _require_records_of_app(deployment: Deployment, base: Path) -> None:
    """Refuse a client whose task trains an app, and whose records nobody named: it would train on a public data set.

    Raises ConfigError, ExtensionError.
    """
    model, own = deployment.task.model, deployment.client
    if own is None or own.records is not None or own.trainer is not None or "dataset" in own.model_fields_set:
        return
    if deployment.task.query is not None or ":" not in model:
        return
    look_in(base)
    if isinstance(imported("model", model), App):
        raise ConfigError(f"client.records: expected records, or --app {model} as task.model says, found none")


def client_of_app(task: Task, config: ClientConfig, path: str) -> ClientConfig:
    """Return the configuration of a deployed client that takes its records from an app.

    Raises ConfigError unless the task means the app's model and loss; ExtensionError.
    """
    app = app_at(path)
    for name, value in _of_task(app, path).items():
        if getattr(task, name) != value:
            raise ConfigError(f"task.{name}: expected {value!r}, of the app {path}, found {getattr(task, name)!r}")
    if config.records is not None:
        raise ConfigError(f"client.records: expected none beside the app {path}, found {config.data_name!r}")
    of_app = _of_client(app, path)
    return config.model_copy(update={**of_app, "metrics": []})


def app_at(path: str) -> App:
    """Import an app. Raises ExtensionError, ConfigError; also for what is no text, as an app itself is none here."""
    if not isinstance(path, str):
        raise ConfigError(f"app: expected module:name, which other processes import, found a {type(path).__name__}")
    if ":" not in path:
        raise ConfigError(f"app: expected module:name, found {path!r}")
    found = imported("app", path)
    if not isinstance(found, App):
        raise ConfigError(f"app: expected a precad.App at {path}, found a {type(found).__name__}")
    return found


def _of_task(app: App, path: str) -> dict[str, Any]:
    """Return what an app says of the task. Its model, and a loss that is a function, are named by the app's path."""
    return {
        "model": app.model if isinstance(app.model, str) else path,
        "loss": app.loss if isinstance(app.loss, str) else path,
    }


def _of_client(app: App, path: str) -> dict[str, Any]:
    return {"records": path, **({} if app.label is None else {"label": app.label}), "metrics": [path]}
