"""Which walls of the sandbox stand on this machine, in words: said at a client's start and by `precad check`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from precad.clients.external import sandbox

_NAMES: Final = {
    sandbox.NETWORK: "network",
    sandbox.PROCESSES: "other processes",
    sandbox.KEYS: "keys",
    sandbox.FILES: "writing to files",
    sandbox.PIPES: "writing to named pipes",
    sandbox.LATER_SOCKETS: "sockets that others make later",
}


@dataclass(frozen=True, slots=True)
class Walls:
    """Name the walls between a trainer's process and this machine, tried before any foreign code."""

    granted: int
    """`sandbox`'s bits."""

    @property
    def standing(self) -> list[str]:
        """Return the names of the walls that stand."""
        return [name for bit, name in _NAMES.items() if self.granted & bit]

    @property
    def missing(self) -> list[str]:
        """Return the names of those that this kernel does not give."""
        return [name for bit, name in _NAMES.items() if not self.granted & bit]

    def __str__(self) -> str:
        """Name both, for people."""
        parts = [("shut off from", self.standing), ("NOT from", self.missing)]
        return ", ".join(f"{word} {' + '.join(names)}" for word, names in parts if names)
