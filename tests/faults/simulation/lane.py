"""The lane between two simulated aggregators: steps of MPC, for which each one's strand waits."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from precad.mpc.channel import require_at_most
from precad.mpc.errors import ChannelClosedError, PeerMismatchError
from precad.mpc.sharing import Party
from precad.servers.errors import PeerUnreachableError
from tests.faults.simulation.pipe import Host, Pipe

if TYPE_CHECKING:
    from tests.faults.simulation.network import Network


class SimulatedLane:
    """In the place of `precad.servers.links.lane.Lane`: one end, used by its host's strand."""

    def __init__(self, network: Network, host: Host, party: Party, number: int) -> None:
        self._network, self._host, self._party, self.number = network, host, party, number
        self._inbox: list[tuple[str, bytes]] = []
        self._out: Pipe | None = None
        self._peer: SimulatedLane | None = None
        self._is_waiting = self.is_closed = False
        self.bytes_sent = 0

    def join(self, peer: SimulatedLane) -> None:
        """Let what we send arrive at the peer."""
        self._peer, self._out = peer, Pipe(self._network.loop, peer._arrive)

    @property
    def party(self) -> Party:
        """0 for A, 1 for B."""
        return self._party

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `precad.mpc.channel.Channel`."""
        assert self._out is not None
        assert self._host.strand is not None
        if self.is_closed:  # whatever came before: nobody gets our part any more
            raise ChannelClosedError(f"the other aggregator left, at step {label!r}")
        if not self._host.is_dead:
            self._network.on_step(self._host, self, label, payload)
            self._out.send((label, payload))
            self.bytes_sent += len(payload)
        while not self._inbox and not self.is_closed:
            self._is_waiting = True
            self._host.strand.pause()
            self._is_waiting = False
        if not self._inbox:
            raise ChannelClosedError(f"the other aggregator left, at step {label!r}")
        peers_label, received = self._inbox.pop(0)
        if peers_label != label:
            raise PeerMismatchError("protocol step", ours=label, peers=peers_label)
        if at_most is not None:
            require_at_most(label, len(received), at_most)
        return received

    def exchange_pieces(self, label: str, pieces: Any, at_most: int | None = None) -> Any:
        """See `precad.mpc.channel.Channel`."""
        for piece in pieces:
            yield self.exchange(label, piece, at_most)

    def _arrive(self, message: tuple[str, bytes]) -> None:
        self._inbox.append(message)
        self._wake()

    def _wake(self) -> None:
        if self._is_waiting and self._host.strand is not None:
            self._host.strand.resume()

    def _lost(self) -> None:
        self.is_closed = True
        self._wake()

    def close(self) -> None:
        """Both ends, the other one a moment later. May be called by the strand's own work and by the loop."""
        self.is_closed = True
        self._network.loop.call_soon(self._wake)
        if self._peer is not None and self._out is not None:
            self._network.loop.call_later(self._network.trip_s(), self._peer._lost)


class LaneListener:
    """In the place of `precad.servers.links.lane_listener.LaneListener`."""

    def __init__(self, network: Network, host: Host) -> None:
        self._network, self.host = network, host
        self.port = network.next_number()
        self.token = self.port.to_bytes(32, "big")
        self._arrived: asyncio.Queue[SimulatedLane] = asyncio.Queue()
        network.listeners[self.port] = self

    async def accept(self, timeout_s: float) -> SimulatedLane:
        """See `precad.servers.links.lane_listener.LaneListener`."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._arrived.get()
        except TimeoutError:
            raise PeerUnreachableError("no lane") from None

    def take(self, lane: SimulatedLane) -> None:
        """A has come."""
        self._arrived.put_nowait(lane)

    def close(self) -> None:
        """Nobody can come any more."""
        self._network.listeners.pop(self.port, None)
