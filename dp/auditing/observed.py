"""Hold the scores of canaries, round by round, as one view sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precad.dp.accountants.pld import SampledGaussian
from precad.dp.auditing.guesses import Array, Guesses, Plan, log_likelihood_ratios


@dataclass(frozen=True, slots=True, eq=False)
class Observed:
    """Scores of m canaries in T rounds, all in units of the clip R, beside what the auditor knows of them."""

    scores: Array
    """(T, m): the released sum at each canary's coordinate, minus the noise that the view knows."""
    contributions: Array
    """(T, m): what its client uploaded there, before any noise; 0 where the canary was not drawn."""
    present: NDArray[np.bool_]
    """(T, m): whether the update of the canary's client was in the round."""
    coins: NDArray[np.bool_]
    """(m,): whether the canary is in its client's data at all."""
    own_noise: Array | None = None
    """(T, m): the corrupted server's noise, in the view of one server."""
    step: float = 0.0
    """Step of the grid that noise is drawn on; 0: not known."""
    clients: NDArray[np.int64] | None = None
    """(m,): the number of each canary's client, from 0; None: not known."""

    def __post_init__(self) -> None:
        shape = self.scores.shape
        if len(shape) != 2 or not all(shape):
            raise ValueError(f"scores: expected shape (T, m), T and m at least 1, found {shape}")
        for name in ("contributions", "present", "own_noise"):
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise ValueError(f"{name}: expected the shape of scores, {shape}, found {value.shape}")
        for name in ("coins", "clients"):
            value = getattr(self, name)
            if value is not None and value.shape != shape[1:]:
                raise ValueError(f"{name}: expected shape {shape[1:]}, found {value.shape}")

    @property
    def canaries(self) -> int:
        """Return m."""
        return len(self.coins)

    @property
    def most_rounds(self) -> int:
        """Return the most rounds that any canary's client was in, for which epsilon is printed."""
        return int(self.present.sum(axis=0).max())

    @property
    def residuals(self) -> Array:
        """Return the scores without the contributions: the noise that hides them, (T, m)."""
        return self.scores - self.contributions

    def guesses(self, event: SampledGaussian, plan: Plan) -> Guesses:
        """Guess coins as planned, by the likelihood ratios of the printed round."""
        ratios = log_likelihood_ratios(self.scores, self.present, event.sampling_rate, event.noise_multiplier)
        return Guesses.of_scores(ratios, self.coins, plan)
