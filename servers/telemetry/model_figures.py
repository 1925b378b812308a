"""Read figures of committed models: from the program that measures them, and from the file that a server keeps.

Whoever reads a server's folder needs nothing of a server beside this.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from precad.servers.errors import MeasuringFault
from precad.servers.telemetry.status import ACCURACY

FILE: Final = "quality.jsonl"
"""Figures of rounds in the state folder, a line each."""
_MOST_FIGURES: Final = 32
_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_LARGEST: Final = 1e300

Figures = Mapping[str, float]


class FaultyProgramError(Exception):
    """The program did not do what it is for. Has no text of the program's: it may hold records."""

    def __init__(self, fault: MeasuringFault) -> None:
        super().__init__(fault.value)
        self.fault = fault


def parsed(line: bytes) -> dict[str, object]:
    """Return the object that a line holds. Raises FaultyProgramError."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FaultyProgramError(MeasuringFault.WRONG_OUTPUT)
    return found


def figures_of(answer: Mapping[str, object], round: int) -> dict[str, float]:
    """Return the figures that an answer holds. Raises FaultyProgramError."""
    if answer.get("round") != round:
        raise FaultyProgramError(MeasuringFault.WRONG_OUTPUT)
    if "fault" in answer:
        raise FaultyProgramError(MeasuringFault.RAISED)
    figures = answer.get("figures")
    if not isinstance(figures, dict) or not 0 < len(figures) <= _MOST_FIGURES:
        raise FaultyProgramError(MeasuringFault.WRONG_OUTPUT)
    found: dict[str, float] = {}
    for name, value in figures.items():
        if not _NAME.fullmatch(name) or not isinstance(value, int | float) or isinstance(value, bool):
            raise FaultyProgramError(MeasuringFault.WRONG_OUTPUT)
        if not -_LARGEST <= value <= _LARGEST:
            raise FaultyProgramError(MeasuringFault.NOT_FINITE)
        if name == ACCURACY and not 0 <= value <= 1:
            raise FaultyProgramError(MeasuringFault.WRONG_OUTPUT)
        found[name] = float(value)
    return found


def restored(path: Path, digests: Mapping[int, str]) -> dict[int, dict[str, float]]:
    """Return the figures in a file, by round, of models that these rounds made. What is no such line has none.

    digests: of each round's model, in hexadecimal.
    """
    found: dict[int, dict[str, float]] = {}
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        return found
    for line in lines:
        with suppress(FaultyProgramError, TypeError):
            read = parsed(line)
            number = read.get("round")
            if isinstance(number, int) and digests.get(number) == read.get("model_digest"):
                found[number] = figures_of(read, number)
    return found
