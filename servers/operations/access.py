"""Access to the operations port: whoever shows the token may look.

Programs send it with every request (`Authorization: Bearer ...`). A browser sends it once, in the body of a form. It
gets a random session in exchange, in a cookie that no script can read and no other site can send along. So the token is
in no URL, no page and no history, one may log out, and a stolen cookie ends with the process. (HTTP Basic would have
the browser keep the token itself until it is closed, and send it with requests that other sites cause.)

Whoever has the token may ask for a link. Its code opens one session within ten minutes, and is then worth nothing.

Failed attempts are limited by address, and while an address is over the limit it learns nothing, not even that a token
is right. Sessions that exist are not affected.
"""

from __future__ import annotations

import codecs
import hashlib
import hmac
import logging
import os
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from precad.servers.errors import SetupError

ENVIRONMENT_VARIABLE = "PRECAD_OPERATIONS_TOKEN"
SESSION_LIFETIME_S = 12 * 3600.0
MAX_SESSIONS = 256
LINK_LIFETIME_S = 600.0
MAX_LINKS = 8
MAX_FAILURES = 10
"""Failures of one address in quick succession; then one more per RECOVERY_S."""
RECOVERY_S = 6.0
MAX_ADDRESSES = 4096
SILENT: Final = logging.Logger("aiohttp of our ports", level=logging.CRITICAL + 1)
"""aiohttp would write a traceback for each request that is no HTTP, whoever sends it."""

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{24,512}")
_OTHERS = 0o007


class Token:
    """The token's digest. The token itself is not kept."""

    def __init__(self, token: str) -> None:
        """Raises ValueError, which does not quote it."""
        if not _TOKEN.fullmatch(token):
            raise ValueError(f"24 to 512 letters, digits or ._~+/=-, found {len(token)} characters, or other ones")
        self._digest = _digest(token)

    def matches(self, shown: str) -> bool:
        """Compare in the same time wherever the two differ."""
        return hmac.compare_digest(_digest(shown), self._digest)

    def __repr__(self) -> str:
        return "Token(REDACTED)"


def load_token(path: Path | None, environment: Mapping[str, str] = os.environ) -> Token:
    """Read the token from the file or, without one, from the environment.

    Raises SetupError, which does not quote what it found.
    """
    if path is None:
        source, text = ENVIRONMENT_VARIABLE, environment.get(ENVIRONMENT_VARIABLE)
        if text is None:
            raise SetupError(
                f"operations_token: expected a file, or {ENVIRONMENT_VARIABLE} in the environment, found neither"
            )
    else:
        source, text = str(path), read_private(path, "operations_token")
    try:
        return Token(text.strip())
    except ValueError as error:
        raise SetupError(f"operations_token: expected {error} ({source})") from None


def read_private(path: Path, field: str) -> str:
    """Return the text of a file that is closed to other users. field: what it is to its operator. Raises SetupError."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            if mode & _OTHERS:
                raise SetupError(f"{field}: expected a file closed to other users, found mode {mode:04o} ({path})")
            return file.read(4096).removeprefix(codecs.BOM_UTF8).decode("ascii", errors="replace")
    except OSError as error:
        where = f" ({path})" if isinstance(error, PermissionError) else ""  # else the text may be the token itself
        raise SetupError(f"{field}: expected a readable file, found {error.strerror}{where}") from None


class _Names:
    """Random names that end by themselves. Kept as digests, in memory."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ends: OrderedDict[bytes, float] = OrderedDict()

    def _new(self, lifetime_s: float, most: int) -> str:
        """Return a new name. The oldest one ends when there are too many."""
        name = secrets.token_urlsafe(32)
        while len(self._ends) >= most:
            self._ends.popitem(last=False)
        self._ends[_digest(name)] = self._clock() + lifetime_s
        return name


class BrowserSessions(_Names):
    """Sessions of browsers that have shown the token."""

    def open(self) -> str:
        """Return a new session's name, for the cookie. The oldest one ends when there are too many."""
        return self._new(SESSION_LIFETIME_S, MAX_SESSIONS)

    def is_open(self, session: str) -> bool:
        """Return whether it exists and has not ended."""
        return self._ends.get(_digest(session), -1.0) > self._clock()

    def close(self, session: str) -> None:
        """End it, if there is such a one."""
        self._ends.pop(_digest(session), None)


class OneTimeLinks(_Names):
    """Codes that open one session each, for a link on the screen of whoever has the token."""

    def make(self) -> str:
        """Return a new code. The oldest one ends when there are too many."""
        return self._new(LINK_LIFETIME_S, MAX_LINKS)

    def redeem(self, code: str) -> bool:
        """Tell whether a code opens a session, and end it. Takes the same time wherever a wrong one differs."""
        shown, now = _digest(code), self._clock()
        found = [digest for digest in self._ends if hmac.compare_digest(digest, shown)]
        return any(self._ends.pop(digest) > now for digest in found)


class FailureLimit:
    """How many wrong tokens an address may show: a bucket of MAX_FAILURES that fills again by one per RECOVERY_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait_s(self, address: str) -> float:
        """Return how long until this address may try again; 0 when it may now."""
        return max(0.0, (self._failures(address) - MAX_FAILURES + 1) * RECOVERY_S)

    def failed(self, address: str) -> None:
        """Note that it showed a wrong token."""
        self._buckets[address] = (self._failures(address) + 1, self._clock())
        self._buckets.move_to_end(address)
        while len(self._buckets) > MAX_ADDRESSES:
            self._buckets.popitem(last=False)

    def _failures(self, address: str) -> float:
        failures, at = self._buckets.get(address, (0.0, 0.0))
        return max(0.0, failures - (self._clock() - at) / RECOVERY_S)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()
