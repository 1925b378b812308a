"""A round of a client whose records are in bins, and what such rounds cost: whole epochs, as many as were begun."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from precad.dp.checks import keep_as_floats, require_bins, require_count, require_positive


@dataclass(frozen=True, slots=True)
class BinnedGaussian:
    """One of `bins` successive rounds of a client, in exactly one of which a record is. Noise as in `SampledGaussian`.

    Rounds e T .. e T + T - 1 by number are an epoch. Whoever counts rounds counts all of an epoch that has one
    (`precad.dp.accountants.balls_in_bins`).
    """

    bins: int
    noise_multiplier: float
    group_size: int = 1
    """Records of one person, all of that client, that are added or removed together."""

    def __post_init__(self) -> None:
        require_bins(self.bins)
        require_positive("noise_multiplier", self.noise_multiplier)
        require_count("group_size", self.group_size, at_least=1)
        keep_as_floats(self, "noise_multiplier")

    def epochs(self, rounds: int) -> int:
        """Return how many epochs so many successive rounds begin."""
        return -(-rounds // self.bins)

    def whole(self, rounds: int) -> int:
        """Return the rounds of all epochs that so many successive rounds begin."""
        return self.bins * self.epochs(rounds)

    def epsilon(self, rounds: int, delta: float) -> float:
        """Bound epsilon of the whole epochs that so many rounds begin.

        A group costs the most where all of it is in one round of each epoch, known to everybody.
        """
        from precad.dp.accountants.balls_in_bins import BallsInBins

        if self.group_size == 1:
            return BallsInBins(bins=self.bins, noise_multiplier=self.noise_multiplier).epsilon(
                self.whole(rounds), delta
            )
        known = BallsInBins(bins=1, noise_multiplier=self.noise_multiplier / self.group_size)
        return known.epsilon(self.epochs(rounds), delta)


def bins_of(events: Iterable[object]) -> int:
    """Return how many successive rounds of a task are one epoch; 1 where each round draws by itself."""
    return max((event.bins for event in events if isinstance(event, BinnedGaussian)), default=1)
