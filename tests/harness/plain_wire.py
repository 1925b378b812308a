"""Wires of the second implementation of mode `proved`: gRPC with raw bytes, and the lane, with nothing of the servers'.

What is used of the product are the messages that protoc generates and the files of a test's certificates. Everything
that arrives is kept as it came, in order: a server that deviates sees that, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.protos.tls.files import TlsFiles

HEADER = struct.Struct(">HQ")
LANE_PURPOSE = b"precad/v1.1 lane"
PIECE_BYTES = 7 << 17
NAMES = ("aggregator-a", "aggregator-b")
"""The names of servers A and B, as certificates and folders have them."""
PINGS = (("grpc.http2.min_recv_ping_interval_without_data_ms", 1000), ("grpc.http2.max_ping_strikes", 0))
"""Let clients and servers ask whether a quiet connection still stands."""


@dataclass(frozen=True)
class Seen:
    """One thing that came. channel: `lane`, `link`, a client's `Join`, `Submit` or `Prove`, or `GetModel`."""

    channel: str
    who: str
    data: bytes


class HungUpError(Exception):
    """Signal that a connection is gone, by the other side or by our own deviation."""


# The lane


class Lane:
    """Frames over TLS. Whoever deviates may write anything at all with `raw`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: list[Seen]) -> None:
        self._reader, self._writer, self._seen = reader, writer, seen

    async def send(self, label: str, payload: bytes) -> None:
        """Write one frame."""
        await self.raw(HEADER.pack(len(label.encode()), len(payload)) + label.encode() + payload)

    async def raw(self, data: bytes) -> None:
        """Write bytes that may be no frame."""
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> tuple[str, bytes]:
        """Return the next frame's label and payload. Raises HungUpError."""
        try:
            n_label, n_payload = HEADER.unpack(await self._reader.readexactly(HEADER.size))
            label = (await self._reader.readexactly(n_label)).decode()
            payload = await self._reader.readexactly(n_payload)
        except (OSError, EOFError):
            raise HungUpError("lane") from None
        self._seen.append(Seen("lane", label, payload))
        return label, payload

    async def exchange(self, label: str, payload: bytes) -> bytes:
        """Send our part of a step and return the peer's. Raises HungUpError, also where its step is another."""
        await self.send(label, payload)
        found, theirs = await self.receive()
        if found != label:
            raise HungUpError(f"expected {label}, found {found}")
        return theirs

    def close(self) -> None:
        """Hang up."""
        self._writer.close()


def _context(tls: TlsFiles, *, server_side: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.load_cert_chain(tls.certificate, tls.key)
    context.load_verify_locations(tls.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _answer(token: bytes, challenge: bytes) -> bytes:
    return hmac.digest(token, LANE_PURPOSE + challenge, hashlib.sha256)


async def _exactly(connection: socket.socket, n: int) -> bytes:
    data, loop = b"", asyncio.get_running_loop()
    while len(data) < n:
        received = await loop.sock_recv(connection, n - len(data))
        if not received:
            raise HungUpError("lane")
        data += received
    return data


async def dial_lane(address: str, port: int, token: bytes, tls: TlsFiles, seen: list[Seen]) -> Lane:
    """Open the lane as server A: answer B's challenge, then TLS."""
    loop, connection = asyncio.get_running_loop(), socket.socket()
    connection.setblocking(False)
    await loop.sock_connect(connection, (address.rpartition(":")[0], port))
    await loop.sock_sendall(connection, _answer(token, await _exactly(connection, 32)))
    context = _context(tls, server_side=False)
    reader, writer = await asyncio.open_connection(sock=connection, ssl=context, server_hostname=f"{NAMES[1]}.precad")
    return Lane(reader, writer, seen)


class LanePort:
    """Where server B waits for A: a challenge before TLS, and a token that only A was told."""

    def __init__(self, token: bytes, challenge: bytes) -> None:
        self.token, self._challenge = token, challenge
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]

    async def accept(self, tls: TlsFiles, seen: list[Seen]) -> Lane:
        """Return the lane of whoever knows the token. Raises HungUpError."""
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(self._listener)
        connection.setblocking(False)
        await loop.sock_sendall(connection, self._challenge)
        if await _exactly(connection, 32) != _answer(self.token, self._challenge):
            raise HungUpError("lane")
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        context = _context(tls, server_side=True)
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
        return Lane(reader, asyncio.StreamWriter(transport, protocol, reader, loop), seen)

    def close(self) -> None:
        """Free the port."""
        self._listener.close()


# gRPC, with bytes in and bytes out


def channel_to(address: str, party: int, tls: TlsFiles) -> grpc.aio.Channel:
    """Dial a server."""
    files = (tls.authority, tls.key, tls.certificate)
    credentials = grpc.ssl_channel_credentials(*(file.read_bytes() for file in files))
    return grpc.aio.secure_channel(address, credentials, (("grpc.ssl_target_name_override", f"{NAMES[party]}.precad"),))


def caller_of(context: grpc.aio.ServicerContext) -> str:
    """Return the name in the caller's certificate."""
    (name,) = [n for n in context.auth_context()["x509_subject_alternative_name"] if n.startswith(b"precad://")]
    return str(name.decode().rpartition("/")[2])


Unary = Callable[[AsyncIterator[bytes], grpc.aio.ServicerContext], Awaitable[bytes]]
Stream = Callable[[AsyncIterator[bytes], grpc.aio.ServicerContext], AsyncIterator[bytes]]


async def serve(address: str, tls: TlsFiles, unary: dict[str, Unary], streams: dict[str, Stream]) -> grpc.aio.Server:
    """Start a server. The keys are methods, such as `Aggregator/Submit`; all requests are streams of bytes."""
    server = grpc.aio.server(options=PINGS)
    services: dict[str, dict[str, grpc.RpcMethodHandler]] = {}
    for table, made in (
        (unary, grpc.stream_unary_rpc_method_handler),
        (streams, grpc.stream_stream_rpc_method_handler),
    ):
        for path, function in table.items():
            service, method = path.split("/")
            services.setdefault(service, {})[method] = made(function)
    for service, methods in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(f"precad.v1.{service}", methods),))
    pair = (tls.key.read_bytes(), tls.certificate.read_bytes())
    credentials = grpc.ssl_server_credentials([pair], tls.authority.read_bytes(), require_client_auth=True)
    server.add_secure_port(address, credentials)
    await server.start()
    return server


async def parts_of(
    kind: type[aggregator_pb2.SubmitPart] | type[aggregator_pb2.ProvePart],
    messages: AsyncIterator[bytes],
    keep: Callable[[bytes], None],
) -> tuple[aggregator_pb2.SubmitPart | aggregator_pb2.ProvePart, bytes]:
    """Return the first message of an upload or a proof, and the payload of all."""
    first, payload = None, b""
    async for data in messages:
        keep(data)
        part = kind.FromString(data)
        first = part if first is None else first
        payload += part.chunk.data
    assert first is not None
    return first, payload


def chunks(payload: bytes) -> list[common_pb2.Chunk]:
    """Cut a payload into messages of 1 MiB."""
    return [common_pb2.Chunk(data=payload[i : i + (1 << 20)]) for i in range(0, len(payload), 1 << 20)] or [
        common_pb2.Chunk()
    ]


def pem_of(folder: Path, name: str) -> TlsFiles:
    """Return the files of a name."""
    return TlsFiles(certificate=folder / name / "cert.pem", key=folder / name / "key.pem", authority=folder / "ca.pem")
