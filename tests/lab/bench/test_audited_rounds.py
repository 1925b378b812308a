"""`precad bench audit`: figures of the servers' part of a round, of two tasks that differ in the audit alone."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from precad.deploy.configuration.local import draft
from precad.deploy.run_folder import RunFolder
from precad.lab.bench import audited, measured_run, tables
from precad.lab.bench.measured_run import RunResult
from tests.harness.harness import small_task


def test_ratios_are_of_the_servers_part_of_rounds_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warm-up and waiting for clients do not count: an audited round of 103 ms after one of 100 ms is 1.03."""
    order = []

    def measured(config: Mapping[str, Any], *, warm_up: int) -> RunResult:
        is_audited = bool(config["task"]["audit_clients"])
        order.append(is_audited)
        noise = 0.043 if is_audited else 0.04
        warming = [{"select": 9.0, "collect": 9.0, "validate": 9.0, "noise": 9.0}] * warm_up
        rounds = [{"select": 0.01, "collect": 5.0 * is_audited, "validate": 0.05, "noise": noise}] * 4
        return RunResult(small_task(), [], [*warming, *rounds], 0.2 if is_audited else 0.199)

    monkeypatch.setattr(measured_run, "run", measured)
    report = audited.run(audited.Plan(rounds=4, repetitions=3))
    assert order == [False, True, True, False, False, True]
    wall, processor = report["targets"]
    assert wall["measured"] == pytest.approx(0.103 / 0.1)
    assert (wall["met"], processor["met"]) == (False, True)
    assert [row["repetitions"] for row in report["rows"]] == [12, 12]

    said = io.StringIO()
    tables.print_audited(Console(file=said, width=200), report)
    assert "servers_s: 1.030 of the plain task's, at most 1.02" in said.getvalue()


def test_the_tasks_are_alike_but_for_the_audit(tmp_path: Path) -> None:
    """Both are accepted, with as many uploads in every round."""
    plan = audited.Plan()
    found = [draft(plan.config(setting), RunFolder(tmp_path)) for setting in (audited.PLAIN, audited.AUDITED)]
    plain, of_audit = (one.task.model_dump() for one in found if one is not None)
    assert of_audit.pop("audit_clients") == ["client-008", "client-009"]
    assert plain.pop("audit_clients") == []
    assert {name for name in plain if plain[name] != of_audit[name]} == {"dim"}  # which a draft makes up
    assert plain["client_rate"] == 1.0
