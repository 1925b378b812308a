"""The client that follows the protocol."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from clients.attacks.attack import Attack


@dataclass(frozen=True, slots=True)
class Honest(Attack):
    """Uploads what Algorithm 2 says."""

    name: ClassVar[str] = "none"
