"""The command line's own commands, and beside them those that join by entry points.

A joined command is imported when it is called or listed in the help, never before: a server starts without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import metadata
from typing import Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_group

from precad.deploy.cli.common import exit_codes
from precad.deploy.errors import ConfigError
from precad.deploy.joined import COMMANDS, joined

LABORATORY: Final = ("simulate", "bench", "experiment")
"""The laboratory's commands, known by name: an installation without them can say what is missing."""
_BEHIND: Final = {"simulate": "run"}
"""Where the help lists a joined command. The others come last."""


class Commands(Mapping[str, Any]):
    """The commands by name, in the help's order. A joined one is imported when it is asked for."""

    def __init__(self, own: Mapping[str, Any]) -> None:
        self._own, self._made = own, dict[str, Any]()

    @cached_property
    def _joined(self) -> dict[str, metadata.EntryPoint]:
        return {name: point for name, point in joined(COMMANDS).items() if name not in self._own}

    def __getitem__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        if name not in self._made:
            self._made[name] = _command(name, self._joined[name].load())
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        for own in self._own:
            yield own
            yield from (name for name, place in _BEHIND.items() if place == own and name in self._joined)
        yield from (name for name in self._joined if _BEHIND.get(name) not in self._own)

    def __len__(self) -> int:
        return len(self._own) + len(self._joined)

    def __contains__(self, name: object) -> bool:
        return name in self._own or name in self._joined


class JoinedGroup(TyperGroup):
    """A group of commands that others may join."""

    def __init__(self, *, commands: Any = None, **attributes: Any) -> None:
        lazily: Any = Commands({} if commands is None else commands)  # typer only reads, but asks for a dict
        super().__init__(commands=lazily, **attributes)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or None. One of the laboratory's that is not there ends the process with code 2."""
        found = self.commands.get(cmd_name)
        if found is None and cmd_name in LABORATORY:
            with exit_codes():
                raise ConfigError(
                    f"precad {cmd_name}: expected the laboratory, found none: this installation holds no laboratory"
                )
        return found


def _command(name: str, joined_object: Any) -> Any:
    """Make the command as if it had been added to the command line itself."""
    host = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(joined_object, typer.Typer):
        host.add_typer(joined_object, name=name)
    else:
        host.command(name)(joined_object)
    return get_group(host).commands[name]
