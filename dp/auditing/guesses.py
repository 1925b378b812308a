"""Guess the coins of canaries from their scores: the highest are in, the lowest out, the others are left open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from precad.dp.checks import require_count, require_positive, require_probability

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Plan:
    """Say how many scores will be guessed to be in and out: fixed before they are seen, else no confidence holds."""

    highest: int
    """Guessed to be in."""
    lowest: int
    """Guessed to be out."""

    def __post_init__(self) -> None:
        require_count("highest", self.highest)
        require_count("lowest", self.lowest)

    @property
    def made(self) -> int:
        """Return how many guesses are made."""
        return self.highest + self.lowest


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
                f"correct, made, canaries: expected correct <= made <= canaries, found {self.correct}, {self.made} and "
                f"{self.canaries}"
            )

    @classmethod
    def of_scores(cls, scores: Array, coins: NDArray[np.bool_], plan: Plan) -> Self:
        """Guess that the highest scores are in and the lowest out, as many of each as planned. scores, coins: (m,).

        Raises: ValueError for shapes that differ, or more guesses than canaries.
        """
        right = right_at_ends(scores, coins)
        if plan.made > len(scores):
            raise ValueError(f"plan: expected at most {len(scores)} guesses, the canaries, found {plan.made}")
        return cls(len(scores), plan.made, int(right[0, plan.highest] + right[1, plan.lowest]))


def right_at_ends(scores: Array, coins: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many are in of the k highest scores, and out of the k lowest, for k = 0 to m; (2, m + 1)."""
    if scores.shape != coins.shape or scores.ndim != 1:
        raise ValueError(f"coins: expected the shape of scores, (m,), found {coins.shape} and {scores.shape}")
    in_order = coins[np.argsort(scores, kind="stable")]
    right = np.cumsum([in_order[::-1], ~in_order], axis=1, dtype=np.int64)
    return np.pad(right, ((0, 0), (1, 0)))


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
