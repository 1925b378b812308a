"""Times at which clients of a task that hides draws are told anything: fixed, whoever was drawn."""

from __future__ import annotations

import time
from typing import Final

import structlog

log = structlog.get_logger(__name__)

MARGIN_S: Final = 0.01
"""How late it may be without a word of it."""


def note_if_late(at: float, task_id: str) -> None:
    """Log that a round overran: clients saw that it did. at: when something was due, of `time.monotonic`."""
    if (late_s := time.monotonic() - at) > MARGIN_S:
        log.warning("round.overran", late_s=round(late_s, 3), task=task_id)
