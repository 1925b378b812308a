"""Krum and multi-Krum on shares: random rounds are the rule in the clear, ties included, with both gates."""

from __future__ import annotations

import numpy as np
import pytest

from precad.lab.simulation.rules import Krum as CleartextKrum
from precad.lab.simulation.rules import MultiKrum
from precad.mpc.errors import ParameterError
from precad.mpc.gate_names import make_gate
from precad.mpc.norm_bound import MAX_ENCODED_CLIP, NormBound
from precad.mpc.parameters import DEALT_MODES, Mode
from precad.mpc.robust.krum import Krum, blocks, least_scores
from precad.mpc.tuples.held import MAX_OF_PAIRS
from tests.harness.examples import IS_THOROUGH
from tests.mpc.robust.krum_rounds import Round, in_the_clear, run

FRAC_BITS = 6
N_ROUNDS = 1000 if IS_THOROUGH else 200


def random_round(seed: int, mode: Mode = Mode.MASKED) -> Round:
    """Anything that may happen: no client, equal vectors, equal scores, liars, f beyond m, silent clients.

    Slots are in the order in which the rule in the clear ranks equal scores.
    """
    rng = np.random.default_rng(seed)
    m, dim = int(rng.integers(0, 10)), int(rng.integers(1, 6))
    bound = NormBound(float(rng.choice([0.5, 1.0, 40.0])), dim, FRAC_BITS)
    reach = float(rng.choice([0.02, 0.3, 1.2])) * float(bound.encoded_clip) / np.sqrt(dim)
    vectors = np.rint(rng.uniform(-reach, reach, (m, dim))).astype(np.int64)
    if m and rng.random() < 0.2:
        vectors[rng.integers(m)] *= 10**6
    ranked = sorted(range(m), key=lambda i: vectors[i].astype(np.float64).tobytes())
    krum = Krum(bound, n_attackers=int(rng.integers(0, 5)), n_kept=int(rng.integers(1, max(2, m + 2))))
    return Round(vectors[ranked], krum, mode, n_silent=int(rng.integers(0, 3)))


def of_the_rule(it: Round, accepted: list[int]) -> list[int]:
    """The sum by the rule of `precad simulate`, in floats, which are exact for numbers of this size."""
    rows = it.vectors[accepted].astype(np.float64)
    if not len(rows):
        return [0] * it.bound.dim
    if it.krum.n_kept == 1:
        return CleartextKrum(f=it.krum.n_attackers).aggregate(rows).astype(int).tolist()
    n_kept = min(it.krum.n_kept, len(rows))
    mean = MultiKrum(f=it.krum.n_attackers, keep=n_kept).aggregate(rows)
    return np.rint(mean * n_kept).astype(int).tolist()


def assert_as_in_the_clear(it: Round, gate) -> bool:
    """Whether some were left out and others were not."""
    accepted, kept, total = in_the_clear(it)
    assert total == of_the_rule(it, accepted)
    if accepted:
        assert least_scores([it.vectors[i] for i in accepted], it.krum) == [accepted.index(i) for i in kept]
    for one in run(it, gate):
        assert one.accepted == tuple(f"c{i:03d}" for i in accepted)
        assert one.total.tolist() == total
    return 0 < len(kept) < len(accepted)


def test_random_rounds_are_the_rule_in_the_clear():
    """Verdicts and sum, with the native gate; most rounds leave some out."""
    gate = make_gate("native")
    chose = [assert_as_in_the_clear(random_round(seed, DEALT_MODES[seed % 2]), gate) for seed in range(N_ROUNDS)]
    assert sum(chose) > 0.4 * N_ROUNDS


@pytest.mark.parametrize("seed", range(12))
def test_rounds_are_the_same_with_either_gate(seed, gate):
    assert_as_in_the_clear(random_round(5000 + seed), gate)


def test_equal_scores_are_in_the_order_of_slots():
    """Corners of a square have one score, whichever is first; so have two clients, of which the first is public."""
    bound = NormBound(1.0, 2, FRAC_BITS)
    square = np.array([[9, 9], [-9, 9], [9, -9], [-9, -9]], dtype=np.int64)
    for order in ([0, 1, 2, 3], [3, 1, 2, 0], [2, 3, 0, 1]):
        for outcome in run(Round(square[order], Krum(bound, 0, 1)), make_gate("native")):
            assert outcome.total.tolist() == square[order[0]].tolist()
    pair = Round(square[:2], Krum(bound, 0, 1))
    for outcome in run(pair, make_gate("native")):
        assert outcome.total.tolist() == square[0].tolist()
        assert not any("robust/" in label for label, _ in outcome.sent)


@pytest.mark.parametrize("clip", [1.0, float(MAX_ENCODED_CLIP)])
def test_no_distance_and_no_score_wraps_at_the_largest_bound(clip, gate):
    """Vectors as long as C allows, in opposite directions: squared distances of 4T, and sums of four of them."""
    bound = NormBound(clip, 2, 0)
    c = int(clip)
    ends = np.array([[c, 0], [-c, 0], [c, 0], [0, -c], [-c, 0], [-c, 0]], dtype=np.int64)
    for f, n_kept in ((0, 1), (0, 3), (3, 2)):
        it = Round(ends, Krum(bound, f, n_kept))
        accepted, _, total = in_the_clear(it)
        assert len(accepted) == 6
        for outcome in run(it, gate):
            assert outcome.total.tolist() == total


def test_blocks_are_dealt_for_every_bound_and_number_of_clients(gate):
    for encoded in (1, 2**10, 3 * 10**6, MAX_ENCODED_CLIP):
        krum = Krum(NormBound(float(encoded), 1, 0), 1, 1)
        assert krum.score_bits(MAX_OF_PAIRS) <= 62
        assert 4 * krum.bound.threshold * MAX_OF_PAIRS < 1 << krum.score_bits(MAX_OF_PAIRS)
        for n in (0, 1, 2, 3, MAX_OF_PAIRS):
            assert blocks(gate, n, krum)
    with pytest.raises(
        ParameterError, match=f"clients of a round: expected at most {MAX_OF_PAIRS} with Krum, found {MAX_OF_PAIRS + 1}"
    ):
        blocks(gate, MAX_OF_PAIRS + 1, krum)


@pytest.mark.parametrize("mode", DEALT_MODES)
def test_a_round_of_many_tiles_and_clients(mode):
    """Vectors longer than a tile, 16 clients, of which four are on the other side."""
    rng = np.random.default_rng(3)
    bound, far = NormBound(2.0, 40_000, 16), [2, 5, 11, 12]
    vectors = rng.standard_normal((16, bound.dim)) + 2
    vectors[far] *= -1
    vectors *= (1 + rng.random((16, 1)) / 2) / np.linalg.norm(vectors, axis=1, keepdims=True) * 2**16
    grid = np.trunc(vectors).astype(np.int64)
    for n_kept in (1, 12):
        it = Round(grid, Krum(bound, 4, n_kept), mode)
        total = of_the_rule(it, list(range(16)))
        if n_kept == 12:
            assert total == np.delete(grid, far, axis=0).sum(axis=0).tolist()
        for outcome in run(it, make_gate("native")):
            assert outcome.total.tolist() == total
