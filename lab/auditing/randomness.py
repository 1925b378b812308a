"""Draw for an audited simulation: from the operating system, and with the servers' noise kept at the canaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from precad.clients.record_bins import KEY_BYTES
from precad.clients.training.record_draws import BinKey
from precad.dp.noise import rounded_gaussian
from precad.lab.simulation.randomness import Sources
from precad.mpc import joint_coin
from precad.mpc.prg import SYSTEM_BYTES, Label, RandomBytes, Seed, expanded_bytes
from precad.mpc.ring import RingArray


class SystemRandomness:
    """Everything from the operating system, by the samplers of a deployment: what an audit is about."""

    def __init__(self) -> None:
        self._coin_of_turns, self._bin_keys = Seed.random(), dict[str, BinKey]()

    def chosen(self, t: int, clients: Sequence[str], client_rate: float) -> list[str]:
        """See Sources."""
        return joint_coin.select_poisson(Seed(SYSTEM_BYTES(16)), Label("audit", t), clients, client_rate)

    def turns(self, clients: Sequence[str], n_turns: int) -> Mapping[str, int]:
        """See Sources."""
        return joint_coin.turns(self._coin_of_turns, Label("audit", 0), clients, n_turns)

    def records(self, t: int, client: str) -> RandomBytes:
        """See Sources."""
        return SYSTEM_BYTES

    def bins(self, client: str) -> BinKey:
        """See Sources."""
        return self._bin_keys.setdefault(client, BinKey(SYSTEM_BYTES(KEY_BYTES), "audit"))

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """See Sources."""
        return rounded_gaussian.sample(std_on_grid, dim, expanded_bytes())

    def rule(self, t: int) -> RandomBytes:
        """See Sources."""
        return SYSTEM_BYTES

    def attack(self, t: int, client: str) -> np.random.Generator:
        """See Sources."""
        return np.random.default_rng()


class KeptNoise:
    """Draw from another source, and keep what each server drew last, beside what it drew at the canaries' places."""

    def __init__(self, source: Sources, head: slice) -> None:
        """head: where the canaries' parameters are in the vector."""
        self._source, self._head = source, head
        self.chosen, self.turns, self.records, self.bins = source.chosen, source.turns, source.records, source.bins
        self.rule, self.attack = source.rule, source.attack
        self.kept: dict[str, RingArray] = {}
        """The last noise of each server, (m,), by source."""
        self.whole: dict[str, RingArray] = {}
        """All of it, (d,), until the next draw: for records that move every coordinate."""

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """See Sources."""
        drawn = self._source.noise(t, source, std_on_grid, dim)
        self.kept[source], self.whole[source] = drawn[self._head].copy(), drawn
        return drawn
