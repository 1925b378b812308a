"""Shares as CrypTen tensors, and CrypTen functions of a shared vector: results, costs, messages, and CrypTen's globals.

Failure means one of these:
- a function of shares that opens to another integer than the function of the vector;
- a word that leaves a server without a dealt one that hides it;
- anything of CrypTen's process-wide state that a run leaves changed.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from precad.mpc.channel import Channel, run_pair
from precad.mpc.crypten.bridge import SumFunction, from_crypten, to_crypten
from precad.mpc.crypten.examples import clip
from precad.mpc.crypten.lookups import load_crypten, require_crypten
from precad.mpc.errors import (
    FunctionRefusedError,
    GateUnavailableError,
    MalformedMessageError,
    MpcError,
    PeerMismatchError,
    TupleExhaustedError,
)
from precad.mpc.gate_names import make_gate
from precad.mpc.ring import RingArray
from precad.mpc.tuples.correlations import AndBlock, BitBlock, Block, Correlations, ProductBlock, SquareBlock
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from tests.mpc.crypten.test_crypten_gate import assert_carries, edge_pairs
from tests.mpc.fixed_randomness import are_uniform_bytes, random_bytes_of
from tests.mpc.recording import RecordingChannel
from tests.mpc.ring_strategies import random_words

try:
    require_crypten()
    MISSING = ""
except GateUnavailableError as error:
    MISSING = str(error)
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=MISSING or "CrypTen is there"),
    pytest.mark.timeout(120, method="thread"),
]
ONE = 1 << 16
BOUND = 3 * ONE // 2
EDGES = [0, 1, -1, BOUND - 1, BOUND, BOUND + 1, -BOUND - 1, -BOUND, 1 - BOUND, 2**62 - BOUND, BOUND - 2**62, ONE]


def of(function: Callable[..., Any], dim: int, **arguments: Any) -> SumFunction:
    return SumFunction("tests:function", function, arguments, dim)


def dealt_for(blocks: tuple[Block, ...], **kwargs: Any) -> list[Correlations]:
    shape = BatchShape("t", 0, (), 1, blocks)
    return [ServerTuples(party, shape, part).correlations() for party, part in enumerate(deal(shape, **kwargs))]


def shared(
    function: SumFunction, x: RingArray, wrap: Callable[[Channel], Channel] = lambda channel: channel, **kwargs: Any
) -> RingArray:
    """Open the function of x, which two parties share by uniform words."""
    sides = dealt_for(function.dry_run.blocks, **kwargs)
    of_a = random_words(f"share of {x.size}", x.size)
    shares = (of_a, x - of_a)
    a, b = run_pair(lambda ch: function.share_of(shares[ch.party], sides[ch.party], wrap(ch)))
    return a + b


def clipped(x: RingArray) -> RingArray:
    return np.clip(x, -BOUND, BOUND)


# Shares as tensors


def test_a_share_is_a_tensor_of_the_same_words() -> None:
    """Nothing is copied, and any shape comes back. Sums of shares are sums of tensors."""
    x, y = random_words("x", 3, 4), random_words("y", 3, 4)
    tensor = to_crypten(x)
    assert np.shares_memory(from_crypten(tensor), x)
    assert tensor.encoder.scale == ONE
    assert not tensor.requires_grad
    assert_array_equal(from_crypten(to_crypten(y)), y)


def test_two_shares_decode_to_the_plain_numbers() -> None:
    """By CrypTen's own encoder, of words that two parties hold."""
    plain = np.array([1.5, -2.25, 0.0, 1000.0])
    of_a = random_words("decoded", 4)
    of_b = (plain * ONE).astype(np.int64) - of_a
    a, b = (to_crypten(share) for share in (of_a, of_b))
    assert a.encoder.decode(a.share + b.share).tolist() == plain.tolist()


def test_tensors_of_another_kind_are_refused() -> None:
    crypten, tensor = load_crypten(), to_crypten(np.arange(3))
    tensor._tensor = crypten.binary.from_shares(crypten.torch.arange(3), precision=16)
    with pytest.raises(FunctionRefusedError, match="shared additively"):
        from_crypten(tensor)
    tensor._tensor = crypten.arithmetic.from_shares(crypten.torch.arange(3), precision=20)
    with pytest.raises(FunctionRefusedError, match=r"scale 2\^16, found 1048576"):
        from_crypten(tensor)
    with pytest.raises(FunctionRefusedError, match="found ndarray"):
        from_crypten(np.arange(3))


