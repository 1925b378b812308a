"""Share the chance that a sound system is accused among all that one audit judges.

An audit looks from several seats, in several ways. Were each allowed one false alarm in twenty, a whole audit would
have one in ten. Chances add up (Bonferroni), so one audit has a single chance, and each part a share of it that no
score changes. Canaries have most of it, in which every seat has its part (`per_round.limits`). Where there are no real
records, canaries have their share, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from precad.dp.checks import require_count, require_delta

_OF_GUESSES: Final = 0.05
"""Share of guesses in one run, which hardly ever refute what is true."""
_OF_REAL: Final = 0.15
"""Share of real records, where there are some."""
_WAYS: Final = 2
"""Ways to judge guesses: by curves, and with no assumption."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Hold chances of a false alarm, which add up to that of the whole audit."""

    seats: int
    """Seats that canaries are looked at from."""
    draws: int
    """Different tables of draws among these seats: more than one where a seat misses rounds."""
    canaries: float
    """Chance of canaries, from all seats together."""
    real: float
    """Chance of real records, from all seats together."""
    guesses: float
    """Chance of one figure of guesses."""
    figure: float
    """Chance that one printed figure of guesses is too large: each holds by itself."""

    @classmethod
    def of(cls, confidence: float, seats: int, *, has_real: bool, draws: int = 1) -> Self:
        """Return the shares of an audit. Raises ValueError for a confidence outside (0, 1), or no seat or draws."""
        alpha = 1 - confidence
        require_delta(alpha)
        require_count("seats", seats, at_least=1)
        require_count("draws", draws, at_least=1)
        real = _OF_REAL * alpha if has_real else 0.0
        guesses = _OF_GUESSES * alpha
        n_guesses = _WAYS * (seats + has_real)
        return cls(
            seats=seats,
            draws=draws,
            canaries=alpha - real - guesses,
            real=real,
            guesses=guesses / n_guesses,
            figure=alpha,
        )
