"""Mode `proved` in fields so small that every case can be tried, and the constants of its theorems.

Failure means that an opening depends on X, or that a false proof or a long vector passes too often.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import pytest

from tests.vectors.independent import proved_verifier
from tests.vectors.independent.proved_field import Field
from tests.vectors.independent.proved_parameters import Sizes, sizes
from tests.vectors.independent.proved_proof import Masks, prove
from tests.vectors.independent.proved_verifier import Values, is_valid, message, opened
from tests.vectors.proved_harness import shared

TINY = Sizes(dim=4, threshold=3, window_bits=2, n_rows=1, least_wire=4, field=Field(97, 5))


@pytest.mark.parametrize("x", [[0, 0, 0, 0], [1, 0, 0, 0], [1, -1, 1, 0]])
@pytest.mark.parametrize("points", [(2, 3), (5, 95), (0, 7), (41, 12)])
def test_all_mask_pairs_open_to_different_values(x, points):
    """97^2 pairs (s, s') give 97^2 pairs (f(t_1), f(t_2)), whatever X is: an opening is uniform."""
    field = TINY.field
    weights = [field.lagrange(4, t) for t in points]
    plain = [field.dot(w, x) for w in weights]
    vanishing = [pow(t, 4, 97) - 1 for t in points]
    found = {
        tuple((plain[e] + vanishing[e] * (s + slope * points[e])) % 97 for e in (0, 1))
        for s, slope in itertools.product(range(97), repeat=2)
    }
    assert len(found) == 97**2


def test_whole_openings_have_one_law_for_all_updates():
    """In the field of 13 elements: all 13^4 masks, by the prover and the verifiers, for updates that differ.

    Every opening (f, F, u, q at two points) comes exactly once, so it says nothing of X.
    """
    case = Sizes(dim=3, threshold=1, window_bits=1, n_rows=1, least_wire=4, field=Field(13, 2))
    rows, points = ([1, 0, 1], [0]), (2, 3)
    assert case.bit_domain == 4
    assert all(proved_verifier.is_admissible(t, case) for t in points)
    laws = [openings(x, rows, points, case) for x in ([0, 0, 0], [1, 0, 0], [0, -1, 0])]
    assert laws[0] == laws[1] == laws[2]
    assert len(laws[0]) == 13**4


def openings(x, rows, points, case):
    """Return the set of openings over all masks: a proof is affine in them but for F and q, which the check gives."""
    p, zero = case.field.modulus, Masks(((0,), (0,)), (0, 0))
    base = opened_values(x, rows, zero, points, case)
    assert all(
        opened_values(x, rows, Masks(((s,), (s2,)), (r, r2)), points, case)
        == affine(base, (s, s2, r, r2), points, case)
        for s, s2, r, r2 in ((1, 2, 3, 4), (12, 0, 5, 1), (0, 7, 0, 11))
    )
    return {affine(base, masks, points, case) for masks in itertools.product(range(p), repeat=4)}


def opened_values(x, rows, masks, points, case):
    """Return f(t) and u(t) at both points, by the prover and both servers; the verdict must be valid."""
    randomness, p = random.Random(8), case.field.modulus
    proof = prove(x, rows, case, masks)
    shares, proofs = shared(x, randomness, p), shared(proof, randomness, p)
    values = opened(*(message(i, shares[i], proofs[i], rows, points, case) for i in (0, 1)), case)
    assert is_valid(values, points, case)
    return tuple(v for value in values for v in (value.wires[0], value.bits))


def affine(base, masks, points, case):
    """Return base + Z(t)(s + s' t) and base + Z(t)(r + r' t)."""
    p, (s, s2, r, r2) = case.field.modulus, masks
    found = []
    for e, t in enumerate(points):
        z, y = pow(t, case.wire, p) - 1, pow(t, case.bit_domain, p) - 1
        found += [(base[2 * e] + z * (s + s2 * t)) % p, (base[2 * e + 1] + y * (r + r2 * t)) % p]
    return tuple(found)


def test_a_false_polynomial_is_accepted_at_its_roots_alone():
    """F plus a polynomial with six prescribed roots: accepted at C(6, 2) of all pairs of admissible points."""
    case, field = TINY, TINY.field
    admissible = [t for t in range(97) if pow(t, 4, 97) != 1]
    roots = admissible[3:90:17]
    squares, forged = [field.evaluate([3, 1, 4, 1, 5, 9], t) for t in range(97)], [1]
    for root in roots:
        forged = field.multiply(forged, [-root % 97, 1])
    accepted = Counter()
    for pair in itertools.combinations(admissible, 2):
        values = [Values([squares[t]], (squares[t] ** 2 + field.evaluate(forged, t)) % 97, 0, 0) for t in pair]
        accepted[is_valid(values, pair, case)] += 1
    assert accepted[True] == math.comb(len(roots), 2)
    assert accepted.total() == math.comb(len(admissible), 2)


@pytest.mark.parametrize(("p", "dim", "b"), [(31, 3, 1), (31, 3, 2), (41, 3, 2), (41, 3, 3), (31, 4, 2), (61, 3, 2)])
def test_a_long_vector_passes_a_row_with_probability_one_half_at_most(p, dim, b):
    """Every centred vector with a norm of 6.7 b or more, up to order, over all choices of its coordinates."""
    assert 4 * b < p
    assert dim * (2 * b - 1) + b < p
    worst, subsets = 0, list(itertools.product((0, 1), repeat=dim))
    for x in itertools.combinations_with_replacement(range(-(p // 2), p // 2 + 1), dim):
        if 100 * sum(v * v for v in x) >= 4489 * b * b:
            sums = (sum(itertools.compress(x, subset)) for subset in subsets)
            worst = max(worst, sum((v + b) % p < 2 * b for v in sums))
    assert 0 < worst <= len(subsets) // 2


@pytest.mark.parametrize(("value", "dim"), [(3, 20), (2, 45), (1, 180)])
def test_many_small_coordinates_spread_a_row(value, dim):
    """The second case of the theorem, b = 2: no coordinate is out of the window, and the norm is at least 6.7 b.

    A row is a binomial law times the value, up to a shift, so its mass on a window is known exactly.
    """
    assert value**2 * dim * 100 >= 4489 * 4
    counts = {value * k: math.comb(dim, k) for k in range(dim + 1)}
    most = max(sum(counts.get(v, 0) for v in range(start, start + 4)) for start in range(value * dim + 1))
    assert 2 * most <= 2**dim


def test_the_bound_of_the_rows_theorem_is_below_one_half():
    """Its integral at length 3.35, by the midpoint rule. At 3.33 it is above one half."""
    h, n = math.pi / 2, 2000
    peak = (math.sin(h / 2) / (h / 2)) ** 2

    def bound(length):
        points = ((i + 0.5) * h / n for i in range(n))
        return 2 / (h * peak) * h / n * sum((1 - w / h) * math.exp(-((w * length) ** 2) / 2) for w in points)

    assert bound(3.35) == pytest.approx(0.4986, abs=1e-4)
    assert bound(3.33) > 0.5


def test_the_honest_failure_rate_is_that_of_the_document():
    """128 exp(-(b/B)^2) at the smallest ratio b/B that a task can have."""
    assert math.log2(128 * math.exp(-(5.71**2))) == pytest.approx(-40.04, abs=0.01)
    assert all(sizes(c, 0, 1).window >= Fraction(571, 100) * Fraction(c) for c in (1.0, 1.4, 1.402, 5876432.0))
