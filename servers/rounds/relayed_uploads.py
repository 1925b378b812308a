"""The masked vectors that server A relays to server B, put together piece by piece."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from precad.servers.errors import StoreError
from precad.servers.rounds.uploads import MemoryPayload, Payload, Spool

log = structlog.get_logger(__name__)


class RelayedUploads:
    """Server B's: one after the other, as they come over the link."""

    def __init__(self, spool: Spool, n_bytes: int, deliver: Callable[[int, str, Payload, bytes], None]) -> None:
        """n_bytes: of every vector. deliver: takes (round, client, payload, statement); what was too long, or had no
        room, comes empty."""
        self._spool, self._n_bytes, self._deliver = spool, n_bytes, deliver
        self._payload: Payload | None = None
        self._whose: tuple[int, str] | None = None
        self._is_dropped = False

    def take(self, round: int, client: str, data: bytes, last: bool, statement: bytes) -> None:
        """Take the next piece. Vectors come one after the other; one without an end is dropped when another begins."""
        if self._whose != (round, client):
            self.close()
            self._whose, self._is_dropped = (round, client), False
        if not self._is_dropped:
            self._append(client, data)
        if last:
            payload = MemoryPayload() if self._payload is None else self._payload
            self._payload = self._whose = None
            self._deliver(round, client, payload, statement)

    def close(self) -> None:
        """Drop a vector without an end."""
        if self._payload is not None:
            self._payload.discard()
        self._payload = None

    def _append(self, client: str, data: bytes) -> None:
        try:
            self._payload = self._payload if self._payload is not None else self._spool.new(self._n_bytes)
            if len(self._payload) + len(data) > self._n_bytes:
                raise StoreError(f"payload: expected {self._n_bytes} bytes, found more")
            self._payload.write(data)
        except StoreError as error:
            log.warning("relay.dropped", client=client, reason=str(error))
            self.close()
            self._is_dropped = True
