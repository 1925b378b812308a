"""Makes `transcripts.json`: every message, verdict and sum of whole validations under fixed seeds, as digests.

    python -m tests.vectors.transcripts > tests/vectors/transcripts.json

The file is made anew only where a change of the protocol, such as another label of a stream, moves messages on purpose.
As it stands, it shows that nothing else has moved them. Verdicts and sums do not depend on the randomness, and were the
same in every version: compare them when the messages change.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator

import numpy as np

from precad.mpc import ring, sharing, validation
from precad.mpc.channel import MemoryChannel, run_pair
from precad.mpc.gate import top_bits
from precad.mpc.gate_names import make_gate
from precad.mpc.locking import lock_list
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import DEALT_MODES, Mode
from precad.mpc.prg import RandomBytes
from precad.mpc.ring import RingArray
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples

DIMS = (1, 2, 63, 64, 65, 1000, 8191, 8192, 8193, 20_000, 40_001)
CLIP_NORM = 3.0


def fixed_random_bytes(name: str) -> RandomBytes:
    """A reproducible stand-in for os.urandom: SHAKE-128 of a name and a call number."""
    calls = iter(range(1 << 62))
    return lambda n: hashlib.shake_128(f"{name}/{next(calls)}".encode()).digest(n)


def vectors(dim: int) -> RingArray:
    """Eight updates, (8, dim): honest, at the bound, one over it, three that wrap, the extremes, and noise."""
    words = np.frombuffer(fixed_random_bytes(f"words/{dim}")(16 * dim), dtype="<i8").reshape(2, dim).copy()
    encoded_clip = int(CLIP_NORM * 2**16)
    result = np.zeros((8, dim), dtype=np.int64)
    result[0] = words[0] >> 52
    result[0] = result[0] * encoded_clip // (2048 * max(1, round(dim**0.5)))
    result[1, -1] = -encoded_clip
    result[2, 0] = encoded_clip + 1
    result[3, dim // 2] = 1 << 32
    result[4] = -(1 << 63)
    result[5] = result[0]
    result[5, 3::7] ^= -(1 << 63)  # 2^63 is its own negative: adding it flips the top bit
    result[6] = (1 << 63) - 1
    result[7] = words[1]
    return result


class RecordingChannel:
    """A channel that notes the label and the digest of every message that it sends."""

    def __init__(self, channel: MemoryChannel) -> None:
        self._channel, self.messages = channel, []
        self.party = channel.party

    def exchange(self, label: str, payload: bytes) -> bytes:
        """See `precad.mpc.channel.Channel`."""
        self.messages.append(f"{label} {len(payload)} {hashlib.sha256(payload).hexdigest()}")
        return self._channel.exchange(label, payload)

    def exchange_pieces(self, label: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """See `precad.mpc.channel.Channel`. Noted as one message, however it is cut."""
        length, hasher = 0, hashlib.sha256()

        def noted() -> Iterator[bytes]:
            nonlocal length
            for piece in pieces:
                length += len(piece)
                hasher.update(piece)
                yield piece

        yield from self._channel.exchange_pieces(label, noted())
        self.messages.append(f"{label} {length} {hasher.hexdigest()}")


def transcript(dim: int, *, gate_name: str, mode: Mode, n_rows: int) -> dict[str, object]:
    """One round of eight clients, the fourth of which the two servers hold differently."""
    name = f"{dim}/{gate_name}/{mode}/{n_rows}"
    gate, x = make_gate(gate_name), vectors(dim)
    bound = NormBound(clip_norm=CLIP_NORM, dim=dim, n_rows=n_rows)
    clients = tuple(f"client-{i}" for i in range(len(x)))
    shape = BatchShape("vectors", 3, clients, dim, top_bits.blocks(gate, len(x), bound.low_bits))
    dealt = deal(shape, fixed_random_bytes(f"{name}/dealer"))
    tuples = (ServerTuples(0, shape, dealt[0]), ServerTuples(1, shape, dealt[1]))
    payloads: tuple[dict[str, RingArray], dict[str, RingArray]] = ({}, {})
    for client, vector in zip(clients, x, strict=True):
        label = shape.label(client)
        if mode is Mode.MASKED:
            seeds = (tuples[0].hand_out_mask_seed(client), tuples[1].hand_out_mask_seed(client))
            payloads[0][client] = payloads[1][client] = sharing.mask(vector, seeds, label)
        else:
            seed, payloads[1][client] = sharing.split(vector, label, fixed_random_bytes(f"{name}/{client}"))
            payloads[0][client] = sharing.expand_share(seed, label, dim)

    def party(memory: MemoryChannel) -> dict[str, object]:
        channel, own = RecordingChannel(memory), payloads[memory.party]
        bindings = {c: hashlib.sha256(c.encode()).digest() for c in clients}
        bindings["client-3"] = hashlib.sha256(b"not what the peer holds" * channel.party).digest()
        random_bytes = fixed_random_bytes(f"{name}/coin/{channel.party}")
        locked = lock_list(bindings, shape.label(), shape.clients, channel, random_bytes)
        mine = tuples[channel.party]
        reveal = validation.reveal if mode is Mode.MASKED else validation.reveal_and_open
        checked = validation.validate(reveal(locked, own, mine, channel), mine, bound, gate, channel)
        return {
            "messages": channel.messages,
            "accepted": list(checked.accepted),
            "rejected": list(checked.rejected),
            "sum": hashlib.sha256(ring.to_bytes(checked.accepted_share_sum)).hexdigest(),
        }

    return {"name": name, "parties": list(run_pair(party))}


def transcripts() -> Iterator[dict[str, object]]:
    """All cases: every dimension with the `native` gate; a few with CrypTen's, and with other numbers of rows."""
    for mode in DEALT_MODES:
        for dim in DIMS:
            yield transcript(dim, gate_name="native", mode=mode, n_rows=64)
        for dim in (65, 8193):
            yield transcript(dim, gate_name="crypten", mode=mode, n_rows=64)
        for n_rows in (1, 8, 13, 63):
            yield transcript(8193, gate_name="native", mode=mode, n_rows=n_rows)


if __name__ == "__main__":
    json.dump(list(transcripts()), sys.stdout, indent=1)
    sys.stdout.write("\n")
