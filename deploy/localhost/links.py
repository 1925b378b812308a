"""Ask a server of this machine for a link that opens its dashboard once."""

from __future__ import annotations

import asyncio
from typing import Final

import aiohttp

PATIENCE_S: Final = 60.0
"""How long a server that starts is waited for."""
POLL_S: Final = 0.3


async def one_time_link(address: str, token: str) -> str | None:
    """Return the link, once the server at HOST:PORT listens; None where it does not, or gives none.

    The token is sent in a header to that address alone, which is of this machine.
    """
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