@pytest.mark.parametrize("kind", ["float64", "int32"])
def test_a_share_of_other_words_is_refused(kind: str) -> None:
    """Its 8-byte words would be read as they lie, or its shape would pass with fewer bits."""
    dtype = getattr(load_crypten().torch, kind)

    def other_words(x: Any) -> Any:
        x.share = x.share.to(dtype)
        return x

    why = rf"expected a share of torch\.int64, found torch\.{kind}"
    with pytest.raises(FunctionRefusedError, match=why):
        from_crypten(other_words(to_crypten(np.arange(3))))
    with pytest.raises(FunctionRefusedError, match=why):
        SumFunction("other", other_words, {}, 3)


def test_a_share_of_other_strides_keeps_its_words() -> None:
    assert_array_equal(SumFunction("flip", lambda x: x.flip(0), {}, 3).in_the_clear(np.arange(3)), [2, 1, 0])
    words = random_words("strides", 3, 4)
    assert_array_equal(from_crypten(to_crypten(words.T)), words.T)


# Results and costs


def test_a_shared_clip_is_the_clip_of_the_vector_at_every_edge() -> None:
    x = np.array(EDGES, dtype=np.int64)
    function = of(clip, x.size, bound=1.5)
    assert_array_equal(shared(function, x), clipped(x))
    assert_array_equal(function.in_the_clear(x), clipped(x))
    assert function.dry_run.is_exact
    assert function.dry_run.keeps_zero


@given(st.lists(st.integers(-(2**61), 2**61), min_size=1, max_size=20))
@settings(max_examples=10, deadline=None)
def test_a_shared_clip_of_any_vector_moves_no_further_than_the_vector(values: list[int]) -> None:
    x = np.array(values, dtype=np.int64)
    function = of(clip, x.size, bound=1.5)
    here, there = shared(function, x), shared(function, x + 7)
    assert_array_equal(here, clipped(x))
    assert (np.abs(there - here) <= 7).all()


def test_a_clip_costs_what_is_counted_by_hand() -> None:
    """Two comparisons a coordinate: 13 AND words, a bit and a product each. Every message's bytes, in 9 rounds."""
    dim = 37
    function, logs = of(clip, dim, bound=1.5), [None, None]
    assert function.dry_run.blocks == (AndBlock(26 * dim), BitBlock(2 * dim), ProductBlock(2 * dim))

    def recorded(channel: Any) -> Any:
        logs[channel.party] = RecordingChannel(channel)  # type: ignore[call-overload]
        return logs[channel.party]

    shared(function, np.zeros(dim, dtype=np.int64), recorded)
    words = [4 * dim, *[8 * dim] * 6, 2 * dim, 4 * dim]
    for log in logs:
        assert [(label, len(payload)) for label, payload in log.sent] == [  # type: ignore[attr-defined]
            (f"function/{i + 1}", 8 * n) for i, n in enumerate(words)
        ]


