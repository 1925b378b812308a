"""Every class of vector that a specification names, each with one right verdict, in mode `proved`.

The classes are those of the check in the ring, as the elements that their words stand for, and those of the field. The
right verdict is that of Python's integers. A verdict is wrong with probability 2^-64. Failure means: an update within
its bound is rejected, or one outside it is accepted, or a word of a proof counts for nothing.
"""

import math

import numpy as np
import pytest

from precad.mpc.proved import field, verifier
from precad.mpc.proved.field import P
from precad.mpc.proved.shares import HeldBytes, PackedShare, payload_pieces, seeded_share
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.sums import share_sums
from tests.mpc.attack_vectors import CaseMaker, squared_norm
from tests.mpc.fixed_randomness import random_bytes_of
from tests.mpc.proved.two_servers import centred, four_squares, rows_of, square_root, upload, with_norm

CLIPS = (0.1, 1.0, 89.6)
DIMS = (3, 300, 26_010, 10**5, 10**6)
QUICK = ((3, 1.0), (300, 89.6))


def all_settings():
    """(d, C), the quick ones in every run."""
    for dim in DIMS:
        for clip in CLIPS:
            yield pytest.param(dim, clip, marks=[] if (dim, clip) in QUICK else [pytest.mark.slow])


def of_words(dim, clip):
    """(name, vector) of the classes modulo 2^64, reduced modulo p. Three coordinates are too few to repair a norm."""
    maker = CaseMaker(dim, clip)
    for part in (maker.within(), maker.beyond(), maker.wrapping(), maker.repaired() if dim > 4 else ()):
        for name, vector in part:
            yield name, field.to_integers(np.mod(vector, P).astype(np.uint64))


def repaired(sizes, name):
    """Random elements, the first four of which bring the sum of squares to T modulo p."""
    x = field.random_elements(sizes.dim, random_bytes_of(name))
    x[:4] = 0
    x[:4] = four_squares((sizes.threshold - sum(int(v) ** 2 for v in x.tolist())) % P)
    return field.to_integers(x)


def of_elements(sizes):
    """(name, vector) of the classes modulo p."""
    dim, bound = sizes.dim, int(sizes.encoded_clip)

    def on(values):
        x = np.zeros(dim, dtype=np.int64)
        x[-len(values) :] = [centred(value) for value in values]
        return x

    yield from ((f"2^{j}", on([2**j])) for j in range(17, 56))
    yield from ((f"2^{j} on three", on([2**j] * 3)) for j in range(16, 56))
    yield from ((f"(p - 1) / 2 + {m}", on([(P - 1) // 2 + m])) for m in range(4))
    yield from ((f"(p + 1) / 2 and {m}", on([(P + 1) // 2, (P + 1) // 2 + m])) for m in (0, 1))
    yield from ((f"1 / {m}", on([pow(m, -1, P)])) for m in (3, 4, 5, 257))
    roots = [(a, square_root(a)) for a in (2, 3, 5, 6, 7, 8, 10, 11, 13)]
    yield from ((f"square root of {a}", on([root])) for a, root in roots if root is not None)
    large = 2**40
    yield "squares that cancel", on([large, square_root(-large * large % P)])
    yield from ((f"{k} B", on([k * bound])) for k in (2, 3, 10, 100, 2**24))
    for value in ((P - 1) // 2, 2**31, 2**24 * bound % P, 2**27):
        yield f"{value} everywhere", np.full(dim, centred(value), dtype=np.int64)
    if dim >= 4:
        yield from ((f"N = T + {more}", with_norm(sizes, sizes.threshold + more)) for more in (0, 1, 2))
        yield from ((f"repaired {i}", repaired(sizes, f"repaired {i}")) for i in range(3))


@pytest.mark.parametrize(("dim", "clip"), list(all_settings()))
def test_no_verdict_is_wrong(dim, clip):
    """By a client that makes everything that fits fit. Either server is the holder, under other seeds and rows."""
    sizes = ProofSizes(clip, dim, 16)
    found = {True: 0, False: 0}
    for i, (name, x) in enumerate([*of_words(dim, clip), *of_elements(sizes)]):
        is_within = squared_norm(x) <= sizes.threshold
        assert upload(x, sizes, f"{i} {dim} {clip}", forced=True).is_valid(holder=i % 2) == is_within, name
        found[is_within] += 1
    assert found[True] >= 8
    assert found[False] >= 100


@pytest.mark.parametrize("name", ["norm^2 = T", "norm^2 = T + 1"])
def test_the_verdict_is_the_same_however_a_vector_is_shared(name):
    """A client may choose Z knowing its seed, so that one share is zero, X itself, or its negative."""
    sizes = ProofSizes(1.0, 300, 16)
    x = dict(of_words(sizes.dim, sizes.clip_norm))[name]
    honest = upload(x, sizes, name, forced=True)
    elements = field.from_integers(x)
    zero, half = np.zeros_like(elements), np.full_like(elements, (P - 1) // 2)
    for first in (zero, elements, half, field.subtract(zero, elements), np.full_like(elements, P - 1)):
        shares = [packed(first), packed(field.subtract(elements, first))]
        assert verifier.is_valid(*opened(honest, shares), honest.query) == (name == "norm^2 = T")


def packed(elements):
    return PackedShare(HeldBytes(field.to_bytes(elements)), elements.size)


def opened(sent, shares):
    """Return both servers' parts for an upload that is shared so."""
    sums = [share_sums([share], rows_of(sent.challenge), sent.query, sent.sizes) for share in shares]
    return [of_proof(sent, party, sums[party], sent.proof if party else 0 * sent.proof) for party in (0, 1)]


def of_proof(sent, party, sums, words):
    return verifier.opened_share(party, sums.rows[0], sums.wires[0], words, sent.query, sent.sizes)


@pytest.mark.parametrize(("dim", "clip"), list(all_settings()))
def test_every_word_of_a_proof_counts(dim, clip):
    """Each word in turn, by one, by minus one or by a random element."""
    sizes = ProofSizes(clip, dim, 16)
    sent = upload(vector_at_the_bound(sizes), sizes, f"words {dim} {clip}")
    payload = b"".join(payload_pieces(sent.x, sent.share_seed, sent.slot))
    shares = [PackedShare(HeldBytes(payload), dim), seeded_share(sent.share_seed, sent.slot)]
    of_a, of_b = (share_sums([s], rows_of(sent.challenge), sent.query, sizes) for s in shares)
    masks = field.random_elements(sizes.proof_elements, random_bytes_of("share of the proof"))
    part_of_b, words = of_proof(sent, 1, of_b, masks), field.subtract(sent.proof, masks)
    assert verifier.is_valid(of_proof(sent, 0, of_a, words), part_of_b, sent.query)
    for i in range(words.size):
        tampered = words.copy()
        tampered[i] = (int(words[i]) + (1, P - 1, 2**40 + 12_345)[i % 3]) % P
        assert not verifier.is_valid(of_proof(sent, 0, of_a, tampered), part_of_b, sent.query), i


def vector_at_the_bound(sizes):
    if sizes.dim >= 4:
        return with_norm(sizes, sizes.threshold)
    return np.array([math.isqrt(sizes.threshold), *[0] * (sizes.dim - 1)])
