"""A peer without post-quantum key exchange: TLS of Python's library with one classical group, and HTTP/2 by hand.

gRPC's own channels always offer the hybrid group, so an attacker who does not needs other means.
"""

from __future__ import annotations

import contextlib
import re
import select
import socket
import ssl
import threading
from collections.abc import Iterator
from urllib.parse import unquote

from precad.protos.tls.address import split_address
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import Role

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _literal(text: bytes) -> bytes:
    return bytes([len(text)]) + text  # below 127 bytes, no Huffman code


def classical_context(tls: TlsFiles, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> ssl.SSLContext:
    """Return a client's context with our certificate whose one group is P-256."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tls.authority)
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_ecdh_curve("prime256v1")
    context.set_alpn_protocols(["h2"])
    context.minimum_version = context.maximum_version = version
    return context


def classical_server(tls: TlsFiles) -> ssl.SSLContext:
    """Return a server's context with its certificate, which asks for none, for a proxy that also has a client's key."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    context.set_alpn_protocols(["h2"])
    return context


@contextlib.contextmanager
def relayed(at: str, to: str, server: ssl.SSLContext, client: ssl.SSLContext) -> Iterator[None]:
    """Be a proxy at an address that ends TLS and begins it anew towards another, byte for byte."""
    with socket.create_server(split_address(at)) as listening:
        threading.Thread(target=_accept, args=(listening, to, server, client), daemon=True).start()
        yield
        listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, to: str, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=_relay, args=(connection, to, server, client), daemon=True).start()


def _relay(connection: socket.socket, to: str, server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    with contextlib.suppress(OSError):
        near = server.wrap_socket(connection, server_side=True)
        onward = socket.create_connection(split_address(to), timeout=10)
        far = client.wrap_socket(onward, server_hostname=Role.AGGREGATOR_A.server_name)
        ends = (near, far)
        for end in ends:
            end.setblocking(False)
        while True:
            _pass_on(ends)


def _pass_on(ends: tuple[ssl.SSLSocket, ssl.SSLSocket]) -> None:
    """Wait for either end, and give the other what it says. Raises OSError at an end's end."""
    ready = [end for end in ends if end.pending()] or select.select(ends, [], [], 1.0)[0]
    for end in ready:
        with contextlib.suppress(ssl.SSLWantReadError):
            if not (said := end.recv(1 << 16)):
                raise ConnectionResetError
            other = ends[1 - ends.index(end)]
            other.setblocking(True)
            other.sendall(said)
            other.setblocking(False)


def classical_call(
    address: str, role: Role, tls: TlsFiles, method: str, version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> tuple[int, str]:
    """Make a call with an empty message; return gRPC's status and text. Ends after 10 s."""
    fields = ((b":method", b"POST"), (b":scheme", b"https"), (b":path", method.encode()), (b":authority", b"x"))
    fields = (*fields, (b"te", b"trailers"), (b"content-type", b"application/grpc"))
    headers = b"".join(b"\0" + _literal(name) + _literal(value) for name, value in fields)
    request = _frame(HEADERS, END_HEADERS, 1, headers) + _frame(DATA, END_STREAM, 1, bytes(5))
    with (
        socket.create_connection(split_address(address), timeout=10) as connection,
        classical_context(tls, version).wrap_socket(connection, server_hostname=role.server_name) as channel,
    ):
        channel.sendall(PREFACE + _frame(SETTINGS, 0, 0, b"") + request)
        answer = b""
        while (status := re.search(rb"grpc-status.(\d+)", answer, re.DOTALL)) is None or b"grpc-message" not in answer:
            received = channel.recv(1 << 16)
            if not received:
                raise ConnectionResetError("it hung up")
            answer += received
    begin = answer.index(b"grpc-message") + len(b"grpc-message")
    text = re.split(rb"[\0\x40]", answer[begin + 1 :])[0].lstrip(b"\x7f\x80\x81\x01")
    return int(status[1]), unquote(text.decode("latin-1"))
