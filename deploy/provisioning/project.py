"""Read `project.toml`: what the organisations agreed on, without keys and certificates, which the kits bring.

include = "task.toml"              [task] and [network], for everybody
[project]                          where the authority and the requests are
[aggregator.a], [client], ...      each role's settings, the same for all clients
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import tomli_w
from pydantic import BaseModel, Field

from precad.deploy.configuration.sections import (
    CONSENTS,
    IDENTITY_FIELDS,
    SHARED,
    Network,
    parse_section,
    read_toml,
    shared_text,
)
from precad.deploy.errors import ConfigError
from precad.protos.config_path import ConfigPath
from precad.protos.task.task import Task
from precad.protos.tls.identity import AGGREGATORS, Identity, Role

SECTIONS: Final = {
    Role.AGGREGATOR_A: ("aggregator", "a"),
    Role.AGGREGATOR_B: ("aggregator", "b"),
    Role.DEALER: ("dealer",),
    Role.CLIENT: ("client",),
}
"""Where a role's settings are."""
_FILES: Final = frozenset({"own", "task"})
"""Names without a kit: its configuration would be `own.toml` or `task.toml`, which every kit has a use for."""


class ProjectSection(BaseModel, frozen=True, extra="forbid"):
    """`[project]`: what `precad provision` reads beside the task."""

    authority: ConfigPath
    """Folder of the authority (`precad pki init`). Made where there is none."""
    requests: ConfigPath
    """Folder with `<participant>.pem`, the request of each."""
    days: Annotated[int, Field(ge=1, le=3650)] = 90
    """How long certificates are valid."""
    initial_model: ConfigPath | None = None
    """The model that the task starts from (.npy). None: made from task.model and task.model_seed, which needs
    PyTorch."""
    example: Annotated[str, Field(pattern=r"^[^:]+:.")] | None = None
    """Records like the clients', made-up ones too, as `client.records` names them. From their form `task.model_digest`
    follows for a model or a loss of your own. None: from task.columns, or from task.record_shape of several axes."""


@dataclass(frozen=True, kw_only=True)
class Project:
    """The file, validated as far as it goes without certificates."""

    own: ProjectSection
    task: Task
    network: Network
    shared: Mapping[str, Any]
    """`[task]` and `[network]`, as written."""
    base: Path
    """The file's folder."""
    shared_text: bytes
    """The file that has them, with its comments."""
    sections: Mapping[Role, Mapping[str, Any]]
    """Settings by role."""

    @property
    def participants(self) -> Iterator[Identity]:
        """Yield the servers, then the task's clients."""
        for role in self.servers:
            yield Identity(role, role.value)
        for client in self.task.clients:
            yield Identity(Role.CLIENT, client)

    @property
    def holdout(self) -> float | None:
        """Return the share of their records that all clients hold out, if the file says one."""
        found = self.sections[Role.CLIENT].get("holdout")
        return float(found) if isinstance(found, int | float) else None

    @property
    def servers(self) -> tuple[Role, ...]:
        """Return the roles of the servers that the task has."""
        return servers_of(self.task)


def servers_of(task: Task) -> tuple[Role, ...]:
    """Return the roles of the servers that a task has."""
    return AGGREGATORS if task.is_proved else (*AGGREGATORS, Role.DEALER)


def read(path: Path) -> Project:
    """Return a project. Raises ConfigError with every fault of its first section that has any."""
    raw = read_toml(path)
    base = path.parent.absolute()
    if unknown := sorted(raw.keys() - {"project", "task", "network", "aggregator", "dealer", "client"}):
        raise ConfigError(f"{path}: expected no section {', '.join(unknown)} in a project, found it")
    task = parse_section(Task, raw.get("task", {}), "task", base=base)
    shared = {name: raw[name] for name in SHARED if name in raw}
    found = Project(
        own=parse_section(ProjectSection, raw.get("project", {}), "project", base=base),
        task=task,
        network=parse_section(Network, raw.get("network", {}), "network", base=base),
        base=base,
        shared=shared,
        shared_text=shared_text(path) or tomli_w.dumps(shared).encode(),
        sections={role: _settings(raw, role) for role in SECTIONS},
    )
    if task.half_spaces:
        raise ConfigError(
            f"task.half_spaces: expected none in a project, whose kits bring no file of directions, found "
            f"{len(task.half_spaces)}"
        )
    if taken := sorted(_FILES & task.clients.keys()):
        raise ConfigError(f"task.clients: expected no name of another file of a kit, found {taken[0]!r}")
    if task.is_proved and "dealer" in raw:
        raise ConfigError("dealer: expected none in mode 'proved', which has no dealer, found one")
    return found


def _settings(raw: Mapping[str, Any], role: Role) -> Mapping[str, Any]:
    """Return a role's section, in which the kit's own fields may not stand."""
    found: Any = raw
    for name in SECTIONS[role]:
        found = found.get(name, {}) if isinstance(found, Mapping) else found
    section = ".".join(SECTIONS[role])
    if not isinstance(found, Mapping):
        raise ConfigError(f"{section}: expected a section, found {found!r:.60}")
    if given := sorted(IDENTITY_FIELDS & found.keys()):
        raise ConfigError("\n".join(f"{section}.{name}: expected none: the kit has it, found one" for name in given))
    if asked := sorted(CONSENTS & found.keys()):
        said = "expected none: each organisation says it in own.toml, found one"
        raise ConfigError("\n".join(f"{section}.{name}: {said}" for name in asked))
    return found
