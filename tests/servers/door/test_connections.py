"""Connections that a server holds: whose they are, and which one it hangs up on.

Failure means one of these:
- a caller with more connections than its limit;
- a caller whose calls are ended by a new connection of its own, or of somebody else;
- a count that grows without bound, or another socket of the process that is shut down.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import random
import socket
from collections import Counter
from collections.abc import Iterator

import pytest
import structlog

from precad.servers.door.connections import DESCRIPTORS, FORGOTTEN_S, Connections, HangUps, endpoint_of, shut_down
from precad.servers.errors import Limit, OverloadedError
from tests.harness.clock import Clock
from tests.harness.harness import until

LOOPBACK = ipaddress.ip_address("127.0.0.1")


def test_a_caller_has_so_many_connections_and_the_longest_idle_one_makes_room() -> None:
    ended: list[str] = []
    clock = Clock()
    connections = Connections(2, ended.append, clock)
    with connections.call("alice", "first"):
        for peer in ("second", "third", "fourth"):
            clock.now += 1
            with connections.call("alice", peer):
                pass
        with connections.call("bob", "fifth"):
            pass
    assert ended == ["second", "third"]


def test_where_all_carry_calls_the_newcomer_is_hung_up_on() -> None:
    ended: list[str] = []
    connections = Connections(2, ended.append)
    with connections.call("alice", "first"), connections.call("alice", "second"):
        with (
            pytest.raises(OverloadedError, match="at most 2 connections of one caller") as caught,
            connections.call("alice", "third"),
        ):
            raise AssertionError
        assert caught.value.limit is Limit.CONNECTIONS_OF_CALLER
        with connections.call("alice", "first"), connections.call("bob", "fourth"):
            pass
    assert ended == ["third"]


def test_a_connection_that_grpc_has_ended_by_itself_is_forgotten() -> None:
    """Nobody is hung up on for it."""
    ended: list[str] = []
    clock = Clock()
    connections = Connections(2, ended.append, clock)
    for i in range(100):
        with connections.call("alice", f"peer-{i}"):
            clock.now += 60.0
        clock.now += FORGOTTEN_S / 2 + 0.1
    assert ended == []
    assert len(connections._of["alice"]) == 2


def test_an_address_that_was_given_away_again_is_not_hung_up_on_for_its_former_holder() -> None:
    """Behind one address translator, say: alice's old port is bob's now."""
    ended: list[str] = []
    connections = Connections(2, ended.append)
    with connections.call("alice", "first"):
        pass
    with connections.call("bob", "first"):
        for peer in ("second", "third", "fourth"):
            with connections.call("alice", peer):
                pass
    assert ended == ["second"]
    assert set(connections._caller_at) == {"first", "third", "fourth"}


def test_a_connection_stands_for_its_own_caller_until_grpc_has_ended_it() -> None:
    """Then an address is another connection's, also that of whoever had it: its session may be a resumed one."""
    clock = Clock()
    connections = Connections(2, lambda _: None, clock)
    with connections.call("alice", "first"):
        clock.now += 10 * FORGOTTEN_S
        assert connections.knows("alice", "first")
    clock.now += FORGOTTEN_S
    assert connections.knows("alice", "first")
    assert not connections.knows("bob", "first")
    assert not connections.knows("alice", "second")
    clock.now += 0.1
    assert not connections.knows("alice", "first")


def test_no_caller_has_ever_more_than_its_limit() -> None:
    """A random history of calls, against a recount: what was not ended, and carries a call or carried one lately."""
    draw, clock, alive = random.Random(3), Clock(), dict[str, str]()
    connections = Connections(3, lambda peer: alive.pop(peer, None), clock)
    open_calls: list[tuple[str, contextlib.ExitStack]] = []
    for i in range(3000):
        clock.now += draw.expovariate(1.0)
        if open_calls and draw.random() < 0.5:
            open_calls.pop(draw.randrange(len(open_calls)))[1].close()
        caller = draw.choice(["alice", "bob"])
        peer = draw.choice([p for p, c in alive.items() if c == caller] or [str(i)]) if draw.random() < 0.3 else str(i)
        stack = contextlib.ExitStack()
        with contextlib.suppress(OverloadedError):
            alive[peer] = caller
            stack.enter_context(connections.call(caller, peer))
            open_calls.append((peer, stack))
        assert max(Counter(alive[p] for p in {p for p, _ in open_calls}).values(), default=0) <= 3
        assert all(len(ours) <= 3 for ours in connections._of.values())
        assert connections._caller_at == {peer: caller for caller, ours in connections._of.items() for peer in ours}
        assert all(peer in alive for peer, _ in open_calls)  # a connection that carries calls was not hung up on


