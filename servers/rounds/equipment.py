"""Equipment of a round: the links of a meeting, and what computes on shares, for as long as the process lasts."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

from precad.mpc.gate.top_bits import Gate
from precad.mpc.local.step import Engine
from precad.mpc.ring import RingArray
from precad.servers.links.dealer import TupleSource
from precad.servers.links.lane import CountedChannel
from precad.servers.links.peer import PeerLink
from precad.servers.rounds.sessions import Sessions

NoiseSource: TypeAlias = Callable[[float, int], RingArray]
"""(standard deviation in units of 2^-f, d) to one server's noise on the integer grid."""


@dataclass(frozen=True, slots=True)
class Links:
    """Whom a round talks to: the other aggregator, the dealer and the clients."""

    peer: PeerLink
    lane: CountedChannel
    tuples: TupleSource
    sessions: Sessions


@dataclass(frozen=True, slots=True)
class Compute:
    """Equipment that computes on shares, its thread, and the noise that this server adds."""

    gate: Gate
    engine: Engine
    thread: ThreadPoolExecutor
    """Pool of one worker, so that the steps of MPC keep their order."""
    noise: NoiseSource
