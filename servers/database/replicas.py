"""Several replicas of one server on one database: one leads, the others wait until it does no more.

A replica that waits holds nothing: no port, no file, no link. When it begins to lead, it does what a server does that
is started again. It reads what the last one left, and meets the other servers (`precad.servers.store.standing`). Some
files are not in the database (`ledger.jsonl`, the checkpoints). They lie in `state_dir`, which the replicas share. The
ledger's file is locked by whoever uses it. A replica that finds it in use, or finds another folder, refuses to start.

A leader asks once a second whether it still leads, and ends when it does not, or cannot be told (exit code 4).
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import structlog
from pydantic import SecretStr

from precad.protos.tls.identity import Role
from precad.servers.config import ServerConfig
from precad.servers.errors import PeerUnreachableError, SetupError
from precad.servers.supervision import guarded

if TYPE_CHECKING:
    from precad.servers.database.postgres import Session

T = TypeVar("T")

log = structlog.get_logger()

ENVIRONMENT_VARIABLE: Final = "PRECAD_DATABASE_URL"
ASK_AGAIN_S: Final = 1.0
"""How often a replica that waits asks whether it may lead, and the leader whether it still does."""
TAKE_OVER_S: Final = 15.0
"""How long a replica that has waited gives the last leader, if it still runs, to notice and to hang up."""


def url_of(configured: SecretStr | None) -> str | None:
    """Return the URL of the configuration or, without one, of the environment; None where neither has one."""
    return os.environ.get(ENVIRONMENT_VARIABLE) if configured is None else configured.get_secret_value()


def connect(url: str, role: Role) -> Session:
    """Return a session that does not lead yet. Raises SetupError, PeerUnreachableError."""
    with _driver():
        from precad.servers.database.postgres import Session
    return Session(url, role)


def require_url(url: str) -> None:
    """Require a URL of PostgreSQL, without a connection. Raises SetupError, which does not quote it."""
    with _driver():
        from precad.servers.database.postgres import settings_of
    settings_of(url)


@contextmanager
def _driver() -> Iterator[None]:
    """Refuse an import that lacks the driver. Raises SetupError."""
    try:
        yield
    except ImportError:
        raise SetupError("database_url: expected the extra precad[postgres], found no psycopg") from None


async def _connected(url: str, role: Role, patience_s: float) -> Session:
    """PostgreSQL may be about to start, too."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return await asyncio.to_thread(connect, url, role)
        except PeerUnreachableError:
            if time.monotonic() + ASK_AGAIN_S > until:
                raise
        await asyncio.sleep(ASK_AGAIN_S)


async def lead(stack: AsyncExitStack, role: Role, config: ServerConfig) -> Session | None:
    """Return when this replica leads, until `stack` is closed; at once, without a session, where no database is
    configured. Raises SetupError; PeerUnreachableError, LeadLostError when there is no database, or no more."""
    if (url := url_of(config.database_url)) is None:
        return None
    session = stack.enter_context(await _connected(url, role, config.connect_timeout_s))
    is_told = False
    while not await asyncio.to_thread(session.try_lead):
        if not is_told:
            log.info("replica.waiting", database=session.where)
            is_told = True
        await asyncio.sleep(ASK_AGAIN_S)
    if is_told:
        await asyncio.sleep(TAKE_OVER_S)
    log.info("replica.leading", database=session.where)
    return session


async def while_leading(work: Coroutine[None, None, T], session: Session | None) -> T:
    """Return the work's result. Raises LeadLostError as soon as somebody else may lead."""

    async def leads() -> None:
        while session is not None:
            await asyncio.sleep(ASK_AGAIN_S)
            await asyncio.to_thread(session.require_lead)

    return await guarded(work, leads())
