"""A server B that deviates: everything of it is real (gRPC, TLS, lane, disk) but what it does at one place of a round.

It follows the protocol elsewhere, ignores every limit of its own, and comes back after each hang-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np

from precad.mpc import ring, validation
from precad.mpc.channel import Channel, Prefixed, exchange_alike
from precad.mpc.errors import ChannelClosedError
from precad.mpc.gate import equality
from precad.mpc.local.step import LocalSums
from precad.mpc.norm_bound import NormBound
from precad.mpc.prg import Seed
from precad.mpc.ring import RingArray
from precad.mpc.tuples.held import FIELD_PRIME, ServerTuples
from precad.protos.precad.v1 import aggregator_pb2
from precad.protos.tls.identity import Role
from precad.servers.links.lane import HEADER, _Incoming
from precad.servers.rounds.dealt_form import DealtForm, _tuples_of
from precad.servers.rounds.equipment import Compute, Links
from precad.servers.rounds.form import Ground
from precad.servers.rounds.round import RoundRunner
from precad.servers.rounds.states import Collecting
from precad.servers.rounds.transfers import Capacity
from precad.servers.store.state import TaskState
from precad.servers.task import run as task_run

HANGS_UP = "B hangs up"


def peek(channel: Any, label: str, n_bytes: int) -> bytes:
    """Read the other server's payload of a step, and answer nothing. channel: of a round, over a real lane."""
    lane, name = channel._inner, f"{channel._prefix}/{label}"
    incoming = _Incoming(name, n_bytes)
    while not incoming.is_complete:
        if not lane._read(incoming):
            lane._readable.poll()
    assert incoming.label == name
    return bytes(incoming.payload)


class HangsUpAt(Prefixed):
    """A round's channel that reads one step, answers nothing, and ends."""

    def __init__(self, channel: Any, step: str, seen: Callable[[bytes, bytes], None]) -> None:
        """seen: told what both servers have, (ours, theirs)."""
        super().__init__(channel._inner, channel._prefix)
        self._step, self._seen = step, seen

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `Channel.exchange`."""
        if label == self._step:
            self._seen(payload, peek(self, label, max(len(payload), at_most or 0)))
            raise ChannelClosedError(HANGS_UP)
        return super().exchange(label, payload, at_most)

    def exchange_pieces(self, label: str, pieces: Iterable[bytes], at_most: int | None = None) -> Iterator[bytes]:
        """See `Channel.exchange_pieces`."""
        for piece in pieces:
            yield self.exchange(label, piece, at_most)


class StallsAt(HangsUpAt):
    """A round's channel that reads one step, answers nothing, and keeps the lane until the other server closes it."""

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `Channel.exchange`."""
        with suppress(OSError, ValueError):
            if label == self._step:
                self._seen(payload, peek(self, label, max(len(payload), at_most or 0)))
                peek(self, "nothing more", 0)
        if label == self._step:
            raise ChannelClosedError(HANGS_UP)
        return super().exchange(label, payload, at_most)


class DecidesVerdicts(Prefixed):
    """A round's channel that answers the last step of the check last, so that the other server reads what B wants."""

    def __init__(self, channel: Any, wanted: Callable[[int], bool], *, for_itself: bool = False) -> None:
        """wanted: the verdict of each active client, by its place. for_itself: B takes these verdicts as well."""
        super().__init__(channel._inner, channel._prefix)
        self._wanted, self._for_itself = wanted, for_itself

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `Channel.exchange`."""
        if label != "equality/masked":
            return super().exchange(label, payload, at_most)
        theirs = peek(self, label, len(payload))
        send_alone(self, label, self._completing(theirs))
        return self._completing(payload) if self._for_itself else theirs

    def _completing(self, shares: bytes) -> bytes:
        """Return what makes these shares' sums zero for whom B wants accepted, and 1 for the others."""
        elements = [int.from_bytes(shares[i : i + 16], "little") for i in range(0, len(shares), 16)]
        answers = [((0 if self._wanted(i) else 1) - z) % FIELD_PRIME for i, z in enumerate(elements)]
        return b"".join(element.to_bytes(16, "little") for element in answers)


def send_alone(channel: Any, label: str, payload: bytes) -> None:
    """Write our frame of a step whose other frame was read already."""
    name = f"{channel._prefix}/{label}".encode()
    channel._inner._write(memoryview(HEADER.pack(len(name), len(payload)) + name + payload), _Nothing())


