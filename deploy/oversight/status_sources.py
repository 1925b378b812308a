"""Read the status of servers and runs for `precad status` and `precad watch`, from operations ports or a run folder.

    URL       http[s]://HOST:PORT of one operations port; https is checked against the system's authorities
    CONFIG    every server of the file that has `operations_listen`; TLS is checked against the file's own authority
    FOLDER    of a run on this machine, or an aggregator's state_dir, from what was written

The token is in the file that --token names, else in `operations_token` of CONFIG, else in PRECAD_OPERATIONS_TOKEN. It
is sent in a header to the address that was named and to no other. Redirects are not followed, and plain text goes only
to this machine.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
from aiohttp.http_exceptions import HttpProcessingError
from pydantic import BaseModel

from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import UNREACHABLE, ConfigError, RunFailedError, refusing
from precad.deploy.given_paths import require_path
from precad.deploy.oversight.run_status import read_run
from precad.deploy.run_files.folder import is_simulated, shown_trainings
from precad.protos.messages.spoken import LONGEST_REASON, shown
from precad.protos.tls.address import is_loopback
from precad.protos.tls.identity import Role
from precad.servers.config import AggregatorConfig, ServerConfig
from precad.servers.operations.access import ENVIRONMENT_VARIABLE
from precad.servers.telemetry.status import Status

POLL_S = 0.5
PATIENCE_S = 30.0
"""How long `watch` tries to find a server again."""
DATA = b"data: "
MAX_LINE = 1 << 24
_URL: Final = ("http://", "https://")
ERRORS = (aiohttp.ClientError, HttpProcessingError, OSError, TimeoutError, ValueError, KeyError)
"""Errors of a server that is not there, hangs, or is none of ours. (pydantic's are ValueErrors.)"""


@dataclass(frozen=True, slots=True)
class Source:
    """One operations port."""

    name: str
    url: str
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """In the certificate, where it is not the URL's host."""
    left_in: Path | None = None
    """Where the server writes what `precad status` reads as well, once it is gone."""


class _Event(BaseModel):
    """Hold what /events says at a time."""

    status: Status


def place_of(target: str | None) -> str | Path:
    """Return a run folder, or what `sources_of` takes. Raises ConfigError."""
    if target is not None and target.startswith(_URL):
        return target
    if target is not None:
        if not (path := require_path("CONFIG|URL|FOLDER", target)).is_dir():
            return target
        if several := shown_trainings(path):
            raise ConfigError(f"FOLDER: expected that of one run, found {several}")
        return path
    runs = [path.parent for path in Path("runs").glob("*/config.toml") if not is_simulated(path.parent)]
    if not runs:
        raise ConfigError("expected CONFIG, URL or FOLDER, or a run under runs/, found none")
    return max(runs, key=lambda folder: (folder / "config.toml").stat().st_mtime)


def sources_of(target: str, token_file: Path | None) -> list[Source]:
    """Return the sources of a URL or a configuration. Raises ConfigError."""
    if target.startswith(_URL):
        return [_source_of_url(target, token_file)]
    deployment = configuration.load(Path(target))
    servers: list[tuple[Role, ServerConfig | None]] = [
        (Role.AGGREGATOR_A, deployment.aggregator.a),
        (Role.AGGREGATOR_B, deployment.aggregator.b),
        (Role.DEALER, deployment.dealer),
    ]
    found = [_source_of_server(role, own, token_file) for role, own in servers if own and own.operations_listen]
    if not found:
        raise ConfigError(f"{target}: expected a server with operations_listen, found none")
    return found


def _source_of_url(url: str, token_file: Path | None) -> Source:
    with refusing(ValueError, "expected http[s]://HOST[:PORT], found"):  # an address that is none may hold a secret
        parts = urlsplit(url)
        _ = parts.port  # which raises for one that is none
    if parts.username is not None or parts.query or parts.fragment or parts.path not in {"", "/"} or not parts.netloc:
        raise ConfigError("expected http[s]://HOST[:PORT] and nothing else; the token is never part of it")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    if parts.scheme == "http" and not is_loopback(f"{host}:1"):
        raise ConfigError(f"expected https beyond this machine, found {url}: the token would travel in plain text")
    return Source(parts.netloc, f"{parts.scheme}://{parts.netloc}", _token(token_file))


def _source_of_server(role: Role, config: ServerConfig, token_file: Path | None) -> Source:
    token = _token(token_file or config.operations_token)
    left_in = config.state_dir if isinstance(config, AggregatorConfig) else None
    if not config.operations_tls:
        return Source(role, f"http://{config.operations_listen}", token, left_in=left_in)
    tls = ssl.create_default_context(cafile=config.authority)
    return Source(role, f"https://{config.operations_listen}", token, tls, role.server_name, left_in)


def _token(path: Path | None) -> str:
    """Raises ConfigError, which does not quote what it found."""
    if path is None:
        if not (token := os.environ.get(ENVIRONMENT_VARIABLE, "").strip()):
            raise ConfigError(f"--token: expected a file, or {ENVIRONMENT_VARIABLE} in the environment, found neither")
    else:
        with refusing(OSError, "--token: expected the name of a readable file, found"):
            token = path.read_text(encoding="utf-8-sig", errors="replace").strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("--token: expected one token, found something else")
    return token


async def fetch(source: Source) -> Status:
    """Return the status now. Raises RunFailedError."""
    try:
        async with (
            session_with(source, silence_s=10.0) as session,
            session.get("/status.json", allow_redirects=False, server_hostname=source.server_name) as answer,
        ):
            _require_ok(source, answer)
            return Status.model_validate_json(await _whole(answer))
    except ERRORS as error:
        raise _unreachable(source, error) from None


async def follow(source: Source) -> AsyncIterator[Status]:
    """Yield the status now and whenever it changes, until the stream ends. Raises RunFailedError."""
    try:
        async with (
            session_with(source, silence_s=45.0) as session,  # a stream without events says so every 15 seconds
            session.get("/events", allow_redirects=False, server_hostname=source.server_name) as answer,
        ):
            _require_ok(source, answer)
            async for line in answer.content:
                if line.startswith(DATA):
                    yield _Event.model_validate_json(line.removeprefix(DATA)).status
    except ERRORS as error:
        raise _unreachable(source, error) from None


async def _whole(answer: aiohttp.ClientResponse) -> bytes:
    """Return an answer of at most MAX_LINE bytes. Raises ValueError for a longer one: the server may be anybody's."""
    found = bytearray()
    async for part in answer.content.iter_any():
        found += part
        if len(found) > MAX_LINE:
            raise ValueError(f"expected at most {MAX_LINE} bytes, found more")
    return bytes(found)


def session_with(source: Source, *, silence_s: float) -> aiohttp.ClientSession:
    """Return a session that shows the token to this port alone."""
    return aiohttp.ClientSession(
        source.url,
        headers={"Authorization": f"Bearer {source.token}"},
        connector=aiohttp.TCPConnector(ssl=source.tls or True),
        timeout=aiohttp.ClientTimeout(total=None, connect=5.0, sock_read=silence_s),
        read_bufsize=MAX_LINE,
    )


def _require_ok(source: Source, answer: aiohttp.ClientResponse) -> None:
    """Raises ConfigError for a token that is not this server's, RunFailedError for anything else that is no status."""
    if answer.status in {401, 403}:
        raise ConfigError(f"{source.name}: expected the server's token, and it refused ours")
    if answer.status != 200:
        raise RunFailedError(f"{source.name}: expected a status, found HTTP {answer.status}", exit_code=UNREACHABLE)


def _unreachable(source: Source, error: Exception) -> RunFailedError:
    match error:
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            why = "nothing listens there: is the server running?"
            if source.left_in is not None and source.left_in.is_dir():
                why += f" Once it has ended: precad status {shlex.quote(str(source.left_in))}"
        case aiohttp.ClientConnectorError():
            why = error.os_error.strerror or str(error.os_error)
        case ValueError() | KeyError() | HttpProcessingError():  # the last of a line without end
            why = "expected a status in its answer, found something else"
        case _:
            why = shown(str(error), LONGEST_REASON) or type(error).__name__
    return RunFailedError(f"{source.name} at {source.url}: {why}", exit_code=UNREACHABLE)


async def statuses_at(place: str | Path, token: Path | None) -> tuple[dict[str, Status], list[str]]:
    """Return the status of each server that answers, by name, and what is wrong with the others."""
    if isinstance(place, Path):
        return {place.name or str(place): read_run(place)}, []
    sources = sources_of(place, token)
    answers = await asyncio.gather(*(fetch(source) for source in sources), return_exceptions=True)
    found: dict[str, Status] = {}
    faults: list[str] = []
    for source, answer in zip(sources, answers, strict=True):
        if isinstance(answer, Status):
            found[source.name] = answer
        elif isinstance(answer, RunFailedError):
            faults.append(str(answer))
        else:
            raise answer
    return found, faults


def as_it_goes(place: str | Path, token: Path | None) -> AsyncIterator[Status]:
    """Yield the status until the task is over: of a run folder, or of the first server that the configuration names.
    Raises ConfigError."""
    return _run_as_it_goes(place) if isinstance(place, Path) else server_as_it_goes(sources_of(place, token)[0])


async def server_as_it_goes(source: Source) -> AsyncIterator[Status]:
    """Yield the status until the server says that the task is over. A stream that breaks off is taken up again for a
    while, however long nothing happened before."""
    was_seen = False
    gone_since: float | None = None
    while True:
        lost = RunFailedError(f"{source.name} at {source.url}: its stream of events ended", exit_code=UNREACHABLE)
        try:
            async for found in follow(source):
                was_seen, gone_since = True, None
                yield found
                if found.ended:
                    return
        except RunFailedError as error:
            lost = error
        gone_since = gone_since or time.monotonic()
        if not was_seen or time.monotonic() - gone_since > PATIENCE_S:
            raise lost
        await asyncio.sleep(POLL_S)


async def _run_as_it_goes(folder: Path) -> AsyncIterator[Status]:
    """Yield the status until the run has its summary."""
    while True:
        found = read_run(folder)
        yield found
        if found.is_finished or found.ended:
            return
        await asyncio.sleep(POLL_S)
