"""Whole rounds of a robust sum on shares, both servers in threads: all that is the same for every rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from precad.mpc import prg, sharing, validation
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.gate.top_bits import Gate
from precad.mpc.locking import lock_list
from precad.mpc.norm_bound import NormBound
from precad.mpc.opening import open_in_place
from precad.mpc.parameters import Mode
from precad.mpc.robust.proposal import Accepted
from precad.mpc.tuples import held
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.recording import RecordingChannel

T = TypeVar("T")


class Agreed(Protocol):
    """A round as both servers have agreed on it."""

    vectors: Any
    mode: Mode

    @property
    def bound(self) -> NormBound: ...


@dataclass(frozen=True)
class Server:
    """Hold one server's side once the check of norms is over."""

    party: int
    accepted: tuple[str, ...]
    held: Accepted
    tuples: ServerTuples
    lane: Any
    own_bits: list[int]
    """Its shares of the dealer's bits u, which it knows beside what it sees."""

    def opened(self, share: Any) -> Any:
        """Open a share of the sum, and return the sum."""
        open_in_place(share, "noisy sum", self.lane)
        return share

    @property
    def sent(self) -> list[tuple[str, bytes]]:
        return getattr(self.lane, "sent", [])


def run_round(
    it: Agreed,
    shape: BatchShape,
    gate: Gate,
    end: Callable[[Server], T],
    random_bytes: Any = None,
    wrap: Any = RecordingChannel,
) -> tuple[T, T]:
    """Play a round from the lock to the verdicts at both servers, then the rule's own steps, which `end` has.

    wrap: what stands between each server and the channel.
    """
    dealt = deal(shape) if random_bytes is None else deal(shape, random_bytes)
    sides = (ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1]))
    uploads = uploads_of(it, shape, sides, random_bytes)
    coins = {} if random_bytes is None else {"random_bytes": lambda n: bytes(range(n))}

    def party(channel: MemoryChannel) -> T:
        lane, tuples = wrap(channel), sides[channel.party]
        locked = lock_list(
            dict.fromkeys(uploads[channel.party], bytes([7]) * 32), shape.label(), shape.clients, lane, **coins
        )
        reveal = validation.reveal if it.mode is Mode.MASKED else validation.reveal_and_open
        revealed = reveal(locked, uploads[channel.party], tuples, lane)
        checked = validation.validate(revealed, tuples, it.bound, gate, lane)
        validation.compare_verdicts(checked, lane)
        held_of = (revealed.active, checked.verdicts, revealed.opened, checked.squared_norms)
        accepted = Accepted.of(*held_of, checked.accepted_share_sum)
        own = [held.trim_bit(dealt[channel.party].key, shape.label(client)) for client in checked.accepted]
        return end(Server(channel.party, checked.accepted, accepted, tuples, lane, own))

    return run_pair(party)


def uploads_of(it: Agreed, shape: BatchShape, sides: Any, random_bytes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what each server holds of the clients."""
    uploads: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
    for client, x in zip(shape.clients, it.vectors, strict=False):
        if it.mode is Mode.MASKED:
            seeds = (sides[0].hand_out_mask_seed(client), sides[1].hand_out_mask_seed(client))
            uploads[0][client] = uploads[1][client] = sharing.mask(x, seeds, shape.label(client))
        else:
            seed = prg.Seed.random() if random_bytes is None else prg.Seed(random_bytes(16))
            uploads[0][client] = sharing.expand_share(seed, shape.label(client), x.size)
            uploads[1][client] = x - uploads[0][client]
    return uploads
