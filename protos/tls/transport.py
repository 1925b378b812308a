"""Mutual TLS between PRECAD's processes: what each shows, what each trusts, and how a link notices a dead peer.

A peer is its role, never its address: a server's certificate names `<role>.precad`, and whoever dials asks for that
name wherever the process runs. Both ends show a certificate. A server trusts what the authority signed and lets the
servicer decide about roles (`precad.protos.tls.identity`). A channel trusts the authority or, between servers, exactly
the pinned certificates and not the authority.

What gRPC 1.85 with BoringSSL does, measured and mostly held fast by the tests:
- The extended key usage is enforced in both directions, so a client's certificate cannot run a server. A trust anchor
  is exempt from it: whoever pins has to look (`PinFile`).
- A leaf works as trust anchor (X509_V_FLAG_PARTIAL_CHAIN), for itself alone. Name and expiry still count.
- Without a DNS name in the certificate, gRPC falls back to the subject's common name. Ours have none
(`precad.deploy.authority.pki`).
- A frozen link is noticed after `ping_timeout_ms`, by default a minute; a shorter `keepalive_timeout_ms` alone, which
  the guides name, did not change that.
- In TLS 1.3 a refused client learns only that the socket closed. Neither end's log says why.
- A server asks for its certificate in every handshake (`dynamic_ssl_server_credentials`, with asyncio too, in a
  thread of gRPC's); connections that stand go on. A channel keeps the certificate and the roots that it was made with.
- Several trust anchors of the same name work, whichever comes first.
- gRPC speaks TLS 1.2 and 1.3, and Python's interface cannot ask for more; lane and operations port are 1.3 only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
from cryptography.x509.oid import ExtendedKeyUsageOID

from precad.protos.tls.address import is_loopback, require_free, split_address
from precad.protos.tls.files import Pins, TlsFiles, TlsMaterial, TransportError, permits, renewable
from precad.protos.tls.grpc_server import make_server
from precad.protos.tls.identity import Role, parse_certificate
from precad.protos.tls.renewable import Source
from precad.protos.tls.validity import why_not_valid

CONNECT_TIMEOUT_S = 5
"""Limit on one attempt to connect, handshake included."""
PING_TIME_S = 4
"""A link that is silent for so long is tested with a ping. (A process that dies closes its links, seen at once.)"""
PING_TIMEOUT_S = 8
"""How long a server or the operator waits for a ping's answer until it takes the link for dead."""
CLIENT_PING_TIMEOUT_S = 30
"""Likewise on links of clients: on a slow line, a ping queues behind the upload that is under way."""
IDLE_TIME_S = 10
"""A server hangs up on a connection without a call after so long, or twice as long: nobody parks connections."""
HANDLER_NAME = "_schedule_rpc_coro"
"""Name that gRPC 1.85 gives the coroutine of an open call."""
HANDLERS_END_S = 2.0
"""How long the handlers of calls that are cut off may take to tidy up."""
RETRY_HINT = "grpc-retry-pushback-ms"
"""The trailer of a call that is refused for now: milliseconds until it may be made again, in decimal (gRFC A6)."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 1000 * PING_TIME_S),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # any number of them
    ("grpc.min_reconnect_backoff_ms", 1000 * CONNECT_TIMEOUT_S),  # despite its name, the limit on one attempt
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.enable_http_proxy", 0),  # the address is the whole route: no variable of the environment bends it
)
"""Options of every channel. Message sizes stay at gRPC's 4 MB: what grows with d is streamed in chunks."""

LOOPBACK_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
)
"""Instead of those, of a channel to this machine itself. An attempt that fails costs no network, and a local run waits
for all its processes."""

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_concurrent_streams", 16),  # of one connection: nobody parks thousands of calls
    ("grpc.max_connection_idle_ms", 1000 * IDLE_TIME_S),
    ("grpc.experimental.tcp_max_read_chunk_size", 1 << 16),  # a connection that was once busy keeps no more; 4 MB else
    ("grpc.http2.bdp_probe", 0),  # of a call whose body nobody reads, 64 KiB come in; megabytes on a fast link else
    ("grpc.per_message_decompression", 0),  # nothing here is compressed: a small message stays small
    ("grpc.so_reuseport", 0),  # gRPC's default lets a second process take a share of our port's connections
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000 * PING_TIME_S // 2),  # half: timers are not exact
    ("grpc.keepalive_time_ms", 1000 * CLIENT_PING_TIMEOUT_S),  # frees what vanished clients hold
    ("grpc.keepalive_timeout_ms", 1000 * CLIENT_PING_TIMEOUT_S),
    ("grpc.http2.ping_timeout_ms", 1000 * CLIENT_PING_TIMEOUT_S),
    ("grpc.server_handshake_timeout_ms", 1000 * CONNECT_TIMEOUT_S),  # who connects and stays silent
)
"""Options of every server; they permit the pings of CHANNEL_OPTIONS."""


def server_credentials(tls: Source[TlsMaterial]) -> grpc.ServerCredentials:
    """Return the credentials of a server to which every peer must show a certificate of the authority. Each handshake
    asks `tls` anew.

    Raises: TlsFileError, TransportError.
    """
    ours = tls.load()
    if not ours.identity.role.is_server:
        raise TransportError(f"certificate: expected one of a server to listen with, found {ours.identity.uri}")
    shown = ours

    def latest() -> grpc.ServerCertificateConfiguration | None:
        """Return the certificates before a handshake, in a thread of gRPC's; None when nothing has changed."""
        nonlocal shown
        if (now := tls.load()) == shown:
            return None
        shown = now
        return _server_configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        _server_configuration(ours),
        latest,  # type: ignore[arg-type]  # the stubs do not know None
        require_client_authentication=True,
    )