@pytest.mark.parametrize(
    ("peer", "endpoint"),
    [
        ("ipv4:127.0.0.1:50123", (LOOPBACK, 50123)),
        ("ipv6:%5B::1%5D:50123", (ipaddress.ip_address("::1"), 50123)),
        ("ipv6:[::ffff:127.0.0.1]:50123", (LOOPBACK, 50123)),
        ("unix:/run/precad.sock", None),
        ("", None),
    ],
)
def test_a_peer_is_an_address_and_a_port(peer: str, endpoint: object) -> None:
    assert endpoint_of(peer) == endpoint


@pytest.fixture(params=[socket.AF_INET, socket.AF_INET6], ids=["ipv4", "dual stack"])
def pairs(request: pytest.FixtureRequest) -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    """Three connections of this process with itself: (client's end, server's end)."""
    listener = socket.socket(request.param)
    try:
        if request.param == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind(("::" if request.param == socket.AF_INET6 else "127.0.0.1", 0))
        listener.listen()
    except OSError as error:
        listener.close()
        pytest.skip(f"no such socket here: {error.strerror}")
    made = []
    for _ in range(3):
        client = socket.create_connection(("127.0.0.1", listener.getsockname()[1]), timeout=5)
        made.append((client, listener.accept()[0]))
    yield made
    for end in (listener, *(end for pair in made for end in pair)):
        end.close()


def test_the_connection_with_a_peer_is_shut_down_and_no_other(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    """The client reads the end of the stream; the descriptors stay the owners'."""
    gone, *others = pairs
    port = gone[1].getsockname()[1]
    assert shut_down({(LOOPBACK, gone[0].getsockname()[1])}, port) == 1
    assert gone[0].recv(1) == b""
    for client, server in others:
        server.sendall(b"x")
        assert client.recv(1) == b"x"
    assert gone[1].fileno() >= 0
    n_open = len(os.listdir(DESCRIPTORS))
    assert shut_down({(ipaddress.ip_address("127.0.0.2"), others[0][0].getsockname()[1])}, port) == 0
    assert len(os.listdir(DESCRIPTORS)) == n_open  # none of those that it looked at stays open


def test_a_connection_at_another_port_of_ours_stays(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    """Such as the lane, which the other server opened from the port that somebody at its address calls from."""
    client, server = pairs[0]
    with socket.create_server(("127.0.0.1", 0)) as other_port:
        assert shut_down({(LOOPBACK, client.getsockname()[1])}, other_port.getsockname()[1]) == 0
    server.sendall(b"x")
    assert client.recv(1) == b"x"


def test_a_process_without_descriptors_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """And goes on: what could not be ended is tried again."""
    tried: list[object] = []

    def without(peers: object, port: int) -> int:
        tried.append(peers)
        if len(tried) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return 1

    async def scenario() -> None:
        monkeypatch.setattr("precad.servers.door.connections.shut_down", without)
        monkeypatch.setattr("precad.servers.door.connections.SWEEP_S", 0.01)
        hang_up = HangUps()
        hang_up("ipv4:127.0.0.1:5")
        await until(lambda: len(tried) == 2)

    with structlog.testing.capture_logs() as lines:
        asyncio.run(asyncio.wait_for(scenario(), 30))
    assert tried == [{(LOOPBACK, 5)}] * 2
    assert lines[0] == {
        "event": "connections.not_ended",
        "log_level": "warning",
        "wanted": 1,
        "reason": "Too many open files",
    }
