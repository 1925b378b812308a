"""Shared by the commands: the consoles, the flags that mean the same everywhere, and exit codes."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer

from precad.deploy import errors
from precad.deploy.errors import ConfigError
from precad.deploy.shown.consoles import LiteralConsole, ProgressConsole, width_of
from precad.protos.messages.spoken import shown

_VALUE: Final = 18
"""The column in which the values of a check begin."""


class _OfResults(LiteralConsole):
    def on_broken_pipe(self) -> None:
        """Leave the error to `precad.deploy.cli.standard_output`."""
        raise  # noqa: PLE0704 - rich calls it where it has caught the error


people = ProgressConsole(stderr=True, width=width_of(sys.stderr))
"""Standard error, for progress, remarks and errors."""
results = _OfResults(width=width_of(sys.stdout))
"""Standard output, for what a command was asked for. With `--json` it is that object's alone, and this is standard
error (`for_programs_alone`)."""

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="Read this TOML file.")]
AppName = Annotated[
    str | None,
    typer.Option("--app", metavar="MODULE:NAME", help="Take model, loss and records from this precad.App of yours."),
]
ClientsNumber = Annotated[
    int | None,
    typer.Option("--clients", help="Take so many clients, where CONFIG names none.", metavar="N", min=1),
]
Output = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="Leave everything in this run folder, new or empty.")
]
Quick = Annotated[bool, typer.Option("--quick", help="Measure fewer and smaller sizes: two minutes on two cores.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw it into this file (needs matplotlib).")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on standard output.")]
Device = Annotated[str, typer.Option(help="Compute on cpu, cuda, cuda:N or auto.")]
Threads = Annotated[int | None, typer.Option(help="Give PyTorch so many threads; it chooses unless given.", min=1)]
WorkersNumber = Annotated[int, typer.Option("--workers", help="Train so many at once, a process each.", min=1)]
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", help='Spread them over a Ray cluster (precad[scale]); "local" starts one here.'
    ),
]


class AggregatorLetter(StrEnum):
    """Which of the two aggregators."""

    A = "a"
    B = "b"


class GateName(StrEnum):
    """Comparison gates."""

    CRYPTEN = "crypten"
    NATIVE = "native"


class ImagesName(StrEnum):
    """Data sets that the CNN of 26 010 parameters takes."""

    DIGITS = "digits"
    MNIST = "mnist"
    FASHION_MNIST = "fashion-mnist"


class PicturesName(StrEnum):
    """Data sets of pictures: those above, and CIFAR-10, which takes another model."""

    DIGITS = "digits"
    MNIST = "mnist"
    FASHION_MNIST = "fashion-mnist"
    CIFAR10 = "cifar10"


def say(line: str) -> None:
    """Print a remark, on standard error."""
    people.print(_inert(line), highlight=False, markup=False, soft_wrap=True)


def tell(line: str) -> None:
    """Print a line of what the command was asked for."""
    results.print(_inert(line), highlight=False, markup=False, soft_wrap=True)


def _inert(text: str) -> str:
    """Return a text that no terminal obeys, with its line breaks. Parts may be somebody else's."""
    return "\n".join(map(shown, text.split("\n")))


def tell_fact(line: str) -> None:
    """Print a line of a check: on a terminal between words, under the value; elsewhere whole, as programs read it."""
    for part in wrapped(line, results.width) if results.is_terminal else [line]:
        tell(part)


def wrapped(line: str, width: int) -> list[str]:
    """Return a fact in lines of a width, words whole: a digest is copied in one piece."""
    longest = max(map(len, line.split()), default=0)
    hang = " " * (_VALUE if longest <= width - _VALUE else 2)
    return textwrap.wrap(line, width, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False) or [line]


def write_json(report: Mapping[str, Any], *, allow_nan: bool = True) -> None:
    """Print one line for programs on standard output. Raises ValueError for NaN or infinity, if not allowed."""
    stream = _FOR_PROGRAMS[-1] if _FOR_PROGRAMS else sys.stdout
    stream.write(json.dumps(report, allow_nan=allow_nan) + "\n")
    stream.flush()  # whoever reads need not wait for a command that stays until Enter


_LEFT_OUT: Final = {"torch": "PyTorch", "sklearn": "scikit-learn"}
"""Libraries that the servers' image goes without (deploy/hosts/docker/Dockerfile), by the names that are imported."""
_FOR_PROGRAMS: Final[list[TextIO]] = []
"""Standard output, where it is for one JSON object alone."""


@contextmanager
def for_programs_alone() -> Iterator[None]:
    """Keep standard output for `write_json`. Text and what a user's code prints go to standard error."""
    _FOR_PROGRAMS.append(sys.stdout)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        _FOR_PROGRAMS.pop()


@contextmanager
def exit_codes(*, explains_denied: bool = True) -> Iterator[None]:
    """End the process with the code that an error stands for, and one clear line per fault.

    explains_denied: say in a line which file the user may not open. A server or client that meets one while it works
    ends with a traceback instead, and may be started again.
    """
    try:
        yield
    except SystemExit:  # nothing of ours raises it below a command
        people.print("precad: code of your own ended the process", style="bold red", markup=False, highlight=False)
        raise typer.Exit(errors.INVALID_INPUT) from None
    except Exception as error:
        if explains_denied and isinstance(error, PermissionError) and error.filename is not None:
            error = ConfigError(f"{error.filename}: expected one that this user may open, found: {error.strerror}")
        if isinstance(error, ModuleNotFoundError) and error.name in _LEFT_OUT:
            library = _LEFT_OUT[error.name]
            error = ConfigError(f"expected {library}, found none: this needs all of precad, not the servers' image")
        if not errors.is_known(error):
            raise  # a defect of ours: the traceback is what helps
        code = errors.exit_code_of(error)
        for line in str(error).splitlines():
            style = None if code == errors.SUCCESS else "bold red"
            people.print(
                f"precad: {shown(line)}", style=style, markup=False, emoji=False, highlight=False, soft_wrap=True
            )
        raise typer.Exit(code) from error
