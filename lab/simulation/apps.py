"""Simulate apps: clients with records, a model and a loss of their own, given as objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from precad.clients.app import App
from precad.clients.gradients.probe import refuse_record_mixing
from precad.clients.gradients.record_range import require_range
from precad.clients.models.fingerprint import model_digest
from precad.clients.models.learning import Learning
from precad.clients.models.losses import OwnLoss
from precad.clients.models.networks import NO_ARGUMENTS, fitted, parameter_count
from precad.clients.records import Records, Split, example_label_of, example_of, joined
from precad.clients.records.own import OwnRecords, read_given, require_alike
from precad.clients.records.own.described import TEST
from precad.clients.records.own.found import Found
from precad.deploy.configuration.auditing import refuse_audit_clients
from precad.deploy.configuration.client_ids import ids_of
from precad.deploy.configuration.sections import parse_section
from precad.deploy.errors import ConfigError
from precad.lab.simulation import SimulationSettings
from precad.lab.simulation.algorithms import Deployed
from precad.lab.simulation.app_digests import digests_of
from precad.lab.simulation.simulate import (
    Plan,
    beside_records,
    refuse_unknown_sections,
    sections_of,
    simulated_client,
)
from precad.protos.task.algorithms import names_default
from precad.protos.task.quantile import LEARNT
from precad.protos.task.record_fields import RecordFields
from precad.protos.task.task import Task

Apps = Sequence[App] | Mapping[str, App]


def resolve_apps(raw: Mapping[str, Any], apps: Apps, *, rounds: int | None = None) -> Plan:
    """Return the plan of a training in which each client is an app, with records of its own.

    Model, loss, metrics and test records are those of the first app, and must be the others' too. Clients have the ids
    of a mapping, or of the task, or numbers.
    Raises: ConfigError, DataError, ArgumentError and other errors of the model.
    """
    refuse_unknown_sections(raw)
    sections = sections_of(raw)
    task, client, simulation = (sections[name] for name in ("task", "client", "simulation"))
    config = simulated_client(client)
    refuse_audit_clients(task)
    by_id = _by_id(apps, task.get("clients"))
    app = next(iter(by_id.values()))
    if not names_default(task):
        simulation.setdefault("algorithm", Deployed.name)
    settings = parse_section(SimulationSettings, simulation, "simulation", base=Path())
    learning = Learning.of_app(app, task.get("model_arguments", NO_ARGUMENTS))
    found = _records(by_id, task, client, learning)
    records = {name: one.records for name, one in found.items()}
    train = joined(list(records.values()))
    test = train if app.test is None else _test_records(app, task, client, learning, next(iter(found.values())))
    model = learning.build(0)
    refuse_record_mixing(model)
    fitted(model, Split(train, test, n_logits=2**31), learning.loss)
    require_range(model, {**{f"records of {name}": own for name, own in records.items()}, "test": test}, learning.loss)
    own = _task_of(app, learning, model, task, found)
    _require_same(task, own)
    task |= own
    if rounds is not None:
        task["rounds"] = rounds
    valid = parse_section(Task, task, "task", base=Path())
    plan = beside_records(raw, sections, valid, settings, config)
    plan["raw"]["app"] = digests_of(app, records, test)
    return Plan(
        **plan,
        split=Split(train, test, n_logits=2**31),
        records=records,
        learning=learning,
    )


def _task_of(
    app: App, learning: Learning, model: nn.Module, task: Mapping[str, Any], found: Mapping[str, Found]
) -> dict[str, Any]:
    """Return what an app, and the records of all, say of the task."""
    first = next(iter(found.values()))
    names = {"class_names": list(first.class_names)} if first.class_names else {}
    clients = task.get("clients")  # of a table the numbers are declared, whatever there are
    declared = clients if isinstance(clients, Mapping) else {name: len(one.records) for name, one in found.items()}
    return {
        "record_shape": list(first.records.shape),
        **names,
        "clients": {name: declared[name] for name in found},
        "model": app.model if isinstance(app.model, str) else _path_of(app.model),
        "loss": _path_of(app.loss) if isinstance(learning.loss, OwnLoss) else learning.loss.name,
        "dim": parameter_count(model) + (task.get("update_clipping") in LEARNT),
        "model_digest": model_digest(model, example_of(first.records), learning.loss, example_label_of(first.records)),
    }


def _require_same(task: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Refuse a task that says something else than its apps do. Raises ConfigError, with a line for each field."""
    given = {name: task[name] for name in own if name != "clients" and task.get(name) not in (None, [], ())}
    faults = [
        f"task.{name}: expected {own[name]!r:.200}, of the apps, found {value!r:.200}"
        for name, value in given.items()
        if (list(value) if isinstance(value, tuple) else value) != own[name]
    ]
    if faults:
        raise ConfigError("\n".join(faults))


