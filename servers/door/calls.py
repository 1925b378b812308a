"""Treatment of a call that goes wrong, in every service: an error becomes the call's status, is counted, and is logged.

The one table in `precad.servers.errors` gives the status. A refusal for want of room says when to ask again. It uses
gRPC's own trailer for that (`grpc-retry-pushback-ms`, gRFC A6), which needs no message type and no further library.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import grpc
import structlog
from google.protobuf.message import DecodeError

from precad.protos.tls.identity import IdentityError, peer_identity
from precad.protos.tls.transport import RETRY_HINT
from precad.servers.errors import OverloadedError, status_of
from precad.servers.supervision import let_go
from precad.servers.telemetry.events import Telemetry

log = structlog.get_logger(__name__)

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


@asynccontextmanager
async def refusing(call: str, context: Context, telemetry: Telemetry) -> AsyncIterator[None]:
    """Turn an error inside into the call's status, by the table; count it, and log what the caller is not told.

    What the call held is let go at once: an upload that is refused must not wait for a collection of garbage (S4).
    """
    try:
        yield
        return
    except Exception as error:
        code, text = status_of(error)
        _count(telemetry, call, code, error)
        if code is grpc.StatusCode.INTERNAL:
            log.exception("call.failed", call=call, caller=caller_of(context))
        else:
            log.warning("call.refused", call=call, caller=caller_of(context), code=code.name, reason=str(error))
        hint = _retry_hint(error)
        let_go(error)
    await context.abort(code, text, trailing_metadata=hint)


def caller_of(context: Context) -> str:
    """Return the identity in the caller's certificate, for a log line; empty where there is none."""
    try:
        return peer_identity(context).uri
    except IdentityError:
        return ""


def _count(telemetry: Telemetry, call: str, code: grpc.StatusCode, error: Exception) -> None:
    telemetry.call_refused(call, code.name)
    if isinstance(error, OverloadedError):
        telemetry.pushed_back(error.limit)
    if isinstance(error, DecodeError):
        telemetry.undecodable(call)


def _retry_hint(error: Exception) -> tuple[tuple[str, str], ...]:
    """Milliseconds after which the call may be made again, where that helps."""
    if not isinstance(error, OverloadedError):
        return ()
    return ((RETRY_HINT, str(math.ceil(1000 * error.retry_after_s))),)
