"""Balls of layers and half-spaces in the check: verdicts against Python's integers, in both gates and both forms.

Every case has one right verdict. A wrong one has odds of 2^-64 where the norm's rows must find a wrap, and none
elsewhere, so no test here allows for one.
"""

import dataclasses
import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.deploy.oversight.validation_audit import audit
from precad.mpc import ring
from precad.mpc.convex_set import ConvexSet, HalfSpace, LayerBall
from precad.mpc.errors import MalformedMessageError, ParameterError
from precad.mpc.gate_names import make_gate
from precad.mpc.local.cpu_engine import CpuEngine
from precad.mpc.local.engines import CPU
from precad.mpc.local.set_sums import set_sums
from precad.mpc.local.step import Masked
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import DEALT_MODES, Mode
from precad.mpc.prg import Seed, Stream
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.attack_vectors import CaseMaker, squared_norm
from tests.mpc.ring_strategies import as_ring, generator, random_words
from tests.mpc.streams import words_of

SIZES, CLIPS, C = (4, 9, 2, 6), (0.25, 1.0, 0.5, 0.0625), 1.0
DIM = sum(SIZES)
ENDS = np.cumsum((0, *SIZES))


def direction_of(layer, name):
    """Integers on one layer, some of them zero, all of them not negative: two of one layer have no obtuse angle."""
    g = np.zeros(DIM, dtype=np.int64)
    g[ENDS[layer] : ENDS[layer + 1]] = generator(name).integers(0, 1000, SIZES[layer])
    g[ENDS[layer]] = 700
    return g


HALF_SPACES = (
    HalfSpace(direction_of(1, "one"), -50.0),
    HalfSpace(direction_of(1, "another"), -600.0),
    HalfSpace(-direction_of(3, "in the last"), -12.5),
)
LAYERS = tuple(LayerBall(size, clip) for size, clip in zip(SIZES, CLIPS, strict=True))
WHOLE = ConvexSet(clip_norm=C, dim=DIM, frac_bits=16, layers=LAYERS, half_spaces=HALF_SPACES)
SETS = {
    "layers": dataclasses.replace(WHOLE, half_spaces=()),
    "half-spaces": dataclasses.replace(WHOLE, layers=()),
    "both": WHOLE,
    "wide words": ConvexSet(
        clip_norm=1000.0,
        dim=DIM,
        frac_bits=16,
        half_spaces=(HalfSpace(np.full(DIM, 2**31), -(2.0**43)), HalfSpace(direction_of(2, "w"), -0.25)),
    ),
}
GATES = ("native", "crypten")


def is_inside(x, it):
    """The set's definition, over Python's integers and rationals."""
    words, grid = x.tolist(), 2**it.frac_bits
    if squared_norm(x) > (Fraction(it.clip_norm) * grid) ** 2:
        return False
    starts = np.cumsum([0, *(layer.size for layer in it.layers)])
    for start, layer in zip(starts, it.layers, strict=False):
        if squared_norm(x[start : start + layer.size]) > (Fraction(layer.clip) * grid) ** 2:
            return False
    products = ([g * v for g, v in zip(half.direction.tolist(), words, strict=True)] for half in it.half_spaces)
    return all(sum(one) >= Fraction(half.threshold) * grid for one, half in zip(products, it.half_spaces, strict=True))


def at_the_edges(it, random):
    """Vectors just inside and just outside every constraint, and some between."""
    grid, zero = 2**it.frac_bits, np.zeros(it.dim, dtype=np.int64)
    yield zero
    starts = np.cumsum([0, *(layer.size for layer in it.layers)])
    for start, layer in zip(starts, it.layers, strict=False):
        most = math.floor(Fraction(layer.clip) * grid)
        for value in (most, -most, most + 1, -most - 1):
            x = zero.copy()
            x[random.integers(start, start + layer.size)] = value
            yield x
    for half in it.half_spaces:
        g, least = half.direction, it.threshold_of(half)
        touched = np.flatnonzero(g)
        for value in (least, least - 1, least + 1, -least):
            x = zero.copy()  # <X, G> = value exactly or just beside it, by as few steps as it takes
            coordinate = touched[np.argmin(np.abs(g[touched]))]
            x[coordinate] = value // g[coordinate]
            yield x
            x = x.copy()
            x[coordinate] += 1
            yield x
    for scale in (0.05, 0.3, 1.0, 1.3):
        x = random.standard_normal(it.dim)
        yield (x * (scale * it.clip_norm * grid / np.linalg.norm(x))).astype(np.int64)