def _by_id(apps: Apps, ids: object) -> dict[str, App]:
    """Return the apps by client. Raises ConfigError unless they differ in their records alone."""
    names = ids_of(len(apps)) if ids is None else list(ids) if isinstance(ids, Mapping) else ids_of(ids)
    if len(names) != len(apps):
        raise ConfigError(f"clients: expected {len(names)} apps, as many as task.clients, found {len(apps)}")
    if isinstance(apps, Mapping):
        found = dict(apps)
        if isinstance(ids, Mapping | list) and set(found) != set(names):
            expected, others = ", ".join(map(str, names)), ", ".join(map(str, found))
            raise ConfigError(f"clients: expected apps of {expected}, as in task.clients, found {others}")
    else:
        found = dict(zip(names, apps, strict=True))
    for name, app in found.items():
        if not isinstance(app, App):
            raise ConfigError(f"clients: expected apps, found a {type(app).__name__} for {name}")
    first = next(iter(found.values()))
    for name, app in found.items():
        for field in ("model", "loss", "metrics", "test"):
            if getattr(app, field) is not getattr(first, field) and getattr(app, field) != getattr(first, field):
                raise ConfigError(f"clients: expected one {field} for all of them, found another for {name}")
    return found


def _records(
    apps: Mapping[str, App], task: Mapping[str, Any], client: Mapping[str, Any], learning: Learning
) -> dict[str, Found]:
    """Read each client's records, which are all of one shape and the same classes. Raises DataError, ConfigError."""
    found = {
        name: _read(app.records, f"records of {name}", task, client, app, learning, whose=name)
        for name, app in apps.items()
    }
    first = next(iter(found.values()))
    for name, one in found.items():
        if (kind := _kind_of(one.records)) != (wanted := _kind_of(first.records)):
            raise ConfigError(f"records of {name}: expected {wanted}, as others have, found {kind}")
        if one.class_names != first.class_names:
            raise ConfigError(
                f"records of {name}: expected the classes of the other clients; name them in task.class_names"
            )
    return found


def _kind_of(records: Records) -> str:
    """Return what one client's records have in common with another's, in words."""
    return f"shape {records.shape} of {records.features.dtype}"


def _test_records(
    app: App, task: Mapping[str, Any], client: Mapping[str, Any], learning: Learning, train: Found
) -> Records:
    """Read an app's test records, of the shape and the classes of the training. Raises DataError, ConfigError."""
    alike = {**task, "class_names": list(train.class_names)} if train.class_names else task
    test = _read(app.test, "test", alike, client, app, learning, infers_classes=False).records
    require_alike(test, train.records)
    return test


def _read(
    given: object,
    where: str,
    task: Mapping[str, Any],
    client: Mapping[str, Any],
    app: App,
    learning: Learning,
    *,
    whose: str = "",
    infers_classes: bool = True,
) -> Found:
    """Read what an app was given. whose: the client's id. Raises DataError, ConfigError."""
    fields = parse_section(RecordFields, dict(task), "task", base=Path())
    if given is None:
        raise ConfigError(f"{where}: expected a data set, arrays, a source or a function that gives them, found none")
    source = OwnRecords(
        source=where,
        label=app.label or client.get("label"),
        columns=tuple(fields.columns),
        class_names=tuple(fields.class_names),
        shape=tuple(fields.record_shape),
        infers_classes=infers_classes,
        numbers=learning.loss.wants_numbers,
        client=whose,
        field=TEST if where == "test" else "app.records",
    )
    return read_given(given, source)


def _path_of(made: object) -> str:
    """Return the import path of a function or a class, for the configuration."""
    name = getattr(made, "__qualname__", type(made).__qualname__)
    return f"{getattr(made, '__module__', type(made).__module__)}:{name}"
