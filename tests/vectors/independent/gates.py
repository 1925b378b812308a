"""Section 11: shares of words that vanish exactly when the first ones' top bits do, by either gate."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

from tests.vectors.independent import correlations, ring
from tests.vectors.independent.correlations import Block, Dealt
from tests.vectors.independent.ring import MODULUS, RefusedError


class Channel(Protocol):
    """One server's end of the link."""

    party: int

    def exchange(self, label: str, payload: bytes) -> bytes:
        """Sends ours, returns the peer's."""


def groups_of(low_bits: Sequence[int]) -> dict[int, list[int]]:
    """The columns of every length, lengths in order of appearance."""
    return {n_bits: [j for j, n in enumerate(low_bits) if n == n_bits] for n_bits in dict.fromkeys(low_bits)}


def blocks(gate: str, n_clients: int, low_bits: Sequence[int]) -> tuple[Block, ...]:
    """Return the blocks that a round uses up."""
    groups = {n_bits: n_clients * len(columns) for n_bits, columns in groups_of(low_bits).items()}
    if gate == "native":
        of_gate = [Block("CARRY", n, *correlations.best_split(n_bits)) for n_bits, n in groups.items()]
    else:
        of_gate = [Block("AND", 13 * sum(-(-n // (64 // (n_bits + 1))) for n_bits, n in groups.items()))]
    return (*of_gate, *(Block("BIT", n) for n in groups.values()))


def shares_of_zero(
    words: Sequence[Sequence[int]], low_bits: Sequence[int], gate: str, dealt: Sequence[Dealt], channel: Channel
) -> list[list[int]]:
    """t_A at server A and -t_B at server B, word by word. words: one row per client."""
    groups = groups_of(low_bits)
    lows = [[row[j] % (1 << n_bits) for row in words for j in columns] for n_bits, columns in groups.items()]
    n_bits_of = list(groups)
    if gate == "native":
        carries = _native(lows, n_bits_of, dealt[: len(groups)], channel)
    else:
        carries = _crypten(lows, n_bits_of, dealt[0], channel)
    bits = dealt[-len(groups) :]
    additive = _to_additive([len(low) for low in lows], carries, bits, channel)
    result = [[0] * len(low_bits) for _ in words]
    for (n_bits, columns), carry in zip(groups.items(), additive, strict=True):
        for k, c in enumerate(carry):
            i, j = k // len(columns), columns[k % len(columns)]
            top = (words[i][j] >> n_bits) + c
            result[i][j] = (top if channel.party == 0 else -top) % (1 << (64 - n_bits))
    return result


def _to_additive(
    sizes: Sequence[int], carries: Sequence[int], bits: Sequence[Dealt], channel: Channel
) -> list[list[int]]:
    lanes = [-(-n // 8) for n in sizes]
    masks = [int.from_bytes(ring.to_bytes(d.masks)[:size], "little") for d, size in zip(bits, lanes, strict=True)]
    ours = [carry ^ mask for carry, mask in zip(carries, masks, strict=True)]
    opened = _open_planes("gate/carries", [([plane], size) for plane, size in zip(ours, lanes, strict=True)], channel)
    result = []
    for n, (plane,), d in zip(sizes, opened, bits, strict=True):
        o = [plane >> w & 1 for w in range(n)]
        at_a = 1 if channel.party == 0 else 0
        result.append([(o_w * at_a + (1 - 2 * o_w) * d.products[w]) % MODULUS for w, o_w in enumerate(o)])
    return result


def _open_planes(label: str, groups: Sequence[tuple[Sequence[int], int]], channel: Channel) -> list[list[int]]:
    """The XOR of both servers' planes. groups: (planes, bytes of one) of each."""
    theirs = _exchange_planes(label, groups, channel)
    return [[x ^ y for x, y in zip(ours, other, strict=True)] for (ours, _), other in zip(groups, theirs, strict=True)]


def _exchange_planes(label: str, groups: Sequence[tuple[Sequence[int], int]], channel: Channel) -> list[list[int]]:
    payload = b"".join(correlations.plane_bytes(values, lanes) for values, lanes in groups)
    received = channel.exchange(label, payload)
    if len(received) != len(payload):
        raise RefusedError("malformed")
    result = []
    for values, lanes in groups:
        result.append([int.from_bytes(received[i * lanes : (i + 1) * lanes], "little") for i in range(len(values))])
        received = received[len(values) * lanes :]
    return result


def _native(lows: list[list[int]], n_bits: list[int], dealt: Sequence[Dealt], channel: Channel) -> list[int]:
    runs = [_NativeRun(low, n, d, channel.party) for low, n, d in zip(lows, n_bits, dealt, strict=True)]
    theirs = _exchange_planes("gate/blocks", [(run.hidden_monomials(), run.lanes) for run in runs], channel)
    hidden = [run.hidden_joints(other) for run, other in zip(runs, theirs, strict=True)]
    opened = _open_planes("gate/join", [(h, run.lanes) for h, run in zip(hidden, runs, strict=True)], channel)
    return [run.carry(o) for run, o in zip(runs, opened, strict=True)]


class _NativeRun:
    """One group of words at one server. Planes are indexed as the document does."""

    def __init__(self, low: list[int], n_bits: int, dealt: Dealt, party: int) -> None:
        block = dealt.block
        self.k, self.s, self.party = block.block_bits, block.n_blocks, party
        self.lanes, self.ones = -(-len(low) // 8), (1 << 8 * -(-len(low) // 8)) - 1
        self.full = 2**self.k - 1
        masks = [plane & self.ones for plane in correlations.planes(dealt.masks, block.lanes)]
        shares = [plane & self.ones for plane in correlations.planes(dealt.products, block.lanes)]
        self.mask = {(S, b): masks[(S - 1) * self.s + b] for S in range(1, self.full + 1) for b in range(self.s)}
        first = self.full * self.s
        self.joint_mask = {
            (kind, j): masks[first + 2 * j + i] for j in range(self.s) for i, kind in enumerate(("g", "p"))
        }
        self.generate, self.propagate = correlations.pairs(self.k)
        n_pairs = len(self.generate) + len(self.propagate)
        self.pair_share = {(i, b): shares[i * self.s + b] for i in range(n_pairs) for b in range(self.s)}
        self.joint_share = dict(
            zip(
                correlations.joining_sets(self.s),
                shares[n_pairs * self.s : n_pairs * self.s + len(correlations.joining_sets(self.s))],
                strict=True,
            )
        )
        padded = [word << (self.k * self.s - n_bits) for word in low]
        bit = [correlations.plane_of_bits(word >> i & 1 for word in padded) for i in range(self.k * self.s)]
        self.own = {
            (S, b): functools.reduce(
                lambda x, y: x & y, [bit[self.k * b + i] for i in range(self.k) if S >> i & 1], self.ones
            )
            for S in range(1, self.full + 1)
            for b in range(self.s)
        }

    def hidden_monomials(self) -> list[int]:
        """Return what `gate/blocks` carries."""
        return [self.own[S, b] ^ self.mask[S, b] for S in range(1, self.full + 1) for b in range(self.s)]

    def hidden_joints(self, theirs: list[int]) -> list[int]:
        """Return what `gate/join` carries: masked shares of g and p of each block, from the peer's `gate/blocks`."""
        self.shares = []
        for b in range(self.s):
            products = []
            for i, (of_a, of_b) in enumerate(self.generate + self.propagate):
                if self.party == 0:
                    local = self.own[of_a, b] & theirs[(of_b - 1) * self.s + b]
                else:
                    local = theirs[(of_a - 1) * self.s + b] & self.mask[of_b, b]
                products.append(local ^ self.pair_share[i, b])
            g = functools.reduce(lambda x, y: x ^ y, products[: len(self.generate)], 0)
            p = functools.reduce(lambda x, y: x ^ y, products[len(self.generate) :], self.own[self.full, b])
            self.shares += [g ^ self.joint_mask["g", b], p ^ self.joint_mask["p", b]]
        return self.shares

    def carry(self, opened: list[int]) -> int:
        """Share of XOR over j of g_j prod_{i > j} p_i, g_j = G_j ^ u_j, p_i = P_i ^ v_i; G and P are opened."""
        total = 0
        for j in range(self.s):
            above = list(range(self.s - 1, j, -1))
            for number in range(2 ** len(above)):
                masked = tuple(i for bit, i in enumerate(above) if number >> bit & 1)
                factor = self.ones
                for i in above:
                    if i not in masked:
                        factor &= opened[2 * i + 1]
                term = (opened[2 * j] & self._propagates(masked)) ^ self._generate(j, masked)
                total ^= factor & term
        return total

    def _propagates(self, masked: tuple[int, ...]) -> int:
        """Share of the product of v_i over a set, highest first; of the empty one, 1 at server A."""
        if not masked:
            return self.ones if self.party == 0 else 0
        *others, lowest = masked
        return self.joint_share["p", lowest, tuple(others)] if others else self.joint_mask["p", lowest]

    def _generate(self, j: int, masked: tuple[int, ...]) -> int:
        """Share of u_j times that product."""
        return self.joint_share["g", j, masked] if masked else self.joint_mask["g", j]


def _crypten(lows: list[list[int]], n_bits: list[int], dealt: Dealt, channel: Channel) -> list[int]:
    """The carries of packed words: CrypTen's set-propagate-kill adder, seven rounds."""
    packed: list[int] = []
    for low, n in zip(lows, n_bits, strict=True):
        per_word = 64 // (n + 1)
        for start in range(0, len(low), per_word):
            packed.append(sum(word << i * (n + 1) for i, word in enumerate(low[start : start + per_word])))
    sums = _add(packed, dealt, channel)
    result = []
    for low, n in zip(lows, n_bits, strict=True):
        per_word = 64 // (n + 1)
        n_packed = -(-len(low) // per_word)
        fields = [word >> (i * (n + 1) + n) & 1 for word in sums[:n_packed] for i in range(per_word)]
        result.append(correlations.plane_of_bits(fields[: len(low)]))
        sums = sums[n_packed:]
    return result


def _add(own: list[int], dealt: Dealt, channel: Channel) -> list[int]:
    """XOR shares of x_A + x_B modulo 2^64, each server knowing one of them."""
    n = len(own)
    size = dealt.block.n_words
    taken, step = 0, 0

    def multiply(x: list[int], y: list[int]) -> list[int]:
        nonlocal taken, step
        run = slice(taken, taken + len(x))
        taken, step = run.stop, step + 1
        a, b, c = dealt.masks[:size][run], dealt.masks[size:][run], dealt.products[run]
        hidden = [u ^ v for u, v in zip(x + y, a + b, strict=True)]
        received = ring.from_bytes(channel.exchange(f"gate/{step}", ring.to_bytes(hidden)), len(hidden))
        opened = [u ^ v for u, v in zip(hidden, received, strict=True)]
        e, d = opened[: len(x)], opened[len(x) :]
        at_a = -1 if channel.party == 0 else 0
        return [
            (b_i & e_i) ^ (a_i & d_i) ^ (e_i & d_i & at_a) ^ c_i
            for a_i, b_i, c_i, e_i, d_i in zip(a, b, c, e, d, strict=True)
        ]

    zero = [0] * n
    x, y = (own, zero) if channel.party == 0 else (zero, own)
    generate = multiply(x, y)
    propagate = list(own)
    for i in range(6):
        start = sum(1 << bit for bit in range(2**i - 1, 64, 2 ** (i + 1)))  # the top bit of every lower half
        spread = (1 << 2**i) - 1 << 1
        end = start * spread % MODULUS  # every upper half
        from_below = [(word & start) * spread % MODULUS for word in generate + propagate]
        update = multiply([word & end for word in propagate] * 2, from_below)
        generate = [g ^ u for g, u in zip(generate, update[:n], strict=True)]
        propagate = [(p & ~end) ^ u for p, u in zip(propagate, update[n:], strict=True)]
    return [(p ^ g << 1) % MODULUS for p, g in zip(own, generate, strict=True)]