@pytest.mark.parametrize("mode", DEALT_MODES)
@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize("name", SETS)
def test_no_wrong_verdict(name, gate, mode):
    it, random = SETS[name], generator(f"edges {name}")
    vectors = [x for _ in range(3) for x in at_the_edges(it, random)]
    found = audit(np.array(vectors), it, gate=make_gate(gate), mode=mode)
    right = [is_inside(x, it) for x in vectors]
    assert list(found.verdicts) == right == [it.holds(x) for x in vectors]
    assert 3 <= sum(right) <= len(right) - 3
    accepted = [x for x, ok in zip(vectors, right, strict=True) if ok]
    assert_array_equal(found.accepted_sum, np.sum(accepted, axis=0))


@pytest.mark.parametrize("gate", GATES)
def test_further_words_make_no_forgery_pass_that_the_norm_would_find(gate):
    """Every malicious class of the norm's check, and vectors made to satisfy all further words modulo 2^64."""
    maker = CaseMaker(DIM, C)
    forged = [x for _, x in (*maker.beyond(), *maker.wrapping(), *maker.repaired())]
    for layer in range(len(SIZES)):
        x = np.zeros(DIM, dtype=np.int64)
        x[ENDS[layer]] = 2**32  # its square, and the layer's, is 0 modulo 2^64
        forged.append(x)
    x = np.zeros(DIM, dtype=np.int64)
    x[[ENDS[1], ENDS[1] + 1]] = -(2**63)
    forged.append(x)
    found = audit(np.array(forged), WHOLE, gate=make_gate(gate))
    assert not any(found.verdicts)
    wrapped = [x for x in forged if all(is_good_modulo(x, half) for half in HALF_SPACES)]
    assert len(wrapped) >= 10  # of which the half-spaces' own words see nothing


def is_good_modulo(x, half):
    """<X, G> - t modulo 2^64, read as a signed word, is not negative: what a word of its own would say."""
    product = int(as_ring([sum(a * b for a, b in zip(x.tolist(), half.direction.tolist(), strict=True))])[0])
    return product >= math.ceil(Fraction(half.threshold) * 2**16)


@pytest.mark.parametrize("mode", DEALT_MODES)
def test_a_layer_beyond_its_bound_is_rejected_although_the_whole_is_short(mode):
    """The norm alone accepts it; with the layers' words it is out, and everybody else stays in."""
    x = np.zeros((3, DIM), dtype=np.int64)
    x[1, ENDS[3]] = math.floor(CLIPS[3] * 2**16) + 1
    x[2, ENDS[0]] = math.floor(CLIPS[0] * 2**16)
    plain = NormBound(clip_norm=C, dim=DIM, frac_bits=16)
    assert audit(x, plain, gate=make_gate("native"), mode=mode).verdicts == (True, True, True)
    assert audit(x, SETS["layers"], gate=make_gate("native"), mode=mode).verdicts == (True, False, True)


def test_the_check_costs_a_word_per_constraint_and_no_message():
    """The native gate's masked bits of one word more, whatever its length, are rounded to bytes; rounds are equal."""
    plain, n = NormBound(clip_norm=C, dim=DIM, frac_bits=16), 8
    x = np.zeros((n, DIM), dtype=np.int64)
    before, after = (audit(x, it, gate=make_gate("native")) for it in (plain, WHOLE))
    assert after.rounds == before.rounds
    assert before.bytes_per_direction < after.bytes_per_direction < before.bytes_per_direction + 7 * n * 60


def test_dealt_squares_of_layers_are_those_of_the_masks():
    shape = BatchShape("t", 3, ("ada", "bob"), DIM, (), layer_sizes=SIZES)
    dealt = deal(shape)
    sides = [ServerTuples(party, shape, dealt[party]) for party in (0, 1)]
    shares = [side.layer_square_shares(("bob", "ada")) for side in sides]
    for row, client in enumerate(("bob", "ada")):
        a = [int(x) + int(y) for x, y in zip(*(words_of(side.mask_share(client), DIM) for side in sides), strict=True)]
        squares = [sum(v * v for v in a[i:j]) for i, j in itertools.pairwise(ENDS)]
        assert_array_equal(shares[0][row] + shares[1][row], as_ring(squares))
    assert not dealt[0].layer_squares.size


@pytest.mark.parametrize("change", [np.zeros(7, dtype=np.int64), np.zeros(0, dtype=np.int64)])
def test_other_numbers_of_corrections_are_refused(change):
    shape = BatchShape("t", 3, ("ada", "bob"), DIM, (), layer_sizes=SIZES)
    _, of_b = deal(shape)
    with pytest.raises(MalformedMessageError, match=f"layer_squares of a batch: expected 8 words, found {change.size}"):
        ServerTuples(1, shape, dataclasses.replace(of_b, layer_squares=change))


