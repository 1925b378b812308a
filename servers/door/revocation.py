"""Which clients' certificates are no longer worth anything, by a file that the operator may change at any time.

One SHA-256 fingerprint of a certificate (DER, hexadecimal, with or without colons) a line; `#` begins a comment. A
revoked client is refused by every call from the next one on, and an open session gets no further invitation. Servers'
certificates need no such list: each link trusts exactly those that are pinned (`precad.protos.tls.files.PinFile`).

A fingerprint covers the authority's signature. Where that is ECDSA's, (r, s), it holds as (r, n - s) as well, n being
the order of the curve. So whoever has a certificate can write it in a second way, without the authority and without a
key. It then has another fingerprint, which is refused as the first.
"""

from __future__ import annotations

import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding

from precad.protos.tls.identity import AuthenticatedCall, fingerprint, parse_certificate, peer_certificate
from precad.protos.tls.renewable import LastGood
from precad.servers.errors import RevokedError, SetupError

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_ORDERS: Final = (
    0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551,
    0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFC7634D81F4372DDF581A0DB248B0A77AECEC196ACCC52973,
    (1 << 521) - 0x5AE79787C40D069948033FEB708F65A2FC44A36477663B851449048E16EC79BF7,
)
"""Orders of P-256, P-384 and P-521, on which an authority's key may be."""
_SEQUENCE, _BIT_STRING = 0x30, 0x03
"""Tags of DER."""


class Revocations:
    """The file's content, read again when it has changed. One that became unreadable changes nothing, and is logged."""

    def __init__(self, path: Path | None) -> None:
        """Without a path nobody is revoked. Raises SetupError, naming the line."""
        self._latest = None if path is None else LastGood("revocations", _RevocationFile(path), SetupError)

    def __len__(self) -> int:
        """Return how many certificates the file names now."""
        return 0 if self._latest is None else len(self._latest.load())

    def holds(self, context: AuthenticatedCall) -> bool:
        """Return whether the caller's certificate is revoked. Raises IdentityError."""
        revoked = frozenset() if self._latest is None else self._latest.load()
        return bool(revoked) and not revoked.isdisjoint(fingerprints(peer_certificate(context)))

    def require_valid(self, context: AuthenticatedCall) -> None:
        """Refuse a caller whose certificate is revoked. Raises RevokedError, IdentityError."""
        if self.holds(context):
            raise RevokedError("the certificate is revoked")


@functools.lru_cache(maxsize=4096)  # a peer shows the same one in every call
def fingerprints(pem: bytes) -> frozenset[str]:
    """Return the fingerprints of a certificate, as it is written and as its holder could write it. Raises
    IdentityError."""
    certificate, own = parse_certificate(pem), fingerprint(pem)
    try:
        r, s = decode_dss_signature(certificate.signature)
    except ValueError:  # another algorithm's, which holds in one way
        return frozenset([own])
    der = certificate.public_bytes(Encoding.DER)
    start = der.index(certificate.tbs_certificate_bytes)
    unsigned = der[start : len(der) - len(_element(_BIT_STRING, b"\0" + certificate.signature))]
    others = (encode_dss_signature(r, order - s) for order in _ORDERS if s < order)
    written = (_element(_SEQUENCE, unsigned + _element(_BIT_STRING, b"\0" + other)) for other in others)
    return frozenset([own, *(hashlib.sha256(one).hexdigest() for one in written)])


def _element(tag: int, content: bytes) -> bytes:
    """Return an element of DER."""
    n = len(content)
    size = bytes([n]) if n < 128 else n.to_bytes((n.bit_length() + 7) // 8, "big")
    return bytes([tag]) + (size if n < 128 else bytes([128 + len(size)]) + size) + content


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
