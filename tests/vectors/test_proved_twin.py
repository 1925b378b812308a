"""The plain implementation of mode `proved`: its field and sizes, complete proofs, tampered ones, closed forms.

Failure means that an honest proof is rejected, or that a tampered one is accepted.
"""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tests.vectors.independent import proved_field, proved_verifier, server, streams
from tests.vectors.independent.proved_field import FIELD, QUERY, SHARE, FieldStream
from tests.vectors.independent.proved_parameters import Sizes, sizes
from tests.vectors.independent.proved_proof import Masks, SilentError, prove, sum_of_squares, wire_polynomials
from tests.vectors.independent.proved_verifier import is_valid, message, opened
from tests.vectors.independent.ring import RefusedError
from tests.vectors.proved_harness import P, careless_proof, shared

TASK, ROUND = "twin-0123456789abcdef", 4
POINTS = (3, 5)


def at_the_bound(dim, threshold, randomness):
    """Return an update with a squared norm of exactly T, greedily, its coordinates shuffled and signed."""
    found, rest = [0] * dim, threshold
    for i in range(dim):
        found[i] = math.isqrt(rest)
        rest -= found[i] ** 2
    randomness.shuffle(found)
    return [x * randomness.choice([-1, 1]) for x in found] if rest == 0 else None


def verdict(x, proof, case, randomness, *, rows, points=POINTS):
    """Return both servers' verdict on a vector and a proof, shared afresh."""
    p = case.field.modulus
    shares, proofs = shared(x, randomness, p), shared(proof, randomness, p)
    messages = [message(party, shares[party], proofs[party], rows, points, case) for party in (0, 1)]
    return is_valid(opened(*messages, case), points, case)


def rows_of(case, seed=b"challenge's seed"):
    return server.row_streams(seed, TASK, ROUND, case.dim)


# Field


