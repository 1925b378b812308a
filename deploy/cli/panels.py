"""The commands by what they are for, as `precad --help` lists them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

PANELS: Final = {
    "Train on this machine": ("demo", "init", "run", "query", "simulate"),
    "Deploy over organisations": (
        "provision",
        "join",
        "check",
        "initial-model",
        "adapter",
        "pki",
        "enrol",
        "serve",
        "client",
    ),
    "Follow a training": ("status", "watch", "track", "report"),
    "Take the model": ("export", "verify-export", "answer"),
    "Know what is guaranteed": ("account", "certify", "audit", "holder"),
    "Measure and repeat": ("bench", "experiment"),
}
"""Headings with their commands, in the help's order."""
OTHER: Final = "Other commands"
"""Where a command is listed that joined by an entry point and is none of the above."""


def panels_of(names: Iterable[str]) -> list[tuple[str, list[str]]]:
    """Return the headings that have any of these commands, each with its own in the order of the panel."""
    left = list(names)
    found = [(heading, [name for name in panel if name in left]) for heading, panel in PANELS.items()]
    known = {name for _, panel in found for name in panel}
    found.append((OTHER, [name for name in left if name not in known]))
    return [(heading, panel) for heading, panel in found if panel]
