"""State what an algorithm guarantees, to whom, against whom: one sentence that cannot be read as more than is
proved."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from precad.clients.errors import ArgumentError
from precad.deploy.reporting.numbers import Format, shown
from precad.deploy.shown.figures import NO_USEFUL_BOUND
from precad.dp.accountants.pld import Unit, unit_words
from precad.dp.accountants.slack import NO_BOUND
from precad.dp.checks import require_count, require_delta_or_zero, require_non_negative, require_one_of
from precad.mpc.errors import raised_as

REALISED = "of the rounds that there were, if no draw is discarded"
"""Text of a note about an epsilon without `epsilon_if_discarded`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """(epsilon, delta)-differential privacy, a proved upper bound; or none at all.

    It is about the algorithm on the operating system's randomness. A simulation draws from a seed and protects nobody.
    """

    unit: Literal["record", "client"]
    """Unit that is added or removed."""
    against: str
    """Adversary that learns something, in words that follow 'against'."""
    epsilon: float | None
    """None: nothing is guaranteed."""
    delta: float
    epsilon_if_discarded: float | None = None
    """Epsilon of the most rounds that a client can be in, against whoever may discard draws of a deployment. Then
    `epsilon` is that of the rounds there were, against who only watches. None: there is one figure."""
    group_size: int = 1
    """How many records of one person are added or removed together, where the unit is a record."""
    note: str = ""
    """On what the guarantee rests, or why there is none."""
    in_real_arithmetic: bool = False
    """Whether gradients were rounded otherwise beside other records or clients, which no proof covers."""

    def __post_init__(self) -> None:
        """Take NumPy's numbers as Python's. Raises ArgumentError for what no guarantee says, which would show as
        proved."""
        with raised_as(ArgumentError, ValueError, "guarantees"):
            require_one_of("unit", self.unit, (*Unit,))
            require_delta_or_zero(self.delta)
            require_count("group_size", self.group_size, at_least=1)
            for name in ("epsilon", "epsilon_if_discarded"):
                if (value := getattr(self, name)) is not None:
                    require_non_negative(name, value, may_be_infinite=True)
                    object.__setattr__(self, name, float(value))

    def __str__(self) -> str:
        rests = f"; {self.note}" if self.note else ""
        whose = unit_words(Unit(self.unit), self.group_size)
        if self.epsilon is None:
            return f"no guarantee for {whose} against {self.against}{rests}"
        text = f"epsilon <= {shown(self.epsilon, Format.EPSILON)}"
        if self.epsilon_if_discarded is not None:
            if_none = f"({shown(self.epsilon, Format.EPSILON)} if no draw is discarded)"
            text = f"epsilon <= {shown(self.epsilon_if_discarded, Format.EPSILON)} {if_none}"
        for words in (NO_USEFUL_BOUND, NO_BOUND):
            text = text.replace(f"epsilon <= {words}", words)
        where = " in real arithmetic" if self.in_real_arithmetic else ""
        what = f"for {whose} (proved bound{where}, add/remove)"
        return f"{text} at delta = {self.delta} {what} against {self.against}{rests}"

    def to_json(self) -> dict[str, Any]:
        """Return the guarantee for programs. JSON has no infinity: an infinite epsilon is the string "inf"."""
        second = {"epsilon_if_discarded": _plain(self.epsilon_if_discarded)}
        return {
            "unit": self.unit,
            **({} if self.group_size == 1 else {"group_size": self.group_size}),
            "against": self.against,
            "epsilon": _plain(self.epsilon),
            **({} if self.epsilon_if_discarded is None else second),
            "delta": self.delta,
            "note": self.note,
            "sentence": str(self),
        }


def _plain(epsilon: float | None) -> float | str | None:
    return "inf" if epsilon is not None and math.isinf(epsilon) else epsilon