class _Nothing:
    is_complete = True


class DeviatingGround(Ground):
    """Server B's, with other channels for the steps of MPC, and other mask seeds."""

    wrap: ClassVar[Callable[[Channel], Channel]] = staticmethod(lambda channel: channel)
    hands_out: ClassVar[Callable[[str, Seed], Seed]] = staticmethod(lambda client, dealt: dealt)
    client_of: ClassVar[dict[int, str]] = {}
    """By slot, of the round in flight."""

    def invitation(
        self, t: int, slot: int, seed: Seed | None, peer_mask_seed_digest: bytes = b""
    ) -> aggregator_pb2.Invitation:
        handed_out = None if seed is None else type(self).hands_out(self.client_of[slot], seed)
        return super().invitation(t, slot, handed_out, peer_mask_seed_digest)

    def channel(self, t: int) -> Channel:
        return type(self).wrap(super().channel(t))


class DeviatingForm(DealtForm):
    """Server B's rounds, with an offset on the norm's share."""

    offset: Callable[[Sequence[str]], int | list[int]] = staticmethod(lambda active: 0)

    async def invite(self, state: Collecting) -> frozenset[str]:
        slot_of = _tuples_of(state).shape.slot_of
        type(self._ground).client_of = {slot_of(client): client for client in state.chosen}
        return await super().invite(state)

    def _validate(self, state: Any) -> validation.Validated:
        honest = validation.words_to_check

        def shifted(active: Any, sums: LocalSums, tuples: ServerTuples, bound: NormBound) -> RingArray:
            words = honest(active, sums, tuples, bound)
            if tuples.party == 1:
                words[:, -1] += np.array(type(self).offset(active), dtype=np.int64)
            return words

        with patch.object(validation, "words_to_check", shifted):
            return super()._validate(state)


@contextmanager
def deviating_b(
    wrap: Callable[[Any], Any] = lambda channel: channel,
    offset: Callable[[Sequence[str]], int | list[int]] = lambda active: 0,
    hands_out: Callable[[str, Seed], Seed] = lambda client, dealt: dealt,
) -> Iterator[None]:
    """Within it, server B of a deployment in this process deviates so, and has no limits."""
    ways = {"wrap": staticmethod(wrap), "hands_out": staticmethod(hands_out)}
    ground = type("DeviatingGround", (DeviatingGround,), ways)
    form = type("DeviatingForm", (DeviatingForm,), {"offset": staticmethod(offset)})
    honest_limit = TaskState.require_rounds_left

    def made(state: TaskState, links: Links, compute: Compute, capacity: Capacity, *others: Any) -> RoundRunner:
        runner = RoundRunner(state, links, compute, capacity, *others)
        if links.peer.party == 1:
            runner._ground = ground(state, links, compute, capacity, runner._ground.noise)
            runner.form = form(runner._ground)
        return runner

    def limit(state: TaskState) -> None:
        if Role.AGGREGATOR_B not in state.store.where:
            honest_limit(state)

    with ExitStack() as stack:
        stack.enter_context(patch.object(task_run, "RoundRunner", made))
        stack.enter_context(patch.object(TaskState, "require_rounds_left", limit))
        yield


@contextmanager
def believing_b() -> Iterator[None]:
    """Make server B believe any share of a verdict: it objects to nothing that it made up itself, before A can."""
    honest = equality._peers_committed_share

    def believes(z_share: equality.Elements, key: int, channel: Channel) -> equality.Elements:
        if channel.party == 0:
            return honest(z_share, key, channel)
        exchange_alike(channel, "equality/commit", equality.commitment(channel.party, key, z_share))
        return equality._peers_share("equality/masked", z_share, channel)

    with patch.object(equality, "_peers_committed_share", believes):
        yield


def is_zero(ours: bytes, theirs: bytes) -> list[bool]:
    """The verdicts that the two servers' last shares of a check come to, 16 bytes each."""
    a, b = (ring.from_bytes(part, n_words=len(part) // 8).view(np.uint64).reshape(-1, 2) for part in (ours, theirs))
    sums = [
        (int(x[0]) + (int(x[1]) << 64) + int(y[0]) + (int(y[1]) << 64)) % FIELD_PRIME for x, y in zip(a, b, strict=True)
    ]
    return [value == 0 for value in sums]
