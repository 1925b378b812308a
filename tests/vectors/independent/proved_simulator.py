"""The simulator of section 13 of `docs/reference/protocol-v2.md`: a verifier message from nothing of any update.

Let Q be the server that deviates, and P the honest one. Q knows its own share of X and of the proof, so it knows its
own proper message. The sums of both messages are simulated; P's message is what is left.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from tests.vectors.independent.proved_parameters import Sizes
from tests.vectors.independent.proved_proof import Masks, Rows, all_bits, project, squared_norm, sum_of_squares
from tests.vectors.independent.proved_verifier import Points, Values


def simulated_sums(points: Points, sizes: Sizes) -> list[Values]:
    """Draw the sums of both messages for one valid client, at both points, from public sizes alone.

    Every f_m(t) and u(t) is uniform. F(t) and q(t) are then the only values with which both checks hold.
    """
    p = sizes.field.modulus
    found = []
    for t in points:
        wires = [secrets.randbelow(p) for _ in range(sizes.n_wires)]
        u = secrets.randbelow(p)
        quotient = (u * u - u) * sizes.field.inverse(pow(t, sizes.bit_domain, p) - 1) % p
        found.append(Values(wires, sizes.field.dot(wires, wires), u, quotient))
    return found


def simulated_message(points: Points, proper: Sequence[int], sizes: Sizes) -> list[int]:
    """Return P's message. proper: what Q's would be if Q followed the protocol."""
    sums = [x for v in simulated_sums(points, sizes) for x in (*v.wires, v.squares, v.bits, v.quotient)]
    return [(x - y) % sizes.field.modulus for x, y in zip(sums, proper, strict=True)]


def masks_that_open_to(x: Sequence[int], rows: Rows, wanted: Sequence[Values], points: Points, sizes: Sizes) -> Masks:
    """Return the one choice of masks with which a proof of X opens to wanted f_m(t) and u(t) at both points.

    It exists for every update that has a proof, because (s, s') -> (f(t_1), f(t_2)) is a bijection.
    """
    none = Masks(((0,) * sizes.n_wires, (0,) * sizes.n_wires), (0, 0))
    plain = _plain_values(x, rows, none, points, sizes)
    wires = [
        _line([(w.wires[m] - v.wires[m]) for w, v in zip(wanted, plain, strict=True)], sizes.wire, points, sizes)
        for m in range(sizes.n_wires)
    ]
    bits = _line([w.bits - v.bits for w, v in zip(wanted, plain, strict=True)], sizes.bit_domain, points, sizes)
    first, second = zip(*wires, strict=True)
    return Masks((first, second), bits)


def _plain_values(x: Sequence[int], rows: Rows, none: Masks, points: Points, sizes: Sizes) -> list[Values]:
    """Return f_m(t) and u(t) without masks, from Lagrange weights."""
    field, n = sizes.field, sizes.wire
    numbers = [v + sizes.window for v in project(x, rows, sizes)]
    numbers.append(sizes.threshold - squared_norm(sum_of_squares(x, none, sizes), sizes))
    shifts = [(number % field.modulus, count) for number, count in zip(numbers, sizes.bit_counts, strict=True)]
    sent = [number >> i & 1 for number, count in shifts for i in range(1, count)]
    bits = all_bits(numbers, sent, sizes)
    padded = [*x, *[0] * (sizes.n_wires * n - len(x))]
    found = []
    for t in points:
        weights = field.lagrange(n, t)
        wires = [field.dot(weights, padded[m * n : m * n + n]) for m in range(sizes.n_wires)]
        u = field.dot(field.lagrange(sizes.bit_domain, t)[: len(bits)], bits)
        found.append(Values(wires, 0, u, 0))
    return found


def _line(differences: Sequence[int], n: int, points: Points, sizes: Sizes) -> tuple[int, int]:
    """Return (s, s') with (t^n - 1)(s + s' t) equal to the difference at both points."""
    field, p = sizes.field, sizes.field.modulus
    y = [d * field.inverse(pow(t, n, p) - 1) for d, t in zip(differences, points, strict=True)]
    slope = (y[1] - y[0]) * field.inverse(points[1] - points[0]) % p
    return (y[0] - slope * points[0]) % p, slope
