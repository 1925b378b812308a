"""What backdoors share: model replacement by a model that was trained on records of the attacker's choice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from clients.attacks.attack import Attack, Knowledge, Vector, within
from clients.datasets.records import N_CLASSES
from clients.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Backdoor(Attack):
    """Trains a backdoored model theta* on what `on_records` makes and uploads gamma (theta* - theta_t) / step.

    step = eta / W is what the servers multiply the sum of updates with, so that gamma = 1 alone replaces the model by
    theta*. Where updates are bounded by C, the upload is projected onto that ball: it would be refused otherwise.
    Source: PRECAD, Sec. 3.2 and Appendix E (rate 0.02, 5 local steps); Bagdasaryan, Veit, Hua, Estrin and Shmatikov,
    "How To Backdoor Federated Learning", AISTATS '20.
    """

    is_simulated_only: ClassVar[bool] = True

    target: int = 0
    """What records with the backdoor are labelled as."""
    gamma: float = 1.0
    """Boost of model replacement."""
    steps: int = 5
    """Local gradient descent steps of a round."""
    rate: float = 0.02
    """Their learning rate."""
    replaces: bool = True
    """Whether it replaces the model. If not, it follows the protocol with its poisoned records, noise of its own
    included; then the three fields before mean nothing."""

    def __post_init__(self) -> None:
        if isinstance(self.target, bool) or not isinstance(self.target, int) or not 0 <= self.target < N_CLASSES:
            raise ArgumentError(f"target must be a class in [0, {N_CLASSES - 1}], got {self.target}")
        require_positive_count("steps", self.steps)
        if not isinstance(self.replaces, bool):
            raise ArgumentError(f"replaces must be true or false, got {self.replaces}")
        for field, value in (("gamma", self.gamma), ("rate", self.rate)):
            if not 0 < value < math.inf:
                raise ArgumentError(f"{field} must be positive and finite, got {value}")

    @property
    def follows_protocol(self) -> bool:
        """See Attack."""
        return not self.replaces

    def craft(self, known: Knowledge) -> Vector:
        """Model replacement by theta*."""
        backdoored = known.train(self.steps, self.rate)
        return within(self.gamma * (backdoored - known.parameters.astype(np.float64)) / known.step, known.bound)


def require_positive_count(field: str, value: object) -> None:
    """Raises ArgumentError unless `value` is an integer >= 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{field} must be an integer >= 1, got {value}")
