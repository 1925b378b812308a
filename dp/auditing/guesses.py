"""Guess the coins of canaries from their scores: the highest are in, the lowest out, the others are left open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from precad.dp.checks import require_count, require_positive, require_probability

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Guesses:
    """Hold how many coins were guessed, and how many of the guesses were right."""

    canaries: int
    made: int
    correct: int

    def __post_init__(self) -> None:
        require_count("canaries", self.canaries, at_least=1)
        require_count("made", self.made)
        require_count("correct", self.correct)
        if not self.correct <= self.made <= self.canaries:
            raise ValueError(
                f"expected correct <= made <= canaries, got {self.correct}, {self.made} and {self.canaries}"
            )

    @classmethod
    def of_scores(cls, scores: Array, coins: NDArray[np.bool_], made: int) -> Self:
        """Guess that the made/2 highest scores are in and as many of the lowest are out. scores, coins: (m,).

        `made` is fixed before the scores are seen, else a confidence does not hold. An odd one is lowered by one.
        Raises: ValueError for shapes that differ, or more guesses than canaries.
        """
        if scores.shape != coins.shape or scores.ndim != 1:
            raise ValueError(f"coins must have the shape of scores, (m,), got {coins.shape} and {scores.shape}")
        require_count("made", made)
        half = made // 2
        if 2 * half > len(scores):
            raise ValueError(f"made must be <= {len(scores)}, the canaries, got {made}")
        order = np.argsort(scores, kind="stable")
        right = int(coins[order[len(scores) - half :]].sum()) + int((~coins[order[:half]]).sum())
        return cls(len(scores), 2 * half, right)


def log_likelihood_ratios(scores: Array, present: NDArray[np.bool_], rate: float, noise: float) -> Array:
    """Return for each canary the log likelihood ratio of in to out, over the rounds that its client was in; (m,).

    scores: (T, m), in units of the clip R.
    present: (T, m). It says whether the canary's client was in the round.
    rate: p, of a record in a round.
    noise: multiplier of the view.
    """
    require_probability("rate", rate)
    require_positive("noise", noise)
    loss = (scores - 0.5) / noise**2
    with np.errstate(divide="ignore"):
        of_round = np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + loss)
    return np.asarray(np.where(present, of_round, 0.0).sum(axis=0))
