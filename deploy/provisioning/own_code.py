"""Name in a project's task, by digest, which model and loss of the organisations' own it means.

An operator in a hurry sets no `task.model_digest`, and nobody would compare the clients' code. So `precad provision`
computes it from the code beside the project, as each client will from its own, and every kit has it. It depends on what
a record looks like, which the task's columns say, or records of `project.example`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import tomli_w

from precad.clients.errors import ExtensionError, ModelImportError
from precad.clients.own_code import is_brought, look_in, offer
from precad.deploy.errors import ConfigError
from precad.deploy.provisioning.project import Project
from precad.protos.tls.identity import Role

if TYPE_CHECKING:
    import torch

    from precad.clients.models.losses import Loss


def with_digest(project: Project) -> Project:
    """Return the project, whose task names code of the organisations' own by its digest.

    Raises ConfigError where the digest is of other code than lies beside the project, or where nobody can compute it.
    Raises ClientError where the code, or the example, is at fault.
    """
    task = project.task
    own = [path for path in dict.fromkeys((task.model, task.loss)) if is_brought(path)]
    is_trained = task.query is None and project.sections[Role.CLIENT].get("trainer") is None
    if not own or not is_trained:
        return project
    look_in(project.base)
    offer(*(_file(project, name) for name in ("base_model", "adapter")))
    try:
        found = _digest(project)
    except (ExtensionError, ModelImportError, _UnknownFormError) as error:
        if task.model_digest is not None:  # every client compares it with its own
            return project
        raise ConfigError(
            f"task.model_digest: expected the digest of {', '.join(own)}, which clients compare; found none, and "
            f"{error}. Set what precad check says where records and code are"
        ) from None
    if task.model_digest is None:
        return _naming(project, found)
    if task.model_digest != found:
        raise ConfigError(
            f"task.model_digest: expected {found}, of {', '.join(own)} beside the project, found {task.model_digest}"
        )
    return project


class _UnknownFormError(Exception):
    """Nothing says what a record looks like."""


def _digest(project: Project) -> str:
    """Raises ClientError, _UnknownFormError."""
    from precad.clients.models import networks
    from precad.clients.models.adapters import adapted
    from precad.clients.models.fingerprint import model_digest
    from precad.clients.models.losses import loss_of

    task = project.task
    model, loss = networks.of_task(task), loss_of(task.loss)
    if adapted(model) is not None and task.adapter_sha256 is None:
        raise ConfigError(
            "task.adapter_sha256: expected the digest of a file that precad adapter writes, as machines draw "
            "other constants of the same adapters; found none"
        )
    features, label = _declared(project, loss) if project.own.example is None else _example(project, loss)
    networks.require_fit(model, tuple(features.shape), is_text=not features.is_floating_point(), loss=loss)
    return model_digest(model, features, loss, label)


def _declared(project: Project, loss: Loss) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a record and a label of the form that the task declares. Raises _UnknownFormError if it declares none."""
    from precad.clients.models.fingerprint import CLASS
    from precad.clients.records.records import example

    task = project.task
    shape = [sum(column.width for column in task.columns)] if task.columns else task.record_shape
    is_named = bool(task.class_names) and not isinstance(_label(project), list)
    if not (task.columns or len(shape) > 1):  # along one axis, whole numbers are tokens
        raise _UnknownFormError("neither project.example nor task.columns says what a record looks like")
    if not (loss.takes_batches or is_named):
        raise _UnknownFormError("neither project.example nor task.class_names says what a label looks like")
    return example(tuple(shape), is_text=False), CLASS


def _example(project: Project, loss: Loss) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a record and a label of the form that the example's have. Raises DataError, ExtensionError."""
    from precad.clients.own_code import folders
    from precad.clients.records import example_label_of, example_of
    from precad.clients.records.own import OwnRecords, load

    task, source = project.task, project.own.example
    assert source is not None  # whoever asks has seen it
    described = OwnRecords(
        source=source,
        field="project.example",
        label=_label(project),
        columns=tuple(task.columns),
        class_names=tuple(task.class_names),
        shape=tuple(task.record_shape),
        numbers=loss.wants_numbers,
        folders=folders(project.base),
    )
    records = load(described)
    return example_of(records), example_label_of(records)


def _file(project: Project, name: str) -> str | None:
    """Return a file of constants that `[client]` names. Raises ConfigError."""
    found = project.sections[Role.CLIENT].get(name)
    if found is not None and not isinstance(found, str):
        raise ConfigError(f"client.{name}: expected a path, found {found!r:.60}")
    return found


def _label(project: Project) -> str | Sequence[str] | None:
    """Return the columns with the labels, as `[client]` has them. Raises ConfigError."""
    found = project.sections[Role.CLIENT].get("label")
    names = found if isinstance(found, list) else [found]
    if found is not None and not all(isinstance(name, str) for name in names):
        raise ConfigError(f"client.label: expected a column, or a list of columns, found {found!r:.60}")
    return found


def _naming(project: Project, digest: str) -> Project:
    """Return the project with the digest in its task, and in the text that all kits have."""
    shared = {**project.shared, "task": {**project.shared["task"], "model_digest": digest}}
    task = project.task.model_copy(update={"model_digest": digest})
    return replace(project, task=task, shared=shared, shared_text=_with_line(project.shared_text, digest))


def _with_line(text: bytes, digest: str) -> bytes:
    """Return a file that has `[task]` with a line more. Comments are kept unless the section is written otherwise."""
    line = f'model_digest = "{digest}"  # by precad provision, of the code beside the project'
    before = text.decode("utf-8-sig")
    wanted = tomllib.loads(before)
    wanted["task"] = {**wanted["task"], "model_digest": digest}
    written = re.sub(r"(?m)^[ \t]*\[[ \t]*task[ \t]*\].*$", rf"\g<0>\n{line}", before, count=1)
    try:
        is_whole = tomllib.loads(written) == wanted
    except tomllib.TOMLDecodeError:
        is_whole = False
    return (written if is_whole else tomli_w.dumps(wanted)).encode()
