"""Dashboards of the servers of this machine: where they are, and links that open each of them once."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from rich.console import Console

from precad.deploy.configuration.sections import Deployment
from precad.deploy.run_files.folder import RunFolder
from precad.protos.tls.identity import Role
from precad.servers.config import ServerConfig

SERVER_ROLES: Final = (Role.AGGREGATOR_A, Role.AGGREGATOR_B, Role.DEALER)
PATIENCE_S: Final = 60.0
"""How long a server that starts is waited for."""
POLL_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class Dashboards:
    """The operations ports of a local run."""

    token: Path
    """File with the token that the run made, for the ports that have no other."""
    listening: tuple[tuple[Role, ServerConfig], ...]

    @classmethod
    def of(cls, deployment: Deployment, folder: RunFolder) -> Self:
        """Return those of a run, with the token that they need, which is made where there is none."""
        each = zip(SERVER_ROLES, (deployment.aggregator.a, deployment.aggregator.b, deployment.dealer), strict=True)
        listening = tuple((role, own) for role, own in each if own is not None and own.operations_listen is not None)
        token = folder.operations_token
        if any(own.operations_token == token for _, own in listening) and not token.exists():
            folder.write_operations_token(secrets.token_urlsafe(32))
        return cls(token, listening)

    def announce(self, console: Console) -> None:
        """Say where they are, and in which file the token is: once, where all of them have the same."""
        tokens = {own.operations_token for _, own in self.listening}
        lines = []
        for role, own in self.listening:
            scheme = "https" if own.operations_tls else "http"
            line = f"dashboard of {role}: {scheme}://{own.operations_listen}/"
            lines.append(line if len(tokens) == 1 else f"{line}  token: {own.operations_token}")
        lines += [f"their token is in {token}" for token in tokens if len(tokens) == 1]
        for line in lines:
            console.print(line, highlight=False, markup=False, soft_wrap=True)

    async def show_links(self, console: Console, note: Callable[[str], None]) -> None:
        """Show a link that opens each dashboard once, where this run made the token and the port is in plain text.

        A terminal alone shows it: a link in a file or a pipe would be a secret in somebody's log. The file itself is
        asked, because with FORCE_COLOR in the environment the console takes every pipe for a terminal.
        """
        if not console.file.isatty():
            return
        for role, own in self.listening:
            if own.operations_listen is None or own.operations_tls or own.operations_token != self.token:
                continue
            token = self.token.read_text(encoding="ascii").strip()
            if (link := await one_time_link(own.operations_listen, token)) is not None:
                note(f"dashboard of {role}, opens once within ten minutes:\n{link}")  # whole in 80 columns


async def one_time_link(address: str, token: str) -> str | None:
    """Return the link, once the server at HOST:PORT listens; None where it does not, or gives none.

    The token is sent in a header to that address alone, which is of this machine.
    """
    import aiohttp  # which only a terminal needs, and no script that has a folder of that name

    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    headers = {"Authorization": f"Bearer {token}"}
    timeout = aiohttp.ClientTimeout(total=10.0)
    async with aiohttp.ClientSession(f"http://{address}", headers=headers, timeout=timeout) as session:
        while asyncio.get_running_loop().time() < deadline:
            try:
                async with session.post("/links", allow_redirects=False) as answer:
                    return f"http://{address}/login?once={(await answer.json())['once']}" if answer.ok else None
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(POLL_S)
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError):
                return None
    return None
