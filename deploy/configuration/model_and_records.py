"""Complete a `[task]` section from its model and its records: dimension, digest, declared numbers, fields.

PyTorch and the data sets are imported where they are needed, so that a draft says at once what is wrong with a file.
"""

from __future__ import annotations

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
from precad.deploy.configuration.client_ids import require_ids
from precad.deploy.configuration.evaluation_clip import supply_evaluation_clip
from precad.deploy.configuration.sections import parse_section
from precad.deploy.configuration.update_set import supply_directions, supply_layer_sizes
from precad.deploy.errors import ConfigError
from precad.protos.task.evaluation import BY_CLIENTS
from precad.protos.task.quantile import BY_LAYER, LEARNT
from precad.protos.task.record_fields import RecordFields
from precad.protos.task.task import Task

if TYPE_CHECKING:
    import torch

    from precad.clients.models.losses import Loss
    from precad.clients.records import DataSource, Split

HOLDOUT = 0.2
"""The share of own records that a local run keeps for testing, where the configuration says nothing."""
DEFAULT_MODEL: str = Task.model_fields["model"].default


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


def declared_records(ids: list[Any], source: DataSource, split: Split) -> dict[str, int]:
    """Return how many records each client will declare: the size of its part of the data set. Raises ConfigError."""
    require_ids(ids)
    try:
        return source.sizes(split, ids)
    except ArgumentError as error:
        raise ConfigError(f"client.partition: {error}") from None


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
        more = "; or more records, as each is kept with that probability" if source.holdout else ""
        raise ConfigError(
            f"client.holdout: expected a share that keeps one of the {len(split.train)} records to measure the "
            f"accuracy, found {source.holdout:g}{more}"
        )
    return split


def supply_record_fields(task: dict[str, Any], split: Split) -> None:
    """Write into a `[task]` section what the clients of one source have in common, where it says nothing."""
    if split.is_own:
        task.setdefault("record_shape", list(split.train.shape))
        if split.class_names:
            task.setdefault("class_names", list(split.class_names))


def require_held_out(task: Mapping[str, Any], split: Split, client: Mapping[str, Any]) -> None:
    """Raise ConfigError where clients are to evaluate models on records that they hold out, and none is held out.

    A foreign trainer has records of its own.
    """
    is_needed = task.get("evaluation") == BY_CLIENTS and client.get("trainer") is None
    if is_needed and (split.held_out is None or not len(split.held_out)):
        raise ConfigError(
            f"client.holdout: expected a share that keeps a record with task.evaluation = {BY_CLIENTS!r}, found less"
        )


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


def _is_own(client: Mapping[str, Any]) -> bool:
    return client.get("records") is not None


def source_here(client: Mapping[str, Any], task: Mapping[str, Any], base: Path) -> DataSource:
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
