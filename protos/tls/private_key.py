"""Private keys as PEM (PKCS #8), in the clear or encrypted under a passphrase.

The encryption is what every TLS library reads: AES-256 under a key that PBKDF2-HMAC-SHA256 makes in 2048 steps. So few
steps slow nobody down who guesses. A passphrase has to be one that nobody guesses, which is why a file or the
environment holds it, and not a person.

    PrivateKeyError     a key that cannot be read, or a passphrase that cannot be used
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

MIN_PASSPHRASE_BYTES: Final = 24
"""Least length of a new passphrase: 32 characters of `openssl rand -base64 24` hold 192 bits."""
MAX_PASSPHRASE_BYTES: Final = 1023
"""OpenSSL takes no longer ones."""


class PrivateKeyError(Exception):
    """Quotes neither a key nor a passphrase."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected, self.found = expected, found


def is_encrypted(pem: bytes) -> bool:
    """Return whether the file says of itself that a passphrase is needed."""
    return b"ENCRYPTED PRIVATE KEY-----" in pem or b"Proc-Type: 4,ENCRYPTED" in pem


def open_private_key(pem: bytes, passphrase: bytes | None) -> PrivateKeyTypes:
    """Return the key in `pem`. A key in the clear needs no passphrase, and is opened with one as well.

    Raises: PrivateKeyError.
    """
    if is_encrypted(pem) and passphrase is None:
        raise PrivateKeyError("a passphrase for an encrypted key", "none")
    try:
        return load_pem_private_key(pem, passphrase if is_encrypted(pem) else None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if is_encrypted(pem):
            raise PrivateKeyError("a key that the passphrase opens", "one that it does not") from None
        raise PrivateKeyError("a PEM private key", "something else") from None


def to_pem(key: PrivateKeyTypes, passphrase: bytes | None = None) -> bytes:
    """Return the key as PEM, encrypted where there is a passphrase. Raises: PrivateKeyError when that is too short."""
    if passphrase is None:
        return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    if len(passphrase) < MIN_PASSPHRASE_BYTES:
        raise PrivateKeyError(
            f"a passphrase of {MIN_PASSPHRASE_BYTES} characters or more, of a random generator", f"{len(passphrase)}"
        )
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase))


def parse_passphrase(content: bytes) -> bytes:
    """Return the passphrase in the content of a file or a variable: one line, without its end. Raises:
    PrivateKeyError."""
    passphrase = content.rstrip(b"\r\n")
    if not 1 <= len(passphrase) <= MAX_PASSPHRASE_BYTES or b"\n" in passphrase or b"\0" in passphrase:
        raise PrivateKeyError(f"one line of 1 to {MAX_PASSPHRASE_BYTES} bytes", f"{len(content)} bytes, or other lines")
    return passphrase
