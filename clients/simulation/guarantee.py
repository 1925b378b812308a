"""What an algorithm guarantees, to whom, against whom: one sentence that cannot be read as more than is proved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """(epsilon, delta)-differential privacy, a proved upper bound; or none at all.

    It is about the algorithm on the operating system's randomness. A simulation draws from a seed and protects nobody.
    """

    unit: Literal["record", "client"]
    """What is added or removed."""
    against: str
    """Who learns what, in words that follow 'against'."""
    epsilon: float | None
    """None: nothing is guaranteed."""
    delta: float
    note: str = ""
    """On what the guarantee rests, or why there is none."""
    in_real_arithmetic: bool = False
    """Whether gradients were rounded otherwise beside other records or clients, which no proof covers."""

    def __str__(self) -> str:
        rests = f"; {self.note}" if self.note else ""
        if self.epsilon is None:
            return f"no guarantee for one {self.unit} against {self.against}{rests}"
        where = " in real arithmetic" if self.in_real_arithmetic else ""
        epsilon = Context(prec=3, rounding=ROUND_CEILING).plus(Decimal(self.epsilon))
        return (
            f"epsilon <= {epsilon:f} at delta = {self.delta} for one {self.unit} (proved bound{where}, add/remove) "
            f"against {self.against}{rests}"
        )

    def to_json(self) -> dict[str, Any]:
        """For programs. JSON has no infinity: an infinite epsilon is the string "inf"."""
        is_infinite = self.epsilon is not None and math.isinf(self.epsilon)
        return {
            "unit": self.unit,
            "against": self.against,
            "epsilon": "inf" if is_infinite else self.epsilon,
            "delta": self.delta,
            "note": self.note,
            "sentence": str(self),
        }
