"""The global model of a round, downloaded once for all clients of a process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress

import grpc
import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import ProtocolError


class ModelCache:
    """The last global model, for all clients of a process: who asks for the digest that is here downloads nothing."""

    def __init__(self) -> None:
        self._digest = b""
        self._download: asyncio.Future[NDArray[np.float32]] | None = None

    async def get(
        self, digest: bytes, download: Callable[[], Coroutine[None, None, NDArray[np.float32]]]
    ) -> NDArray[np.float32]:
        """Return the model of that digest. `download` verifies it. Another client's download that fails, or ends with
        that client, is made again, by one of those who waited."""
        while (shared := self._download) is not None and digest == self._digest:
            await asyncio.wait((shared,))
            with suppress(grpc.aio.AioRpcError, ProtocolError, asyncio.CancelledError):
                return shared.result()
            if self._download is shared:
                self._download = None
        own = asyncio.ensure_future(download())
        own.add_done_callback(_look_at)
        self._digest, self._download = digest, own
        return await asyncio.shield(own)


def _look_at(download: asyncio.Future[NDArray[np.float32]]) -> None:
    """Its error is for whoever waits; when all of them were cancelled, it is not reported as forgotten."""
    if not download.cancelled():
        download.exception()
