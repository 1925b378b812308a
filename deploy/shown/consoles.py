"""Consoles that print names and paths of others as they are: no word in brackets is a style, none in colons an emoji.

A training goes on whoever stops reading of its progress.
"""

from __future__ import annotations

from typing import Any, Final, TextIO

from rich.console import Console

_WIDTH: Final = 140
"""Columns where nobody's terminal has its own."""


class LiteralConsole(Console):
    """A console of texts that are no markup: folders may be named `run[2]` or `:smile:`."""

    def __init__(self, **looks: Any) -> None:
        """looks: as rich takes them."""
        super().__init__(markup=False, emoji=False, **looks)


class ProgressConsole(LiteralConsole):
    """A console whose reader may leave."""

    def on_broken_pipe(self) -> None:
        """Say nothing more. Rich would end the process."""
        self.quiet = True


def width_of(stream: TextIO | None) -> int | None:
    """Return the columns of a stream; None for those of its terminal."""
    return None if stream is not None and stream.isatty() else _WIDTH  # None: whoever started us closed it
