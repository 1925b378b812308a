"""Section 8: what the dealer sends, and what a server makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tests.vectors.independent import correlations, digests, ring, streams
from tests.vectors.independent.correlations import Block
from tests.vectors.independent.ring import MODULUS, RefusedError

P = 2**127 - 1
Corrections: TypeAlias = tuple[bytes, bytes, bytes, bytes]
"""(squared_masks, equality, products, peer_seed_digests); the first three are empty at A."""


@dataclass(frozen=True)
class Batch:
    """Hold what both servers ask for."""

    task: str
    round: int
    n_clients: int
    dim: int
    blocks: tuple[Block, ...]


def field_bytes(value: int) -> bytes:
    """An element of F_p on the wire."""
    return (value % P).to_bytes(16, "little")


def deal(
    batch: Batch, keys: tuple[bytes, bytes], rho: Sequence[int], omega: Sequence[int]
) -> tuple[Corrections, Corrections]:
    """To A and to B, from both keys and a (rho, omega) per client."""
    squared_masks, equality = [], b""
    for slot in range(batch.n_clients):
        halves = [mask_share(mask_seed(key, batch, slot), batch, slot) for key in keys]
        a = [(x + y) % MODULUS for x, y in zip(*halves, strict=True)]
        squared_masks.append(ring.dot(a, a) - squared_mask_share_a(keys[0], batch, slot))
        shares_a = equality_shares_a(keys[0], batch, slot)
        tuple_ = (rho[slot], omega[slot], rho[slot] * omega[slot])
        equality += b"".join(field_bytes(value - share) for value, share in zip(tuple_, shares_a, strict=True))
    masks_a, shares_a_words = correlation_streams(keys[0], batch)
    masks_b, _ = correlation_streams(keys[1], batch)
    corrections: list[int] = []
    of_a = correlations.cut(batch.blocks, masks_a, shares_a_words)
    of_b = correlations.cut(batch.blocks, masks_b, shares_a_words)
    for a_side, b_side in zip(of_a, of_b, strict=True):
        in_clear = correlations.products(a_side.block, a_side.masks, b_side.masks)
        corrections += correlations.correction(a_side.block, in_clear, a_side.products)
    to_b = (ring.to_bytes(squared_masks), equality, ring.to_bytes(corrections), seed_digests(keys[0], batch))
    return (b"", b"", b"", seed_digests(keys[1], batch)), to_b


def seed_digests(key: bytes, batch: Batch) -> bytes:
    """Return what the other server is told of the mask seeds under this key."""
    return b"".join(digests.sha256(mask_seed(key, batch, slot)) for slot in range(batch.n_clients))


def mask_seed(key: bytes, batch: Batch, slot: int) -> bytes:
    """Return the seed of one server's half of one client's mask."""
    return streams.derive(key, streams.info(streams.MASK_SEED, batch.task, batch.round, slot))


def mask_share(seed: bytes, batch: Batch, slot: int) -> list[int]:
    """a_P."""
    return streams.stream(seed, streams.MASK, batch.task, batch.round, slot, batch.dim)


def squared_mask_share_a(key: bytes, batch: Batch, slot: int) -> int:
    """r_A."""
    return streams.stream(key, streams.SQUARED_MASK_SHARE, batch.task, batch.round, slot, 1)[0]


def equality_shares_a(key: bytes, batch: Batch, slot: int) -> tuple[int, int, int]:
    """The first three of eight 127-bit values that are not p."""
    words = streams.stream(key, streams.EQUALITY_TUPLE, batch.task, batch.round, slot, 16)
    values = [(words[i] | words[i + 1] << 64) & P for i in range(0, 16, 2)]
    first, second, third = [value for value in values if value != P][:3]
    return first, second, third


def correlation_streams(key: bytes, batch: Batch) -> tuple[list[int], list[int]]:
    """(masks, products) of all blocks."""
    n_masks, n_products = (
        sum(block.n_masks for block in batch.blocks),
        sum(block.n_products for block in batch.blocks),
    )
    return (
        streams.stream(key, streams.CORRELATION_MASKS, batch.task, batch.round, None, n_masks),
        streams.stream(key, streams.CORRELATION_PRODUCTS, batch.task, batch.round, None, n_products),
    )


class Tuples:
    """One server's side of a batch."""

    def __init__(self, party: int, batch: Batch, key: bytes, corrections: Corrections) -> None:
        n_products = sum(block.n_products for block in batch.blocks)
        expected = (0, 0, 0) if party == 0 else (8 * batch.n_clients, 48 * batch.n_clients, 8 * n_products)
        if tuple(map(len, corrections)) != (*expected, 32 * batch.n_clients):
            raise RefusedError("malformed")
        self.party, self.batch, self._key = party, batch, key
        self._squared_masks, self._equality = ring.from_bytes(corrections[0]), corrections[1]
        self._products = ring.from_bytes(corrections[2])
        self._peer_seed_digests = corrections[3]
        self._handed_out: set[int] = set()

    def hand_out_mask_seed(self, slot: int) -> bytes:
        """To the client, once."""
        if slot in self._handed_out:
            raise RefusedError("reused")
        self._handed_out.add(slot)
        return mask_seed(self._key, self.batch, slot)

    def peer_mask_seed_digest(self, slot: int) -> bytes:
        """Return the digest of the other server's seed for this client, for the client."""
        return self._peer_seed_digests[32 * slot : 32 * slot + 32]

    def mask_share(self, slot: int) -> list[int]:
        """a_P."""
        return mask_share(mask_seed(self._key, self.batch, slot), self.batch, slot)

    def squared_mask_share(self, slot: int) -> int:
        """r_P."""
        return squared_mask_share_a(self._key, self.batch, slot) if self.party == 0 else self._squared_masks[slot]

    def equality_tuple(self, slot: int) -> tuple[int, int, int]:
        """Shares of (rho, omega, rho omega)."""
        if self.party == 0:
            return equality_shares_a(self._key, self.batch, slot)
        parts = [self._equality[48 * slot + i : 48 * slot + i + 16] for i in (0, 16, 32)]
        rho, omega, product = (int.from_bytes(part, "little") for part in parts)
        return rho, omega, product

    def correlations(self) -> list[correlations.Dealt]:
        """Block by block."""
        masks, products = correlation_streams(self._key, self.batch)
        return correlations.cut(self.batch.blocks, masks, products if self.party == 0 else self._products)
