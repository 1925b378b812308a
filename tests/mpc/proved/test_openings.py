"""Openings: what a proof opens to at two points says nothing of X, and at a third point it would.

Distributions are compared at a false-alarm rate of 1e-6 in all, with fixed seeds: a test always or never passes.
"""

from itertools import product

import numpy as np
import pytest
from scipy.stats import chi2

from precad.mpc.prg import Seed
from precad.mpc.proved import field, prover, query, verifier
from precad.mpc.proved.field import P
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.sums import row_values, share_sums
from tests.mpc.fixed_randomness import FALSE_ALARM_RATE, random_bytes_of, seeds
from tests.mpc.proved.test_share_sums import packed
from tests.mpc.proved.two_servers import rows_of

CELLS = 16


def test_two_openings_of_a_wire_are_a_bijection_of_its_masks():
    """Exactly, in the field of 97 elements with N = 4: all 97^2 pairs (s, s') give different openings.

    So for every wire the openings at two points are uniform, whatever its coordinates are. At points of the domain, or
    at equal points, they are not.
    """
    p, n, root = 97, 4, 22  # 22 is a fourth root of unity modulo 97
    assert pow(root, 2, p) == p - 1
    s, s_x = np.meshgrid(np.arange(p), np.arange(p))

    def n_openings(x, points):
        opened = []
        for t in points:
            wire = 0
            for j, value in enumerate(x):
                others = [pow(root, k, p) for k in range(n) if k != j]
                top = bottom = 1
                for other in others:
                    top, bottom = top * (t - other), bottom * (pow(root, j, p) - other)
                wire += value * top * pow(bottom, -1, p)
            opened.append((wire + (pow(t, n, p) - 1) * (s + s_x * t)) % p)
        return np.unique(opened[0] * p + opened[1]).size

    for x, points in product([(0, 0, 0, 0), (1, 0, 0, 96), (5, 17, 44, 90)], [(2, 3), (3, 2), (50, 96 - 13), (5, 95)]):
        assert all(pow(t, n, p) != 1 for t in points)
        assert n_openings(x, points) == p**2
    assert n_openings((1, 2, 3, 4), (2, 2)) == p
    assert n_openings((1, 2, 3, 4), (2, 22)) == p


def openings(x, sizes, chosen, count, name):
    """Opened f, u at the first point and server B's words, over `count` uploads of x with fixed rows and points."""
    challenge = Seed(bytes(range(16)))
    words = field.from_integers(x)
    whole = share_sums([packed(words)], rows_of(challenge), chosen, sizes)
    found = []
    random_bytes = random_bytes_of(name)
    for _ in range(count):
        proof = prover.prove(x, rows_of(challenge), sizes, ProofMasks.draw(sizes, random_bytes))
        opened = verifier.opened_share(0, whole.rows[0], whole.wires[0], proof, chosen, sizes)
        found.append([*opened[:, 0], *opened[:, -2]])
    return np.array(found, dtype=np.uint64)


@pytest.mark.parametrize("count", [250, pytest.param(10_000, marks=pytest.mark.slow)])
def test_openings_are_uniform_for_two_very_different_updates(count):
    """f and u at both points, for X = 0 and X = B e_0: chi-square over 16 cells, and between the two."""
    sizes = ProofSizes(1.0, 5, 8)
    chosen = query.prepare((987_654_321, 2**50 + 3), sizes)
    zero, extreme = np.zeros(5, dtype=np.int64), np.array([256, 0, 0, 0, 0], dtype=np.int64)
    counts = []
    for name, x in (("zero", zero), ("extreme", extreme)):
        cells = openings(x, sizes, chosen, count, name) // np.uint64(-(-P // CELLS))
        counts.append(np.array([np.bincount(column.astype(int), minlength=CELLS) for column in cells.T]))
    limit = chi2.isf(FALSE_ALARM_RATE / 12, CELLS - 1)
    expected = count / CELLS
    for of_one in counts:
        assert (((of_one - expected) ** 2 / expected).sum(axis=1) < limit).all()
    assert (((counts[0] - counts[1]) ** 2 / (counts[0] + counts[1])).sum(axis=1) < limit).all()


def test_a_third_point_would_open_a_linear_function_of_the_update():
    """S3: divided by (t^N - 1) and the other points' differences, three values of a wire add up without its masks."""
    sizes = ProofSizes(1.0, 16, 16)
    points = (3, 5, 7)

    def combined(x, name):
        masks = ProofMasks.draw(sizes, random_bytes_of(name))
        total = 0
        for t in points:
            chosen = query.prepare((t, 11), sizes)
            wires = share_sums([packed(field.from_integers(x))], rows_of(Seed(bytes(16))), chosen, sizes).wires[0]
            mask = (int(masks.wires[0, 0]) + int(masks.wires[1, 0]) * t) * int(chosen.at_points[1, 0])
            bottom = int(chosen.at_points[1, 0])
            for other in points:
                bottom *= t - other if other != t else 1
            total += (int(wires[0, 0]) + mask) * pow(bottom, -1, P)
        return total % P

    x, y = np.arange(16, dtype=np.int64), np.arange(16, dtype=np.int64)[::-1].copy()
    assert combined(x, "one") == combined(x, "another") != combined(y, "one")


# Rows modulo p


def inside(numbers, sizes):
    """Tell which row values lie in [-b, b) modulo p."""
    window = np.full(numbers.size, sizes.window, dtype=np.uint64)
    return (field.add(numbers, window) >> np.uint64(sizes.row_bits)) == 0


def test_a_row_passes_one_half_modulo_p_half_of_the_time():
    """(p + 1) / 2 on one coordinate, on 300 challenges of 64 rows: the rate is 1/2 within 1e-6 (binomial, 5 sigma)."""
    sizes, x = ProofSizes(1.0, 3, 16), np.array([0, -(P // 2), 0], dtype=np.int64)
    passed = np.concatenate([inside(row_values(x, rows_of(seed)), sizes) for seed in seeds("one half", 300)])
    assert abs(passed.mean() - 0.5) < 5 * 0.5 / passed.size**0.5


def test_eight_rows_accept_it_with_probability_2_to_the_minus_8():
    """8 disjoint sets of 8 rows under 1500 challenges: 2^-8 within 5 sigma. Correlated rows would show."""
    sizes, x = ProofSizes(1.0, 1, 16), np.array([P // 2], dtype=np.int64)
    passed = np.stack([inside(row_values(x, rows_of(seed)), sizes) for seed in seeds("eight rows", 1500)])
    accepted = passed.reshape(-1, 8).all(axis=1)
    assert abs(accepted.mean() - 2.0**-8) < 5 * (2.0**-8 / accepted.size) ** 0.5
