"""The training algorithms that a simulation knows: PRECAD, and what it is compared with. One class a file."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from clients.simulation.algorithms.algorithm import Algorithm, RoundOutcome
from clients.simulation.algorithms.central_dp import CentralDp
from clients.simulation.algorithms.central_record_dp import CentralRecordDp
from clients.simulation.algorithms.deployed import Deployed
from clients.simulation.algorithms.distributed_dp import DistributedDp
from clients.simulation.algorithms.fed_avg import FedAvg
from clients.simulation.algorithms.ins_dp_fedavg import InsDpFedAvg
from clients.simulation.algorithms.local_dp import LocalDp
from clients.simulation.algorithms.non_private import NonPrivate
from clients.simulation.algorithms.precad import Precad
from clients.simulation.algorithms.user_dp_fedavg import UserDpFedAvg

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "CentralDp",
    "CentralRecordDp",
    "Deployed",
    "DistributedDp",
    "FedAvg",
    "InsDpFedAvg",
    "LocalDp",
    "NonPrivate",
    "Precad",
    "RoundOutcome",
    "UserDpFedAvg",
]

_KINDS: Final[tuple[type[Algorithm], ...]] = (
    Precad,
    Deployed,
    NonPrivate,
    FedAvg,
    LocalDp,
    DistributedDp,
    CentralRecordDp,
    CentralDp,
    UserDpFedAvg,
    InsDpFedAvg,
)
ALGORITHMS: Final[Mapping[str, type[Algorithm]]] = MappingProxyType({kind.name: kind for kind in _KINDS})
"""The algorithms by the name that a configuration gives them."""
