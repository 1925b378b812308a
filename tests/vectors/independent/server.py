"""Sections 6, 9, 10, 12 and 13: one server's round, from the lock to the new model."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from tests.vectors.independent import digests, gates, ring, streams
from tests.vectors.independent.dealing import P, Tuples
from tests.vectors.independent.gates import Channel
from tests.vectors.independent.ring import MODULUS, RefusedError

N_ROWS = 64
WINDOW_BITS = 29


def threshold(clip_norm: float, frac_bits: int, dim: int = 1) -> int:
    """T, given that the parameters fulfil the theorem's conditions."""
    if not (0 <= frac_bits <= 40 and 0 < clip_norm < math.inf):
        raise RefusedError("parameter")
    encoded = Fraction(clip_norm) * 2**frac_bits
    if not 1 <= encoded <= 94_000_000 or not dim >= 1 or dim * (2**30 - 1) + 2**29 >= 2**64:
        raise RefusedError("parameter")
    return math.floor(encoded**2)


def low_bits(bound: int) -> tuple[int, ...]:
    """For each of a client's 65 words, the lowest bit of those that must vanish."""
    return (WINDOW_BITS + 1,) * N_ROWS + (bound.bit_length(),)


def select(seed: bytes, task: str, round: int, enrolled: Sequence[str], rate: float) -> list[str]:
    """The chosen clients, from the joint coin."""
    if not 0 <= rate <= 1:
        raise RefusedError("parameter")
    enrolled = sorted(enrolled)
    if rate == 1:
        return list(enrolled)
    words = streams.stream(seed, streams.SELECTION, task, round, None, len(enrolled))
    return [client for client, word in zip(enrolled, words, strict=True) if word < math.floor(Fraction(rate) * 2**64)]


def reveal(party: int, context: str, value: bytes, commitment: bytes, transcript: bytes, channel: Channel) -> bytes:
    """The joint seed. commitment: the peer's."""
    return joint_seed(party, context, value, channel.exchange("coin/reveal", value), commitment, transcript)


def joint_seed(party: int, context: str, value: bytes, received: bytes, commitment: bytes, transcript: bytes) -> bytes:
    """From the own coin and the one that was received."""
    if len(received) != 32:
        raise RefusedError("malformed")
    if digests.coin_commitment(1 - party, context, received) != commitment:
        raise RefusedError("commitment")
    values = (value, received) if party == 0 else (received, value)
    return digests.joint_coin(context, *values, transcript)


@dataclass(frozen=True)
class Locked:
    """Hold what both servers fixed. active: slots."""

    active: tuple[int, ...]
    context: str
    coin: bytes
    commitment: bytes
    transcript: bytes


def lock(task: str, round: int, n_clients: int, bindings: Mapping[int, bytes], coin: bytes, channel: Channel) -> Locked:
    """bindings: by slot, of the complete uploads."""
    context = f"{task}/{round}/challenge"
    ours = [bindings.get(slot, bytes(32)) for slot in range(n_clients)]
    mine = digests.coin_commitment(channel.party, context, coin)
    received = channel.exchange("validation/lock", mine + b"".join(ours))
    if len(received) != 32 + 32 * n_clients:
        raise RefusedError("malformed")
    theirs = [received[32 * slot + 32 : 32 * slot + 64] for slot in range(n_clients)]
    active = tuple(slot for slot in range(n_clients) if slot in bindings and ours[slot] == theirs[slot])
    transcript = digests.tagged(b"lock", *(ours[slot] for slot in active))
    return Locked(active, context, coin, received[:32], transcript)


def open_masked(
    shares: Sequence[Sequence[int]], tuples: Tuples, locked: Locked, channel: Channel
) -> tuple[bytes, list[list[int]]]:
    """The seed of the rows, and b = x - a of the active clients, `shares` form."""
    ours = [
        (x - a) % MODULUS
        for share, slot in zip(shares, locked.active, strict=True)
        for x, a in zip(share, tuples.mask_share(slot), strict=True)
    ]
    received = channel.exchange("coin/reveal", locked.coin + ring.to_bytes(ours))
    coin, theirs = received[:32], received[32:]
    seed = joint_seed(channel.party, locked.context, locked.coin, coin, locked.commitment, locked.transcript)
    opened = [(x + y) % MODULUS for x, y in zip(ours, ring.from_bytes(theirs, len(ours)), strict=True)]
    d = tuples.batch.dim
    return seed, [opened[i * d : (i + 1) * d] for i in range(len(locked.active))]


