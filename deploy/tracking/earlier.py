"""Fetch the rounds that a server's status no longer has: it holds the latest ones, and the records have all."""

from __future__ import annotations

import asyncio

import aiohttp

from precad.deploy.errors import UNREACHABLE, RunFailedError
from precad.deploy.oversight.status_sources import ERRORS, Source, session_with
from precad.servers.operations.snapshot import summary_of
from precad.servers.store.record import from_line
from precad.servers.telemetry.status import RoundSummary, Status

_PATH = "/checkpoints/rounds.jsonl"
_TIMEOUT_S = 60.0


async def earlier_rounds(source: Source, status: Status) -> list[RoundSummary]:
    """Return the committed rounds before the first that the status has, without quality and times.

    Raises RunFailedError.
    """
    if status.rounds_done <= len(status.rounds) or not status.rounds:
        return []
    try:
        async with (
            asyncio.timeout(_TIMEOUT_S),
            session_with(source, silence_s=_TIMEOUT_S) as session,
            session.get(_PATH, allow_redirects=False, server_hostname=source.server_name) as answer,
        ):
            if answer.status != 200:
                raise aiohttp.ClientError(f"expected the records, found HTTP {answer.status}")
            records = [from_line(line) for line in (await answer.read()).splitlines()]
    except ERRORS as error:
        why = str(error) or type(error).__name__
        raise RunFailedError(f"{source.name} at {source.url}: {_PATH}: {why}", exit_code=UNREACHABLE) from None
    first = status.rounds[0].round
    return [summary_of(record) for record in records if record is not None and record.number < first]
