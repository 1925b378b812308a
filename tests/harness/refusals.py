"""Hear why a server refused a call, although gRPC may lose it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import grpc
import pytest

from precad.clients.upload.patience import CUT_SHORT

ATTEMPTS = 20
LOST_STATUS = "grpc.aio may lose the status of a call that is refused while it writes, and this one cannot be repeated"
"""Why a test is `flaky` whose calls change what a second attempt is told."""


async def refusal(attack: Callable[[], Awaitable[None]]) -> grpc.aio.AioRpcError:
    """Return the error that a call must end with.

    grpc.aio 1.85 may report a write that loses the race with the server's refusal as an INTERNAL error of its own. The
    server's status is then lost. Such a call is made again, as our clients and servers do.
    """
    for _ in range(ATTEMPTS):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await attack()
        if caught.value.details() != CUT_SHORT:
            break
    return caught.value
