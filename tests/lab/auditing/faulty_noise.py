"""Noise of a server that does not draw what it should, by name: for audits to find."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from precad.lab.simulation import SeededRandomness
from precad.mpc.ring import RingArray

ROUND_OF_FAULT = 7
Noise = Callable[["FaultyServer", int, float, int], RingArray]
"""Round, standard deviation on the grid, and dimension to what server B adds."""


def _smaller(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return server.fresh(t, 0.97 * std, dim)


def _silent(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return np.zeros(dim, dtype=np.int64)


def _repeated(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return server.fresh(t - t % 2, std, dim)


def _restarted(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """A fixed seed: after a restart the noise of the first rounds comes again."""
    return server.fresh(t % 11, std, dim)


def _silent_once(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return server.fresh(t, std, dim) * int(t != ROUND_OF_FAULT)


def _truncated(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """No draw beyond three standard deviations: each such one is drawn again."""
    found = server.fresh(t, std, dim)
    for again in range(1, 9):
        spare = server.fresh(1000 * again + t, std, dim)
        found = np.where(np.abs(found) > 3 * std, spare, found)
    return found


def _tiled(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Blocks of 50 coordinates that share their noise."""
    return np.resize(server.fresh(t, std, 50), dim)


def _copied(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """One coordinate has the noise of its neighbour."""
    found = server.fresh(t, std, dim)
    found[-1] = found[-2]
    return found


def _coarse(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return server.fresh(t, std, dim) >> 8 << 8


def _of_the_other(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Ten coordinates have the other server's noise."""
    found = server.fresh(t, std, dim)
    found[-10:] = SeededRandomness.noise(server, t, "server-0", std, dim)[-10:]
    return found


def _of_another_round(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Half of the rounds have too little noise, and the others as much more."""
    return server.fresh(t, (0.93 if t >= 10 else 1.067) * std, dim)


def _every_other(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Noise in even coordinates only, of twice the variance."""
    found = server.fresh(t, math.sqrt(2) * std, dim)
    found[1::2] = 0
    return found


def _logistic(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Another law of this variance: by its quantiles."""
    u = (ndtr(server.fresh(t, std, dim) / std)).clip(1e-12, 1 - 1e-12)
    return np.asarray(np.rint(np.log(u / (1 - u)) * std * math.sqrt(3) / math.pi), dtype=np.int64)


def _shifted(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """One stream, read from another place in every round."""
    return np.roll(server.fresh(0, std, dim), 3 * t)


def _going_on(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """A tenth of the noise is that of the round before, and the variance as printed."""
    fresh, before = server.fresh(t, std, dim), server.fresh(t - 1, std, dim)
    return np.asarray(np.rint(math.sqrt(0.99) * fresh + 0.1 * before), dtype=np.int64)


def _uniforms(server: FaultyServer, t: int, std: float, dim: int) -> NDArray[np.float64]:
    return np.asarray(ndtr(server.fresh(t, std, dim) / std).clip(1e-12, 1 - 1e-12))


def _rounded(values: NDArray[np.float64]) -> RingArray:
    return np.rint(values).astype(np.int64)


def _laplace(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    u = _uniforms(server, t, std, dim) - 0.5
    return _rounded(-np.sign(u) * np.log1p(-2 * np.abs(u)) * std / math.sqrt(2))


def _uniform(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return _rounded((_uniforms(server, t, std, dim) - 0.5) * std * math.sqrt(12))


def _four_uniforms(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    total = sum(_uniforms(server, 1000 * i + t, std, dim) for i in range(4)) - 2.0
    return _rounded(total * std * math.sqrt(3))


def _common(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """All coordinates of a round share a fiftieth of the variance."""
    shared = server.fresh(1000 + t, std, 1)
    return _rounded(math.sqrt(0.98) * server.fresh(t, std, dim) + math.sqrt(0.02) * shared)


def _pattern(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """One pattern of signs has a tenth of the variance, in every round by another factor."""
    signs = np.where(np.random.default_rng(0).random(dim) < 0.5, -1.0, 1.0)
    return _rounded(
        math.sqrt(0.9) * server.fresh(t, std, dim) + math.sqrt(0.1) * server.fresh(1000 + t, std, 1) * signs
    )


def _with_the_other(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """A correlation of a twentieth with server A's noise."""
    of_a = SeededRandomness.noise(server, t, "server-0", std, dim)
    return _rounded(math.sqrt(1 - 0.05**2) * server.fresh(t, std, dim) + 0.05 * of_a)


def _absent_in_a_block(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    found = server.fresh(t, std, dim)
    found[-60:-50] = 0
    return found


def _less_in_some_rounds(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Four fifths in every fifth round, and the variance of all together as printed."""
    return server.fresh(t, (0.8 if t % 5 == 0 else math.sqrt(1.09)) * std, dim)


def _reordered(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """From the tenth round on the noise of an earlier round, in another order."""
    found = server.fresh(t % 10, std, dim)
    return found if t < 10 else found[np.random.default_rng(t).permutation(dim)]


def _of_a_table(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Every number is one of 16,384."""
    table = np.rint(ndtri((np.arange(16384) + 0.5) / 16384) * std).astype(np.int64)
    return table[np.random.default_rng([server.seed, t]).integers(0, 16384, dim)]


def _half_precision(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    return _rounded((server.fresh(t, std, dim) / std).astype(np.float16).astype(np.float64) * std)


def _unequal(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """A fifth less at half of the coordinates, which chance chose, and as much more at the others."""
    is_less = np.random.default_rng(1).random(dim) < 0.5
    return _rounded(server.fresh(t, std, dim) * np.where(is_less, 0.8, math.sqrt(1.36)))


def _small_at_few(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """Half of the noise at one coordinate of fifty, which chance chose."""
    return _rounded(server.fresh(t, std, dim) * np.where(np.random.default_rng(2).random(dim) < 0.02, 0.5, 1.0))


def _without_a_sum(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """All draws of a round add up to nothing at the last 1,000 coordinates."""
    found = server.fresh(t, std, dim).astype(np.float64)
    found[-1000:] -= found[-1000:].mean()
    return _rounded(found)


def _cancelling(server: FaultyServer, t: int, std: float, dim: int) -> RingArray:
    """The noise of round 19 is minus that of all earlier rounds, over the root of their number."""
    if t != 19:
        return server.fresh(t, std, dim)
    return _rounded(-sum(server.fresh(s, std, dim).astype(np.float64) for s in range(19)) / math.sqrt(19))


NOISES: dict[str, Noise] = {
    "noise": _smaller,
    "silent": _silent,
    "repeated": _repeated,
    "restarted": _restarted,
    "silent-once": _silent_once,
    "truncated": _truncated,
    "tiled": _tiled,
    "copied": _copied,
    "coarse": _coarse,
    "of-the-other": _of_the_other,
    "of-another-round": _of_another_round,
    "every-other": _every_other,
    "logistic": _logistic,
    "shifted": _shifted,
    "going-on": _going_on,
    "laplace": _laplace,
    "uniform": _uniform,
    "four-uniforms": _four_uniforms,
    "common": _common,
    "pattern": _pattern,
    "with-the-other": _with_the_other,
    "absent-block": _absent_in_a_block,
    "some-rounds": _less_in_some_rounds,
    "reordered": _reordered,
    "table": _of_a_table,
    "half-precision": _half_precision,
    "unequal": _unequal,
    "small-at-few": _small_at_few,
    "no-sum": _without_a_sum,
    "cancelling": _cancelling,
}


class FaultyServer(SeededRandomness):
    """Server B draws what it should not; server A is as it must be."""

    def __init__(self, seed: int, noise: str) -> None:
        super().__init__(seed)
        self._noise = NOISES[noise]

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """See Sources."""
        if source != "server-1":
            return super().noise(t, source, std_on_grid, dim)
        return self._noise(self, t, std_on_grid, dim)

    def fresh(self, t: int, std: float, dim: int) -> RingArray:
        """Return an honest server's draw."""
        return super().noise(t, "server-1", std, dim)