PLAIN: dict[str, tuple[Callable[[Any], Any], Callable[[RingArray], RingArray], float]] = {
    "relu": (lambda x: x.relu(), lambda x: np.maximum(x, 0), 0),
    "abs": (lambda x: x.abs(), np.abs, 0),
    "negation": (lambda x: -x, lambda x: -x, 0),
    "twice, by an integer tensor": (lambda x: x + x, lambda x: 2 * x, 0),
    "greater than one, as an integer": (lambda x: (x > 1) * x, lambda x: (x > ONE) * x, 0),
    "greatest of a pair": (
        lambda x: (x > x.flip(0)) * (x - x.flip(0)) + x.flip(0),
        lambda x: np.maximum(x, x[::-1]),
        0,
    ),
    "equal to one": (lambda x: x.eq(1) * x, lambda x: (x == ONE) * x, 0),
    "product with all, broadcast": (lambda x: x * x[0:1], lambda x: x * x[0] // ONE, 2),
    "square": (lambda x: x.square(), lambda x: x * x // ONE, 2),
    "half, which truncates": (lambda x: x / 2, lambda x: x // 2, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_crypten_functions_of_shares_are_those_of_plain_integers(name: str) -> None:
    """Exact ones to the last bit, also in the clear; others within CrypTen's truncation of a step for each share.

    Truncation is wrong altogether for a share of 2^-26 of words this small, here of 24.
    """
    function, plain, off = PLAIN[name]
    x = np.array([0, ONE, -ONE, 3 * ONE + 1, 5, -ONE // 2, 2 * ONE, -7 * ONE], dtype=np.int64)
    made = of(function, x.size)
    assert made.dry_run.is_exact == (off == 0)
    for found in (shared(made, x), made.in_the_clear(x)):
        assert np.abs(found - plain(x)).max() <= off


def test_functions_with_settings_of_crypten_use_those_that_are_installed() -> None:
    """A reciprocal of 1..8, to a thousandth, by ten steps of Newton, whatever the process's user has set."""
    crypten = load_crypten().crypten
    x = np.arange(1, 9, dtype=np.int64) * ONE
    with crypten.cfg.temp_override({"functions.reciprocal_nr_iters": 1, "encoder.precision_bits": 10}):
        function = of(lambda x: x.reciprocal(), x.size)
        assert shared(function, x) / ONE == pytest.approx(1 / np.arange(1, 9), abs=1e-3)
        assert crypten.cfg.functions.reciprocal_nr_iters == 1
    assert not function.dry_run.is_exact


def test_a_clip_takes_positive_bounds_alone() -> None:
    for bound in (0.0, -1.0, float("nan"), 2.0**41):
        with pytest.raises(FunctionRefusedError, match="raised ValueError"):
            of(clip, 3, bound=bound)


# What is refused


def opens(x: Any) -> Any:
    return x - x.get_plain_text()


def opens_words(x: Any) -> Any:
    return x - x._tensor.reveal()


def opens_beside(x: Any) -> Any:
    """Takes a triple for two words, and opens one that nothing hides."""
    crypten = load_crypten()
    crypten.crypten.mpc.get_default_provider().generate_additive_triple(x.size(), x.size(), "mul")
    return x - x._tensor.reveal()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (opens, "opens 3 words: expected the 0 that tuples hide"),
        (opens_words, "opens 3 words: expected the 0 that tuples hide"),
        (opens_beside, "opens 3 words: expected the 6 that tuples hide"),
        (lambda x: x + load_crypten().crypten.mpc.MPCTensor.rand(3), "draws at random"),
        (lambda x: x.dropout(0.5), "draws at random"),
        (lambda x: x.matmul(x), "asks for 'matmul'"),
        (lambda x: x.sum(), r"expected a vector of 3 numbers, found the shape \(\)"),
        (lambda x: x[:2], r"expected a vector of 3 numbers, found the shape \(2,\)"),
        (lambda x: x.share, "found Tensor"),
        (lambda x: x > 1, r"scale 2\^16, found 1"),
        (lambda x: x.no_such_function(), "raised AttributeError"),
        (lambda x: 1 / 0, "raised ZeroDivisionError"),
        (lambda x: x.get_plain_text(dst=0), "raised NotImplementedError"),
    ],
)
def test_functions_that_open_draw_or_return_something_else_are_refused(
    function: Callable[[Any], Any], why: str
) -> None:
    """By the dry run, before anything of a round; CrypTen's globals are its user's again."""
    crypten = load_crypten()
    before = globals_of(crypten.crypten)
    with pytest.raises(FunctionRefusedError, match=why):
        of(function, 3)
    assert globals_of(crypten.crypten) == before


def test_one_correlation_fewer_is_too_few() -> None:
    """In any block: a run that left some would pass without them. Nothing is left, and nothing is taken twice."""
    function, x = of(clip, 5, bound=1.5), np.arange(5)
    blocks = function.dry_run.blocks
    for short, block in enumerate(blocks):
        fewer = (*blocks[:short], type(block)(block.n_words - 1), *blocks[short + 1 :])  # type: ignore[call-arg]
        sides = dealt_for(fewer)
        with pytest.raises(TupleExhaustedError, match=r"left$"):
            run_pair(lambda ch, sides=sides: function.share_of(x, sides[ch.party], ch))  # type: ignore[misc]
    sides = dealt_for(blocks)
    run_pair(lambda ch: function.share_of(x, sides[ch.party], ch))
    with pytest.raises(TupleExhaustedError):
        run_pair(lambda ch: function.share_of(x, sides[ch.party], ch))


def test_a_functions_blocks_come_behind_what_earlier_steps_left() -> None:
    """The last blocks of a batch, though triples before them are unused; never those that a step took of."""
    function, x = of(clip, 4, bound=1.5), np.array(EDGES[:4])
    shape = BatchShape("t", 0, ("c",), 4, (AndBlock(13), BitBlock(2), AndBlock(7), *function.dry_run.blocks))
    sides = [ServerTuples(party, shape, part) for party, part in enumerate(deal(shape))]
    for side in sides:
        side.correlations().triples(5)
    shares = (x - 1, np.ones_like(x))
    a, b = run_pair(lambda ch: function.share_of(shares[ch.party], sides[ch.party].correlations_from(3), ch))
    assert_array_equal(a + b, clipped(x))
    for block in (3, 2):
        with pytest.raises(TupleExhaustedError, match=f"block {block} of the round is taken already"):
            sides[0].correlations_from(block)


# What a server sees, and peers that deviate


@pytest.mark.parametrize("value", [0, -1, 2**40])
def test_every_message_about_constant_words_is_uniform(value: int) -> None:
    """Chi-square at 1e-6 for each of 2 * 9 messages, so correct code fails on a seed in 50 000.

    A bit that is opened fills a word of CrypTen's, whose lowest bit alone is looked at.
    """
    dim, logs = 5 << 12, [None, None]

    def recorded(channel: Any) -> Any:
        logs[channel.party] = RecordingChannel(channel)  # type: ignore[call-overload]
        return logs[channel.party]

    x = np.full(dim, value, dtype=np.int64)
    shared(of(clip, dim, bound=1.5), x, recorded, random_bytes=random_bytes_of(f"function of {value}"))
    for log in logs:
        for label, payload in log.sent:  # type: ignore[attr-defined]
            words = np.frombuffer(payload, dtype=np.int64)
            if label == "function/8":
                assert set(words.tolist()) == {0, 1}
            bits = np.packbits(words.astype(np.uint8)).tobytes()
            assert are_uniform_bytes(bits if label == "function/8" else payload), label


def test_parties_with_different_functions_are_told() -> None:
    """Another number of comparisons, or of coordinates: an error and no result."""
    mine, other = of(clip, 4, bound=1.5), of(lambda x: x.relu(), 4)
    longer = of(clip, 5, bound=1.5)
    for theirs in (other, longer):
        functions = (mine, theirs)
        sides = [dealt_for(function.dry_run.blocks)[party] for party, function in enumerate(functions)]
        inputs = [np.zeros(function._dim, dtype=np.int64) for function in functions]
        with pytest.raises((MalformedMessageError, PeerMismatchError)):
            run_pair(lambda ch, f=functions, s=sides, i=inputs: f[ch.party].share_of(i[ch.party], s[ch.party], ch))  # type: ignore[misc]


class Adds:
    """A channel that adds to the first word of one step: a peer that deviates."""

    def __init__(self, inner: Channel, label: str, word: int) -> None:
        self._inner, self._label, self._word = inner, label, word
        self.party = inner.party

    def exchange_pieces(self, label: str, pieces: Any, at_most: int | None = None) -> Any:
        for i, piece in enumerate(self._inner.exchange_pieces(label, self._changed(label, pieces), at_most)):
            deviates = label == self._label and i == 0 and self.party == 1
            yield self._plus(piece) if deviates else piece  # it reckons with what it sent

    def _changed(self, label: str, pieces: Any) -> Any:
        for i, piece in enumerate(pieces):
            yield self._plus(piece) if label == self._label and i == 0 and self.party == 1 else piece

    def _plus(self, piece: bytes) -> bytes:
        words = np.frombuffer(piece, dtype=np.int64).copy()
        words[0] += self._word
        return words.tobytes()


def test_a_peer_that_deviates_can_make_the_function_another_one() -> None:
    """Show what is not promised: a word added to the last opening adds itself, times a comparison's bit, to the result.

    So a bit of one coordinate shows through any noise. A bounded factor holds while both follow the protocol.
    """
    function = of(clip, 1, bound=1.5)
    results = [
        int(shared(function, np.array([x]), lambda ch: Adds(ch, "function/9", 2**40))[0]) for x in (-ONE, -2 * ONE)
    ]
    assert abs(results[0] - results[1]) > 2**39


# CrypTen's globals


def globals_of(crypten: Any) -> list[Any]:
    """Return every attribute of CrypTen that a run replaces, and what its generators would draw next."""
    answers = [*load_crypten()._of_gates._answers, *load_crypten()._of_functions._answers]
    states = [
        (kind, str(device), generator.get_state().tolist())
        for kind, by_device in crypten.generators.items()
        for device, generator in by_device.items()
    ]
    return [*(vars(owner)[name] for owner, name, _ in answers), states, str(crypten.cfg.config)]


def test_a_run_that_fails_half_way_leaves_nothing() -> None:
    function, crypten = of(clip, 3, bound=1.5), load_crypten().crypten
    before, sides = globals_of(crypten), dealt_for((AndBlock(26 * 3),))
    with pytest.raises(MpcError):
        run_pair(lambda ch: function.share_of(np.zeros(3, dtype=np.int64), sides[ch.party], ch))
    assert globals_of(crypten) == before
    with pytest.raises(RuntimeError, match="not initialized"):
        crypten.communicator.get()


CRYPTEN_PROGRAM = """
import sys, threading
sys.path[:0] = {path}
import numpy as np
from tests.mpc.crypten.test_bridge import assert_carries, clip, clipped, edge_pairs, globals_of, load_crypten, make_gate
from tests.mpc.crypten.test_bridge import of, shared, EDGES

lookups = load_crypten()
crypten, torch = lookups.crypten, lookups.torch
crypten.init()
crypten.cfg.encoder.precision_bits = 20
crypten.cfg.functions.reciprocal_nr_iters = 7

def program():
    x = crypten.cryptensor([1.5, -2.0, 3.25], requires_grad=True)
    y = crypten.cryptensor([2.0, 4.0, -1.0])
    (x * y).sum().backward()
    outputs = [x * y, x > y, x.detach().reciprocal(), x.grad]
    return [output.get_plain_text().tolist() for output in outputs]

def drawn():
    torch.manual_seed(3)
    for by_device in crypten.generators.values():
        for generator in by_device.values():
            generator.manual_seed(5)
    return [crypten.rand(3).get_plain_text().tolist(), crypten.cryptensor([1.0]).share.tolist(), torch.rand(2).tolist()]

x = np.array(EDGES)
before, draws, state = program(), drawn(), globals_of(crypten)
for _ in range(3):
    assert (shared(of(clip, x.size, bound=1.5), x) == clipped(x)).all()
assert globals_of(crypten) == state
assert program() == before and drawn() == draws
done, beside = threading.Event(), []

def meanwhile():
    while not done.is_set() or not beside:
        beside.append(program())

thread = threading.Thread(target=meanwhile)
thread.start()
gate, function = make_gate("crypten"), of(clip, x.size, bound=1.5)
for _ in range(10):
    assert (shared(function, x) == clipped(x)).all()
    assert_carries(gate, (edge_pairs(30), 30))
done.set()
thread.join()
assert all(found == before for found in beside), beside
assert program() == before and drawn() == draws
print(before[:2])
"""


def test_a_crypten_program_gives_the_same_before_beside_and_after_a_function() -> None:
    """In a process of its own, with settings, gradients and draws of its user's."""
    code = CRYPTEN_PROGRAM.format(path=sys.path)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[[3.0, -8.0, -3.25], [0, 0, 1]]"


def test_functions_and_gates_at_once_do_not_mix() -> None:
    """Two pairs of parties with functions and one with a gate, in six threads: what is global is per thread."""
    gate = make_gate("crypten")

    def functions(seed: int) -> None:
        x = np.random.default_rng(seed).integers(-(2**18), 2**18, size=50)
        function = of(clip, 50, bound=1.5)
        for _ in range(10):
            assert_array_equal(shared(function, x), clipped(x))

    def gates(_: int) -> None:
        for _ in range(10):
            assert_carries(gate, (edge_pairs(30), 30))

    with ThreadPoolExecutor(max_workers=3) as pool:
        for run in [pool.submit(functions, 1), pool.submit(gates, 0), pool.submit(functions, 2)]:
            run.result()


def test_squares_and_products_are_taken_once() -> None:
    """By the two servers' shares: c = a b and c = a a modulo 2^64, of uniform words."""
    sides = dealt_for((ProductBlock(50), SquareBlock(50)), random_bytes=random_bytes_of("ring products"))
    a, b, c = (x + y for x, y in zip(*(side.ring_triples(50) for side in sides), strict=True))
    assert_array_equal(c, a * b)
    assert len({*a.tolist(), *b.tolist()}) == 100
    r, squared = (x + y for x, y in zip(*(side.squares(50) for side in sides), strict=True))
    assert_array_equal(squared, r * r)
    with pytest.raises(TupleExhaustedError):
        sides[0].squares(1)
