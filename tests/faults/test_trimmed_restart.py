"""A server that is killed at each transition of a round whose servers test a margin and trim a sum, and started again.

Failure means what `tests.faults.deployment` names, or one of these:
- a round whose margin was opened, and that a ledger does not hold;
- servers that go on with another number of longest updates than the committed tests lead to.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from precad.dp.accountants.pld import View
from precad.protos.tls.identity import Role
from precad.servers.store import audit_log
from precad.servers.store.folder import open_ledger, store_path
from tests.faults.deployment import committed
from tests.faults.kills import kills, require_nothing_wrong_after_a_kill
from tests.faults.server_main import POINTS, POINTS_OF_TESTED
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS

TASK = small_task(
    ("alice", "bob", "carol"), algorithm="tsgd-ptr", rounds=4, gate="native", noise_multiplier=4.0, trim_tau=0.6,
    trim_noise=0.01, trim_failure=0.4, trim_count=1, learning_rate=1.0,
)  # fmt: skip
"""Equally long updates within tau C, and no noise: a test passes where F is 1, which takes F to 0, where it fails."""
UNTESTED = small_task(
    ("alice", "bob", "carol"), algorithm="tsgd-gaussian", rounds=4, gate="native", noise_multiplier=4.0,
    trim_count=1, learning_rate=1.0,
)  # fmt: skip
"""Every round leaves out the last client's of equally long updates."""
A, B = AGGREGATORS
DEFAULT = {(A, "after-margin"), (B, "after-validated")}
"""In the default suite; everything else is slow."""


@pytest.mark.parametrize(("victim", "point"), kills([*POINTS_OF_TESTED, *POINTS], DEFAULT))
def test_what_a_margin_said_is_paid_for_wherever_a_server_dies(victim: Role, point: str, tmp_path: Path) -> None:
    """The margin of the round in flight opens at the second call, so that its round is lost or taken over."""
    require_nothing_wrong_after_a_kill(tmp_path, TASK, victim, point)
    rule = TASK.trim_rule
    assert rule is not None
    for role in AGGREGATORS:
        rounds = committed(tmp_path, TASK, role)
        F = rule.first_count
        for one in rounds:
            assert one.test is not None
            assert one.test.trim_count == F
            assert one.test.noisy_margin == F << 20  # nobody exceeds tau C
            F = rule.next_count(F, has_passed=one.test.has_passed)
        assert {one.test.has_passed for one in rounds if one.test is not None} == {True, False}
        entries = audit_log.read(store_path(tmp_path / role))
        opened = {entry.fields["round"] for entry in entries if entry.kind == "validated"}
        with open_ledger(tmp_path / role, TASK) as ledger:
            assert opened <= ledger.rounds
            checked = {entry.fields["round"] for entry in entries if entry.kind in ("checking", "unknown", "charged")}
            assert {one.number for one in rounds} <= ledger.rounds <= checked | opened
            most = max(ledger.participation.values())
            for view in View:
                expected = rule.mechanism.event(view).epsilon(most, TASK.delta)
                assert ledger.statement(view).epsilon == pytest.approx(expected, rel=1e-12)
            if point == "after-margin":
                assert len(ledger.rounds) > TASK.rounds  # a round was lost whose margin both servers knew


@pytest.mark.parametrize(("victim", "point"), kills(POINTS, ()))
def test_the_longest_stay_out_wherever_a_server_dies(victim: Role, point: str, tmp_path: Path) -> None:
    """Without a test: every committed model is of the sum of all but the longest."""
    require_nothing_wrong_after_a_kill(tmp_path, UNTESTED, victim, point)
    assert all(one.test is None for one in committed(tmp_path, UNTESTED, A))
    assert any(len(one.accepted) > 1 for one in committed(tmp_path, UNTESTED, A))
