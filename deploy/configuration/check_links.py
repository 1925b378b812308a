"""`precad check --connect`: whether the servers that this configuration's roles dial answer as themselves.

Each link is opened as the role opens it: with our certificate, and the peer's pin. An open one is asked for a method
that no server has. The refusal names the link's key exchange: gRPC shows that to servers alone, so it is their word.
B's lane is left out: A learns its port from B, when a task begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import grpc

from precad.deploy.configuration.sections import Deployment
from precad.protos.tls.files import PinFile, TlsFiles
from precad.protos.tls.identity import AGGREGATORS, Role
from precad.protos.tls.key_exchange import GROUP_HINT, HYBRID_GROUP
from precad.protos.tls.transport import dial, explain
from precad.servers.errors import PeerUnreachableError

TIMEOUT_S: Final = 10.0
"""How long one link may take, from the name's look-up on."""

_CLOSED: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.PERMISSION_DENIED})
"""How a call ends over a link that does not open, or that the server refuses for its key exchange."""


class Link(NamedTuple):
    """A connection that a role opens."""

    role: Role
    """Whom it dials."""
    address: str
    tls: TlsFiles
    pinned: Path | None
    """None where a client trusts whatever the authority signed."""
    require_pqc: bool = False
    """Whether the role that dials requires a post-quantum key exchange."""


def links(deployment: Deployment) -> Iterator[Link]:
    """Yield every link that the roles of this file open at their start."""
    network, aggregator = deployment.network, deployment.aggregator
    if (a := aggregator.a) is not None:
        yield Link(Role.AGGREGATOR_B, network.aggregator_b, a.tls, a.peer_certificate, a.require_pqc)
    for own in (aggregator.a, aggregator.b):
        if own is not None and network.dealer is not None:
            yield Link(Role.DEALER, network.dealer, own.tls, own.dealer_certificate, own.require_pqc)
    if (client := deployment.client) is not None:
        addresses = (network.aggregator_a, network.aggregator_b)
        here = client.certified(deployment.task.clients)
        for role, address, pin in zip(AGGREGATORS, addresses, client.pins, strict=True):
            yield from (Link(role, address, client.tls(name), pin) for name in here)


def check_links(deployment: Deployment) -> dict[str, str]:
    """Return by server what its answer was. Raises PeerUnreachableError, a line for each link that failed."""
    found = asyncio.run(_all(list(links(deployment))))
    if failed := [said for _, said, is_open in found if not is_open]:
        raise PeerUnreachableError("\n".join(dict.fromkeys(failed)))
    return {f"{link.role} at {link.address}": said for link, said, _ in found}


async def _all(wanted: list[Link]) -> list[tuple[Link, str, bool]]:
    return list(await asyncio.gather(*map(_tried, wanted)))


async def _tried(link: Link) -> tuple[Link, str, bool]:
    """Return what came of a link, in words, and whether it opened. Raises TlsFileError for files of ours."""
    begun = time.monotonic()
    pins = None if link.pinned is None else PinFile(link.pinned, link.role)
    async with dial(link.address, link.role, link.tls, pins) as channel:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                refusal = await _refusal(channel)
                if refusal.code() in _CLOSED:
                    return link, explain(refusal, link.role, link.address), False
        except TimeoutError:
            said = f"no answer within {TIMEOUT_S:g} s: a firewall, or another machine's address"
            return link, f"{link.role} at {link.address}: {said}", False
    group = _group_of(refusal)
    if link.require_pqc and group != HYBRID_GROUP:
        said = f"require_pqc: expected the group {HYBRID_GROUP}, found {group}"
        return link, f"{link.role} at {link.address}: {said}", False
    trusted = "the pinned certificate" if link.pinned else "a certificate of the authority"
    took_ms = 1000 * (time.monotonic() - begun)
    return link, f"answers with {trusted} and takes ours, keys by {group}, {took_ms:.0f} ms", True


def _group_of(refusal: grpc.aio.AioRpcError) -> str:
    """Return the group that the server says our connection has."""
    found = dict(refusal.trailing_metadata() or ()).get(GROUP_HINT, "")
    return f"{found!s:.40}" or "a group that it does not name"


async def _refusal(channel: grpc.aio.Channel) -> grpc.aio.AioRpcError:
    """Return how the server refuses a method that it lacks; of the first attempt that fails, what gRPC says of it."""
    state = channel.get_state(try_to_connect=True)
    while state not in {grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE}:
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
    call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary("/precad.v1.Nothing/Nothing")
    try:
        await call(b"")
    except grpc.aio.AioRpcError as error:
        return error
    raise PeerUnreachableError("expected a refusal of a method that no server has, found an answer")
