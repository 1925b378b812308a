"""The query of a round: two points that neither server chose, and all that is computed from them once.

The points come from a coin that is tossed when no proof can change any more. Both serve every client of the round. No
proof is ever queried at a third point, because three values of a wire give a linear function of X.

Source: docs/reference/protocol-v2.md, section 8.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from precad.mpc import joint_coin
from precad.mpc.errors import MalformedMessageError, ParameterError
from precad.mpc.joint_coin import COIN_BYTES
from precad.mpc.kernels import loading
from precad.mpc.prg import Label, Purpose, Seed
from precad.mpc.proved import field
from precad.mpc.proved.field import FieldArray, P
from precad.mpc.proved.sizes import N_POINTS, ProofSizes
from precad.mpc.proved.streams import open_field_stream

PROOFS_STEP = "validation/proofs"
_POINTS_AT_ONCE = 8


def query_seed(label: Label, coins: tuple[bytes, bytes], proof_digests: Sequence[bytes]) -> Seed:
    """Return the seed of the points. coins: of servers A and B. proof_digests: of the proved slots, in their order.

    Raises MalformedMessageError for a coin of another length.
    """
    for coin in coins:
        if len(coin) != COIN_BYTES:
            raise MalformedMessageError(f"{PROOFS_STEP}: expected a coin of {COIN_BYTES} bytes, found {len(coin)}")
    transcript = joint_coin.digest(b"proofs", *proof_digests)
    return joint_coin.seed_of(f"{label.task}/{label.round}/query", coins, transcript)


def query_elements(seed: Seed, label: Label) -> Iterator[int]:
    """Yield the elements of QUERY, in order."""
    stream = open_field_stream(seed, Purpose.QUERY, label)
    while True:
        yield from stream.take(_POINTS_AT_ONCE).tolist()


def admissible_points(elements: Iterator[int], sizes: ProofSizes) -> tuple[int, int]:
    """Return the first two different elements that are no root of unity of a wire's or the bits' domain."""
    kept: list[int] = []
    while len(kept) < N_POINTS:
        point = next(elements)
        if point not in kept and is_admissible(point, sizes):
            kept.append(point)
    return kept[0], kept[1]


def is_admissible(point: int, sizes: ProofSizes) -> bool:
    """Tell whether t^N and t^n differ from 1, so that no opened value stands there without a mask."""
    return 0 <= point < P and all(pow(point, n, P) != 1 for n in (sizes.wire_length, sizes.bit_domain))


@dataclass(frozen=True, slots=True)
class Query:
    """Two points, and the tables that serve every client of the round. Made by `prepare`."""

    points: tuple[int, int]
    sizes: ProofSizes
    """The sizes that both points are admissible for, and that the tables are made for."""
    wire_weights: FieldArray
    """A wire's value at t from its values on the N-th roots of unity: (2, N)."""
    bit_weights: FieldArray
    """The bits' polynomial at t from its values on the n-th roots of unity: (2, n)."""
    powers: FieldArray
    """t^i, (2, max(2N, n) + 3)."""
    at_points: FieldArray
    """t, t^N - 1 and t^n - 1: (3, 2)."""


def prepare(points: tuple[int, int], sizes: ProofSizes) -> Query:
    """Return the tables of two points. Raises ParameterError unless they are different and admissible."""
    n_wire, n_bit = sizes.wire_length, sizes.bit_domain
    of_wires, of_bits = ((_vanishing(points[0], n), _vanishing(points[1], n)) for n in (n_wire, n_bit))
    are_elements = all(0 <= point < P for point in points)
    if points[0] == points[1] or not are_elements or 0 in (*of_wires, *of_bits):
        raise ParameterError("points: expected two different elements outside both domains")
    return Query(
        points=points,
        sizes=sizes,
        wire_weights=_weights(points, of_wires, n_wire),
        bit_weights=_weights(points, of_bits, n_bit),
        powers=np.stack([field.powers(1, point, max(2 * n_wire, n_bit) + 3) for point in points]),
        at_points=np.array([points, of_wires, of_bits], dtype=np.uint64),
    )


def _vanishing(point: int, n: int) -> int:
    return (pow(point, n, P) - 1) % P


@functools.cache
def _roots(n: int) -> tuple[FieldArray, int]:
    """Return 2^64 w^j, w of order n, (n,), and 1 / n."""
    return field.powers(1 << 64, field.root_of_unity(n), n), pow(n, -1, P)


def _weights(points: tuple[int, int], vanishing: tuple[int, int], n: int) -> FieldArray:
    """Return (t^n - 1) / n * w^j / (t - w^j) of both points t for the n-th roots of unity w^j, (2, n)."""
    (roots, one_nth), out = _roots(n), np.empty((N_POINTS, n), dtype=np.uint64)
    for row, point, value in zip(out, points, vanishing, strict=True):
        loading.prime_field().lagrange(np.uint64(point), np.uint64(value * one_nth % P), roots, row)
    return out
