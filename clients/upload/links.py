"""A client's connections to both aggregators, which outlive the certificates that they were made with."""

from __future__ import annotations

from pathlib import Path

import grpc

from precad.protos.messages.undecoded import stub_of_bytes
from precad.protos.precad.v1 import aggregator_pb2
from precad.protos.tls.files import Pins, TlsFiles, TlsMaterial, renewable, renewable_pins
from precad.protos.tls.identity import AGGREGATORS
from precad.protos.tls.transport import dial

_SERVICE = aggregator_pb2.DESCRIPTOR.services_by_name["Aggregator"]


class Links:
    """A channel and its stub to each of A and B. A channel keeps what it showed and trusted when it was made."""

    def __init__(self, addresses: tuple[str, str], tls: TlsFiles, pins: tuple[Path | None, Path | None]) -> None:
        """On the running event loop. pins: of A and B; with one, those certificates alone are trusted.

        Raises: TlsFileError, TransportError."""
        self._addresses, self._tls = addresses, renewable(tls)
        self._pins = tuple(
            None if path is None else renewable_pins(path, role) for path, role in zip(pins, AGGREGATORS, strict=True)
        )
        self._made_with = [self._latest(server) for server in (0, 1)]
        self._before: dict[int, grpc.aio.Channel] = {}
        self._channels = [self._dial(server) for server in (0, 1)]
        self.stubs = [stub_of_bytes(channel, _SERVICE) for channel in self._channels]
        """Stubs of A and B, with replies as bytes; `renew` puts new stubs in their places."""

    def _dial(self, server: int) -> grpc.aio.Channel:
        return dial(self._addresses[server], AGGREGATORS[server], self._tls, self._pins[server])

    def _latest(self, server: int) -> tuple[TlsMaterial, Pins | None]:
        pins = self._pins[server]
        return self._tls.load(), None if pins is None else pins.load()

    async def renew(self, server: int) -> None:
        """Open a new channel after a loss, if a certificate, a key or a pin was replaced since the present one was
        made.

        Calls of a round may still be on the old one, and closing would cancel them. It stays open until the next is.
        """
        if (latest := self._latest(server)) == self._made_with[server]:
            return
        self._made_with[server], older = latest, self._before.get(server)
        self._before[server], self._channels[server] = self._channels[server], self._dial(server)
        self.stubs[server] = stub_of_bytes(self._channels[server], _SERVICE)
        if older is not None:
            await older.close()

    async def close(self) -> None:
        """Hang up."""
        for channel in (*self._before.values(), *self._channels):
            await channel.close()
