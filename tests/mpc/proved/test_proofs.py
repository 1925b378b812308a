"""Verdicts: an honest proof is valid at the exact bound, and nothing longer, wrapping or tampered with is.

A verdict is wrong with probability 2^-64, so no test here fails by chance. Failure means: a client within its bound is
rejected, or one outside it is not.
"""

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest

from precad.mpc.errors import OutsideWindowError, ParameterError
from precad.mpc.proved import field, prover, query, verifier
from precad.mpc.proved.field import P
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.sizes import ProofSizes
from tests.harness.examples import IS_THOROUGH
from tests.mpc.fixed_randomness import random_bytes_of
from tests.mpc.proved.two_servers import centred, four_squares, rows_of, square_root, upload, with_norm

SMALL = ProofSizes(1.0, 300, 16)


def shapes(sizes):
    """Vectors of sum of squares T, or just below it where they have no other."""
    ones = np.ones(sizes.dim, dtype=np.int64)
    size = int((sizes.threshold // sizes.dim) ** 0.5)
    yield with_norm(sizes, sizes.threshold)
    yield np.eye(1, sizes.dim, sizes.dim - 1, dtype=np.int64)[0] * -int(sizes.threshold**0.5)
    yield size * ones
    yield size * (ones - 2 * (np.arange(sizes.dim) % 2))
    yield 0 * ones


@pytest.mark.parametrize("dim", [1, 5, 16, 256, 257, 300])
def test_the_exact_bound_is_valid(dim):
    """N = T: random, one coordinate, constant and alternating signs; zero; either server holding."""
    sizes = ProofSizes(1.0, dim, 16)
    for i, x in enumerate(shapes(sizes)):
        assert upload(x, sizes, f"{dim}/{i}").is_valid(holder=i % 2)


@pytest.mark.parametrize(("clip_norm", "frac_bits"), [(1.0, 0), (0.1, 20), (89.6, 16), (1434.0, 12)])
def test_other_bounds(clip_norm, frac_bits):
    """N = T and N = T + 1, where B is one, no integer, and the largest there is."""
    sizes = ProofSizes(clip_norm, 40, frac_bits)
    assert upload(with_norm(sizes, sizes.threshold), sizes).is_valid()
    assert not upload(with_norm(sizes, sizes.threshold + 1), sizes, forced=True).is_valid()


def test_26_010_coordinates():
    """N = T in two tiles, and one more."""
    sizes = ProofSizes(1.0, 26_010, 16)
    assert upload(with_norm(sizes, sizes.threshold), sizes).is_valid()
    assert not upload(with_norm(sizes, sizes.threshold + 1), sizes, forced=True).is_valid()


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize(
    ("dim", "count"),
    [(1, 500), (5, 2000), (300, 10**5), (26_010, 1000), (10**6, 100)]
    if IS_THOROUGH
    else [(1, 500), (5, 500), (300, 2000), (26_010, 100), (10**6, 5)],
)
def test_no_honest_upload_is_rejected(dim, count):
    """Each at the exact bound: a hundred thousand, a thousand and a hundred of them in a thorough run."""
    sizes = ProofSizes(1.0, dim, 16)
    for i in range(count):
        assert upload(with_norm(sizes, sizes.threshold, f"honest {i}"), sizes, f"honest {i}").is_valid(holder=i % 2), i


@pytest.mark.parametrize("dim", [1, 5, 300])
def test_one_above_the_bound_is_not_valid(dim):
    """N = T + 1: the honest prover refuses it, and no client that keeps the low bits passes."""
    sizes = ProofSizes(1.0, dim, 16)
    x = with_norm(sizes, sizes.threshold + 1) if dim > 1 else np.array([int(sizes.threshold**0.5) + 1])
    with pytest.raises(ParameterError, match="norm of at most clip_norm"):
        upload(x, sizes)
    for i in range(10):
        assert not upload(x, sizes, str(i), forced=True).is_valid()


# Vectors that are longer or wrap


def one_of(value, dim=SMALL.dim, at=7):
    """Return one coordinate."""
    x = np.zeros(dim, dtype=np.int64)
    x[at] = centred(value)
    return x


def on_four(values):
    x = np.zeros(SMALL.dim, dtype=np.int64)
    x[[0, 17, 150, 299]] = [centred(value) for value in values]
    return x


def repaired(name):
    """Random elements, four of which are changed so that the sum of squares is T modulo p."""
    x = field.random_elements(SMALL.dim, random_bytes_of(name))
    x[:4] = 0
    x[:4] = four_squares((SMALL.threshold - sum(int(v) ** 2 for v in x.tolist())) % P)
    return field.to_integers(x)


def longer():
    """(name, vector) of everything that no proof may pass."""
    bound = int(SMALL.encoded_clip)
    yield from ((f"2^{j} on one", one_of(2**j)) for j in range(17, 56))
    yield from ((f"2^{j} on four", on_four([2**j] * 4)) for j in range(16, 56))
    yield from ((f"(p - 1) / 2 + {m}", one_of((P - 1) // 2 + m)) for m in range(4))
    yield from ((f"(p + 1) / 2 on two, {m}", on_four([(P + 1) // 2, (P + 1) // 2 + m, 0, 0])) for m in (0, 1))
    yield from ((f"1 / {m}", one_of(pow(m, -1, P))) for m in (3, 4, 5, 257))
    roots = [(a, square_root(a)) for a in (2, 3, 5, 6, 7, 8, 10, 11, 13)]
    yield from ((f"square root of {a}", one_of(root)) for a, root in roots if root is not None)
    yield from ((f"repaired {i}", repaired(f"repaired {i}")) for i in range(6))
    honest = with_norm(SMALL, SMALL.threshold // 2)
    yield from ((f"honest + 2^{j}", honest + one_of(2**j)) for j in range(17, 55, 3))
    everywhere = (P - 1) // 2, 2**31, 2**40 // 2**16 * bound, 2**27
    yield from ((f"{value} everywhere", np.full(SMALL.dim, value, dtype=np.int64)) for value in everywhere)
    yield from ((f"{k} times the bound", one_of(k * bound)) for k in (2, 3, 10, 100))
    yield "1.0001 times the bound", one_of(bound + 7)
    yield "the bound and one", one_of(bound + 1)


CASES = list(longer())


@pytest.mark.parametrize("x", [x for _, x in CASES], ids=[name for name, _ in CASES])
def test_what_is_longer_or_wraps_is_not_valid(x):
    """Each under a challenge of its own, by a client that makes everything that fits fit."""
    assert not upload(x, SMALL, str(x[:8].tolist()), forced=True).is_valid()


def test_a_vector_made_for_a_challenge_passes_under_that_challenge_alone():
    """The rows of a round in another round are fatal: (p + 1) / 2 on coordinates that every row takes evenly.

    Under its own challenge each row is 0 modulo p and N is small, so it is valid. Under others it is not.
    """
    seed = upload(np.zeros(SMALL.dim, dtype=np.int64), SMALL).challenge
    words, _ = (part.view(np.uint64) for part in rows_of(seed).read(SMALL.dim))
    bits = [[int(word) >> j & 1 for word in words[:140].tolist()] for j in range(64)]
    chosen = kernel_of(bits)
    x = np.zeros(SMALL.dim, dtype=np.int64)
    x[chosen] = -(P // 2)  # one half modulo p
    found = prover.witness(x, rows_of(seed), SMALL, ProofMasks.draw(SMALL, random_bytes_of("kernel")))
    assert len(chosen) % 4 == 0
    assert not np.any(found.numbers[:-1] >> np.uint64(SMALL.row_bits))
    assert int(found.numbers[-1]) >> SMALL.norm_bits == 0
    assert upload(x, SMALL, "upload").is_valid()
    assert not upload(x, SMALL, "another round", forced=True).is_valid()


def kernel_of(rows):
    """Return indices, a multiple of four of them, whose columns add up to zero modulo 2 (Gaussian elimination)."""
    n = len(rows[0])
    matrix = [sum(bit << i for i, bit in enumerate(row)) for row in rows] + [(1 << n) - 1]
    pivots = {}
    for row in matrix:
        for column, pivot in pivots.items():
            if row >> column & 1:
                row ^= pivot  # noqa: PLW2901 - the row is being reduced
        if row:
            column = row.bit_length() - 1
            pivots = {c: p ^ row if p >> column & 1 else p for c, p in pivots.items()} | {column: row}
    for free in (i for i in range(n) if i not in pivots):
        kernel = sorted([free, *(c for c, p in pivots.items() if p >> free & 1)])
        if len(kernel) % 4 == 0:
            return kernel
    raise AssertionError("no kernel vector of that weight")


# Proofs that are not what the client should send


def tampered_words(sizes):
    """(part, index): the first, the last and one more word of each part of a proof."""
    names = ("bits", "s", "s'", "F", "r", "q")
    starts = list(accumulate(sizes.parts, initial=0))
    for name, start, length in zip(names, starts, sizes.parts, strict=False):
        yield from ((name, start + at) for at in sorted({0, length // 3, length - 1}))


@pytest.mark.parametrize(("part", "index"), list(tampered_words(SMALL)))
def test_a_tampered_word_of_a_proof_is_not_valid(part, index):
    """By one, by minus one and by a random element."""
    honest = upload(with_norm(SMALL, SMALL.threshold), SMALL)
    for difference in (1, -1, 2**40 + 12345):
        assert not honest.tampered(index, difference).is_valid(), part


def test_bits_that_add_up_but_are_none():
    """Twice a bit in the place of the next one: the numbers are as before, and u^2 - u is not."""
    honest = upload(with_norm(SMALL, SMALL.threshold), SMALL)
    for first in (0, 5, SMALL.row_bits - 1, 64 * (SMALL.row_bits - 1)):
        low, high = honest.proof[first : first + 2].tolist()
        changed = honest.tampered(first, 2 if high else -2).tampered(first + 1, -1 if high else 1)
        assert (int(changed.proof[first]) + 2 * int(changed.proof[first + 1]) - low - 2 * high) % P == 0
        assert not changed.is_valid()


def test_a_norm_that_is_fitted_with_its_bits():
    """F with another constant, so that N is T as the servers compute it; its bits are those of zero."""
    x = with_norm(SMALL, SMALL.threshold + 1000)
    masks = ProofMasks.draw(SMALL, random_bytes_of("fitted"))
    base = upload(x, SMALL, "fitted", forced=True)
    found = prover.witness(x, rows_of(base.challenge), SMALL, masks)
    squares, numbers = found.squares.copy(), found.numbers.copy()
    squares[0] = (int(squares[0]) - 1000 * pow(SMALL.wire_length, -1, P)) % P
    numbers[-1] = 0
    proof = prover.assemble(prover.bits_of(numbers, SMALL), squares, SMALL, masks)
    assert not replace(base, proof=proof).is_valid()


def test_an_offset_on_a_message_is_found_whatever_the_update_is():
    """By either server, on any element of its part, for X = 0 and X = B e_0 alike: the verdict says nothing of X."""
    bound = int(SMALL.threshold**0.5)
    for x in (np.zeros(SMALL.dim, dtype=np.int64), one_of(bound, at=0)):
        honest = upload(x, SMALL)
        ours, theirs = honest.opened()
        assert verifier.is_valid(ours, theirs, honest.query)
        for e, index in ((0, 0), (1, 5), (0, -3), (1, -2), (0, -1)):
            shifted = theirs.copy()
            shifted[e, index] = (int(shifted[e, index]) + 77) % P
            assert not verifier.is_valid(ours, shifted, honest.query)


def test_a_row_outside_its_window_keeps_the_client_silent():
    """One coordinate of B sqrt(16) in a proof whose norm is not asked: the honest prover sends nothing."""
    numbers = np.zeros(65, dtype=np.uint64)
    numbers[3] = 1 << SMALL.row_bits
    with pytest.raises(OutsideWindowError, match="no proof of it leaves"):
        prover.bits_of(numbers, SMALL)


def test_a_proof_is_made_for_vectors_and_masks_of_its_sizes():
    masks = ProofMasks.draw(SMALL, random_bytes_of("masks"))
    rows = rows_of(upload(np.zeros(SMALL.dim, dtype=np.int64), SMALL).challenge)
    with pytest.raises(ParameterError, match="update: expected 300 coordinates"):
        prover.prove(np.zeros(299, dtype=np.int64), rows, SMALL, masks)
    with pytest.raises(ParameterError, match="and masks of 10 wires"):
        prover.prove(np.zeros(300, dtype=np.int64), rows, SMALL, ProofMasks(masks.wires[:, 1:], masks.bits))


def test_identities_of_the_specification_by_their_definitions():
    """F is the sum of the masked wires' squares and q the quotient: by polynomials in Python's integers."""
    sizes = ProofSizes(1.0, 40, 4)
    x = with_norm(sizes, sizes.threshold)
    masks = ProofMasks.draw(sizes, random_bytes_of("identities"))
    seed = upload(x, sizes).challenge
    found = prover.witness(x, rows_of(seed), sizes, masks)
    length, root = sizes.wire_length, field.root_of_unity(sizes.wire_length)
    point = 123_456_789
    total = 0
    for m in range(sizes.n_wires):
        values = [int(v) for v in x[m * length : (m + 1) * length]]
        wire = sum(
            value * (pow(point, length, P) - 1) * pow(root, j, P) * pow(length * (point - pow(root, j, P)), -1, P)
            for j, value in enumerate(values)
        )
        wire += (pow(point, length, P) - 1) * (int(masks.wires[0, m]) + int(masks.wires[1, m]) * point)
        total += wire**2
    assert field.dot(found.squares, field.powers(1, point, found.squares.size)) == total % P


def test_points_are_the_first_two_admissible_elements():
    """Passed over: a root of unity of either domain, an element equal to the first one."""
    sizes = ProofSizes(1.0, 300, 16)
    wire_root, bit_root = field.root_of_unity(sizes.wire_length), field.root_of_unity(sizes.bit_domain)
    drawn = iter([1, wire_root, 5, bit_root, 5, pow(bit_root, 3, P), 9, 11])
    assert query.admissible_points(drawn, sizes) == (5, 9)
    assert next(drawn) == 11


def test_a_root_of_the_longer_domain_alone_is_no_point():
    """The wires' domain is the longer one where an update is long, and else that of the bits."""
    for sizes, wire, bits in ((ProofSizes(1.0, 300_000, 0), 1024, 512), (SMALL, 32, 2048)):
        assert (sizes.wire_length, sizes.bit_domain) == (wire, bits)
        root = field.root_of_unity(max(wire, bits))
        assert pow(root, min(wire, bits), P) != 1
        assert not query.is_admissible(root, sizes)
        assert query.admissible_points(iter([5, root, 9]), sizes) == (5, 9)


@pytest.mark.parametrize("points", [(5, 5), (1, 5), (5, P), (5, field.root_of_unity(2048))])
def test_no_query_is_prepared_for_other_points(points):
    with pytest.raises(ParameterError, match="points: expected two different elements outside both domains"):
        query.prepare(points, SMALL)
