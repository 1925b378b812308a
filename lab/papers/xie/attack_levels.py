"""Define the attackers of Xie et al.'s figures, and their victims: clients of UserDP-FedAvg, or records of
InsDP-FedAvg."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from precad.clients.attacks import DistributedBackdoor, LabelFlip, PoisonedRecords, StatOpt, TriangleBackdoor
from precad.dp.certificates.prediction import Threat
from precad.lab.papers.xie import insdp_certified, userdp_certified
from precad.lab.papers.xie.classes import DIGITS, TWO, Classes

GAMMA: Final = 50.0
"""Sec. 6.1.3."""
_PIXELS: Final = 15
"""Pixels of the triangle: a distributed backdoor has at most so many parts."""


Trained = userdp_certified.Experiment | insdp_certified.Experiment
"""Experiments whose clients are attacked."""


def of_clients(attack: str, k: int, row: userdp_certified.Row, told: Classes, share: float = 1.0) -> dict[str, Any]:
    """Return k clients; a share of their records is poisoned, and their updates scaled to the bound or beyond it.

    The second of the classes shall be taken for the first, which is 0 everywhere, the attacks' default. Whoever
    stamps records trains on each as it is and on the stamped ones. STAT-OPT aims at nothing but a bad model, and
    poisons no record.
    """
    if attack == StatOpt.name:
        return {"kind": attack, "clients": k, "parameters": {}}
    parameters: dict[str, Any] = {"gamma": GAMMA}
    if share < 1:
        parameters["share"] = share
    if attack != LabelFlip.name:
        n_stamped = round(share * row.client_records)
        parameters |= {"steps": row.local_steps(n_stamped=n_stamped), "rate": row.local_rate, "divides": False}
    elif told is not DIGITS:
        parameters["source"] = told.labels[1]
    if attack == DistributedBackdoor.name:
        parameters["parts"] = min(k, _PIXELS)
    return {"kind": attack, "clients": k, "parameters": parameters}


def _of_clients_in(trained: Trained, attack: str, k: int, share: float) -> dict[str, Any]:
    assert isinstance(trained, userdp_certified.Experiment)
    return of_clients(attack, k, trained.row, trained.told, share)


def _of_records_in(trained: Trained, attack: str, k: int, _share: float) -> dict[str, Any]:
    """Return the attack of one client that has them all, beside its own; k says how many they are, and no share."""
    parameters: dict[str, Any] = {"aim": attack, "records": k}
    if trained.told is not DIGITS:
        parameters["source"] = trained.told.labels[1]
    return {"kind": PoisonedRecords.name, "clients": 1, "parameters": parameters}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Describe what the paper's figures show of a data set, by the epsilons that they print."""

    sigmas: tuple[float, ...]
    rounds: int
    attackers: tuple[int, ...]
    attacks: tuple[str, ...]
    cost_bound: float
    """C_bar of Table 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Describe a level: the guarantee that the bounds rest on, and who attacks."""

    algorithm: str
    trained: Callable[..., Trained]
    figures: Mapping[str, Figure]
    """By data set; what has the shape of digits has MNIST's."""
    ten_classes: Figure | None
    """Figures of MNIST's ten classes, which the paper has of users alone."""
    attack: Callable[[Trained, str, int, float], Mapping[str, Any]]
    """(victims, name, k, share of an attacker's records) to `[simulation.attack]`."""
    has_shares: bool
    """Whether an attacker may poison a share of its records."""
    threat: Threat
    words: str
    """k of what, with a verb."""

    def figure_of(self, dataset: str, n_classes: int = TWO) -> Figure:
        """Return the figure of that data set, or of MNIST."""
        two = self.figures.get(dataset, self.figures["mnist"])
        return two if n_classes == TWO or self.ten_classes is None else self.ten_classes


_PATTERNS: Final = (TriangleBackdoor.name, DistributedBackdoor.name)

LEVELS: Final[Mapping[str, Level]] = {
    "user": Level(
        algorithm="UserDP-FedAvg",
        trained=userdp_certified.Experiment,
        figures={
            "mnist": Figure(
                sigmas=(2.5,),
                rounds=5,
                attackers=(2, 5, 10),
                attacks=(LabelFlip.name, *_PATTERNS, StatOpt.name),
                cost_bound=0.5,
            ),
            "cifar10": Figure(
                sigmas=(3.0,),
                rounds=4,
                attackers=(2, 5, 10),
                attacks=(LabelFlip.name, *_PATTERNS, StatOpt.name),
                cost_bound=0.2,
            ),
            "sentiment140-50k": Figure(
                sigmas=(2.0,),
                rounds=3,
                attackers=(2, 5, 10),
                attacks=(LabelFlip.name, StatOpt.name),
                cost_bound=1.4,
            ),
        },
        ten_classes=Figure(
            sigmas=(0.5,),
            rounds=userdp_certified.TEN_DIGITS.rounds,
            attackers=(2, 5, 10),
            attacks=(LabelFlip.name, *_PATTERNS),
            cost_bound=0.5,
        ),
        attack=_of_clients_in,
        has_shares=True,
        threat=Threat.REPLACE,
        words="clients that attackers replace",
    ),
    "instance": Level(
        algorithm="InsDP-FedAvg",
        trained=insdp_certified.Experiment,
        figures={
            "mnist": Figure(
                sigmas=(10.0,),
                rounds=4,
                attackers=(5, 10, 20),
                attacks=(LabelFlip.name, TriangleBackdoor.name),
                cost_bound=0.5,
            ),
            "cifar10": Figure(
                sigmas=(8.0,),
                rounds=1,
                attackers=(4, 10, 20),
                attacks=(LabelFlip.name, TriangleBackdoor.name),
                cost_bound=2.0,
            ),
        },
        ten_classes=None,
        attack=_of_records_in,
        has_shares=False,
        threat=Threat.ADD,
        words="poisoned records that join one client's",
    ),
}
