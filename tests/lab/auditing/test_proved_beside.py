"""Epsilons beside an audit: of the training's rounds that its records were in, and of no evaluation.

The ledger of the same task without evaluations says what these rounds cost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from precad.clients.attacks.canaries import RealRecords
from precad.clients.records import Records
from precad.dp.accountants.pld import View
from precad.dp.auditing.observed import Observed
from precad.dp.auditing.shares import Shares
from precad.dp.ledgers.ledger import Ledger
from precad.dp.task_privacy import task_privacy
from precad.lab.auditing.real_record_verdicts import judged_real
from precad.lab.auditing.real_records import RealAudit
from precad.lab.auditing.seat_verdicts import judged
from precad.lab.auditing.seats import Seat
from precad.protos.task.task import Task
from tests.harness.harness import small_task
from tests.lab.auditing.test_real_deployment import TASK, Made

SHARES = Shares.of(0.95, len(Seat), has_real=True)
EVALUATED: dict[str, Any] = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 1.0}


def evaluated(task: Task) -> Task:
    return Task(**{name: getattr(task, name) for name in type(task).model_fields} | EVALUATED)


def charged(task: Task, view: View, rounds: int) -> float:
    """Return what a ledger states after so many rounds of a task that has no evaluations."""
    privacy = task_privacy(task)
    with Ledger(None, events=privacy.events, delta=task.delta) as ledger:
        for number in range(rounds):
            ledger.charge(number, ["watch"])
        return ledger.statement(view).epsilon


@pytest.mark.parametrize("seat", [Seat.SERVER_A, Seat.CLIENTS])
def test_canaries_contradict_what_is_proved_of_their_rounds_alone(seat: Seat) -> None:
    plain, draws = small_task(rounds=20, noise_multiplier=4.0, record_rate=0.5), np.random.default_rng(1)
    shape = (5, 64)
    added = (draws.random(shape) < 0.5).astype(np.float64)
    coins = np.ones(64, dtype=np.bool_)
    seen = Observed(added + 4 * draws.normal(size=shape), added, np.ones(shape, dtype=np.bool_), coins)
    found = judged(seat, evaluated(plain), seen, SHARES)
    assert found["printed"] == pytest.approx(charged(plain, seat.view, 5), rel=1e-9)


def test_real_records_of_a_deployment_do_so_too() -> None:
    seen = {"seat": "clients", "limits": {"noise_at_most": 1.5, "noise_chance": 0.004}}
    found = judged_real(evaluated(TASK), Made(3, 0.5).read(), [seen], SHARES)
    assert found is not None
    assert found["seats"][0]["printed"] == pytest.approx(charged(TASK, View.CLIENTS_ONLY, 3), rel=1e-9)


def test_real_records_of_a_simulation_do_so_too() -> None:
    records = Records(np.zeros((8, 1, 8, 8), dtype=np.float32), np.zeros(8, dtype=np.int64))
    audit = RealAudit(RealRecords(records), clip=1.0)
    for _ in range(5):
        audit.weights.append(np.array([0.0, 1.0] * 4))
        audit.tellable.append(np.ones(8, dtype=np.bool_))
        for seat in Seat:
            audit.residuals[seat].append(np.random.default_rng(2).normal(size=8))
    found = audit.report(evaluated(TASK), SHARES)
    assert found is not None
    for one in found["seats"]:
        assert one["printed"] == pytest.approx(charged(TASK, Seat(one["seat"]).view, 5), rel=1e-9)
