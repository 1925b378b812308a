"""Attackers that see every honest update of a round, which only a simulation can hand out. One class a file."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from clients.attacks import ATTACKS, Attack
from clients.simulation.attackers.a_little_is_enough import ALittleIsEnough
from clients.simulation.attackers.adaptive import MaximalDirection
from clients.simulation.attackers.fang_trim import FangTrim
from clients.simulation.attackers.inner_product import InnerProductManipulation
from clients.simulation.attackers.min_max import MinMax
from clients.simulation.attackers.stat_opt import StatOpt

__all__ = [
    "ATTACKERS",
    "ALittleIsEnough",
    "FangTrim",
    "InnerProductManipulation",
    "MaximalDirection",
    "MinMax",
    "StatOpt",
]

_KINDS: Final[tuple[type[Attack], ...]] = (
    ALittleIsEnough,
    InnerProductManipulation,
    MinMax,
    StatOpt,
    FangTrim,
    MaximalDirection,
)
ATTACKERS: Final[Mapping[str, type[Attack]]] = MappingProxyType({**ATTACKS, **{kind.name: kind for kind in _KINDS}})
"""Every attack that a simulation knows by name: those of `clients.attacks`, and those of this folder."""
