"""Whoever fails a handshake, or names a header wrongly, has gRPC's core write nothing among a server's log lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.pki import Pki

SERVE = """
import asyncio, socket, ssl, sys
from pathlib import Path
import deploy  # the first that the command imports
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.transport import bind_server

def field(name, value):
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value

def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

async def serve():
    certificate, key, authority = map(Path, sys.argv[1:4])
    server, port = bind_server("127.0.0.1:0", TlsFiles(certificate=certificate, key=key, authority=authority))
    await server.start()
    def stranger():
        with socket.create_connection(("127.0.0.1", port)) as plain:
            plain.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
            while plain.recv(100):
                pass
    def caller():
        context = ssl._create_unverified_context()
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(certificate, key)
        said = {b":method": b"POST", b":scheme": b"https", b":path": b"/x", b"grpc-encoding": b"\\xff"}
        call = frame(1, 5, 1, b"".join(field(*one) for one in said.items()))
        with context.wrap_socket(socket.create_connection(("127.0.0.1", port))) as http:
            http.sendall(b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" + frame(4, 0, 0) + call)
            answer = b""
            while b"grpc-status" not in answer:
                answer += http.recv(1000)
    await asyncio.to_thread({"stranger": stranger, "caller": caller}[sys.argv[4]])
    await server.stop(0)

asyncio.run(serve())
"""


@pytest.mark.parametrize(("who", "line"), [("stranger", "Handshake failed"), ("caller", "Error parsing")])
@pytest.mark.parametrize(("verbosity", "is_told"), [(None, False), ("INFO", True)])
def test_neither_handshakes_nor_calls_write_a_line_unless_it_is_asked_for(
    verbosity: str | None, is_told: bool, who: str, line: str, tmp_path: Path
) -> None:
    """Give whoever sets GRPC_VERBOSITY what they ask for; so this test would see a line."""
    tls = Pki.create(tmp_path, ["alice"]).tls("aggregator-a")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("GRPC_VERBOSITY", None)
    if verbosity is not None:
        environment["GRPC_VERBOSITY"] = verbosity
    done = subprocess.run(
        [sys.executable, "-P", "-c", SERVE, tls.certificate, tls.key, tls.authority, who],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (line in done.stderr) is is_told, done.stderr
    assert is_told or done.stderr == ""