def test_a_plain_batch_is_dealt_as_before():
    """Layers take streams of their own, so a batch without them has the same keys, words and corrections."""
    plain = BatchShape("t", 3, ("ada", "bob"), DIM, ())
    layered = dataclasses.replace(plain, layer_sizes=SIZES)
    fixed = bytes(range(16))
    (_, one), (_, other) = (deal(shape, lambda n: fixed[:n]) for shape in (plain, layered))
    assert_array_equal(one.squared_masks, other.squared_masks)
    assert_array_equal(one.equality, other.equality)


@pytest.mark.parametrize("party", [0, 1])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_sums_over_tiles_and_threads_are_those_of_whole_vectors(party, n_threads):
    """Layers that begin and end anywhere among tiles, the last one within the last tile, by whole arrays at once."""
    sizes = (1, ring.TILE - 1, 3, 2 * ring.TILE, 17, 1)
    dim, n = sum(sizes), 5
    b, g = random_words("b", n, dim), random_words("g", 2, dim)
    seeds = [Seed(bytes([i]) * 16) for i in range(n)]
    a = np.array([words_of(Stream(seed), dim) for seed in seeds])
    engine = CPU if n_threads == 1 else CpuEngine(n_threads)
    clients = [Masked(b[i], Stream(seeds[i])) for i in range(n)]
    found = set_sums(party, clients, sizes, list(g), dim, engine)
    starts = np.cumsum((0, *sizes[:-1]))
    assert_array_equal(found.by_mask, np.add.reduceat(a * b, starts, axis=1))
    assert_array_equal(found.by_opened, np.add.reduceat(b * b, starts, axis=1))
    assert_array_equal(found.along, (b + a if party == 0 else a) @ g.T)


REFUSED = {
    "layers: expected 21 coordinates in all, found 20": {"layers": (LayerBall(20, 1.0),), "half_spaces": ()},
    "bound of a layer: expected at most 1.0, found 1.5": {"layers": (LayerBall(DIM, 1.5),)},
    "bound of a layer \\* 2\\^frac_bits: expected at least 1": {"layers": (LayerBall(DIM, 2.0**-17),)},
    "layers: expected at most 1024, found 1025": {"dim": 1025, "layers": (LayerBall(1, 1.0),) * 1025},
    "expected a direction of 21 coordinates, found 3": {"half_spaces": (HalfSpace(np.array([1, 2, 3]), -1.0),)},
    "below 2\\^63 on the grid, found a number of 64 bits": {
        "clip_norm": 1400.0, "layers": (), "half_spaces": (HalfSpace(np.full(DIM, 2**31), -(2.0**47)),),
    },
    "expected a threshold of at most -0.00222778, for rounding, found -0.0001": {
        "layers": (), "half_spaces": (HalfSpace(np.array([70, *[0] * 15, 75, *[0] * 4]), -0.0001),),
    },
    "half_spaces 0 and 1: expected directions at no obtuse angle": {
        "half_spaces": (HALF_SPACES[0], HalfSpace(-direction_of(1, "another"), -5.0)),
    },
    "zero outside one layer, beside bounds of layers, found one in layers 0 to 3": {
        "half_spaces": (HalfSpace(np.ones(DIM, dtype=np.int64), -5.0),),
    },
    "half_spaces: expected at most 16, found 17": {"half_spaces": HALF_SPACES[:1] * 17},
}  # fmt: skip


@pytest.mark.parametrize("why", REFUSED)
def test_sets_that_cannot_be_are_refused(why):
    with pytest.raises(ParameterError, match=why):
        dataclasses.replace(WHOLE, **REFUSED[why])


@pytest.mark.parametrize(
    ("direction", "threshold", "why"),
    [
        (np.array([2**31 + 1, 0]), -1.0, "at most 2\\^31"),
        (np.array([-(2**63), 0]), -1.0, "at most 2\\^31"),
        (np.zeros(4, dtype=np.int64), -1.0, "not zero"),
        (np.array([1]), 0.5, "threshold of a half-space: expected a finite number of at most 0, found 0.5"),
        (np.array([1]), -math.inf, "a finite number of at most 0"),
        (np.array([1]), math.nan, "a finite number of at most 0"),
    ],
)
def test_half_spaces_that_cannot_be_are_refused(direction, threshold, why):
    with pytest.raises(ParameterError, match=why):
        HalfSpace(direction, threshold)


@pytest.mark.parametrize(("size", "clip"), [(0, 1.0), (3, 0.0), (3, math.inf), (3, math.nan)])
def test_layers_that_cannot_be_are_refused(size, clip):
    with pytest.raises(ParameterError):
        LayerBall(size, clip)


def test_modes_are_those_of_a_dealer():
    """A guard for whoever adds a form: the two above are all that further words exist in."""
    assert set(DEALT_MODES) == set(Mode) - {Mode.PROVED}
