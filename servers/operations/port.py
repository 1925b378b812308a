"""The operations port: HTTP on an address of its own, for people and programs that watch a server.

    GET  /healthz            the process answers; open to everybody, says one word
    GET  /readyz             200 ready, 503 not ready
    GET  /metrics            for Prometheus
    GET  /status.json        the status, once
    GET  /events             the status, each time that it changed (server-sent events)
    GET  /                   the dashboard
    GET  /checkpoints/NAME   model, records and ledger of the task
    GET, POST /login         a browser shows the token, or a link's code (?once=CODE)
    POST /links              the code of a link that opens one session
    POST /logout

Everything but /healthz, the login form and its looks needs the token or a session. Nothing here changes the
server's course. The dashboard's pages load nothing from elsewhere, which their policy says to the browser as well.

Discussion: aiohttp runs on the event loop that the gRPC server has, streams, speaks TLS, and leaves signals and logging
alone. With http.server, each dashboard that is open would need a thread.
"""

from __future__ import annotations

import asyncio
import math
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import resources
from pathlib import Path
from typing import Final, TypeAlias
from urllib.parse import urlsplit

import structlog
from aiohttp import web

from precad.protos.tls.address import is_loopback, split_address
from precad.protos.tls.files import TransportError
from precad.servers.operations.access import (
    SESSION_LIFETIME_S,
    SILENT,
    BrowserSessions,
    FailureLimit,
    OneTimeLinks,
    Token,
)
from precad.servers.operations.doorway import Contexts, Doorway
from precad.servers.operations.metrics import CONTENT_TYPE, expose
from precad.servers.operations.snapshot import CHECKPOINTS
from precad.servers.sources import source_of
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.status import Status

log = structlog.get_logger(__name__)

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

