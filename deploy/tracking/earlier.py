"""Fetch the rounds that a server's status no longer has: it holds the latest ones, and the records have all."""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp

from precad.deploy.errors import UNREACHABLE, RunFailedError
from precad.deploy.oversight.status_sources import ERRORS, Source, session_with
from precad.protos.messages.spoken import LONGEST_REASON, shown
from precad.servers.operations.snapshot import summary_of
from precad.servers.store.record import from_line
from precad.servers.telemetry.status import RoundSummary, Status

_PATH = "/checkpoints/rounds.jsonl"
_TIMEOUT_S = 60.0
_MOST_KEPT: Final = 1 << 28
"""Bytes of what is kept of the records, as JSON: half a million rounds."""


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
            return await _summaries(answer.content, status.rounds[0].round)
    except ERRORS as error:
        why = shown(str(error), LONGEST_REASON) or type(error).__name__
        raise RunFailedError(f"{source.name} at {source.url}: {_PATH}: {why}", exit_code=UNREACHABLE) from None


async def _summaries(lines: aiohttp.StreamReader, first: int) -> list[RoundSummary]:
    """Return the records before `first`, one by one: each names all clients of its round, which are not kept.

    The server may be anybody's. Raises ValueError for a line, or for more rounds, than any task of ours has.
    """
    found, n_kept = list[RoundSummary](), 0
    async for line in lines:
        if (record := from_line(line)) is None or record.number >= first:
            continue
        found.append(summary_of(record))
        n_kept += len(found[-1].model_dump_json())
        if n_kept > _MOST_KEPT:
            raise ValueError(f"expected at most {_MOST_KEPT} bytes of rounds, found more")
    return found
