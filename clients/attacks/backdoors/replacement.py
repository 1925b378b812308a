"""Define the base of all backdoors: a model trained on records of the attacker's choice replaces the common one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from precad.clients.attacks.attack import Attack, Knowledge, Vector, within
from precad.clients.errors import ArgumentError
from precad.clients.records.records import N_CLASSES


@dataclass(frozen=True, slots=True)
class Backdoor(Attack):
    """Trains a backdoored model theta* on what `on_records` makes and uploads gamma (theta* - theta_t) / (step m).

    Servers multiply the sum of updates with step = eta / W. m is the number of attackers in the round, who divide the
    malicious update evenly. With gamma = 1 they replace the model by the mean of their theta*, alone or together.
    Without `divides`, m is 1, and attackers who meet in a round overshoot. Where updates are bounded by C, the upload
    is projected onto that ball: it would be refused otherwise.
    Source: PRECAD, Sec. 3.2 and Appendix E (rate 0.02, 5 local steps); Bagdasaryan, Veit, Hua, Estrin and Shmatikov,
    "How To Backdoor Federated Learning", AISTATS '20.
    """

    is_simulated_only: ClassVar[bool] = True

    target: int = 0
    """Label of records with the backdoor."""
    gamma: float = 1.0
    """Boost of model replacement."""
    divides: bool = True
    """Whether the attackers of a round divide the malicious update; if not, each uploads all of it."""
    steps: int = 5
    """Local gradient descent steps of a round."""
    rate: float = 0.02
    """Their learning rate."""
    replaces: bool = True
    """Whether it replaces the model. If not, it follows the protocol with its poisoned records, noise of its own
    included; then `gamma`, `divides`, `steps` and `rate` mean nothing."""

    def __post_init__(self) -> None:
        if isinstance(self.target, bool) or not isinstance(self.target, int) or not 0 <= self.target < N_CLASSES:
            raise ArgumentError(f"target must be a class in [0, {N_CLASSES - 1}], got {self.target}")
        require_positive_count("steps", self.steps)
        for name, flag in (("divides", self.divides), ("replaces", self.replaces)):
            if not isinstance(flag, bool):
                raise ArgumentError(f"{name} must be true or false, got {flag}")
        for field, value in (("gamma", self.gamma), ("rate", self.rate)):
            if not 0 < value < math.inf:
                raise ArgumentError(f"{field} must be positive and finite, got {value}")

    @property
    def follows_protocol(self) -> bool:
        """See Attack."""
        return not self.replaces

    def craft(self, known: Knowledge) -> Vector:
        """Return model replacement by theta*, within the bound C."""
        backdoored = known.train(self.steps, self.rate)
        boost = self.gamma / (known.step * (known.n_attackers if self.divides else 1))
        return within(boost * (backdoored - known.parameters.astype(np.float64)), known.bound)


def require_positive_count(field: str, value: object) -> None:
    """Raises ArgumentError unless `value` is an integer >= 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{field} must be an integer >= 1, got {value}")
