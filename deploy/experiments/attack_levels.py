"""Who attacks in Xie et al.'s figures, and whom: clients of UserDP-FedAvg, or records of InsDP-FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from clients.attacks import DistributedBackdoor, LabelFlip, PoisonedRecords, TriangleBackdoor
from deploy.experiments import insdp_certified, userdp_certified
from deploy.experiments.two_classes import DIGITS, Pair
from dp.certified_prediction import Threat

GAMMA: Final = 50.0
"""Sec. 6.1.3."""
_PIXELS: Final = 15
"""Of the triangle: a distributed backdoor has at most so many parts."""


def of_clients(attack: str, k: int, row: userdp_certified.Row, pair: Pair) -> dict[str, Any]:
    """k clients; all their records are poisoned, and their updates scaled to the bound or beyond it.

    The second of the classes shall be taken for the first, which is 0 in either pair, the attacks' default. Whoever
    stamps records trains on each as it is and stamped.
    """
    parameters: dict[str, Any] = {"gamma": GAMMA}
    if attack != LabelFlip.name:
        parameters |= {"steps": row.local_steps(n_stamped=row.client_records), "rate": row.local_rate}
    elif pair is not DIGITS:
        parameters["source"] = pair.classes[1]
    if attack == DistributedBackdoor.name:
        parameters["parts"] = min(k, _PIXELS)
    return {"kind": attack, "clients": k, "parameters": parameters}


def _of_digits(attack: str, k: int) -> dict[str, Any]:
    return of_clients(attack, k, userdp_certified.MNIST, DIGITS)


def _of_records(attack: str, k: int) -> dict[str, Any]:
    """One client has them all."""
    return {"kind": PoisonedRecords.name, "clients": 1, "parameters": {"aim": attack, "records": k}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Whose guarantee the bounds rest on, and who attacks."""

    algorithm: str
    trained: type[userdp_certified.Experiment] | type[insdp_certified.Experiment]
    delta: float
    sigmas: tuple[float, ...]
    rounds: int
    """Of the paper's Figure 4 or 5, by the epsilons that it prints."""
    attackers: tuple[int, ...]
    attacks: tuple[str, ...]
    attack: Callable[[str, int], Mapping[str, Any]]
    """(name, k) to `[simulation.attack]`."""
    threat: Threat
    words: str
    """k of what, with a verb."""


LEVELS: Final[Mapping[str, Level]] = MappingProxyType(
    {
        "user": Level(
            algorithm=f"UserDP-FedAvg, {userdp_certified.MNIST.n_clients} clients,",
            trained=userdp_certified.Experiment,
            delta=userdp_certified.MNIST.delta,
            sigmas=(2.5,),
            rounds=5,
            attackers=(2, 5, 10),
            attacks=(LabelFlip.name, TriangleBackdoor.name, DistributedBackdoor.name),
            attack=_of_digits,
            threat=Threat.REPLACE,
            words="clients that attackers replace",
        ),
        "instance": Level(
            algorithm=f"InsDP-FedAvg, {insdp_certified.MNIST.n_clients} clients,",
            trained=insdp_certified.Experiment,
            delta=insdp_certified.MNIST.delta,
            sigmas=(10.0,),
            rounds=4,
            attackers=(5, 10, 20),
            attacks=(LabelFlip.name, TriangleBackdoor.name),
            attack=_of_records,
            threat=Threat.ADD,
            words="poisoned records that join one client's",
        ),
    }
)
