"""Mutated messages to every method of every server, over real gRPC with TLS, while a round is open.

Callers hold real certificates: of an enrolled client, of a stranger, of the operator, of server A's role but not the
pinned one. Messages are valid ones with bits flipped, cut, repeated, spliced with others', or random bytes.

Failure means one of these:
- a server that stops answering, or a call that hangs;
- an error of ours that is not in the table of refusals;
- anything changed at a server by calls that were refused;
- an honest round that does not come out as it would have without.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import structlog

from precad.protos.messages import convert
from precad.protos.precad.v1 import aggregator_pb2, common_pb2, control_pb2, dealer_pb2, peer_pb2
from precad.protos.task.task import PROTOCOL_VERSION
from precad.protos.tls.identity import Role
from precad.servers.errors import STATUS_CODES
from tests.harness.harness import asynchronous
from tests.integration.test_identity import (
    CLIENTS,
    TASK,
    Certificates,
    Scene,
    certificates,  # noqa: F401 - a fixture
    second_round,
)

N_MESSAGES = int(os.environ.get("PRECAD_FUZZ_MESSAGES", "1000000"))
HANG_S = 15.0
"""Longer than a server may take to say no on a machine that is busy with everything else."""
AT_ONCE = 64
CHANNELS = 4
EXPECTED = {code for _, code in STATUS_CODES} | {
    grpc.StatusCode.INTERNAL,  # what is no message at all, gRPC itself refuses so,
    grpc.StatusCode.UNKNOWN,  # or so where a call has one request
    grpc.StatusCode.UNAVAILABLE,  # gRPC hangs up on a connection that opens and drops calls too fast
    grpc.StatusCode.OK,
    grpc.StatusCode.CANCELLED,
}
STRANGERS = ("eve", "mallory", Role.OPERATOR, "second A")
"""Mallory is enrolled, chosen, and connected; eve is a client of another task."""


@dataclass(frozen=True)
class Method:
    """One method, who may be asked, and valid messages of it."""

    path: str
    roles: tuple[Role, ...]
    messages: tuple[bytes, ...]


def methods(scene: Scene) -> list[Method]:
    """Every method of every service."""
    a, b, dealer = Role.AGGREGATOR_A, Role.AGGREGATOR_B, Role.DEALER
    hello = common_pb2.Hello(
        protocol_version=PROTOCOL_VERSION,
        config_digest=TASK.digest(),
        nonce=bytes(16),
        task=scene.earlier.binding.task,
        model_digest=convert.sha256(b""),
        next_round=7,
    )
    binding = scene.submission("mallory").binding
    chunk = common_pb2.Chunk(data=bytes(8 * TASK.dim))
    batch = dealer_pb2.BatchRequest(round=9, n_clients=3, dim=TASK.dim)
    relay = peer_pb2.Relay(round=1, client="mallory", data=bytes(24), last=True)

    def serialized(*values: object) -> tuple[bytes, ...]:
        return tuple(value.SerializeToString() for value in values)  # type: ignore[attr-defined] # messages

    part, message, request = aggregator_pb2.SubmitPart, peer_pb2.PeerMessage, dealer_pb2.DealRequest
    return [
        Method("Aggregator/Join", (a, b), serialized(aggregator_pb2.JoinRequest(hello=hello))),
        Method("Aggregator/GetModel", (a, b), serialized(aggregator_pb2.ModelRequest(round=1))),
        Method("Aggregator/Submit", (a, b), serialized(part(binding=binding), part(chunk=chunk))),
        Method("Peer/Link", (b,), serialized(message(hello=hello), message(relay=relay))),
        Method("Dealer/Deal", (dealer,), serialized(request(hello=hello), request(batch=batch))),
        Method("Control/GetStatus", (a, b, dealer), serialized(control_pb2.StatusRequest())),
        Method("Control/Watch", (a, b), serialized(control_pb2.WatchRequest(with_models=True))),
    ]


def mutations(draw: random.Random, pool: list[bytes]) -> Iterator[Callable[[bytes], bytes]]:
    """Ways to spoil a message."""

    def flip(data: bytes) -> bytes:
        spoilt = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 8))):
            if spoilt:
                spoilt[draw.randrange(len(spoilt))] ^= 1 << draw.randrange(8)
        return bytes(spoilt)

    def cut(data: bytes) -> bytes:
        return data[: draw.randrange(len(data) + 1)]

    def splice(data: bytes) -> bytes:
        other = draw.choice(pool)
        return data[: draw.randrange(len(data) + 1)] + other[draw.randrange(len(other) + 1) :]

    def repeat(data: bytes) -> bytes:
        return data * draw.randrange(2, 5)

    def noise(data: bytes) -> bytes:
        return draw.randbytes(draw.choice((0, 1, 2, 7, 64, 1000)))

    def lengthen(data: bytes) -> bytes:
        """A length of 2^63 somewhere: nothing may be reserved for it."""
        at = draw.randrange(len(data) + 1)
        return data[:at] + b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f" + data[at:]

    while True:
        yield draw.choice((flip, flip, flip, cut, splice, repeat, noise, lengthen))


class Fuzzer:
    """Calls until there were enough, and what they came to."""

    def __init__(
        self,
        scene: Scene,
        seed: int,
        of: list[Method] | None = None,
        roles: tuple[Role, ...] = (Role.AGGREGATOR_A, Role.AGGREGATOR_B, Role.DEALER),
        callers: tuple[str, ...] = STRANGERS,
    ) -> None:
        """of: the methods to call, all of them where none are given."""
        self._draw, self._callers = random.Random(seed), callers
        self._methods = methods(scene) if of is None else of
        pool = [message for method in self._methods for message in method.messages if message]
        self._mutations = mutations(self._draw, pool)
        second_a = {"second A": scene.certificates.second_a}
        self._channels = {
            (role, who): [scene.channel(role, second_a.get(who, who)) for _ in range(CHANNELS)]
            for role in roles
            for who in callers
        }
        self.codes: Counter[str] = Counter()
        self.longest_s = 0.0

    async def run(self, n_messages: int) -> None:
        """So many messages, some of them in one call."""
        left = n_messages

        async def worker() -> None:
            nonlocal left
            while left > 0:
                n_sent = await self._one_call()
                left -= n_sent

        await asyncio.gather(*(worker() for _ in range(AT_ONCE)))

    async def _one_call(self) -> int:
        draw = self._draw
        method = draw.choice(self._methods)
        role, who = draw.choice(method.roles), draw.choice(self._callers)
        messages = [next(self._mutations)(message) for message in method.messages]
        call = draw.choice(self._channels[role, who]).stream_stream(f"/precad.v1.{method.path}")(timeout=HANG_S)
        started = time.monotonic()
        try:
            for message in messages:
                await call.write(message)
            await call.done_writing()
            await call.read()
            call.cancel()
            code = grpc.StatusCode.OK
        except grpc.aio.AioRpcError as error:
            code = error.code()
        except (asyncio.InvalidStateError, grpc.aio.BaseError):
            code = await call.code()
        self.longest_s = max(self.longest_s, time.monotonic() - started)
        self.codes[code.name] += 1
        assert code in EXPECTED, (method.path, role, who, messages, code)
        return len(messages)

    async def close(self) -> None:
        """Hangs up."""
        for channels in self._channels.values():
            for channel in channels:
                await channel.close()


async def fuzz(certificates: Certificates, folder: Path, n_messages: int) -> Fuzzer:  # noqa: F811 - the fixture's value
    """A round open, the fuzzer at work, then the honest end. Mallory's own upload is hers to spoil."""
    seed = random.SystemRandom().randrange(2**32)
    async with second_round(certificates, folder) as scene:
        before = await scene.snapshot()
        fuzzer = Fuzzer(scene, seed)
        try:
            await fuzzer.run(n_messages)
        finally:
            await fuzzer.close()
        after = await scene.snapshot()
        changed = {name for name in before if before[name] != after[name]}
        assert changed <= {"uploads to 0", "uploads to 1"}, (seed, changed)
        honest = [client for client in CLIENTS if client != "mallory"]
        await scene.submit_honestly(*honest)
        for client in scene.clients.values():
            if client.client == "mallory":
                await client.leave()
        del scene.clients["mallory"]
        await scene.finish(accepted=honest, only_they_uploaded=False)
    return fuzzer


@asynchronous
async def test_a_thousand_mutated_messages(certificates: Certificates, tmp_path: Path) -> None:  # noqa: F811
    """Run the program below with fewer messages, in the default suite."""
    fuzzer = await fuzz(certificates, tmp_path, 1_000)
    assert len(fuzzer.codes) >= 4, fuzzer.codes


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_million_mutated_messages(
    certificates: Certificates,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No crash, no hang, no change by what was refused. A line of log for each call would be most of the work."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    started = time.monotonic()
    try:
        fuzzer = asyncio.run(fuzz(certificates, tmp_path, N_MESSAGES))
    finally:
        structlog.reset_defaults()
    seconds = time.monotonic() - started
    with capsys.disabled():
        print(
            f"\n{N_MESSAGES} messages in {seconds:.0f} s; calls by outcome {dict(fuzzer.codes)}; "
            f"the longest took {fuzzer.longest_s:.2f} s"
        )
