"""`precad bench audit`: figures of the servers' part of a round, of two tasks that differ in the audit alone."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from precad.deploy.configuration.local import draft
from precad.deploy.run_files.folder import RunFolder
from precad.lab.bench import audit_overhead, tables, turns
from precad.lab.bench.turns import Turn


def test_ratios_are_of_the_servers_part_of_rounds_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for clients does not count: an audited round of 103 ms beside one of 100 ms is 1.03, whoever is first."""
    order = []

    def taken(first: Mapping[str, Any], second: Mapping[str, Any], *, warm_up: int) -> turns.Pairs:
        order.append(bool(first["task"]["audit_clients"]))
        return [(a_turn(first, i), a_turn(second, i)) for i in range(4)]

    def a_turn(config: Mapping[str, Any], i: int) -> Turn:
        is_audited, busy = bool(config["task"]["audit_clients"]), 1 + i
        noise = 0.043 if is_audited else 0.04
        phases = {"select": 0.01, "collect": 5.0 * is_audited, "validate": 0.05, "noise": noise}
        return Turn([{name: busy * s for name, s in phases.items()}] * 2, busy * (0.2 if is_audited else 0.199))

    monkeypatch.setattr(turns, "run", taken)
    report = audit_overhead.run(audit_overhead.Plan(repetitions=3))
    assert order == [False, True, False]
    wall, processor = report["targets"]
    assert wall["measured"] == pytest.approx(0.103 / 0.1)
    assert wall["interval"] == pytest.approx([0.103 / 0.1] * 2)  # a moment that is busy for both says nothing
    assert (wall["met"], processor["met"]) == (False, True)
    assert [row["repetitions"] for row in report["rows"]] == [24, 24]

    said = io.StringIO()
    tables.print_audited(Console(file=said, width=200), report)
    assert "servers_s: 1.030 (1.030 to 1.030) of the plain task's, at most 1.02" in said.getvalue()


def test_the_tasks_are_alike_but_for_the_audit(tmp_path: Path) -> None:
    """Both are accepted, with as many uploads in every round."""
    plan = audit_overhead.Plan()
    found = [
        draft(plan.config(setting), RunFolder(tmp_path)) for setting in (audit_overhead.PLAIN, audit_overhead.AUDITED)
    ]
    plain, of_audit = (one.task.model_dump() for one in found if one is not None)
    assert of_audit.pop("audit_clients") == ["client-008", "client-009"]
    assert plain.pop("audit_clients") == []
    assert {name for name in plain if plain[name] != of_audit[name]} == {"dim"}  # which a draft makes up
    assert plain["client_rate"] == 1.0
