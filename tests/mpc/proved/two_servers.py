"""One upload and its proof between two servers without a wire, honest or tampered with, and numbers to attack with."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from precad.mpc.local.rows import RowStreams
from precad.mpc.prg import Label, Seed
from precad.mpc.proved import field, prover, query, verifier
from precad.mpc.proved.field import P
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.query import Query
from precad.mpc.proved.shares import HeldBytes, PackedShare, payload_pieces, seeded_share
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.sums import share_sums
from tests.mpc.fixed_randomness import random_bytes_of

ROUND = Label("task", 3)


def rows_of(challenge: Seed) -> RowStreams:
    """Return the round's rows, unread."""
    return RowStreams(challenge, ROUND)


@dataclass(frozen=True)
class Upload:
    """Everything of one upload: what the client made, and what both servers have."""

    sizes: ProofSizes
    x: np.ndarray
    challenge: Seed
    share_seed: Seed
    slot: Label
    proof: np.ndarray
    query: Query

    def opened(self, holder: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return the parts of A and B, the shares of X being what the client sent and what the other expands."""
        payload = b"".join(payload_pieces(self.x, self.share_seed, self.slot))
        shares = [PackedShare(HeldBytes(payload), self.sizes.dim), seeded_share(self.share_seed, self.slot)]
        mask = field.random_elements(self.proof.size, random_bytes_of("proof share"))
        proofs = [field.subtract(self.proof, mask), mask]
        parts = []
        for party in (0, 1):
            which = party ^ holder
            sums = share_sums([shares[which]], rows_of(self.challenge), self.query, self.sizes)
            part = verifier.opened_share(party, sums.rows[0], sums.wires[0], proofs[which], self.query, self.sizes)
            parts.append(part)
        return parts[0], parts[1]

    def is_valid(self, holder: int = 0) -> bool:
        """Return the verdict."""
        return verifier.is_valid(*self.opened(holder), self.query)

    def tampered(self, index: int, difference: int = 1) -> Upload:
        """Return it with another word in the proof."""
        proof = self.proof.copy()
        proof[index] = (int(proof[index]) + difference) % P
        return replace(self, proof=proof)


def upload(x: np.ndarray, sizes: ProofSizes, name: str = "upload", *, forced: bool = False) -> Upload:
    """Return an upload with its proof. forced: of a client that keeps only the low bits of numbers that do not fit."""
    random_bytes = random_bytes_of(name)
    challenge, share_seed, points = (Seed.random(random_bytes) for _ in range(3))
    masks = ProofMasks.draw(sizes, random_bytes)
    if forced:
        found = prover.witness(x, rows_of(challenge), sizes, masks)
        proof = prover.assemble(low_bits(found.numbers, sizes), found.squares, sizes, masks)
    else:
        proof = prover.prove(x, rows_of(challenge), sizes, masks)
    tables = query.prepare(query.admissible_points(query.query_elements(points, ROUND), sizes), sizes)
    return Upload(sizes, x, challenge, share_seed, Label(ROUND.task, ROUND.round, "0"), proof, tables)


def low_bits(numbers: np.ndarray, sizes: ProofSizes) -> np.ndarray:
    """Return as many bits of each number as it may have, whatever is above them."""
    keep = np.full(65, (1 << sizes.row_bits) - 1, dtype=np.uint64)
    keep[-1] = (1 << sizes.norm_bits) - 1
    return prover.bits_of(numbers & keep, sizes)


def with_norm(sizes: ProofSizes, squared_norm: int, name: str = "vector") -> np.ndarray:
    """Return a random vector with exactly this sum of squares; of d < 4, as far as d squares reach it."""
    rng = np.random.default_rng(int.from_bytes(random_bytes_of(name)(8), "little"))
    x = np.zeros(sizes.dim, dtype=np.int64)
    if sizes.dim < 4:
        x[0] = math.isqrt(squared_norm)
        return x
    size = math.isqrt(squared_norm // sizes.dim) // 2
    x[4:] = rng.integers(-size, size + 1, sizes.dim - 4)
    x[:4] = four_squares(squared_norm - int((x**2).sum()))
    return rng.permutation(x)


def four_squares(n: int) -> tuple[int, int, int, int]:
    """Return four numbers whose squares add up to n, by search from the largest down.

    A multiple of 4 may have hardly any but twice those of its quarter.
    """
    if n and n % 4 == 0:
        a, b, c, d = four_squares(n // 4)
        return 2 * a, 2 * b, 2 * c, 2 * d
    for a in range(math.isqrt(n), -1, -1):
        for b in range(math.isqrt(n - a * a), max(-1, math.isqrt(n - a * a) - 30), -1):
            rest = n - a * a - b * b
            for c in range(math.isqrt(rest), max(-1, math.isqrt(rest) - 200), -1):
                d = math.isqrt(rest - c * c)
                if a * a + b * b + c * c + d * d == n:
                    return a, b, c, d
    raise AssertionError(n)


def square_root(a: int) -> int | None:
    """Return a number whose square is a modulo p, if there is one (Tonelli and Shanks)."""
    if pow(a, (P - 1) // 2, P) != 1:
        return None
    order, odd = 0, P - 1
    while odd % 2 == 0:
        order, odd = order + 1, odd // 2
    c, t, root = pow(field.GENERATOR, odd, P), pow(a, odd, P), pow(a, (odd + 1) // 2, P)
    while t != 1:
        i, power = 0, t
        while power != 1:
            i, power = i + 1, power * power % P
        b = pow(c, 1 << (order - i - 1), P)
        order, c = i, b * b % P
        t, root = t * c % P, root * b % P
    return root


def centred(value: int) -> int:
    """Return the integer in (-p/2, p/2) that is the value modulo p."""
    return (value + P // 2) % P - P // 2
