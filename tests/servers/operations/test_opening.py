"""Servers without an operations port do not wait for its HTTP server to be imported."""

from __future__ import annotations

import subprocess
import sys


def test_the_http_server_is_imported_for_a_port_alone() -> None:
    program = "import sys, precad.servers.aggregator, precad.servers.dealer; print('aiohttp' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "False\n"
