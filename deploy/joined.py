"""Find what joins precad by entry points: the laboratory's commands, and its readers of run folders.

The laboratory measures, simulates and repeats papers. It imports the product, and the product never imports it:
pyproject.toml declares what the laboratory offers, in the groups below. An installation may leave out the laboratory's
files. A declaration whose module is not there is then passed over.
"""

from __future__ import annotations

import importlib.util
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from importlib import metadata

COMMANDS: Final = "precad.commands"
"""The group of commands: each a `typer.Typer`, or a function with typer's annotations."""
AUDITS: Final = "precad.audits"
"""The group of commands below `precad audit`: each a function with typer's annotations."""
RUN_READERS: Final = "precad.run_readers"
"""The group of readers: each a `precad.deploy.reporting.runs.RunReader`."""

_PROJECT: Final = "precad"
_CHECKOUT: Final = Path(__file__).resolve().parents[1] / "pyproject.toml"


def joined(group: str) -> dict[str, metadata.EntryPoint]:
    """Return the group's entry points whose modules are there, by name. Nothing of them is executed.

    A checkout's own pyproject.toml goes before what was installed: an editable installation keeps the metadata of the
    day when it was made.
    """
    from importlib import metadata

    declared = {point.name: point for point in metadata.entry_points(group=group)} | _of_checkout(group)
    return {name: point for name, point in declared.items() if _is_there(point.module)}


def _of_checkout(group: str) -> dict[str, metadata.EntryPoint]:
    if not _CHECKOUT.is_file():
        return {}
    project = tomllib.loads(_CHECKOUT.read_text(encoding="utf-8")).get("project", {})
    if project.get("name") != _PROJECT:
        return {}
    declared = project.get("entry-points", {}).get(group, {})
    from importlib import metadata

    return {name: metadata.EntryPoint(name, value, group) for name, value in declared.items()}


def _is_there(module: str) -> bool:
    """Tell whether the module could be imported. Raises ModuleNotFoundError where its package misses another one."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return False
        raise