def test_the_field_is_a_prime_field_with_the_roots_that_the_document_names():
    """22 has order p - 1, which proves p prime; nothing smaller has."""
    factors = (2, 3, 5, 7, 13, 17, 241)
    assert P - 1 == 2**32 * 3**2 * 5 * 7 * 13 * 17 * 241

    def is_primitive(g):
        return pow(g, P - 1, P) == 1 and all(pow(g, (P - 1) // q, P) != 1 for q in factors)

    assert [g for g in range(2, 23) if is_primitive(g)] == [22]
    assert 2**56 % P == 2**32 - 1
    assert 2**64 % P == 2**40 - 2**8
    assert 254 * (P - 1) < 2**64


def test_polynomials_are_what_their_definitions_say():
    """Interpolation gives the values back by Horner's rule; products and quotients are those of schoolbooks."""
    randomness = random.Random(1)
    f, g = ([randomness.randrange(P) for _ in range(n)] for n in (16, 23))
    product = [sum(f[i] * g[k - i] for i in range(16) if 0 <= k - i < 23) % P for k in range(38)]
    quotient, rest = FIELD.divide_by_vanishing(g, 16)

    assert [FIELD.evaluate(FIELD.interpolate(f), h) for h in FIELD.subgroup(16)] == f
    assert FIELD.multiply(f, g) == product
    assert FIELD.add(FIELD.times_vanishing(quotient, 16), rest) == g


@pytest.mark.parametrize("n", [16, 32])
def test_weights_are_lagranges(n):
    """The product formula over all other points, without any property of roots of unity."""
    points = FIELD.subgroup(n)
    for t in (0, 7, P - 2):
        numerators = [math.prod(t - k for k in points if k != h) for h in points]
        denominators = [math.prod(h - k for k in points if k != h) for h in points]
        expected = [a * pow(b, -1, P) % P for a, b in zip(numerators, denominators, strict=True)]
        assert FIELD.lagrange(n, t) == expected


def test_an_element_is_seven_bytes_below_p():
    assert proved_field.to_bytes([P - 1, -1, 1]) == (P - 1).to_bytes(7, "little") * 2 + bytes([1]) + bytes(6)
    for data in (P.to_bytes(7, "little"), b"\xff" * 7, bytes(6), bytes(8)):
        with pytest.raises(RefusedError, match="malformed"):
            proved_field.from_bytes(data)


def test_a_field_stream_is_56_bits_of_each_word():
    """The words come from AES in counter mode, a second way; elements are found from any position."""
    seed = b"sixteen bytes ok"
    key = streams.derive(seed, streams.info(SHARE, TASK, ROUND, 3))
    made = Cipher(algorithms.AES128(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * 40))
    expected = [int.from_bytes(made[8 * i : 8 * i + 7], "little") for i in range(40)]
    stream = FieldStream(seed, SHARE, TASK, ROUND, 3)

    assert stream.elements(0, 40) == expected
    assert [stream.element(i) for i in (39, 7, 0)] == [expected[i] for i in (39, 7, 0)]
    assert stream.elements(13, 6) == expected[13:19]


def test_an_element_that_is_not_below_p_comes_from_the_second_stream():
    """Word 27,517,244 of this stream is the first such: one word in 2^24 is."""
    seed, at = bytes(range(16)), 27_517_244
    keys = [streams.derive(seed, streams.info(purpose, TASK, ROUND, 3)) for purpose in (16, 17)]
    blocks = [
        Cipher(algorithms.AES128(key), modes.CTR(i.to_bytes(16, "big"))).encryptor().update(bytes(16))
        for key, i in zip(keys, (at // 2, at), strict=True)
    ]
    assert int.from_bytes(blocks[0][:7], "little") >= P
    assert FieldStream(seed, SHARE, TASK, ROUND, 3).element(at) == int.from_bytes(blocks[1], "little") % P


def test_points_are_different_and_outside_both_subgroups():
    case = sizes(1.0, 0, 5)
    first, outside = proved_verifier.query_points(b"q" * 16, TASK, ROUND, case), FIELD.root(1024)
    elements = [FIELD.root(16), FIELD.root(512), 1, P - 1, outside, outside, 0, 9]

    assert list(first) == proved_field.field_stream(b"q" * 16, QUERY, TASK, ROUND, None, 2)
    assert proved_verifier.first_points(elements, case) == (outside, 0)


# Sizes and conditions


@pytest.mark.parametrize(
    ("dim", "expected"),
    [
        (26010, (256, 102, 2048, 4020, 1470)),
        (10**5, (512, 196, 2048, 4720, 2786)),
        (10**6, (1024, 977, 2048, 7306, 13720)),
        (10**8, (16384, 6104, 2048, 48280, 85498)),
    ],
)
def test_sizes_of_common_tasks(dim, expected):
    case = sizes(1.0, 16, dim)
    assert (case.wire, case.n_wires, case.bit_domain, case.n_elements, 7 * case.message_elements) == expected


@pytest.mark.parametrize(
    ("clip_norm", "frac_bits", "dim", "is_allowed"),
    [
        (1.0, 0, 1, True),
        (math.nextafter(1.0, 0), 0, 1, False),
        (5876432.0, 0, 1, True),
        (5876432.9, 0, 1, True),
        (5876433.0, 0, 1, False),
        (5876432.0, 0, 1_073_741_775, True),
        (5876432.0, 0, 1_073_741_776, False),
        (1.0, 16, 2**30, True),
        (1.0, 16, 2**30 + 1, False),
        (1.0, 41, 1, False),
        (1.0, 16, 0, False),
        (math.inf, 0, 1, False),
    ],
)
def test_each_condition_holds_on_one_side_of_its_bound(clip_norm, frac_bits, dim, is_allowed):
    if is_allowed:
        case = sizes(clip_norm, frac_bits, dim)
        assert 571 * Fraction(clip_norm) * 2**frac_bits <= 100 * case.window
        assert 257 <= case.n_bits <= 1709
        assert 449 * case.window**2 + 10 * 2**case.norm_bits <= 10 * P
    else:
        with pytest.raises(RefusedError, match="parameter"):
            sizes(clip_norm, frac_bits, dim)


# Completeness and soundness


@pytest.mark.parametrize(("dim", "clip_norm"), [(1, 1.0), (5, 3.0), (40, 11.25), (300, 100.0), (40, 65536.0)])
def test_an_update_at_the_bound_is_valid_and_one_above_it_is_not(dim, clip_norm):
    """Squared norm T and T + 1, the second by a prover that sends the bits it likes."""
    case, randomness = sizes(clip_norm, 0, dim), random.Random(dim)
    x = at_the_bound(dim, case.threshold, randomness)
    assert x is not None
    masks, rows = Masks.fresh(case), rows_of(case)
    proof = prove(x, rows, case, masks)
    assert verdict(x, proof, case, randomness, rows=rows)

    longer = Sizes(case.dim, case.threshold - 1, case.window_bits)
    if longer.norm_bits == case.norm_bits:
        assert not verdict(x, proof, longer, randomness, rows=rows)
    with pytest.raises(SilentError):
        prove(x, rows, longer, masks)


@pytest.mark.slow
@pytest.mark.parametrize(("clip_norm", "frac_bits"), [(1.0, 16), (1000.0, 12)])
def test_an_update_of_common_size_is_valid_at_the_bound(clip_norm, frac_bits):
    """d = 26,010 and N = T: 102 wires. The quick variant above has one to ten."""
    case, randomness = sizes(clip_norm, frac_bits, 26_010), random.Random(26)
    x, rows = at_the_bound(case.dim, case.threshold, randomness), rows_of(case)
    assert x is not None
    proof = prove(x, rows, case, Masks.fresh(case))
    assert verdict(x, proof, case, randomness, rows=rows)
    assert not verdict([x[0] + 1, *x[1:]], proof, case, randomness, rows=rows)


def test_vectors_that_wrap_are_rejected():
    """Roots of small numbers modulo p, halves of p and huge coordinates, with whatever bits fit them best."""
    case, randomness = sizes(4.0, 0, 40), random.Random(3)
    rows = rows_of(case)
    vectors = [
        [c] + [0] * 39 for c in (2**17, 2**27, 2**40, 2**55, (P - 1) // 2, P // 3, pow(3, -1, P), pow(257, -1, P))
    ]
    vectors += [[(P - 1) // 2] * 40, [2**31] * 40, [2**28, 2**28, 2**28, 2**28, *[0] * 36], [5, *[0] * 39]]
    for x in vectors:
        assert not verdict(x, careless_proof(x, rows, case), case, randomness, rows=rows)


def test_the_careless_prover_is_the_honest_one_where_bits_fit():
    case, randomness = sizes(4.0, 0, 5), random.Random(4)
    rows = rows_of(case)
    assert verdict([1, -2, 0, 3, 1], careless_proof([1, -2, 0, 3, 1], rows, case), case, randomness, rows=rows)


def test_every_tampered_element_is_rejected():
    """One element of each part of the proof, first and last, of X, and of a server's message."""
    case, randomness = sizes(2.0, 0, 20), random.Random(5)
    x, rows = [1, -1] + [0] * 18, rows_of(case)
    proof = prove(x, rows, case, Masks.fresh(case))
    sent, c = case.n_bits - 65, case.n_wires
    ends = list(itertools.accumulate((0, sent, c, c, 2 * case.wire + 3, 2, case.bit_domain + 3)))
    for at in sorted({*ends[:-1], *(end - 1 for end in ends[1:])}):
        wrong = [*proof[:at], (proof[at] + 1) % P, *proof[at + 1 :]]
        assert not verdict(x, wrong, case, randomness, rows=rows), at
    assert not verdict([1, 1] + [0] * 18, proof, case, randomness, rows=rows)
    shares, proofs = shared(x, randomness), shared(proof, randomness)
    ours, theirs = (message(party, shares[party], proofs[party], rows, POINTS, case) for party in (0, 1))
    for at in range(case.message_elements):
        wrong = [*theirs[:at], (theirs[at] + 1) % P, *theirs[at + 1 :]]
        assert not is_valid(opened(ours, wrong, case), POINTS, case), at


def test_messages_are_linear_in_the_shares():
    """The sums do not depend on how X and the proof are shared, or on who holds which half."""
    case, randomness = sizes(2.0, 0, 20), random.Random(6)
    x, rows = [1, -1] + [0] * 18, rows_of(case)
    proof = prove(x, rows, case, Masks.fresh(case))
    sums = []
    for zeros in ("first", "second", "none"):
        shares, proofs = shared(x, randomness), shared(proof, randomness)
        if zeros != "none":
            shares, proofs = ((x, [0] * 20), (proof, [0] * len(proof)))
        order = (1, 0) if zeros == "second" else (0, 1)
        messages = [message(party, shares[order[party]], proofs[order[party]], rows, POINTS, case) for party in (0, 1)]
        sums.append(opened(*messages, case))
    assert sums[0] == sums[1] == sums[2]


def test_openings_have_their_closed_form():
    """f_m(t) and F(t) by Horner's rule on the prover's polynomials; the norm is the sum of squares."""
    case, randomness = sizes(30.0, 0, 300), random.Random(7)
    x, masks, rows = [randomness.randint(-1, 1) for _ in range(300)], Masks.fresh(case), rows_of(case)
    proof = prove(x, rows, case, masks)
    shares, proofs = shared(x, randomness), shared(proof, randomness)
    values = opened(*(message(i, shares[i], proofs[i], rows, POINTS, case) for i in (0, 1)), case)
    squares = sum_of_squares(x, masks, case)
    for value, t in zip(values, POINTS, strict=True):
        assert value.wires == [FIELD.evaluate(f, t) for f in wire_polynomials(x, masks, case)]
        assert value.squares == FIELD.evaluate(squares, t)
    assert proved_verifier.squared_norm(squares, case) == sum(v * v for v in x)