def row_streams(seed: bytes, task: str, round: int, dim: int) -> tuple[list[int], list[int]]:
    """(row words, one per coordinate; sign words, one per 64 coordinates)."""
    return (
        streams.stream(seed, streams.ROW_BITS, task, round, None, dim),
        streams.stream(seed, streams.ROW_SIGNS, task, round, None, -(-dim // 64)),
    )


def project(share: Sequence[int], row_words: Sequence[int], sign_words: Sequence[int]) -> list[int]:
    """v_j = sum over i of u_ji s_i x_i, for the 64 rows."""
    signed = [-x if sign_words[i // 64] >> i % 64 & 1 else x for i, x in enumerate(share)]
    return [sum(x for x, u in zip(signed, row_words, strict=True) if u >> j & 1) % MODULUS for j in range(N_ROWS)]


def share_of(party: int, opened: Sequence[int], mask_share: Sequence[int]) -> list[int]:
    """[x]_A = b + a_A, [x]_B = a_B."""
    return [(b + a) % MODULUS for b, a in zip(opened, mask_share, strict=True)] if party == 0 else list(mask_share)


def words_to_check(
    party: int, opened: Sequence[int], mask_share: Sequence[int], r: int, bound: int, rows: tuple[list[int], list[int]]
) -> list[int]:
    """65 words: v_j + 2^29, and T - N. r: this server's share of <a, a>."""
    norm = r + 2 * ring.dot(opened, mask_share) + (ring.dot(opened, opened) if party == 0 else 0)
    values = project(share_of(party, opened, mask_share), *rows)
    if party == 0:
        return [(v + 2**WINDOW_BITS) % MODULUS for v in values] + [(bound - norm) % MODULUS]
    return [*values, -norm % MODULUS]


def hash_key(seed: bytes, task: str, round: int) -> int:
    """The point at which strings are hashed."""
    low, high = streams.stream(seed, streams.EQUALITY_HASH_KEY, task, round, None, 2)
    return (low | high << 64) & P


def polynomial_hash(words: Sequence[int], key: int) -> int:
    """sum of w_j key^(m + 1 - j) modulo p."""
    return sum(word * pow(key, len(words) - i, P) for i, word in enumerate(words)) % P


def all_equal(
    strings: Sequence[Sequence[int]], key: int, tuples: Sequence[tuple[int, int, int]], channel: Channel
) -> list[bool]:
    """For each client, whether both servers hold the same string."""
    sign = 1 if channel.party == 0 else -1
    e = _open_field(
        "equality/difference",
        [sign * polynomial_hash(string, key) - omega for string, (_, omega, _) in zip(strings, tuples, strict=True)],
        channel,
    )
    shares = [(rho * e_i + product) % P for e_i, (rho, _, product) in zip(e, tuples, strict=True)]
    committed = channel.exchange("equality/commit", equality_commitment(channel.party, key, shares))
    z = _open_field("equality/masked", shares, channel)
    theirs = [(z_i - share) % P for z_i, share in zip(z, shares, strict=True)]
    if len(committed) != 32:
        raise RefusedError("malformed")
    if equality_commitment(1 - channel.party, key, theirs) != committed:
        raise RefusedError("commitment")
    return [z_i == 0 for z_i in z]


def equality_commitment(party: int, key: int, shares: Sequence[int]) -> bytes:
    """To a server's shares of z."""
    elements = b"".join(share.to_bytes(16, "little") for share in shares)
    return digests.tagged(b"equality commitment", bytes([party]), key.to_bytes(16, "little"), elements)


def _open_field(label: str, shares: Sequence[int], channel: Channel) -> list[int]:
    received = channel.exchange(label, b"".join((share % P).to_bytes(16, "little") for share in shares))
    theirs = [int.from_bytes(received[i : i + 16], "little") for i in range(0, len(received), 16)]
    if len(received) != 16 * len(shares) or any(value >= P for value in theirs):
        raise RefusedError("malformed")
    return [(x + y) % P for x, y in zip(shares, theirs, strict=True)]


@dataclass(frozen=True)
class Verdicts:
    """Slots, and this server's share of the accepted sum."""

    accepted: tuple[int, ...]
    rejected: tuple[int, ...]
    share_sum: list[int]


def validate(
    locked: Locked,
    seed: bytes,
    opened: Sequence[Sequence[int]],
    tuples: Tuples,
    bound: int,
    gate: str,
    channel: Channel,
) -> Verdicts:
    """From the rows' seed to the bits. opened: b of each active client."""
    batch = tuples.batch
    total = [0] * batch.dim
    if not locked.active:
        return Verdicts((), (), total)
    rows = row_streams(seed, batch.task, batch.round, batch.dim)
    masks = [tuples.mask_share(slot) for slot in locked.active]
    words = [
        words_to_check(channel.party, b, a, tuples.squared_mask_share(slot), bound, rows)
        for slot, b, a in zip(locked.active, opened, masks, strict=True)
    ]
    strings = gates.shares_of_zero(words, low_bits(bound), gate, tuples.correlations(), channel)
    equality = [tuples.equality_tuple(slot) for slot in locked.active]
    verdicts = all_equal(strings, hash_key(seed, batch.task, batch.round), equality, channel)
    for b, a, is_valid in zip(opened, masks, verdicts, strict=True):
        if is_valid:
            total = [(t + x) % MODULUS for t, x in zip(total, share_of(channel.party, b, a), strict=True)]
    accepted = tuple(slot for slot, is_valid in zip(locked.active, verdicts, strict=True) if is_valid)
    return Verdicts(accepted, tuple(slot for slot in locked.active if slot not in accepted), total)


def compare_verdicts(verdicts: Verdicts, channel: Channel) -> None:
    """A bit per active slot, in their order; both servers' bits are alike."""
    active = sorted({*verdicts.accepted, *verdicts.rejected})
    bits = sum(1 << i for i, slot in enumerate(active) if slot in verdicts.accepted)
    ours = bits.to_bytes((len(active) + 7) // 8, "little")
    received = channel.exchange("verdicts", ours)
    if len(received) != len(ours) or int.from_bytes(received, "little") >> len(active):
        raise RefusedError("malformed")
    if received != ours:
        raise RefusedError("verdicts")


def updated(parameters: bytes, noisy_sum: Sequence[int], frac_bits: int, learning_rate: float, divisor: float) -> bytes:
    """The next model's bytes: float64 arithmetic, one rounding to float32."""
    theta = struct.unpack(f"<{len(noisy_sum)}f", parameters)
    steps = [math.ldexp(float(ring.centred(word)), -frac_bits) * (learning_rate / divisor) for word in noisy_sum]
    return struct.pack(f"<{len(noisy_sum)}f", *(x + step for x, step in zip(theta, steps, strict=True)))


def exponential(x: float) -> float:
    """The float64 nearest to e^x: the series on integers of 300 fractional bits, and one division."""
    one = 1 << 300
    numerator, denominator = x.as_integer_ratio()
    term, total = one, one
    for k in range(1, 200):
        term = term * numerator // (denominator * k)
        total += term
    return total / one  # of integers, and so the nearest float64


def updated_at_a_learnt_bound(parameters: bytes, noisy_sum: Sequence[int], task: Mapping[str, Any]) -> bytes:
    """Return the next model's bytes where the last number is lambda.

    The model's step is S / r times as large, and lambda moves.
    """
    n, grid = len(noisy_sum), 2.0 ** -task["frac_bits"]
    theta = struct.unpack(f"<{n}f", parameters)
    clip, expected = task["client_clip"], task["client_rate"] * len(task["clients"])
    unit = math.floor(clip * task["noise_multiplier"] / (2 * task["quantile_noise"]) / grid) * grid
    bound, room = clip * exponential(theta[-1]), math.sqrt((clip - unit) * (clip + unit))
    factor = (task["learning_rate"] / expected) * (bound / room)
    steps = [float(ring.centred(word)) * grid * factor for word in noisy_sum[:-1]]
    share = 0.5 + float(ring.centred(noisy_sum[-1])) * grid / unit / (2 * expected)
    end = 10 * math.log(2)
    log_ratio = min(max(theta[-1] - task.get("quantile_rate", 0.2) * (share - task["quantile"]), -end), end)
    return struct.pack(f"<{n}f", *(x + step for x, step in zip(theta[:-1], steps, strict=True)), log_ratio)


def divisor(client_rate: float, record_rate: float, records: Sequence[int]) -> float:
    """W."""
    return client_rate * record_rate * sum(records)
