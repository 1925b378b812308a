"""Audits with real records: gradients by two ways, a sound system that is not accused, and faults that they find.

A sound system is accused with a chance of at most 1 %, and the seeds are fixed. Each fault here is found for certain.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch

from precad.clients.gradients import engine as engines
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.models import networks
from precad.clients.records import Records
from precad.dp.auditing.shares import Shares
from precad.dp.task_privacy import task_privacy
from precad.lab.auditing import audit as auditing
from precad.lab.auditing.members import with_canaries
from precad.lab.auditing.real_records import CLIENT, single_gradients
from precad.lab.auditing.report import faults_of
from precad.lab.auditing.seats import Seat
from precad.lab.simulation import SeededRandomness
from tests.lab.auditing.faulty import faulty_clients
from tests.lab.auditing.faulty_noise import FaultyServer
from tests.lab.auditing.test_privacy_audit import plan, seen_of


def report(fault: str = "none", source: Any = SeededRandomness, seed: int = 1) -> dict[str, Any]:
    """The part of real records, of 20 rounds with 64 canaries beside them."""
    draws = source(seed)
    audited = with_canaries(plan(), 64, draws.records(0, "coins"))
    with faulty_clients(fault):
        seen_of(audited, draws)
    assert audited.real is not None
    found = audited.real.report(audited.plan.task, Shares.of(0.95, len(Seat), has_real=True))
    assert found is not None
    return found


def test_a_sound_system_is_not_accused_and_shows_most_of_what_is_printed() -> None:
    """32 records in 20 rounds are 640 observations; the printed epsilon is of these rounds."""
    found = report()
    assert (found["records"], found["rounds"], found["alarms"]) == (32, 20, [])
    privacy = task_privacy(plan().task)
    for seat in found["seats"]:
        assert (seat["alarms"], seat["exceeded"]) == ([], False)
        assert seat["printed"] == pytest.approx(privacy.epsilon(Seat(seat["seat"]).view, 20, 1e-5), rel=1e-2)
        assert 0.6 * seat["printed"] < seat["per_round"] < seat["printed"]


@pytest.mark.parametrize(
    ("fault", "source", "seat", "named"),
    [
        ("clip", SeededRandomness, Seat.CLIENTS, "clip: expected at most R, found 1.49"),
        ("sampling", SeededRandomness, Seat.CLIENTS, "sampling: expected a rate"),
        ("none", functools.partial(FaultyServer, noise="silent"), Seat.SERVER_A, "noise: expected a multiplier"),
        ("none", functools.partial(FaultyServer, noise="repeated"), Seat.SERVER_A, "noise: expected fresh draws"),
    ],
    ids=["clip", "sampling", "silent", "repeated"],
)
def test_a_fault_is_found_by_real_records(fault: str, source: Any, seat: Seat, named: str) -> None:
    alarms = {one["seat"]: one["alarms"] for one in report(fault, source)["seats"]}
    assert any(line.startswith(named) for line in alarms[seat])


def test_a_gradient_that_is_not_the_records_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that mixes a pass's records, as a layer over the batch would: each canary's own is as it must be."""
    padded = engines._padded

    def mixed(*given: Any) -> tuple[torch.Tensor, torch.Tensor]:
        features, labels = padded(*given)
        is_canary = features.flatten(start_dim=1)[:, :1] < -1
        moved = 0.5 * features + 0.5 * features.roll(1, dims=0)
        return torch.where(is_canary.view(-1, *[1] * (features.dim() - 1)), features, moved), labels

    monkeypatch.setattr(engines, "_padded", mixed)
    found = report()
    assert found["alarms"][0].startswith(
        "gradients: expected an update that is a sum of its records' clipped gradients"
    )
    lines = faults_of({"label": "audit (95 %)", "seats": [], "real": found})
    assert lines[0].startswith("real records: gradients: ")


def test_single_gradients_are_those_of_the_engine() -> None:
    """One record of the engine's at a time, in float32, without a clip that matters."""
    model, records = networks.build("mlp"), plan().split.test.take(np.arange(5))
    engine, theta = RecordEngine(model, torch.zeros(records.shape)), networks.flatten(model)
    ours = single_gradients(networks.build("mlp"), theta, records)
    for i, gradient in enumerate(ours):
        (theirs,) = engine.clipped_sums(theta, [records.take(np.array([i]))], RecordClip(1e6))
        np.testing.assert_allclose(gradient, theirs, atol=1e-5)


def test_records_in_bytes_stand_for_their_pixels() -> None:
    """MNIST's are such. Their gradients are those of the same pixels in [0, 1], which float32 rounds."""
    records, theta = plan().split.test.take(np.arange(3)), networks.flatten(networks.build("mlp"))
    in_bytes = Records(np.round(255 * records.features).astype(np.uint8), records.labels)
    of_pixels = Records(in_bytes.features.astype(np.float32) / np.float32(255), records.labels)
    found, expected = (single_gradients(networks.build("mlp"), theta, one) for one in (in_bytes, of_pixels))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_whole_audit_reports_real_records_and_judges_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client is one more member, with an id of its own."""
    found = auditing.audit(plan(), canaries=64, seed=1)
    assert found["real"]["records"] == 32
    assert found["passed"]
    assert CLIENT in with_canaries(plan(), 64, bytes).plan.task.clients
    monkeypatch.setattr("precad.lab.auditing.real_records.SLACK", -1.0)
    assert not auditing.audit(plan(), canaries=64, seed=1)["passed"]
