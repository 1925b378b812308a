"""Credentials of an aggregator on its links: what it shows and trusts, as its files said last that could be used.

An operator replaces certificates, keys and pins while the server runs (`precad.protos.tls.renewable`). Connections
that stand go on; whatever connects from then on meets the new ones.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import structlog

from precad.mpc.sharing import Party
from precad.protos.task.task import Task
from precad.protos.tls.files import Pins, TlsMaterial, renewable, renewable_pins
from precad.protos.tls.identity import AGGREGATORS, Role
from precad.protos.tls.renewable import LastGood
from precad.protos.tls.validity import valid_between
from precad.servers.config import AggregatorConfig, require_own_role
from precad.servers.errors import SetupError
from precad.servers.links.lane import lane_context

log = structlog.get_logger(__name__)

WATCH_S = 60.0
_SOON = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials of one aggregator."""

    tls: LastGood[TlsMaterial]
    peer: LastGood[Pins]
    dealer: LastGood[Pins] | None
    """None where the deployment has no dealer."""
    lane: LastGood[ssl.SSLContext]

    @classmethod
    def read(cls, config: AggregatorConfig, party: Party) -> Self:
        """Read every certificate that will be needed, and require that it fits. Raises: TlsFileError,
        TransportError."""
        require_own_role(config.tls, AGGREGATORS[party])
        return cls(
            renewable(config.tls),
            renewable_pins(config.peer_certificate, AGGREGATORS[1 - party]),
            None if config.dealer_certificate is None else renewable_pins(config.dealer_certificate, Role.DEALER),
            lane_context(party, config.tls, config.peer_certificate).renewable(),
        )


@asynccontextmanager
async def watched(certificate: Path) -> AsyncIterator[None]:
    """Log that a running server's certificate ends within a day, and that it has ended. certificate: its file.

    One that is made for a few days, and renewed by a program, has a tenth of its time instead of the day.
    """
    watching = asyncio.create_task(_watch(certificate))
    try:
        yield
    finally:
        watching.cancel()


async def _watch(certificate: Path) -> None:
    told: tuple[str, dt.datetime] | None = None
    while True:
        if (dates := valid_between(certificate)) is not None:
            left = dates[1] - dt.datetime.now(dt.UTC)
            news = ("tls.expired" if left < dt.timedelta() else "tls.expires_soon", dates[1])
            if left < min(_SOON, (dates[1] - dates[0]) / 10) and news != told:
                told, until = news, f"{dates[1]:%Y-%m-%d %H:%M} UTC"
                log.warning(news[0], certificate=str(certificate), until=until, then="new connections are refused")
        await asyncio.sleep(WATCH_S)


def require_dealer(task: Task, config: AggregatorConfig, address: str | None) -> None:
    """Refuse a dealer in mode `proved`, and a task of another mode without one. Raises SetupError."""
    for field, found in (("dealer_certificate", config.dealer_certificate), ("network.dealer", address)):
        if task.is_proved and found is not None:
            raise SetupError(f"{field}: expected none in mode 'proved', which has no dealer, found {found}")
        if not task.is_proved and found is None:
            raise SetupError(f"{field}: expected the dealer's in mode {task.mode!r}, found none")
