"""A server of mode `proved` that deviates, over real gRPC, TLS and lane, and what it has seen of honest parties.

It is the second implementation (`tests.harness.plain_server`), so it shares no code with the server that it attacks. It
reads the other server's part of each step before it sends its own. It follows the protocol but where its plan says
otherwise, has no limits, and comes back after each hang-up.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import grpc

from precad.protos.precad.v1 import aggregator_pb2
from tests.harness.plain_server import PlainServer
from tests.harness.plain_wire import HEADER, HungUpError
from tests.vectors.independent.proved_server import Server
from tests.vectors.independent.proved_verifier import Values, is_valid, opened
from tests.vectors.independent.ring import RefusedError

RETRY_HINT = "grpc-retry-pushback-ms"
SELECTION, CHALLENGE = "coin/reveal", "coin/reveal 2"
STEPS = (
    "coin/commit",
    SELECTION,
    "validation/lock",
    CHALLENGE,
    "validation/proofs",
    "validation/verifier",
    "validation/accepted",
    "noisy sum",
    "model",
)
"""All of a round, in order; the coin of the challenge is the second one."""
Deviation: TypeAlias = "Callable[[Deviant, str, bytes, bytes], Awaitable[bytes]]"
"""(server, full label, its honest payload, the peer's payload) to what it takes for the peer's. May hang up."""


async def hangs_up(server: Deviant, label: str, ours: bytes, theirs: bytes) -> bytes:
    """Answer nothing."""
    raise HungUpError(label)


async def hangs_up_within_a_frame(server: Deviant, label: str, ours: bytes, theirs: bytes) -> bytes:
    """Announce the whole payload, and send half."""
    name = label.encode()
    await server.raw(HEADER.pack(len(name), len(ours)) + name + ours[: len(ours) // 2])
    raise HungUpError(label)


async def answers_nothing(server: Deviant, label: str, ours: bytes, theirs: bytes) -> bytes:
    """Keep the lane, and listen."""
    return await server.listens()


async def sends_random_bytes(server: Deviant, label: str, ours: bytes, theirs: bytes) -> bytes:
    """Send 200 bytes that are no frame, and listen."""
    await server.raw(b"\xff" + secrets.token_bytes(199))  # the label's length is above any that is read
    return await server.listens()


async def sends_twice(server: Deviant, label: str, ours: bytes, theirs: bytes) -> bytes:
    """Send the same frame two times, and listen."""
    for _ in range(2):
        await server.frame(label, ours)
    return await server.listens()


def names(step: str) -> Deviation:
    """Send the payload under another step's name, and listen."""

    async def deviation(server: Deviant, label: str, ours: bytes, theirs: bytes) -> bytes:
        task, t, _ = label.split("/", 2)
        await server.frame(f"{task}/{t}/{step.removesuffix(' 2')}", ours)
        return await server.listens()

    return deviation


def says(change: Callable[[bytes], bytes]) -> Deviation:
    """Send another payload, and go on as if it had been the own one."""

    async def deviation(server: Deviant, label: str, ours: bytes, theirs: bytes) -> bytes:
        await server.frame(label, change(ours))
        return theirs

    return deviation


@dataclass(frozen=True)
class Plan:
    """Deviations of the server in one of its rounds, counted from 0 over all meetings."""

    steps: Mapping[str, Deviation] = field(default_factory=dict)
    challenge: Callable[[bytes], bytes] = lambda challenge: challenge
    """Make what clients are told of the challenge that the servers use."""
    invitation: Mapping[str, Any] = field(default_factory=dict)
    """Other fields."""
    seeds: Callable[[int], bytes] = secrets.token_bytes
    """Share seeds, where this server is the seeded one."""
    invites_twice: bool = False
    refusals: int = 0
    """How often each call of a client is refused for overload, after all of it was read."""


class Deviant(PlainServer):
    """See the module."""

    plans: Sequence[Plan] = ()
    comes_back = True
    """Whether it meets the other server again after a hang-up."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._n_begun, self._plan, self._named = -1, Plan(), Counter[str]()
        self._refused = Counter[tuple[int, str]]()
        self.openings: list[tuple[int, int, Values]] = []
        """Round, slot and the sums of both verifier messages, at both points."""
        self.are_openings_valid = True
        """Whether all of them fulfil both equations of the verdict."""
        self.told: dict[int, bytes] = {}
        """The challenge of each round that this server told clients."""

    async def run(self) -> None:
        """Begin rounds for as long as the other server comes back."""
        served = await self._serve()
        try:
            while self.n_committed < self.task["rounds"]:
                try:
                    await self._run_together()
                except (HungUpError, RefusedError, OSError):
                    if not self.comes_back:
                        return
                    await asyncio.sleep(0.05)
        finally:
            await served.stop(0.0)

    async def _run_together(self) -> None:
        self.goodbye = None
        async with self.meeting():
            while self.n_committed < self.task["rounds"]:
                await self.run_round(self.next_round)
            await self.say_goodbye(f"{self.task['rounds']} rounds done")

    async def run_round(self, t: int) -> None:
        """See `PlainServer.run_round`."""
        self._n_begun, self._named, self._refused = self._n_begun + 1, Counter(), Counter()
        self._plan = self.plans[self._n_begun] if self._n_begun < len(self.plans) else Plan()
        await super().run_round(t)

    async def step(self, t: int, label: str, payload: bytes) -> bytes:
        """See `PlainServer.step`. The other server's part is read first."""
        assert self.lane is not None
        full = f"{self.task_id}/{t}/{label}"
        found, theirs = await self.lane.receive()
        if found != full:
            raise HungUpError(f"expected {full}, found {found}")
        self._named[label] += 1
        due = CHALLENGE if label == SELECTION and self._named[label] == 2 else label
        if (deviation := self._plan.steps.get(due)) is not None:
            return await deviation(self, full, payload, theirs)
        await self.lane.send(full, payload)
        return theirs

    async def frame(self, label: str, payload: bytes) -> None:
        """Send a frame of any name."""
        assert self.lane is not None
        await self.lane.send(label, payload)

    async def raw(self, data: bytes) -> None:
        """Send bytes that may be no frame."""
        assert self.lane is not None
        await self.lane.raw(data)

    async def listens(self) -> bytes:
        """Take in whatever still comes, until the other server says goodbye or hangs up. Raises HungUpError."""
        lane = self.lane
        assert lane is not None

        async def read() -> None:
            while True:
                await lane.receive()

        reading = asyncio.create_task(read())
        await self.until(lambda: reading.done() or self.goodbye is not None, 20.0)
        await asyncio.sleep(0.05)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        raise HungUpError("the other server")

    async def invite(self, t: int, chosen: list[str]) -> None:
        """See `PlainServer.invite`."""
        assert self.state is not None
        self.state._draw = lambda n: self._plan.seeds(n) if n == 16 else self._draw(n)
        await super().invite(t, chosen)
        if self._plan.invites_twice:
            for client in chosen:
                self._send_again(t, client)

    def _send_again(self, t: int, client: str) -> None:
        state, slot = self.state, self.slots[client]
        assert state is not None
        told = {"task": self.task_id, "round": t, "slot": slot, "dim": self.sizes.dim, "n_committed": self.n_committed}
        seed = secrets.token_bytes(16) if slot % 2 != self.party else b""
        told |= {"model_digest": state.round.model_digest, "share_seed": seed}
        self.send(client, invitation=self.invitation(told))

    def invitation(self, told: Mapping[str, Any]) -> aggregator_pb2.Invitation:
        """See `PlainServer.invitation`."""
        return super().invitation({**told, **self._plan.invitation})

    async def admit(self, phase: int, client: str, context: grpc.aio.ServicerContext) -> None:
        """See `PlainServer.admit`."""
        self._refused[phase, client] += 1
        if self._refused[phase, client] <= self._plan.refusals:
            hint = ((RETRY_HINT, "1"),)
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no room", trailing_metadata=hint)

    async def send_challenge(self, t: int, challenge: bytes, active: list[str]) -> None:
        """See `PlainServer.send_challenge`."""
        self.told[t] = self._plan.challenge(challenge)
        await super().send_challenge(t, self.told[t], active)

    async def in_pieces(self, t: int, label: str, payload: bytes) -> bytes:
        """See `PlainServer.in_pieces`. What a verifier message opens is noted, whatever is answered."""
        n_seen = len(self.seen)
        try:
            return await super().in_pieces(t, label, payload)
        finally:
            came = [one.data for one in self.seen[n_seen:] if one.channel == "lane" and one.who.endswith(label)]
            if label == "validation/verifier" and came and self.state is not None:
                self._note(t, self.state, b"".join(came))

    def _note(self, t: int, state: Server, theirs: bytes) -> None:
        n = 7 * self.sizes.message_elements
        for i, (slot, ours) in enumerate(zip(state.proved, state._messages, strict=True)):
            part = theirs[i * n : (i + 1) * n]
            elements = [int.from_bytes(part[j : j + 7], "little") for j in range(0, n, 7)]
            values = opened(ours, elements, self.sizes)
            self.are_openings_valid &= is_valid(values, state.points, self.sizes)
            self.openings += [(t, slot, value) for value in values]

    # What it has seen

    def steps_seen(self) -> dict[int, list[str]]:
        """Return the steps of which the other server sent its part, by round, in order.

        A coin that was only committed to may be drawn afresh under the same number, so its step counts once.
        """
        found: dict[int, list[str]] = defaultdict(list)
        for one in self.seen:
            if one.channel == "lane" and "/join/" not in one.who:
                _, t, step = one.who.split("/", 2)
                if step != "coin/commit" or found[int(t)] != [step]:
                    found[int(t)].append(CHALLENGE if step == SELECTION and SELECTION in found[int(t)] else step)
        return dict(found)

    def calls_seen(self, method: str) -> Counter[tuple[str, int]]:
        """Return how often clients called with a binding, by client and round."""
        kind = aggregator_pb2.ProvePart if method == "Prove" else aggregator_pb2.SubmitPart
        parts = [(one.who, kind.FromString(one.data)) for one in self.seen if one.channel == method]
        return Counter((who, part.binding.round) for who, part in parts if part.HasField("binding"))

    def elements_seen(self, method: str) -> list[int]:
        """Return all elements of the payloads that clients sent in these calls."""
        kind = aggregator_pb2.ProvePart if method == "Prove" else aggregator_pb2.SubmitPart
        found = []
        for one in self.seen:
            if one.channel == method:
                data = kind.FromString(one.data).chunk.data
                found += [int.from_bytes(data[i : i + 7], "little") for i in range(0, len(data), 7)]
        return found
