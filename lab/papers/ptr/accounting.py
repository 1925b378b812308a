"""`precad experiment ptr-accounting`: how long each mechanism of the PTR paper's Tables 1 to 4 may train.

The tables compare accuracies at equal epsilon, so that what they compare first is numbers of rounds. Those follow from
the parameters alone (Wang, Mahloujifar, Wang, Jia, Mittal, NeurIPS '22, B.1.3 and B.2). So they are here also for
EMNIST, and VGG11 and ResNet18 with ImageNet's weights, whose data or models are not. Each number is the most rounds
that cost at most epsilon at delta = 1e-5. One is by privacy loss distributions, one by the Renyi divergences that the
paper has. The paper says that its multipliers align what a round loses. The last column is the quotient of the losses
of order 2, PTR's over the
Gaussian's.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rich.console import Console

from precad.deploy.shown.tables import titled
from precad.dp.accountants.ptr_privacy import subsampled_ptr_rdp_closed
from precad.dp.accountants.renyi import rdp_sgm_poisson
from precad.lab.papers.ptr.mnist import DELTA, Price, proved_epsilon, renyi_epsilon, rounds_within
from precad.lab.papers.ptr.settings import GAUSSIAN, PTR, PTR_PARAMETERS, Method


@dataclass(frozen=True, slots=True)
class Setting:
    """One of the paper's trainings. tau is a share of its clip."""

    tables: str
    data: str
    n: int
    """Records to train on; of EMNIST's letters."""
    batch: int
    tau: float
    sigma_gaussian: float
    sigma_ptr: float
    epsilons: tuple[float, float]

    @property
    def rate(self) -> float:
        """Return q."""
        return self.batch / self.n

    def methods(self) -> Mapping[str, Method]:
        """Return the methods with this setting's noise."""
        ptr = {**PTR.parameters, "noise_multiplier": self.sigma_ptr, "tau": self.tau}
        gaussian = {**GAUSSIAN.parameters, "noise_multiplier": self.sigma_gaussian}
        return {"gaussian": replace(GAUSSIAN, parameters=gaussian), "ptr": replace(PTR, parameters=ptr)}


SETTINGS: Final = (
    Setting("1", "MNIST", 60_000, 256, 0.5, 0.7, 1.1, (3.0, 5.0)),
    Setting("1", "CIFAR-10", 50_000, 1024, 2 / 3, 0.9, 1.1, (7.0, 10.0)),
    Setting("1, 3, 4", "EMNIST", 124_800, 256, 0.5, 0.7, 1.1, (2.0, 2.5)),
    Setting("2", "CIFAR-10, last layer", 50_000, 2048, 0.6, 1.8, 2.2, (3.0, 5.0)),
)
_PRICES: Final[Mapping[str, Price]] = {"proved": proved_epsilon, "renyi": renyi_epsilon}


def ptr_accounting() -> dict[str, Any]:
    """Return a row for each epsilon of each setting."""
    rows = [_row(setting, epsilon) for setting in SETTINGS for epsilon in setting.epsilons]
    return {"experiment": "ptr-accounting", "delta": DELTA, "rows": rows}


def _row(setting: Setting, epsilon: float) -> dict[str, Any]:
    methods = setting.methods()
    rounds = {
        f"{name}_{by}": rounds_within(functools.partial(price, method, setting.n, setting.rate), epsilon)
        for by, price in _PRICES.items()
        for name, method in methods.items()
    }
    return {"tables": setting.tables, "data": setting.data, "epsilon": epsilon, **rounds, "order_2": order_2(setting)}


def order_2(setting: Setting) -> float:
    """Return Renyi divergence of order 2 of one round, PTR's over the Gaussian's."""
    parameters = setting.methods()["ptr"].parameters
    sigma1, tau, b, delta0 = (parameters[name] for name in PTR_PARAMETERS)
    ptr = subsampled_ptr_rdp_closed(2, setting.rate, sigma1, tau, b, delta0)
    return ptr / rdp_sgm_poisson(2, setting.rate, setting.sigma_gaussian)


def print_ptr_accounting(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    title, words = "PTR, rounds at the epsilons of Tables 1 to 4", ("Table", "data")
    rounds_of = ("Gaussian", "PTR", "by Renyi: Gaussian", "PTR")
    table = titled(title, *words, "epsilon", *rounds_of, "loss of order 2, PTR / Gaussian", words=words)
    for row in report["rows"]:
        rounds = (str(row[f"{name}_{by}"]) for by in _PRICES for name in ("gaussian", "ptr"))
        table.add_row(row["tables"], row["data"], f"{row['epsilon']:g}", *rounds, f"{row['order_2']:.2f}")
    console.print(table, highlight=False)
