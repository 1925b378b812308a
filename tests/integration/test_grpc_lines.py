"""A stranger whose handshake fails makes gRPC's core write nothing among a server's log lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.pki import Pki

STRANGER = """
import asyncio, socket, sys
from pathlib import Path
import deploy  # the first that the command imports
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.transport import bind_server

async def serve():
    certificate, key, authority = map(Path, sys.argv[1:])
    server, port = bind_server("127.0.0.1:0", TlsFiles(certificate=certificate, key=key, authority=authority))
    await server.start()
    def knock():
        with socket.create_connection(("127.0.0.1", port)) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
            while stranger.recv(100):
                pass
    await asyncio.to_thread(knock)
    await server.stop(0)

asyncio.run(serve())
"""


@pytest.mark.parametrize(("verbosity", "is_told"), [(None, False), ("INFO", True)])
def test_a_failed_handshake_writes_no_line_unless_it_is_asked_for(
    verbosity: str | None, is_told: bool, tmp_path: Path
) -> None:
    """Give whoever sets GRPC_VERBOSITY what they ask for; so this test would see a line."""
    tls = Pki.create(tmp_path, ["alice"]).tls("aggregator-a")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    environment.pop("GRPC_VERBOSITY", None)
    if verbosity is not None:
        environment["GRPC_VERBOSITY"] = verbosity
    done = subprocess.run(
        [sys.executable, "-P", "-c", STRANGER, tls.certificate, tls.key, tls.authority],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert ("Handshake failed" in done.stderr) is is_told, done.stderr
    assert is_told or done.stderr == ""
