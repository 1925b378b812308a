"""Which clients' certificates are no longer worth anything, by a file that the operator may change at any time.

One SHA-256 fingerprint of a certificate (DER, hexadecimal, with or without colons) a line; `#` begins a comment. A
revoked client is refused by every call from the next one on, and an open session gets no further invitation. Servers'
certificates need no such list: each link trusts exactly those that are pinned (`precad.protos.tls.files.PinFile`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from precad.protos.tls.identity import AuthenticatedCall, fingerprint, peer_certificate
from precad.protos.tls.renewable import LastGood
from precad.servers.errors import RevokedError, SetupError

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


class Revocations:
    """The file's content, read again when it has changed. One that became unreadable changes nothing, and is logged."""

    def __init__(self, path: Path | None) -> None:
        """Without a path nobody is revoked. Raises SetupError, naming the line."""
        self._latest = None if path is None else LastGood("revocations", _RevocationFile(path), SetupError)

    def __len__(self) -> int:
        """Return how many certificates the file names now."""
        return 0 if self._latest is None else len(self._latest.load())

    def require_valid(self, context: AuthenticatedCall) -> None:
        """Refuse a caller whose certificate is revoked. Raises RevokedError, IdentityError."""
        revoked = frozenset() if self._latest is None else self._latest.load()
        if revoked and fingerprint(peer_certificate(context)) in revoked:
            raise RevokedError("the certificate is revoked")


@dataclass(frozen=True, slots=True)
class _RevocationFile:
    path: Path

    @property
    def paths(self) -> tuple[Path, ...]:
        return (self.path,)

    def load(self) -> frozenset[str]:
        return _read(self.path)


def _read(path: Path) -> frozenset[str]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"revoked: expected a text file of fingerprints, found {path}: {error}") from None
    revoked = set()
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip().lower().replace(":", "")
        if text and not _FINGERPRINT.fullmatch(text):
            raise SetupError(f"revoked: expected a SHA-256 fingerprint in line {number} of {path}, found {line[:80]!r}")
        revoked.add(text)
    return frozenset(revoked - {""})
