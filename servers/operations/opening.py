"""Open the operations port, where a server has one. Its HTTP server is imported for no other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from precad.protos.tls.files import TlsContext
from precad.servers.config import ServerConfig
from precad.servers.operations.access import load_token
from precad.servers.operations.metrics import StatusCollector
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.status import Status


@asynccontextmanager
async def operations_port(
    config: ServerConfig, telemetry: Telemetry, snapshot: Callable[[], Status], state_dir: Path | None = None
) -> AsyncIterator[None]:
    """Keep the port open until the block ends, if the configuration has one. state_dir: whose checkpoints it gives out.

    Raises: SetupError, TlsFileError, TransportError.
    """
    if config.operations_listen is None:
        yield
        return
    from precad.servers.operations.port import OperationsPort  # aiohttp, which takes a tenth of a second

    token = load_token(config.operations_token)
    contexts = TlsContext(tls=config.tls, pinned=None, server_side=True)
    tls = contexts.renewable().load if config.operations_tls else None
    telemetry.registry.register(StatusCollector(snapshot))
    port = OperationsPort(token, telemetry, snapshot, state_dir, is_tls=tls is not None)
    async with port.listening(config.operations_listen, tls):
        yield
