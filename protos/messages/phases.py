"""Name the phases of a round, by which its record has seconds: servers write them, reports and traces read them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PHASES: Final = ("select", "collect", "lock", "prove", "charge", "validate", "noise", "open", "commit")
"""In the order of a round. `prove` is of mode `proved` alone."""


def in_order(phases: Iterable[str]) -> list[str]:
    """Return these phases, each once, in the order of a round. One that another version has comes last."""
    return sorted(dict.fromkeys(phases), key=lambda phase: PHASES.index(phase) if phase in PHASES else len(PHASES))