LOOK_S = 0.5
"""How often an open dashboard's server looks whether something changed."""
KEEP_ALIVE_S = 15.0
"""How often an event stream without events shows that it stands."""
MAX_STREAMS = 32
MAX_CONNECTIONS = 256
"""The port must not eat the descriptors that the server's own links need."""
SEND_TIMEOUT_S = 10.0
SILENT_S = 10.0
"""How long a connection may be open without a request; and how long its handshake may take."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Server": "precad",
}
PAGES: Final = {
    "login.html": "text/html",
    "dashboard.html": "text/html",
    "dashboard.js": "text/javascript",
    "dashboard.css": "text/css",
    "icon.svg": "image/svg+xml",
}
OPEN: Final = frozenset({"/healthz", "/login", "/logout", "/dashboard.css", "/icon.svg"})
SAME_SITE: Final = frozenset({"same-origin", "none"})
FORM_TYPE: Final = "application/x-www-form-urlencoded"
FORM_CHARSET: Final = "utf-8"
WRONG_LINK: Final = "This link was used, or is too old. The token opens the page as well."
WRONG_TOKEN, TOO_OFTEN = "That is not this server's token.", "Too many wrong tokens. Try again in {wait} s."


class OperationsPort:
    """Answers of the port."""

    def __init__(
        self,
        token: Token,
        telemetry: Telemetry,
        snapshot: Callable[[], Status],
        state_dir: Path | None,
        *,
        is_tls: bool,
    ) -> None:
        self._token, self._telemetry, self._snapshot, self._state_dir = token, telemetry, snapshot, state_dir
        self._is_tls = is_tls
        self._cookie = f"{'__Host-' if is_tls else ''}precad-{telemetry.role}"  # cookies know hosts, not ports
        self._sessions, self._limit, self._links = BrowserSessions(), FailureLimit(), OneTimeLinks()
        self._closing = asyncio.Event()
        self._doorway = Doorway(MAX_CONNECTIONS, SILENT_S)
        self._n_streams = 0
        self._seen, self._looked_at = "", -math.inf
        folder = resources.files("precad.servers.operations") / "dashboard"
        self._pages: Mapping[str, str] = {name: (folder / name).read_text(encoding="utf-8") for name in PAGES}

    @asynccontextmanager
    async def listening(self, address: str, tls: Contexts | None) -> AsyncIterator[int]:
        """Answers at HOST:PORT until the block ends; the port, where the system chose it. Raises TransportError."""
        host, port = split_address(address)
        try:
            listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        except OSError as error:
            raise TransportError(
                f"operations_listen: expected a free address to listen on, found {address}: {error.strerror}"
            ) from None
        runner = web.AppRunner(
            self._application(),
            access_log=None,
            handle_signals=False,
            shutdown_timeout=1.0,
            keepalive_timeout=20.0,
            logger=SILENT,
        )
        await runner.setup()
        port = int(listener.getsockname()[1])
        accepting = asyncio.create_task(self._doorway.accept(listener, runner, tls))
        try:
            log.info("operations.listening", host=host, port=port, tls=tls is not None)
            if not is_loopback(address):
                log.warning("operations.beyond_loopback", host=host, port=port)
            yield port
        finally:
            self._closing.set()
            accepting.cancel()
            await asyncio.wait([accepting])
            listener.close()
            await runner.cleanup()

    def _application(self) -> web.Application:
        application = web.Application(middlewares=[self._answer], client_max_size=4096)
        application.add_routes(
            [
                web.get("/healthz", self._healthz),
                web.get("/readyz", self._readyz),
                web.get("/metrics", self._metrics),
                web.get("/status.json", self._status),
                web.get("/events", self._events, allow_head=False),
                web.get("/", self._dashboard),
                web.get("/{page:dashboard\\.js|dashboard\\.css|icon\\.svg}", self._page),
                web.get("/checkpoints/{name}", self._checkpoint),
                web.get("/login", self._login_form),
                web.post("/login", self._login),
                web.post("/logout", self._logout),
                web.post("/links", self._link),
            ]
        )
        return application

    # -- who may ------------------------------------------------------------------------------------------------------

    @web.middleware
    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Pass every answer: admit who asks or not, add headers, and log defects."""
        self._doorway.heard(request.protocol)
        try:
            response = self._refusal(request) or await handler(request)
        except web.HTTPException as error:
            error.headers.update(HEADERS)
            raise
        except Exception as error:
            log.exception("operations.failed", method=request.method, path=request.path)
            raise web.HTTPInternalServerError(text="internal error; the log says more\n", headers=HEADERS) from error
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        """None for whoever may ask this."""
        if request.path in OPEN or self._sessions.is_open(request.cookies.get(self._cookie, "")):
            return None
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            if (wait_s := self._limit.wait_s(source_of(request.remote))) > 0:
                return _too_often(wait_s)
            if self._shows_token(request, token.strip()):
                return None
        if request.path == "/" and request.method == "GET" and not scheme:
            return web.Response(status=303, headers={"Location": "/login"})
        return web.Response(
            status=401, text="this needs the operations token\n", headers={"WWW-Authenticate": 'Bearer realm="precad"'}
        )

    def _shows_token(self, request: web.Request, token: str) -> bool:
        """Counts it when it is a wrong one."""
        if self._token.matches(token):
            return True
        self._failed(request)
        return False

    def _failed(self, request: web.Request) -> None:
        self._limit.failed(source_of(request.remote))
        self._telemetry.login_failed()
        log.warning("operations.wrong_token", address=request.remote)

    def _too_many_failures(self, request: web.Request) -> web.Response | None:
        if (wait_s := self._limit.wait_s(source_of(request.remote))) <= 0:
            return None
        refusal = self._form(TOO_OFTEN.format(wait=math.ceil(wait_s)), status=429)
        refusal.headers["Retry-After"] = str(math.ceil(wait_s))
        return refusal

    async def _login_form(self, request: web.Request) -> web.Response:
        if request.method != "GET" or (code := request.query.get("once")) is None:
            return self._form("", status=200)
        _require_same_origin(request)  # else any page could use up the address's attempts, by pictures of wrong links
        if (refusal := self._too_many_failures(request)) is not None:
            return refusal
        if self._links.redeem(code):
            return self._signed_in()
        self._failed(request)
        return self._form(WRONG_LINK, status=403)

    async def _link(self, request: web.Request) -> web.Response:
        """Give whoever shows the token itself a link's code; a session is not enough."""
        if (refusal := self._too_many_failures(request)) is not None:
            return refusal
        _, _, token = request.headers.get("Authorization", "").partition(" ")
        if not token or not self._shows_token(request, token.strip()):
            raise web.HTTPForbidden(text="this needs the operations token\n")
        return web.json_response({"once": self._links.make()})

    def _form(self, message: str, *, status: int) -> web.Response:
        """`message` is one of ours."""
        page = self._pages["login.html"].replace("{{role}}", _title(self._telemetry.role))
        return web.Response(text=page.replace("{{message}}", message), status=status, content_type="text/html")

    async def _login(self, request: web.Request) -> web.Response:
        _require_same_origin(request)
        if (refusal := self._too_many_failures(request)) is not None:
            return refusal
        if not self._shows_token(request, await _token_in(request)):
            return self._form(WRONG_TOKEN, status=403)
        return self._signed_in()

    def _signed_in(self) -> web.Response:
        """Open a session, and go to the page."""
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(
            self._cookie,
            self._sessions.open(),
            max_age=int(SESSION_LIFETIME_S),
            httponly=True,
            samesite="Strict",
            secure=self._is_tls,
        )
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        _require_same_origin(request)
        self._sessions.close(request.cookies.get(self._cookie, ""))
        response = web.Response(status=303, headers={"Location": "/login"})
        response.del_cookie(self._cookie, httponly=True, samesite="Strict", secure=self._is_tls)
        return response

    # -- what there is ------------------------------------------------------------------------------------------------

    async def _healthz(self, request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, request: web.Request) -> web.Response:
        is_ready = self._telemetry.is_ready
        return web.Response(text="ready\n" if is_ready else "not ready\n", status=200 if is_ready else 503)

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(body=expose(self._telemetry.registry), headers={"Content-Type": CONTENT_TYPE})

    async def _status(self, request: web.Request) -> web.Response:
        return web.Response(text=self._snapshot().model_dump_json(), content_type="application/json")

    async def _dashboard(self, request: web.Request) -> web.Response:
        return web.Response(text=self._pages["dashboard.html"], content_type="text/html")

    async def _page(self, request: web.Request) -> web.Response:
        name = request.match_info["page"]
        return web.Response(text=self._pages[name], content_type=PAGES[name])

    async def _checkpoint(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if self._state_dir is None or name not in CHECKPOINTS or not (path := self._state_dir / name).is_file():
            raise web.HTTPNotFound(text="no such checkpoint\n")
        attachment = f'attachment; filename="{self._telemetry.role}-{name}"'
        return web.FileResponse(path, headers={**HEADERS, "Content-Disposition": attachment})

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """`data:` is {"now": seconds since the epoch, "status": ...}."""
        if self._n_streams >= MAX_STREAMS:
            raise web.HTTPServiceUnavailable(text="too many event streams\n")
        self._n_streams += 1
        try:
            stream = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
            await stream.prepare(request)
            await self._send_events(request, stream)
        except (ConnectionError, TimeoutError):
            pass  # whoever watched is gone
        finally:
            self._n_streams -= 1
        return stream

    def _look(self, *, is_last: bool) -> str:
        """Return the status as JSON. Dashboards that are open at the same time share a look, but for the last one."""
        if is_last or time.monotonic() - self._looked_at > LOOK_S / 2:
            self._seen, self._looked_at = self._snapshot().model_dump_json(), time.monotonic()
        return self._seen

    async def _send_events(self, request: web.Request, stream: web.StreamResponse) -> None:
        """Until the port closes, after a last look, or the session ends."""
        shown, shown_at, is_last = "", 0.0, False
        while not is_last and self._refusal(request) is None:
            is_last = self._closing.is_set()
            status = self._look(is_last=is_last)
            if status != shown:
                await _send(stream, f'data: {{"now":{time.time():.3f},"status":{status}}}\n\n')
                shown, shown_at = status, time.monotonic()
            elif time.monotonic() - shown_at > KEEP_ALIVE_S:
                await _send(stream, ": still here\n\n")
                shown_at = time.monotonic()
            await _pause(self._closing)


async def _send(stream: web.StreamResponse, text: str) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await stream.write(text.encode())


async def _pause(closing: asyncio.Event) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(closing.wait(), LOOK_S)


def _require_same_origin(request: web.Request) -> None:
    """Require that a page of ours caused the request, or a person did. Raises web.HTTPForbidden."""
    site, origin = request.headers.get("Sec-Fetch-Site"), request.headers.get("Origin")
    try:
        is_ours = origin is None or urlsplit(origin).netloc == request.host if site is None else site in SAME_SITE
    except ValueError:  # an origin that is none
        is_ours = False
    if not is_ours:
        raise web.HTTPForbidden(text="another site caused this request\n")


async def _token_in(request: web.Request) -> str:
    """Return what the login form says. Raises web.HTTPError: everybody may send what is no form, so that is no
    defect.

    Another encoding's name is not even looked up: Python keeps each one that it does not know for as long as it runs.
    """
    if request.content_type != FORM_TYPE or (request.charset or FORM_CHARSET).lower() != FORM_CHARSET:
        raise web.HTTPUnsupportedMediaType(text=f"a login is a form, {FORM_TYPE}, in {FORM_CHARSET}\n")
    try:
        async with asyncio.timeout(SILENT_S):
            return str((await request.post()).get("token", "")).strip()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the form did not come\n") from None
    except (ValueError, LookupError, OSError, web.RequestPayloadError):
        raise web.HTTPBadRequest(text="this is no form\n") from None


def _too_often(wait_s: float) -> web.Response:
    wait = str(math.ceil(wait_s))
    return web.Response(status=429, text=TOO_OFTEN.format(wait=wait) + "\n", headers={"Retry-After": wait})


def _title(role: str) -> str:
    return {"aggregator-a": "Aggregation server A", "aggregator-b": "Aggregation server B"}.get(role, "Dealer")
