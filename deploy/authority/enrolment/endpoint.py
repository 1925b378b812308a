"""`precad pki serve`: the authority answers requests that come with a one-time token.

    GET  /ca.pem    the authority's certificate, for whoever knows its fingerprint
    POST /enrol     Authorization: Bearer TOKEN, a PKCS #10 request in PEM; answers the certificate in PEM

TLS 1.3. The endpoint's own certificate is made by the authority at the start, for `enrolment.precad`: it names no role,
so it opens nothing. It ends after a month, and a new start makes another.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
import ssl
import tempfile
from pathlib import Path

import structlog
from aiohttp import web

from precad.deploy.authority import pki
from precad.deploy.authority.enrolment.tokens import TokenRefusedError, Tokens
from precad.protos.tls.address import require_free, split_address
from precad.protos.tls.identity import Identity, fingerprint, parse_certificate
from precad.servers.errors import StoreError
from precad.servers.operations.access import SILENT, FailureLimit
from precad.servers.operations.doorway import Doorway
from precad.servers.sources import source_of

log = structlog.get_logger(__name__)

SERVER_NAME = "enrolment.precad"
MAX_REQUEST_BYTES = 8192
"""A request for a key on P-256 has about 500."""
READ_TIMEOUT_S = 10.0
CERTIFICATE_DAYS = 30
MAX_CONNECTIONS = 512
"""At once, handshakes included. Whoever enrols needs two, for an instant."""
CONNECTION_S = 15.0
"""How long a connection lasts. So strangers keep nobody out by less than 34 connections a second."""


class Endpoint:
    """Run until it is stopped."""

    def __init__(
        self, directory: Path, tokens: Tokens, address: str, *, authority_passphrase: bytes | None = None
    ) -> None:
        """authority_passphrase: what opens ca.key."""
        self._authority_passphrase = authority_passphrase
        self._directory, self._tokens, self._address = directory, tokens, address
        self._authority = (directory / "ca.pem").read_bytes()
        self._limit, self._stopped = FailureLimit(), asyncio.Event()
        self.port = 0
        """Once it listens."""

    def stop(self) -> None:
        """End it."""
        self._stopped.set()

    async def run(self) -> None:
        """Raises: PkiError, TransportError."""
        require_free(self._address)
        host, port = split_address(self._address)
        application = web.Application(client_max_size=MAX_REQUEST_BYTES)
        application.add_routes([web.get("/ca.pem", self._show_authority), web.post("/enrol", self._enrol)])
        runner = web.AppRunner(
            application, access_log=None, logger=SILENT, handle_signals=False, keepalive_timeout=READ_TIMEOUT_S
        )
        await runner.setup()
        context, family = self._context(), socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as listener:
            doorway = Doorway(MAX_CONNECTIONS, CONNECTION_S)
            accepting = asyncio.create_task(doorway.accept(listener, runner, lambda: context))
            try:
                self.port = int(listener.getsockname()[1])
                log.info("enrolment.listening", host=host, port=self.port, authority=fingerprint(self._authority))
                await self._stopped.wait()
            finally:
                accepting.cancel()
                await asyncio.wait([accepting])
                await runner.cleanup()

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        certificate, key = pki.issue_for_host(
            self._directory,
            SERVER_NAME,
            days=min(CERTIFICATE_DAYS, self._days_left()),
            authority_passphrase=self._authority_passphrase,
        )
        with tempfile.TemporaryDirectory(prefix="precad-enrolment-") as folder:  # mode 0700
            path = Path(folder) / "pair.pem"
            path.write_bytes(key + certificate)
            context.load_cert_chain(path)
        return context

    def _days_left(self) -> int:
        """Return the days until the authority's certificate ends."""
        return (parse_certificate(self._authority).not_valid_after_utc - dt.datetime.now(dt.UTC)).days

    async def _show_authority(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._authority, content_type="application/x-pem-file")

    async def _enrol(self, request: web.Request) -> web.Response:
        address = source_of(request.remote)
        if self._limit.wait_s(address) > 0:
            return _refusal(429, "too many wrong tokens; try again later")
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                asked = await request.read()
        except TimeoutError:
            return _refusal(408, "the request did not come")
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        try:
            if scheme.lower() != "bearer":
                raise TokenRefusedError
            certificate = self._tokens.redeem(token.strip(), asked)  # a few ms, and nothing else is served here
        except TokenRefusedError as error:
            self._limit.failed(address)
            log.warning("enrolment.wrong_token", address=request.remote)
            return _refusal(403, str(error))
        except pki.PkiError as error:
            log.warning("enrolment.refused", address=request.remote, reason=str(error))
            return _refusal(409, str(error))
        except StoreError as error:
            log.error("enrolment.failed", reason=str(error))
            return _refusal(503, "the authority cannot record anything; try again later")
        shown = Identity.from_certificate(certificate).uri
        log.info("enrolment.issued", identity=shown, sha256=fingerprint(certificate), address=request.remote)
        return web.Response(body=certificate, content_type="application/x-pem-file")


def _refusal(status: int, text: str) -> web.Response:
    return web.Response(status=status, text=text + "\n")
