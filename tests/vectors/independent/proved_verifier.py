"""Section 8 of `docs/reference/protocol-v2.md`: two points, one message of each server, one verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.vectors.independent.proved_field import QUERY, FieldStream
from tests.vectors.independent.proved_parameters import Sizes
from tests.vectors.independent.proved_proof import Parts, Rows, all_bits, project, squared_norm

Points = tuple[int, int]


def query_points(seed: bytes, task: str, round: int, sizes: Sizes) -> Points:
    """Return the round's two points."""
    return first_points(FieldStream(seed, QUERY, task, round), sizes)


def first_points(elements: Iterable[int], sizes: Sizes) -> Points:
    """Return the first two different elements that are no N-th and no n-th roots of unity."""
    kept: list[int] = []
    for element in elements:
        if is_admissible(element, sizes) and element not in kept:
            kept.append(element)
        if len(kept) == 2:
            return kept[0], kept[1]
    raise AssertionError("a field stream does not end")


def is_admissible(point: int, sizes: Sizes) -> bool:
    """Tell whether neither vanishing polynomial has a root here."""
    return all(pow(point, n, sizes.field.modulus) != 1 for n in (sizes.wire, sizes.bit_domain))


@dataclass(frozen=True)
class Values:
    """Hold one client's values at one point: of one server's message, or the sums of both."""

    wires: list[int]
    squares: int
    bits: int
    quotient: int


def message(
    party: int, share: Sequence[int], proof: Sequence[int], rows: Rows, points: Points, sizes: Sizes
) -> list[int]:
    """Return a server's verifier message for one client: 2 (c + 3) elements. party: 0 for A, which adds constants.

    share: of X, d elements. proof: the server's share of the proof.
    """
    parts, is_a = Parts.cut(proof, sizes), party == 0
    numbers = [value + (sizes.window if is_a else 0) for value in project(share, rows, sizes)]
    numbers.append((sizes.threshold if is_a else 0) - squared_norm(parts.squares, sizes))
    bits = all_bits(numbers, parts.bits, sizes)
    padded = [*share, *[0] * (sizes.n_wires * sizes.wire - len(share))]
    sent: list[int] = []
    for t in points:
        sent += _wires(padded, parts, t, sizes)
        sent.append(sizes.field.evaluate(parts.squares, t))
        sent.append(_bits(bits, parts, t, sizes))
        sent.append(sizes.field.evaluate(parts.quotient, t))
    return sent


def _wires(padded: Sequence[int], parts: Parts, t: int, sizes: Sizes) -> list[int]:
    """Return the share of f_m(t) for every wire m."""
    n, field = sizes.wire, sizes.field
    weights, vanishing = field.lagrange(n, t), _vanishing(t, n, sizes)
    interpolated = [field.dot(weights, padded[m * n : m * n + n]) for m in range(sizes.n_wires)]
    masks = zip(parts.masks, parts.slopes, strict=True)
    return [
        (g + vanishing * (s + slope * t)) % sizes.field.modulus
        for g, (s, slope) in zip(interpolated, masks, strict=True)
    ]


def _bits(bits: Sequence[int], parts: Parts, t: int, sizes: Sizes) -> int:
    """Return the share of u(t)."""
    n, (r, slope) = sizes.bit_domain, parts.bit_masks
    weights = sizes.field.lagrange(n, t)[: len(bits)]
    return (sizes.field.dot(weights, bits) + _vanishing(t, n, sizes) * (r + slope * t)) % sizes.field.modulus


def _vanishing(t: int, n: int, sizes: Sizes) -> int:
    """Return t^n - 1."""
    return pow(t, n, sizes.field.modulus) - 1


def opened(ours: Sequence[int], theirs: Sequence[int], sizes: Sizes) -> list[Values]:
    """Return the sums of both messages, at each of the two points."""
    sums = [(x + y) % sizes.field.modulus for x, y in zip(ours, theirs, strict=True)]
    length, c = sizes.n_wires + 3, sizes.n_wires
    return [Values(sums[at : at + c], *sums[at + c : at + length]) for at in (0, length)]


def is_valid(values: Sequence[Values], points: Points, sizes: Sizes) -> bool:
    """Return the verdict: at both points the squares add up to F, and u^2 - u is Z q."""
    return all(
        sizes.field.dot(v.wires, v.wires) == v.squares
        and (v.bits**2 - v.bits - _vanishing(t, sizes.bit_domain, sizes) * v.quotient) % sizes.field.modulus == 0
        for v, t in zip(values, points, strict=True)
    )
