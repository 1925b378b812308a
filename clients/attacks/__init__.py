"""Malicious clients for experiments: what they upload instead of the honest update."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from clients.attacks.attack import Attack
from clients.attacks.honest import Honest
from clients.attacks.scaled_model_replacement import ScaledModelReplacement
from clients.attacks.wrap_around import WrapAround

__all__ = ["ATTACKS", "Attack", "Honest", "ScaledModelReplacement", "WrapAround"]

ATTACKS: Final[Mapping[str, Callable[[], Attack]]] = MappingProxyType(
    {"none": Honest, "scaled": ScaledModelReplacement, "wrap": WrapAround}
)
"""The attacks by the name that a configuration gives them; each value makes one with its defaults."""
