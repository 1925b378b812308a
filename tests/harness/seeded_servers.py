"""Noise of both servers of a test, as a simulation of the same seed draws it, whatever branch a round takes."""

from __future__ import annotations

from precad.lab.simulation.randomness import SeededRandomness, of_servers
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
        return of_servers(self._draws, self._n_sums - 1)[self._party].noise(std, dim)

    def margin_noise(self, scale: float) -> int:
        """Return that of the coming margin: server A's is drawn first."""
        self._n_margins += 1
        return [server.margin_noise(scale) for server in of_servers(self._draws, self._n_margins - 1)][self._party]
