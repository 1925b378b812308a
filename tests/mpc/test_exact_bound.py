"""Honest updates of exactly the largest norm: none is rejected.

Failure means one rejection. The no-wrap test fails an honest update with probability below 2^-9000 here, so there is
no false alarm to allow for.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.deploy.oversight.validation_audit import audit
from precad.mpc.fixed_point import exact_squared_norm
from precad.mpc.gate_names import make_gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.parameters import DEALT_MODES, Mode
from precad.mpc.ring import RingArray
from tests.mpc.sums_of_squares import squares

N_UPDATES = 100_000
BATCH = 1000


def at_the_bound(bound: NormBound, rng: np.random.Generator) -> RingArray:
    """A dense integer vector with ||x||^2 = T exactly: all but four coordinates drawn, four by Lagrange's theorem."""
    x = rng.standard_normal(bound.dim)
    x *= 0.9 * bound.threshold**0.5 / np.linalg.norm(x)
    encoded = np.rint(x).astype(np.int64)
    encoded[:4] = 0
    encoded[:4] = squares(bound.threshold - exact_squared_norm(encoded), 4)
    assert exact_squared_norm(encoded) == bound.threshold
    return encoded


def variants(base: RingArray, n: int, rng: np.random.Generator) -> RingArray:
    """(n, d): the same norm, other coordinates: permuted, with random signs."""
    return rng.permuted(np.tile(base, (n, 1)), axis=1) * rng.choice([-1, 1], (n, base.size))


def require_accepted(vectors: RingArray, bound: NormBound, gate: str, mode: Mode) -> None:
    checked = audit(vectors, bound, gate=make_gate(gate), mode=mode)
    assert checked.verdicts == (True,) * len(vectors)
    assert_array_equal(checked.accepted_sum, vectors.sum(axis=0))


@pytest.mark.parametrize("mode", DEALT_MODES)
@pytest.mark.parametrize("clip_norm", [0.5, 1.0, 30.0, 1000.0])
def test_a_batch_at_the_exact_bound_is_accepted(clip_norm: float, mode: Mode) -> None:
    rng, bound = np.random.default_rng(1), NormBound(clip_norm=clip_norm, dim=32)
    require_accepted(variants(at_the_bound(bound, rng), 50, rng), bound, "native", mode)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_honest_update_of_100_000_at_the_exact_bound_is_rejected() -> None:
    """Every batch has a vector, a clip norm, a form; one in twenty takes CrypTen's gate."""
    rng = np.random.default_rng(2)
    for i in range(N_UPDATES // BATCH):
        bound = NormBound(clip_norm=(0.5, 1.0, 30.0, 1000.0)[i % 4], dim=(8, 16, 32)[i % 3])
        gate, mode = "native" if i % 20 else "crypten", DEALT_MODES[i // 4 % 2]
        require_accepted(variants(at_the_bound(bound, rng), BATCH, rng), bound, gate, mode)


@pytest.mark.slow
@pytest.mark.parametrize("mode", DEALT_MODES)
@pytest.mark.parametrize("dim", [26_010, 1_000_000])
def test_no_large_honest_update_at_the_exact_bound_is_rejected(dim: int, mode: Mode) -> None:
    rng, bound = np.random.default_rng(dim), NormBound(clip_norm=16.0, dim=dim)
    base = at_the_bound(bound, rng)
    require_accepted(np.stack([np.roll(base, i) for i in range(4)]), bound, "native", mode)
