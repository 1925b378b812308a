"""One-time tokens of an authority: each is worth one certificate, for one identity, until it expires.

    <directory>/enrolment.sqlite     tokens by their SHA-256; what was asked and given for those that are burnt

A token is burnt, on disk, before its certificate leaves. Whoever has sent it and lost the answer may ask again with the
same key and gets the same certificate; another key gets nothing.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from precad.deploy.authority import pki
from precad.protos.tls.identity import Identity, Role
from precad.servers.database.dialects import Dialect
from precad.servers.database.tables import Database

TOKEN_BYTES = 32
"""Length of a token, drawn from the operating system's randomness."""


def migrations(sql: Dialect) -> Sequence[str]:
    """Return the migrations by version."""
    return (
        f"""CREATE TABLE token (
            digest {sql.blob} PRIMARY KEY,
            role TEXT NOT NULL,
            name TEXT NOT NULL,
            days {sql.integer} NOT NULL,
            expires_at {sql.real} NOT NULL,
            key {sql.blob},
            certificate {sql.blob}
        ){sql.table_end}""",
    )


class TokenRefusedError(pki.PkiError):
    """The token is unknown, has expired, or was burnt for another key. Which of them is not said."""

    def __init__(self) -> None:
        super().__init__("token: expected one that is valid and unused, found another one")


class Tokens:
    """Issue and redeem the one-time tokens of one authority."""

    def __init__(
        self,
        directory: Path,
        clock: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
        *,
        authority_passphrase: bytes | None = None,
    ) -> None:
        """authority_passphrase: what opens ca.key, to redeem. Raises: SetupError."""
        self._directory, self._clock, self._authority_passphrase = directory, clock, authority_passphrase
        self._database = Database(directory / "enrolment.sqlite", migrations)

    def make(self, identity: Identity, *, valid: dt.timedelta, days: int) -> str:
        """Make a token for a certificate of that many days. One of the same identity that is not burnt yet ends.

        Raises: PkiError where the name is taken or revoked, or no certificate lasts so long; StoreError."""
        pki.require_open_name(self._directory, identity)
        pki.require_days(self._directory, days)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        expires_at = (self._clock() + valid).timestamp()
        with self._database.transaction() as run:
            run("DELETE FROM token WHERE role = ? AND name = ? AND key IS NULL", (identity.role, identity.name))
            run(
                "INSERT INTO token (digest, role, name, days, expires_at) VALUES (?, ?, ?, ?, ?)",
                (_digest(token), identity.role, identity.name, days, expires_at),
            )
        return token

    def redeem(self, token: str, request: bytes) -> bytes:
        """Return the PEM certificate for a PEM request, which is filed in the authority's folder like every other.

        Raises: TokenRefusedError; PkiError where the request is not the identity's or its name is taken or revoked,
        which leaves the token as it was; StoreError. A folder that cannot be written raises PkiError too. The token is
        then good for the same key alone.
        """
        with self._database.transaction() as run:
            row = self._find(run("SELECT digest, role, name, days, expires_at, key, certificate FROM token"), token)
            _, role, name, days, _, burnt_for, certificate = row
            identity = Identity(Role(role), name)
            pki.require_not_revoked(self._directory, identity)
            key = pki.requested_key(request, "request", identity).public_bytes(
                Encoding.DER, PublicFormat.SubjectPublicKeyInfo
            )
            if burnt_for is None:
                certificate = pki.certify_request(
                    self._directory,
                    request,
                    "request",
                    identity,
                    days=days,
                    authority_passphrase=self._authority_passphrase,
                )
                run("UPDATE token SET key = ?, certificate = ? WHERE digest = ?", (key, certificate, _digest(token)))
            elif burnt_for != key:
                raise TokenRefusedError
        pki.file_certificate(self._directory, identity, certificate)
        return bytes(certificate)

    def _find(self, rows: Any, token: str) -> tuple[Any, ...]:
        """Return the token's row. Looks at every row, so that the time does not depend on how much of one was right."""
        digest = _digest(token)
        found = [row for row in rows.fetchall() if hmac.compare_digest(row[0], digest)]
        if not found or found[0][4] <= self._clock().timestamp():
            raise TokenRefusedError
        return tuple(found[0])

    def close(self) -> None:
        """Give the file back."""
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="surrogateescape")).digest()
