"""The log of a server or a client process: JSON lines on standard error.

Apart from the commands, because structlog takes a tenth of the time in which a configuration error is shown.
"""

from __future__ import annotations

import logging
import sys
from contextlib import suppress

import structlog

from precad.servers.telemetry import logs


def configure() -> None:
    """Log from here on."""
    structlog.configure(
        processors=[
            logs.Throttle(),
            structlog.contextvars.merge_contextvars,
            logs.add_context,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _Log(sys.stderr),
    )


class _Log(structlog.PrintLogger):
    """Loses lines, not rounds, when standard error cannot be written: the disk that holds it may be full."""

    def msg(self, message: str) -> None:
        """Write one line."""
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg
