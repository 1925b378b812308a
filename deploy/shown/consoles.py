"""The console of a training's progress. A training goes on whoever stops reading of it."""

from __future__ import annotations

from typing import Final, TextIO

from rich.console import Console

_WIDTH: Final = 140
"""Columns where nobody's terminal has its own."""


class ProgressConsole(Console):
    """A console whose reader may leave."""

    def on_broken_pipe(self) -> None:
        """Say nothing more. Rich would end the process."""
        self.quiet = True


def width_of(stream: TextIO | None) -> int | None:
    """Return the columns of a stream; None for those of its terminal."""
    return None if stream is not None and stream.isatty() else _WIDTH  # None: whoever started us closed it
