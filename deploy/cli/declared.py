"""Make a command of a declaration: a frozen dataclass whose annotated fields are the flags, its docstring the help.

A flag's name, type, default and help stand in the declaration alone. The fields of its bases come last, so that flags
which several commands share close their help.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, get_type_hints

from precad.deploy.cli.common import exit_codes

F = TypeVar("F")


def declared(flags: type[F]) -> Callable[[Callable[[F], None]], Callable[..., None]]:
    """Return a decorator. It makes a function of these flags a command, as typer reads one."""

    def command_of(run: Callable[[F], None]) -> Callable[..., None]:
        @exit_codes()
        def command(**given: Any) -> None:
            run(flags(**given))

        command.__name__, command.__doc__ = run.__name__, flags.__doc__
        command.__signature__ = inspect.Signature(list(_parameters(flags)))  # type: ignore[attr-defined]
        return command

    return command_of


def _parameters(flags: type) -> Iterator[inspect.Parameter]:
    """Yield a parameter for each field, own fields before those of the bases."""
    hints = get_type_hints(flags, include_extras=True)
    for name in (name for kind in flags.__mro__ for name in inspect.get_annotations(kind)):
        default = getattr(flags, name, inspect.Parameter.empty)
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
