"""The training algorithms that a simulation knows: PRECAD, and what it is compared with. One class a file.

Modules:

    algorithm          one round of a federation, and what it guarantees
    central_dp         Central DP: the trusted server's noise, and a budget that ends the training
    central_record_dp  Central DP for records: a trusted server sees every update, and adds the noise once
    deployment         the task's algorithm as a deployment runs it
    distributed_dp     Distributed DP: the clients share the noise among them, and a secure sum hides the rest
    fed_avg            Federated averaging with nothing around it but, where one is named, a robust rule
    ins_dp_fedavg      InsDP-FedAvg: every client runs DP-SGD on its own records, several steps a round
    local_dp           Local DP: every client adds all the noise that protects it, and trusts nobody
    non_private        Federated SGD with nothing around it: the ceiling for accuracy
    plain              the common part of algorithms whose one server sees every update
    precad             PRECAD: two servers, shares, a norm check, joint noise
    user_dp_fedavg     UserDP-FedAvg
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from precad.lab.simulation.algorithms.algorithm import Algorithm, RoundOutcome
from precad.lab.simulation.algorithms.central_dp import CentralDp
from precad.lab.simulation.algorithms.central_record_dp import CentralRecordDp
from precad.lab.simulation.algorithms.deployment import Deployed
from precad.lab.simulation.algorithms.distributed_dp import DistributedDp
from precad.lab.simulation.algorithms.fed_avg import FedAvg
from precad.lab.simulation.algorithms.ins_dp_fedavg import InsDpFedAvg
from precad.lab.simulation.algorithms.local_dp import LocalDp
from precad.lab.simulation.algorithms.non_private import NonPrivate
from precad.lab.simulation.algorithms.precad import Precad
from precad.lab.simulation.algorithms.user_dp_fedavg import UserDpFedAvg

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
