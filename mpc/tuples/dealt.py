"""How the dealer makes a batch: two keys, expanded as the servers will, the products' corrections, digests of seeds.

The dealer sees no submission and no opening. It colludes with neither server; a dealer that colluded with one would
give it the other's half of every mask. Needs neither CrypTen nor torch.

Source: PRECAD, Sec. 4.3 (tuples a, r with <a, a> = r from a trusted third party); seed compression is ours.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from precad.mpc import ring
from precad.mpc.prg import SYSTEM_BYTES, Label, RandomBytes, Seed
from precad.mpc.ring import RingArray
from precad.mpc.sharing import mask_stream
from precad.mpc.tuples.held import (
    FIELD_PRIME,
    FIELD_WORDS,
    BatchShape,
    Dealt,
    correlation_streams,
    equality_share_a,
    field_words,
    layer_squares_a,
    mask_seed,
    mask_seed_digest,
    pair_shares_a,
    squared_mask_share_a,
    trim_bit,
    trim_share_a,
)


def deal(shape: BatchShape, random_bytes: RandomBytes = SYSTEM_BYTES) -> tuple[Dealt, Dealt]:
    """Deal a fresh batch of this shape: (for server A, for server B)."""
    key_a, key_b = Seed.random(random_bytes), Seed.random(random_bytes)
    squared_masks, digests_a, digests_b = [], bytearray(), bytearray()
    for label in map(shape.label, shape.clients):
        seeds = mask_seed(key_a, label), mask_seed(key_b, label)
        squared_masks.append(_squared_mask_correction(key_a, seeds, shape.dim, label))
        digests_a += mask_seed_digest(seeds[0])
        digests_b += mask_seed_digest(seeds[1])
    equality = [_equality_correction(key_a, shape, client, random_bytes) for client in shape.clients]
    return (
        Dealt(key_a, bytes(digests_b)),
        Dealt(
            key_b,
            bytes(digests_a),
            squared_masks=np.array(squared_masks, dtype=np.int64),
            equality=np.array(equality, dtype=np.int64).reshape(len(shape.clients), 3, FIELD_WORDS),
            products=_product_corrections(key_a, key_b, shape),
            trims=_trim_corrections(key_a, key_b, shape),
            pairs=_pair_corrections(key_a, key_b, shape),
            layer_squares=_layer_corrections(key_a, key_b, shape),
        ),
    )


def _squared_mask_correction(key_a: Seed, seeds: tuple[Seed, Seed], dim: int, label: Label) -> int:
    """r_B = <a, a> - r_A with a = a_A + a_B."""
    squared = sum(ring.dot(a, a) for _, a in _mask_tiles(seeds, dim, label))
    return ring.centred(squared - squared_mask_share_a(key_a, label))


def _mask_tiles(seeds: tuple[Seed, Seed], dim: int, label: Label) -> Iterator[tuple[slice, RingArray]]:
    """Yield the mask a = a_A + a_B of two streams, tile by tile; each is overwritten by the next."""
    stream_a, stream_b = (mask_stream(seed, label) for seed in seeds)
    a, a_b = np.empty((2, min(dim, ring.TILE)), dtype=np.int64)
    for tile in ring.tiles(dim):
        m = tile.stop - tile.start
        stream_a.fill(a[:m])
        stream_b.fill(a_b[:m])
        a += a_b
        yield tile, a[:m]


def _product_corrections(key_a: Seed, key_b: Seed, shape: BatchShape) -> RingArray:
    """Server B's shares of the products of every block, (n_products,)."""
    masks_a, share_a = correlation_streams(key_a, shape)
    masks_b, _ = correlation_streams(key_b, shape)
    corrections, mask, product = [np.zeros(0, dtype=np.int64)], 0, 0
    for block in shape.blocks:
        of_block = slice(mask, mask + block.n_masks)
        products = block.products(masks_a[of_block], masks_b[of_block])
        corrections.append(block.correction(products, share_a[product : product + block.n_products]))
        mask, product = of_block.stop, product + block.n_products
    return np.concatenate(corrections)


