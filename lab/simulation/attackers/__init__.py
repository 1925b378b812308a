"""Attackers that see every honest update.

Modules:

    a_little_is_enough  A Little Is Enough: stay inside the honest updates' spread, and shift their mean
    adaptive            the attacker who knows the norm check: the worst vector that it accepts
    fang_trim           Fang et al.'s attack on trimmed means
    inner_product       Inner-product manipulation: make the aggregate point away from the honest mean
    min_max             Min-Max
    stat_opt            STAT-OPT
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from precad.clients.attacks import ATTACKS, Attack
from precad.lab.simulation.attackers.a_little_is_enough import ALittleIsEnough
from precad.lab.simulation.attackers.adaptive import MaximalDirection
from precad.lab.simulation.attackers.fang_trim import FangTrim
from precad.lab.simulation.attackers.inner_product import InnerProductManipulation
from precad.lab.simulation.attackers.min_max import MinMax
from precad.lab.simulation.attackers.stat_opt import StatOpt

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
"""Every attack that a simulation knows by name: those of `precad.clients.attacks`, and those of this folder."""
