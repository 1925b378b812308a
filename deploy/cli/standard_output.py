"""Standard output that cannot be written: one line and exit code 1; where nobody reads it any more, the code alone.

`with checked()` stands around a whole command, so whatever writes there, click's help included, is covered.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO

from precad.deploy.cli.common import say
from precad.deploy.errors import FAILURE


class OutputError(Exception):
    """Standard output does not take what was written. Within `checked` only."""


class _Descriptor(io.FileIO):
    """Raise an error of its own for a failed write, so that no other file's error is taken for it.

    A closed pipe's error is left to click, which then ends a command in silence.
    """

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise OutputError(f"standard output: expected to write to it, found: {error.strerror}") from None


class _Closed(io.StringIO):
    """Standard output that whoever started us has closed, a service manager for instance: it takes nothing."""

    def write(self, text: str, /) -> int:
        raise OutputError("standard output: expected to write to it, found it closed")


def _opened(stdout: TextIO) -> io.TextIOWrapper:
    return io.TextIOWrapper(
        io.BufferedWriter(_Descriptor(stdout.fileno(), "w", closefd=False)),
        encoding=stdout.encoding,
        errors="backslashreplace",  # a terminal without Greek letters still shows the figures
        line_buffering=stdout.isatty(),
    )


@contextmanager
def checked() -> Iterator[None]:
    """Surround a command that ends with SystemExit: then everything has left, or the code is 1."""
    stream = _Closed() if sys.stdout is None else _opened(sys.stdout)
    try:
        with redirect_stdout(stream):
            try:
                yield
            except SystemExit:
                stream.flush()
                raise
    except OutputError as error:
        say(f"precad: {error}")
        raise SystemExit(FAILURE) from None
    except BrokenPipeError:
        raise SystemExit(FAILURE) from None
    finally:
        with suppress(OutputError, OSError):  # what is left in it: from 3.13 on Python prints a failure to drop that
            stream.close()
