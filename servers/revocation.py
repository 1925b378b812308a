"""Which clients' certificates are no longer worth anything, by a file that the operator may change at any time.

One SHA-256 fingerprint of a certificate (DER, hexadecimal, with or without colons) a line; `#` begins a comment. A
revoked client is refused by every call from the next one on, and an open session gets no further invitation. Servers'
certificates need no such list: each link trusts exactly one (`protos.transport.read_pinned`).
"""

from __future__ import annotations

import re
from pathlib import Path

import structlog

from protos.identity import AuthenticatedCall, fingerprint, peer_certificate
from servers.errors import RevokedError, SetupError

log = structlog.get_logger(__name__)

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class Revocations:
    """The file's content, read again when it has changed. One that became unreadable changes nothing, and is logged."""

    def __init__(self, path: Path | None) -> None:
        """Without a path nobody is revoked. Raises SetupError, naming the line."""
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._revoked: frozenset[str] = frozenset()
        if path is not None:
            self._seen, self._revoked = _stamp(path), _read(path)

    def require_valid(self, context: AuthenticatedCall) -> None:
        """The caller's certificate is not revoked. Raises RevokedError, IdentityError."""
        self._reread()
        if self._revoked and fingerprint(peer_certificate(context)) in self._revoked:
            raise RevokedError("the certificate is revoked")

    def _reread(self) -> None:
        if self._path is None:
            return
        try:
            if (stamp := _stamp(self._path)) == self._seen:
                return
            self._seen = stamp
            self._revoked = _read(self._path)
            log.info("revocations.read", revoked=len(self._revoked))
        except SetupError as error:
            log.error("revocations.unreadable", reason=str(error))


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when the file does; None while it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size


def _read(path: Path) -> frozenset[str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"revoked: expected a text file of fingerprints, found {path}: {error}") from None
    revoked = set()
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip().lower().replace(":", "")
        if text and not _FINGERPRINT.fullmatch(text):
            raise SetupError(f"revoked: expected a SHA-256 fingerprint in line {number} of {path}, found {line[:80]!r}")
        revoked.add(text)
    return frozenset(revoked - {""})
