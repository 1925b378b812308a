"""Lines of the log: what they are about, and how often callers can have one written."""

from __future__ import annotations

from typing import Any

import structlog

from precad.servers.telemetry.logs import MAX_KINDS, QUIET_S, Throttle
from tests.harness.clock import Clock


def test_a_line_that_callers_cause_is_written_once_in_a_while() -> None:
    """The next one says how many were left out; another caller's, and other events, are not touched."""
    clock = Clock()
    throttle = Throttle(clock)

    def written(**event: Any) -> dict[str, Any] | None:
        try:
            return dict(throttle(None, "warning", {"event": "call.refused", "call": "Join", **event}))
        except structlog.DropEvent:
            return None

    alice = {"caller": "precad://client/alice"}
    assert written(**alice) == {"event": "call.refused", "call": "Join", **alice}
    assert [written(**alice, reason=str(i)) for i in range(1000)] == [None] * 1000
    assert written(caller="precad://client/bob") is not None
    lost = [written(event="client.lost", client="alice", server="aggregator-a", reason=str(i)) for i in range(100)]
    assert [line is None for line in lost] == [False] + [True] * 99
    assert [written(event="round.committed") for _ in range(2)] != [None, None]
    clock.now += QUIET_S
    assert written(**alice) == {"event": "call.refused", "call": "Join", **alice, "left_out": 1000}
    for i in range(3 * MAX_KINDS):
        written(caller=str(i))
    assert len(throttle._kinds) == MAX_KINDS
