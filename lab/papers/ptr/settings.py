"""Define what the PTR paper trains in its Tables 1, 3 and 4: mechanisms with their parameters, and corruptions of
records.

Source: Wang, Mahloujifar, Wang, Jia, Mittal, "Renyi Differential Privacy of Propose-Test-Release and Applications to
Private and Robust Machine Learning", NeurIPS '22, Sec. 6 and B.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from precad.lab.simulation.rules import TsgdGaussian, TsgdPtr


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A rule of `precad.lab.simulation.rules`, and its parameters in the paper."""

    name: str
    """Name of its folders."""
    words: str
    rule: type[TsgdGaussian] | type[TsgdPtr]
    parameters: Mapping[str, float]


GAUSSIAN: Final = Method(
    "tsgd-gaussian", "TSGD + Gaussian", TsgdGaussian, {"clip": 1.0, "noise_multiplier": 0.7, "trim": 0.25}
)
PTR: Final = Method(
    "tsgd-ptr",
    "TSGD + PTR",
    TsgdPtr,
    {"clip": 1.0, "noise_multiplier": 1.1, "tau": 0.5, "laplace_scale": 1.0, "test_failure": 1e-8, "trim": 0.25},
)
PTR_PARAMETERS: Final = ("noise_multiplier", "tau", "laplace_scale", "test_failure")
"""sigma1, tau, b and delta0 by their names in `parameters`."""
DPSGD: Final = Method("dpsgd", "DP-SGD", TsgdGaussian, {**GAUSSIAN.parameters, "trim": 0.0})
"""Mechanism of Table 4: nothing is trimmed."""
METHODS: Final = (GAUSSIAN, PTR)


@dataclass(frozen=True, slots=True)
class Training:
    """Hold what the paper trains on a data set, by its B.1.3."""

    n_records: int
    """N, to train on."""
    model: str = "cnn"
    quick_model: str = "cnn-half"
    batch: int = 256
    learning_rate: float = 0.15
    epsilons: tuple[float, ...] = (3.0, 5.0)
    gaussian: Method = GAUSSIAN
    ptr: Method = PTR
    dpsgd: Method = DPSGD

    @property
    def rate(self) -> float:
        """Return q."""
        return self.batch / self.n_records


def _with(method: Method, **parameters: float) -> Method:
    return replace(method, parameters={**method.parameters, **parameters})


_CIFAR10: Final = Training(
    n_records=50_000,
    model="cifar",
    quick_model="cnn-rgb",
    batch=1024,
    learning_rate=0.1,
    epsilons=(7.0, 10.0),
    gaussian=_with(GAUSSIAN, clip=3.0, noise_multiplier=0.9),
    ptr=_with(PTR, clip=3.0, noise_multiplier=1.1, tau=2 / 3),
    dpsgd=_with(DPSGD, clip=3.0, noise_multiplier=0.9),
)
TRAININGS: Final[Mapping[str, Training]] = {
    "mnist": Training(n_records=60_000),
    "fashion-mnist": Training(n_records=60_000),
    "digits": Training(n_records=1437),
    "cifar10": _CIFAR10,
}
"""Other data sets than the paper's have what MNIST has. The paper's tau of CIFAR-10 is 2, of R = 3; ours is a share."""


@dataclass(frozen=True, slots=True)
class Corruption:
    """Which records are corrupted, and how."""

    of: str
    share: float
    mnist: Mapping[float, tuple[float, float]]
    """Table 1: by epsilon, the accuracy with Gaussian noise and that with PTR."""
    cifar10: Mapping[float, tuple[float, float]]

    def paper(self, dataset: str) -> Mapping[float, tuple[float, float]]:
        """Return what Table 1 has on a data set, or nothing."""
        return {"mnist": self.mnist, "cifar10": self.cifar10}.get(dataset, {})

    @property
    def name(self) -> str:
        """Return the name for `--corruption` and folders."""
        return f"{self.of}-{self.share:g}"

    def attack(self, n: int) -> dict[str, Any]:
        """Return the attack of `[simulation]`, with n records; empty where all are clean."""
        kind, parameters = _ATTACKS[self.of]
        clients = round(self.share * n)
        return {"attack": {"kind": kind, "clients": clients, "parameters": parameters}} if clients else {}


_ATTACKS: Final[Mapping[str, tuple[str, Mapping[str, float]]]] = {
    "label": ("random-labels", {}),
    "feature": ("gaussian-features", {"std": 10.0}),
    "gradient": ("gradient-noise", {"std": 10.0}),
    "mirrored-label": ("mirrored-labels", {}),
    "sign-flip": ("sign-flip", {}),
}
CORRUPTIONS: Final = (
    Corruption(
        "label", 0.0, {3.0: (0.8753, 0.9143), 5.0: (0.8131, 0.928)}, {7.0: (0.5794, 0.5892), 10.0: (0.5882, 0.6013)}
    ),
    Corruption(
        "label", 0.1, {3.0: (0.9015, 0.9329), 5.0: (0.8915, 0.94608)}, {7.0: (0.5548, 0.56262), 10.0: (0.5742, 0.58218)}
    ),
    Corruption(
        "label",
        0.2,
        {3.0: (0.9133, 0.92704), 5.0: (0.9247, 0.94084)},
        {7.0: (0.4969, 0.50946), 10.0: (0.5295, 0.53106)},
    ),
    Corruption(
        "feature",
        0.1,
        {3.0: (0.8947, 0.9228), 5.0: (0.8653, 0.93388)},
        {7.0: (0.557, 0.56628), 10.0: (0.5736, 0.58678)},
    ),
    Corruption(
        "feature",
        0.2,
        {3.0: (0.9171, 0.9229), 5.0: (0.8699, 0.92864)},
        {7.0: (0.5513, 0.55526), 10.0: (0.5693, 0.57336)},
    ),
    Corruption(
        "gradient", 0.1, {3.0: (0.9027, 0.917), 5.0: (0.8841, 0.9168)}, {7.0: (0.5581, 0.5729), 10.0: (0.5721, 0.5896)}
    ),
    Corruption(
        "gradient", 0.2, {3.0: (0.9113, 0.9145), 5.0: (0.887, 0.9031)}, {7.0: (0.5445, 0.5631), 10.0: (0.5611, 0.5748)}
    ),
)
TABLE_3: Final = tuple(Corruption(of, share, {}, {}) for of in ("mirrored-label", "sign-flip") for share in (0.1, 0.2))
"""The paper has them for EMNIST."""
QUICK_CORRUPTIONS: Final = ("label-0", "gradient-0.2")