def _trim_corrections(key_a: Seed, key_b: Seed, shape: BatchShape) -> RingArray:
    """Server B's shares of u and u a for each client, (n_trim_words,), where the round trims."""
    corrections = np.empty(shape.n_trim_words, dtype=np.int64)
    for words, label in zip(corrections.reshape(-1, shape.dim + 1), map(shape.label, shape.clients), strict=False):
        u = trim_bit(key_a, label) ^ trim_bit(key_b, label)
        share, product = trim_share_a(key_a, label)
        words[0] = ring.centred(u - share)
        masks = [mask_stream(mask_seed(key, label), label) for key in (key_a, key_b)]
        scratch = np.empty(min(shape.dim, ring.TILE), dtype=np.int64)
        for tile in ring.tiles(shape.dim):
            part, more = words[1:][tile], scratch[: tile.stop - tile.start]
            part[:] = 0
            for mask in masks:
                mask.fill(more)
                part += u * more
            product.fill(more)
            part -= more
    return corrections


def _pair_corrections(key_a: Seed, key_b: Seed, shape: BatchShape) -> RingArray:
    """Server B's shares of <a_i, a_j> for each pair of slots, (n_pairs,), where the round has them."""
    if not shape.pairs:
        return np.zeros(0, dtype=np.int64)
    labels, n = [shape.label(client) for client in shape.clients], len(shape.clients)
    streams = [[mask_stream(mask_seed(key, label), label) for key in (key_a, key_b)] for label in labels]
    products = np.zeros((n, n), dtype=np.int64)
    masks, scratch = np.empty((n, min(shape.dim, ring.TILE)), dtype=np.int64), np.empty(ring.TILE, dtype=np.int64)
    for tile in ring.tiles(shape.dim):
        m = tile.stop - tile.start
        for mask, (of_a, of_b) in zip(masks, streams, strict=True):
            of_a.fill(mask[:m])
            of_b.fill(scratch[:m])
            mask[:m] += scratch[:m]
        products += masks[:, :m] @ masks[:, :m].T
    return products[np.triu_indices(n, 1)] - pair_shares_a(key_a, shape)


def _layer_corrections(key_a: Seed, key_b: Seed, shape: BatchShape) -> RingArray:
    """Server B's shares of <a_l, a_l> of each layer, client by client, (n_layer_squares,)."""
    n_layers, ends = len(shape.layer_sizes), np.cumsum(shape.layer_sizes, dtype=np.int64)
    corrections = np.zeros(shape.n_layer_squares, dtype=np.int64)
    for slot, label in enumerate(map(shape.label, shape.clients if n_layers else ())):
        squares = corrections[n_layers * slot : n_layers * (slot + 1)]
        seeds = mask_seed(key_a, label), mask_seed(key_b, label)
        for tile, a in _mask_tiles(seeds, shape.dim, label):
            ring.add_by_layer(squares, a * a, ends, tile)
        squares -= layer_squares_a(key_a, label, n_layers)
    return corrections


def _equality_correction(key_a: Seed, shape: BatchShape, client: str, random_bytes: RandomBytes) -> list[RingArray]:
    """B's shares of rho (uniform, not zero), omega (uniform) and rho * omega, modulo p, as words."""
    rho, omega = 1 + _uniform_below(FIELD_PRIME - 1, random_bytes), _uniform_below(FIELD_PRIME, random_bytes)
    share_a = equality_share_a(key_a, shape.label(client))
    corrections = (rho - share_a.rho_share, omega - share_a.omega_share, rho * omega - share_a.product_share)
    return [field_words(value % FIELD_PRIME) for value in corrections]


def _uniform_below(bound: int, random_bytes: RandomBytes) -> int:
    """Uniform in 0..bound-1 by rejection from 127 bits; bound is p or p - 1, so a retry is rare."""
    while True:
        value = int.from_bytes(random_bytes(FIELD_WORDS * ring.WORD_BYTES), "little") & FIELD_PRIME
        if value < bound:
            return value
