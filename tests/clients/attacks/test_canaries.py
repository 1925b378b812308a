"""Canaries: their gradients through the real engine, and nobody else's changed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from precad.clients.attacks.canaries import Canaries
from precad.clients.auditing.head import EXCESSES, CanaryHead, canary_records
from precad.clients.errors import ArgumentError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.models import networks
from precad.clients.records.records import Records
from precad.clients.training.projection import shrinkage
from precad.protos.task.audit_fields import most_canaries

SHAPE = (1, 8, 8)
R = 0.5
M = 40
LIKE = Records(np.zeros((0, *SHAPE), dtype=np.float32), np.zeros(0, dtype=np.int64))


@pytest.fixture(scope="module")
def engines() -> tuple[RecordEngine, RecordEngine]:
    """One with a head, one without."""
    plain = networks.build("mlp")
    return RecordEngine(CanaryHead(plain, M, R), torch.zeros(SHAPE)), RecordEngine(plain, torch.zeros(SHAPE))


def parameters(engine: RecordEngine, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 3, engine.dim).astype(np.float32)


@pytest.mark.parametrize("seed", range(3))
def test_a_canary_is_some_clips_long_along_its_own_parameter_whatever_the_model_is(
    engines: tuple[RecordEngine, RecordEngine], seed: int
) -> None:
    """Through automatic differentiation, at parameters that noise has moved; clipped to R."""
    engine, _ = engines
    theta, first = parameters(engine, seed), engine.dim - M
    for j in (0, 17, M - 1):
        raw = engine.gradient_sum(theta, canary_records(np.array([j]), LIKE))
        clipped = engine.clipped_sums(theta, [canary_records(np.array([j]), LIKE)], RecordClip(R))[0]
        assert np.flatnonzero(raw).tolist() == np.flatnonzero(clipped).tolist() == [first + j]
        assert abs(raw[first + j]) == pytest.approx(EXCESSES[j % 3] * R, rel=1e-6)
        assert R * (1 - 1e-9) <= abs(clipped[first + j]) <= R


def test_other_records_have_the_gradients_that_they_have_without_a_head(
    engines: tuple[RecordEngine, RecordEngine],
) -> None:
    """Bit for bit, and exactly 0 at the canaries; a canary in the same pass changes nothing."""
    engine, plain = engines
    theta, draws = parameters(engine, 4), np.random.default_rng(5)
    records = Records(draws.random((30, *SHAPE), dtype=np.float32), np.arange(30) % 10)
    beside, _ = engine.clipped_sums(theta, [records, canary_records(np.arange(5), LIKE)], RecordClip(R))
    (alone,) = plain.clipped_sums(theta[:-M], [records], RecordClip(R))

    np.testing.assert_array_equal(beside[:-M], alone)
    assert not beside[-M:].any()


def test_as_many_canaries_as_a_client_may_hold_are_not_shrunk() -> None:
    """All drawn at once, at C / R = 3, 3.5 and 16: the projection leaves them; one more it does not."""
    for ratio in (3.0, 3.5, 16.0):
        k = most_canaries(R, ratio * R)
        assert shrinkage(np.full(k, R * (1 - 2**-34)), ratio * R) == 1
        assert shrinkage(np.full(k + 1, R), ratio * R) < 1


def test_what_is_no_canary_is_refused() -> None:
    with pytest.raises(ArgumentError, match="n_canaries: expected at least 1, found 0"):
        CanaryHead(networks.build("mlp"), 0, R)
    with pytest.raises(ArgumentError, match="coins: expected the shape of places"):
        Canaries(np.arange(3), np.ones(2, dtype=np.bool_), slice(0, 3))
    conduct = Canaries(np.arange(2), np.ones(2, dtype=np.bool_), slice(0, 2))
    with pytest.raises(ArgumentError, match="features: expected numbers for canaries"):
        conduct.on_records(Records(np.zeros((1, 4), dtype=np.int64), np.zeros(1, dtype=np.int64)))


def test_a_representation_tells_no_coin() -> None:
    assert "coins" not in repr(Canaries(np.arange(2), np.ones(2, dtype=np.bool_), slice(0, 2)))
