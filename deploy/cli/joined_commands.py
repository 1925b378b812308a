"""The command line's own commands, and beside them those that join by entry points.

A command is imported when it is called or listed in the help, never before. So a server starts without the others. A
fault in a configuration is told without them.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import typer
from typer.core import TyperGroup
from typer.main import get_group

from precad.deploy.cli.common import exit_codes
from precad.deploy.cli.panels import panels_of
from precad.deploy.errors import ConfigError
from precad.deploy.given_paths import require_current_folder, require_path
from precad.deploy.joined import COMMANDS, joined

if TYPE_CHECKING:
    from importlib import metadata

OWN: Final = {
    "demo": "local:demo",
    "init": "init:init_app",
    "run": "local:run",
    "query": "query:query",
    "answer": "query:answer",
    "client": "roles:client",
    "status": "operations:status",
    "watch": "operations:watch",
    "track": "track:track",
    "check": "setup:check",
    "initial-model": "setup:initial_model",
    "adapter": "setup:adapter",
    "enrol": "enrolment:enrol",
    "provision": "provisioning:provision",
    "join": "provisioning:join",
    "account": "account:account",
    "holder": "holder:holder_app",
    "certify": "certify:certify",
    "report": "report:report",
    "export": "export:export",
    "verify-export": "export:verify_export",
    "serve": "roles:serve_app",
    "pki": "enrolment:pki_app",  # which adds to the commands of `precad.deploy.cli.pki`
    "audit": "audit:audit_app",
}
"""The product's commands, in the help's order: the module of `precad.deploy.cli` and its object."""
LABORATORY: Final = ("simulate", "bench", "experiment")
"""The laboratory's commands, known by name: an installation without them can say what is missing."""
_BEHIND: Final = {"simulate": "run"}
"""Where the help lists a joined command. The others come last."""


class Commands(Mapping[str, Any]):
    """The commands by name, in the help's order. One is imported when it is asked for."""

    def __init__(self) -> None:
        self._made = dict[str, Any]()

    @cached_property
    def _joined(self) -> dict[str, metadata.EntryPoint]:
        return {name: point for name, point in joined(COMMANDS).items() if name not in OWN}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = _command(name, _own(name) if name in OWN else self._joined[name].load())
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        for own in OWN:
            yield own
            yield from (name for name, place in _BEHIND.items() if place == own and name in self._joined)
        yield from (name for name in self._joined if _BEHIND.get(name) not in OWN)

    def __len__(self) -> int:
        return len(OWN) + len(self._joined)

    def __contains__(self, name: object) -> bool:
        return name in OWN or name in self._joined


_NAME: Final = 13
"""Characters that a name has, at least, so that the lists of one help are aligned."""
_WHOLE: Final = 10_000
"""Characters of a sentence in a list, at most: it is wrapped, and never cut off."""


class ListedGroup(TyperGroup):
    """A group of commands whose help has a whole sentence for each."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands into the help."""
        shown = {name: command for name in self.list_commands(ctx) if (command := self.get_command(ctx, name))}
        for heading, names in self.headed([name for name, command in shown.items() if not command.hidden]):
            rows = [(f"{name:<{_NAME}}", shown[name].get_short_help_str(_WHOLE)) for name in names]
            with formatter.section(heading):
                formatter.write_dl(rows)

    def headed(self, names: Sequence[str]) -> Iterable[tuple[str, Sequence[str]]]:
        """Return headings, and the commands below each."""
        return [("Commands", names)]


class JoinedGroup(ListedGroup):
    """A group of commands that others may join."""

    def __init__(self, *, commands: Any = None, **attributes: Any) -> None:
        assert not commands  # they are all in OWN
        lazily: Any = Commands()  # typer only reads, but asks for a dict
        super().__init__(commands=lazily, **attributes)

    def headed(self, names: Sequence[str]) -> Iterable[tuple[str, Sequence[str]]]:
        """Return the commands by what they are for."""
        return panels_of(names)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command, or None. One of the laboratory's that is not there ends the process with code 2."""
        found = self.commands.get(cmd_name)
        if found is None and cmd_name in LABORATORY:
            with exit_codes():
                raise ConfigError(
                    f"precad {cmd_name}: expected the laboratory, found none: this installation holds no laboratory"
                )
        return found


def _own(name: str) -> Any:
    """Import one of the product's commands: a function, or an app of several."""
    module, _, attribute = OWN[name].partition(":")
    return getattr(importlib.import_module(f"precad.deploy.cli.{module}"), attribute)


def _command(name: str, joined_object: Any) -> Any:
    """Make the command as if it had been added to the command line itself. Its paths are checked before it runs."""
    host = typer.Typer(add_completion=False, rich_markup_mode=None)
    if isinstance(joined_object, typer.Typer):
        host.add_typer(joined_object, name=name, cls=ListedGroup)
    else:
        host.command(name)(joined_object)
    return _with_checked_paths(get_group(host).commands[name])


def _with_checked_paths(command: Any) -> Any:
    """Return the command, with those below it, to refuse a path that the system takes for no file."""
    for below in getattr(command, "commands", {}).values():
        _with_checked_paths(below)
    run = command.callback
    if run is None:
        return command
    paths = path_parameters(command)

    @functools.wraps(run)
    def checked(*arguments: Any, **given: Any) -> Any:
        with exit_codes():
            require_current_folder()
            for name, field in paths.items():
                found = given.get(name)
                for path in found if isinstance(found, list | tuple) else [found]:
                    if path is not None:
                        require_path(field, path)
        return run(*arguments, **given)

    command.callback = checked
    return command


def path_parameters(command: Any) -> dict[str, str]:
    """Return a command's parameters that are paths, each with its name in errors: its flag, or what the help has."""
    annotated = inspect.signature(command.callback, eval_str=True).parameters
    found = dict[str, str]()
    for one in command.params:
        if one.name in annotated and _holds_path(annotated[one.name].annotation):
            is_argument = one.param_type_name == "argument"
            found[one.name] = one.metavar or one.name.upper() if is_argument else max(one.opts, key=len)
    return found


def _holds_path(hint: Any) -> bool:
    return hint is Path or any(map(_holds_path, get_args(hint)))
