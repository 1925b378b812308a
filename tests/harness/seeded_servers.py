"""Noise of both servers of a test, as a simulation of the same seed draws it, whatever branch a round takes."""

from __future__ import annotations

from precad.dp.noise import rounded_laplace
from precad.lab.simulation.randomness import SeededRandomness
from precad.mpc.ring import RingArray


class SeededNoise:
    """One server's noise, round after round: none may be lost."""

    def __init__(self, seed: int, party: int) -> None:
        self._draws, self._party = SeededRandomness(seed), party
        self._n_sums = self._n_margins = 0
        self.stds: list[float] = []
        """Standard deviations that the server asked for."""

    def noise(self, std: float, dim: int) -> RingArray:
        """Return that of the coming sum."""
        self.stds.append(std)
        self._n_sums += 1
        return self._draws.noise(self._n_sums - 1, f"server-{self._party}", std, dim)

    def margin_noise(self, scale: float) -> int:
        """Return that of the coming margin: server A's is drawn first."""
        stream = self._draws.rule(self._n_margins)
        self._n_margins += 1
        return [rounded_laplace.sample(scale, stream) for _ in range(2)][self._party]
