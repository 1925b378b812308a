"""Late: an upload that comes when its round is over."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from precad.clients.attacks.uploads.forger import Forger
from precad.clients.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Late(Forger):
    """Waits for the round's time limit, and `by_s` seconds more, before it uploads.

    Nothing of it counts; what it does is that each of its rounds takes the whole of `submit_timeout_s`.
    """

    by_s: float = 1.0

    name: ClassVar[str] = "late"

    def __post_init__(self) -> None:
        """Raises ArgumentError."""
        if not (math.isfinite(self.by_s) and self.by_s > 0):
            raise ArgumentError(f"by_s must be positive and finite, got {self.by_s}")

    def delay_s(self, submit_timeout_s: float) -> float:
        """See `Attack.delay_s`."""
        return submit_timeout_s + self.by_s