def _server_configuration(ours: TlsMaterial) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(ours.key, ours.certificate)], root_certificates=ours.authority)


def channel_credentials(ours: TlsMaterial, role: Role, pins: Pins | None = None) -> grpc.ChannelCredentials:
    """Return credentials for dialling `role`.

    Trusted is the authority or, where there are pins, those certificates alone.

    Raises: TransportError.
    """
    if not permits(parse_certificate(ours.certificate), ExtendedKeyUsageOID.CLIENT_AUTH):
        raise TransportError(f"certificate: expected one to dial {role} with, found {ours.identity.uri}")
    trusted = ours.authority if pins is None else pins.pem
    return grpc.ssl_channel_credentials(
        root_certificates=trusted, private_key=ours.key, certificate_chain=ours.certificate
    )


def dial(address: str, role: Role, tls: Source[TlsMaterial], pinned: Source[Pins] | None = None) -> grpc.aio.Channel:
    """Return a channel to whoever holds `role` at `address`, on the running event loop. It connects on first use.

    It shows and trusts what the files hold now, for as long as it lives: whoever was disconnected dials anew.

    Raises: TlsFileError, TransportError. A peer that is not `role` fails the calls, see `explain`.
    """
    split_address(address)
    if not role.is_server:
        raise TransportError(f"role: expected a server to dial, found {role}")
    ours, pins = tls.load(), None if pinned is None else pinned.load()
    patience_s = CLIENT_PING_TIMEOUT_S if ours.identity.role is Role.CLIENT else PING_TIMEOUT_S
    options: dict[str, int | str] = {
        **dict(CHANNEL_OPTIONS),
        **(dict(LOOPBACK_OPTIONS) if is_loopback(address) else {}),
        "grpc.ssl_target_name_override": role.server_name,
        "grpc.keepalive_timeout_ms": 1000 * patience_s,
        "grpc.http2.ping_timeout_ms": 1000 * patience_s,  # a minute by default, whatever the line above says
    }
    return grpc.aio.secure_channel(address, channel_credentials(ours, role, pins), tuple(options.items()))


def bind_server(
    address: str,
    tls: TlsFiles,
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    *,
    max_connections: int | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Return a server on the running event loop that holds its port, and the port (of the system's choice where it was
    0).

    It shows a renewed certificate to those who connect from then on. Whoever connects beyond max_connections is hung up
    on before the handshake. The caller adds its servicers, then starts it. Raises: TlsFileError, TransportError.
    """
    credentials = server_credentials(renewable(tls))
    require_free(address)
    limits = () if max_connections is None else (("grpc.max_allowed_incoming_connections", max_connections),)
    server = make_server(interceptors, (*SERVER_OPTIONS, *limits))
    try:
        return server, server.add_secure_port(address, credentials)
    except RuntimeError:
        raise TransportError(f"address: expected a free one to listen on, found {address} just taken") from None


async def stop_server(server: grpc.aio.Server, grace_s: float) -> None:
    """Refuse new calls, let open ones end for grace_s, cut off the rest, and return when their handlers are over.

    grpc.aio's own `stop` does not wait for handlers. The end of the loop cancels those that it finds, and for one that
    had not begun gRPC prints a traceback. There is no interface to ask for them, so their tasks are known by their
    name.
    """
    await server.stop(grace_s)
    handlers = [task for task in asyncio.all_tasks() if getattr(task.get_coro(), "__name__", "") == HANDLER_NAME]
    if handlers:
        await asyncio.wait(handlers, timeout=HANDLERS_END_S)


def require_not_cancelled() -> None:
    """Raise CancelledError where the running task was cancelled, whatever gRPC made of that.

    Where a call's status comes just as its caller is cancelled, gRPC raises the status, and the cancellation is lost.
    So whoever makes a call anew after an error asks this first. Else neither a time limit nor a stop would end it.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


_NOT_ISSUED = "its certificate is not the pinned one, or comes from another authority"
_CAUSES = (
    ("unable to get local issuer certificate", _NOT_ISSUED),
    ("BAD_SIGNATURE", _NOT_ISSUED),
    ("certificate has expired", "its certificate has expired"),
    ("certificate is not yet valid", "its certificate is not valid yet"),
    ("unsupported certificate purpose", "its certificate is not one of a server"),
    ("Hostname Verification Check failed", "its certificate is of another role"),
    ("WRONG_VERSION_NUMBER", "it does not speak TLS"),
    ("Connection refused", "nothing listens there"),
    ("Network is unreachable", "no route leads there"),
    ("No route to host", "no route leads there"),
    ("Socket closed", "it hung up on our certificate, or it is stopping"),
)
"""gRPC's words for a connection that did not come about, and what they mean here."""
_UNRESOLVED = ("errors resolving ", "DNS resolution failed ")
"""How gRPC's words begin for a name without an address. They repeat it twice, and end with the reason."""


def explain(error: grpc.aio.AioRpcError, role: Role, address: str, ours: Path | None = None) -> str:
    """Return one line for people about a call that failed for want of a connection; of other calls, gRPC's own text.

    ours: the file of our certificate, which is named where its dates are why.
    """
    details = error.details() or error.code().name
    if details.startswith("failed to connect"):
        is_hung_up = "Socket closed" in details
        details = next((cause for words, cause in _CAUSES if words in details), details)
        if is_hung_up and ours is not None and (why := why_not_valid(ours)):
            details = f"it hung up on our certificate, which {why}"
    elif details.startswith(_UNRESOLVED):
        details = f"its name is not resolved: {details.rpartition(': ')[2].rstrip(']')}"
    return f"{role} at {address}: {details}"
