"""The relay between two organisations: bytes in their order, late by its delay, and its end."""

import socket
import threading
import time

import pytest

from precad.lab.bench.delaying_relay import DelayingRelay
from precad.lab.bench.server_pair import free_ports

DELAY_S = 0.15
MOST_S = 10.0
"""For two delays: what no stall of a busy machine takes."""
DATA = bytes(range(256)) * 4096


@pytest.fixture
def echo():
    """A server that sends back what it gets, and the end of it."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(1 << 16):
                connection.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    yield listener.getsockname()
    thread.join()
    listener.close()


def test_an_answer_takes_two_delays_and_nothing_is_lost(echo):
    at = ("127.0.0.1", free_ports(1)[0])
    with DelayingRelay([(at, echo)], DELAY_S), socket.create_connection(at) as connection:
        start = time.perf_counter()
        connection.sendall(b"?")
        assert connection.recv(1) == b"?"
        assert 2 * DELAY_S <= time.perf_counter() - start < MOST_S
        threading.Thread(target=connection.sendall, args=(DATA,)).start()
        found = b""
        while len(found) < len(DATA):
            found += connection.recv(1 << 20)
        assert found == DATA
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""


def test_an_address_that_is_taken_is_an_error(echo):
    with pytest.raises(OSError, match="address already in use"), DelayingRelay([(echo, echo)], DELAY_S):
        pass
    socket.create_connection(echo).close()
