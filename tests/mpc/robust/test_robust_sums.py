"""Propose-test-release on shares: random rounds are the mechanism in the clear, given the same noise."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from precad.dp.trimmed.trimmed_sum import trimmed_sum
from precad.mpc.gate_names import make_gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import DEALT_MODES, Mode
from tests.harness.examples import IS_THOROUGH
from tests.mpc.robust.robust_rounds import Round, in_the_clear, run, trim

FRAC_BITS = 6
N_ROUNDS = 1000 if IS_THOROUGH else 250
"""A fault that shows in one round of 50 is missed by 250 with probability 0.6 %: 0.98^250."""
N_TRIMS = 100 if IS_THOROUGH else 40
"""One that shows in one round of 10 is missed by 40 with probability 1.5 %: 0.9^40."""


def random_round(seed: int, mode: Mode = Mode.MASKED, dim: int | None = None) -> Round:
    """Anything that may happen: no client, equal norms, liars, F beyond m, silent clients, every branch."""
    rng = np.random.default_rng(seed)
    m, dim = int(rng.integers(0, 9)), int(rng.integers(1, 6)) if dim is None else dim
    bound = NormBound(float(rng.choice([0.5, 1.0, 40.0])), dim, FRAC_BITS)
    lengths = rng.choice([0.0, 0.2, 0.5, 0.9, 1.0, 1.5, 1e6], size=m, p=[0.1, 0.25, 0.2, 0.2, 0.1, 0.1, 0.05])
    directions = rng.choice([-1.0, 0.0, 1.0], size=(m, dim)) if rng.random() < 0.5 else rng.standard_normal((m, dim))
    norms = np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-9)
    vectors = np.trunc(directions / norms * lengths[:, None] * float(bound.encoded_clip)).astype(np.int64)
    scale = 1 << 20
    return Round(
        vectors=vectors,
        bound=bound,
        tau=float(rng.choice([0.2, 0.5, 0.95])),
        trim_count=int(rng.integers(0, m + 3)),
        threshold=int(rng.integers(-1, 3)) * scale,
        margin_noise=(int(rng.normal() * scale), int(rng.normal() * scale)),
        sum_noise=rng.integers(-(2**30), 2**30, size=(2, 2, dim)),
        mode=mode,
        n_silent=int(rng.integers(0, 3)),
    )


def assert_as_in_the_clear(it: Round, gate) -> bool:
    a, b = run(it, gate)
    accepted, noisy, has_passed, total = in_the_clear(it)
    for one in (a, b):
        assert one.accepted == tuple(f"c{i:03d}" for i in accepted)
        assert (one.noisy_margin, one.has_passed) == (noisy, has_passed)
        assert one.total.tolist() == total
    return has_passed


def test_random_rounds_are_the_mechanism_in_the_clear():
    """Verdicts, margin, branch and noisy sum, with the native gate; both branches are met often."""
    gate = make_gate("native")
    passed = [assert_as_in_the_clear(random_round(seed, DEALT_MODES[seed % 2]), gate) for seed in range(N_ROUNDS)]
    assert 0.25 < sum(passed) / N_ROUNDS < 0.75


def test_random_trims_without_a_test_leave_out_the_longest(gate):
    """By Python's integers: what is left is the sum of the shortest, whoever is rejected, tied or silent."""
    for seed in range(N_TRIMS):
        it = random_round(9000 + seed, DEALT_MODES[seed % 2])
        accepted, _, _, total = in_the_clear(replace(it, threshold=-(1 << 60)))
        for outcome in trim(it, gate):
            assert outcome.accepted == tuple(f"c{i:03d}" for i in accepted)
            assert outcome.total.tolist() == total


@pytest.mark.parametrize("seed", range(12))
def test_rounds_are_the_same_with_either_gate(seed, gate):
    assert_as_in_the_clear(random_round(5000 + seed), gate)


@pytest.mark.parametrize("mode", DEALT_MODES)
def test_a_round_of_many_tiles_and_clients(mode):
    """Vectors longer than a tile, 40 clients: the sum is what the cleartext mechanism of `dp` leaves."""
    rng = np.random.default_rng(3)
    bound = NormBound(2.0, 40_000, 16)
    vectors = rng.standard_normal((40, bound.dim))
    vectors *= (rng.random((40, 1)) * 1.99 / np.linalg.norm(vectors, axis=1, keepdims=True)) * 2**16
    grid = np.trunc(vectors).astype(np.int64)
    for has_passed in (False, True):
        it = Round(grid, bound, 0.9, 10, threshold=-(1 << 40) if has_passed else 1 << 40, mode=mode)
        for outcome in run(it, make_gate("native")):
            assert outcome.has_passed is has_passed
            assert outcome.total.tolist() == trimmed_sum(grid, 10 if has_passed else 0).tolist()
