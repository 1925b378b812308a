"""Equipment of a round: the links of a meeting, what computes on shares, and the randomness of a server."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from precad.mpc.crypten.bridge import SumFunction
from precad.mpc.gate.top_bits import Gate
from precad.mpc.local.step import Engine
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes, expanded_bytes
from precad.mpc.ring import RingArray
from precad.servers.links.dealer import NoDealer, TupleSource
from precad.servers.links.lane import CountedChannel
from precad.servers.links.peer import PeerLink
from precad.servers.rounds.sessions import Sessions

NoiseSource: TypeAlias = Callable[[float, int], RingArray]
"""(standard deviation in units of 2^-f, d) to one server's noise on the integer grid."""
MarginNoiseSource: TypeAlias = Callable[[float], int]
"""Scale in steps of the margin to one server's noise on it."""


@dataclass(frozen=True, slots=True)
class Links:
    """Whom a round talks to: the other aggregator, the dealer and the clients."""

    peer: PeerLink
    lane: CountedChannel
    tuples: TupleSource | NoDealer
    sessions: Sessions


def _rounded_gaussian(std: float, dim: int) -> RingArray:
    """Draw one server's noise. The sampler is imported here, as the dealer adds none."""
    from precad.dp.noise import rounded_gaussian

    return rounded_gaussian.sample(std, dim, expanded_bytes(SYSTEM_BYTES))


def _rounded_laplace(scale: float) -> int:
    """Draw one server's noise on a margin, with a sampler that is imported at the first draw."""
    from precad.dp.noise import rounded_laplace

    return rounded_laplace.sample(scale, SYSTEM_BYTES)


@dataclass(frozen=True, slots=True)
class Randomness:
    """Sources of all that protects somebody in a round: the operating system's, unless a test fixes them. Noise is
    expanded from a key of it."""

    tuples: RandomBytes = SYSTEM_BYTES
    """Seeds of correlated randomness, at the dealer."""
    share_seeds: RandomBytes = SYSTEM_BYTES
    """Seeds of the shares that this server gives to clients, in mode `proved`."""
    coin: RandomBytes = SYSTEM_BYTES
    """This server's halves of joint coins, and of a new task's name."""
    noise: NoiseSource = _rounded_gaussian
    """Noise that this server adds."""
    margin_noise: MarginNoiseSource = _rounded_laplace
    """Noise that this server adds to a margin."""


SYSTEM_RANDOMNESS = Randomness()


@dataclass(frozen=True, slots=True)
class Compute:
    """Equipment that computes on shares, its thread, and what it draws from."""

    gate: Gate | None
    """None in mode `proved`, which compares nothing."""
    engine: Engine
    thread: ThreadPoolExecutor
    """Pool of one worker, so that the steps of MPC keep their order."""
    randomness: Randomness
    function: SumFunction | None = None
    """Function of the sum that the task names."""
