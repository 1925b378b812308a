"""The audit beside a server's state: shown where it is of this task and whole, and left out, with a reason, elsewhere.

Failure means that a figure of another training stands beside this one's proved epsilon, or that a file of an operator
stops a dashboard.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from precad.deploy.oversight.status_shown import _facts
from precad.dp.accountants.pld import View
from precad.protos.tls.identity import Role
from precad.servers.rounds.sessions import Sessions
from precad.servers.telemetry.audit_figures import FILE, AuditFile
from precad.servers.telemetry.events import Telemetry
from tests.harness.harness import small_task
from tests.servers.operations.test_client_table import snapshots


def report(**changes: Any) -> dict[str, Any]:
    """As `precad audit privacy` writes it, of the task of `small_task`."""
    found = [("server_a", "one_server", 4.377, (3.2, 2.917, 0.0)), ("server_b", "one_server", 4.377, (3.9, 2.5, 1.0))]
    found.append(("clients", "clients_only", 2.9, (2.0, 1.5, 0.756)))
    methods = ("per_round", "f_dp", "strict")
    seats = [
        {
            "seat": seat,
            "view": view,
            "participation": 20,
            "printed": printed,
            "figures": dict(zip(methods, lower, strict=True)),
        }
        for seat, view, printed, lower in found
    ]
    whole = {
        "task_digest": small_task().digest().hex(),
        "confidence": 0.95,
        "rounds": 20,
        "observations": 20_000,
        "passed": True,
        "seats": seats,
    }
    return whole | changes


def write(folder: Path, content: Any) -> None:
    half = folder / "half"
    half.write_text(content if isinstance(content, str) else json.dumps(content))
    os.replace(half, folder / FILE)


def test_three_figures_of_each_view_are_shown_and_again_when_the_file_changes(tmp_path: Path) -> None:
    """The smaller one of two servers: with 95 % each, the larger is above the truth in up to one run of ten."""
    taken = snapshots(Telemetry(Role.AGGREGATOR_A), Sessions(("alice",)), tmp_path)
    assert taken.take().audit is None
    write(tmp_path, report())
    found = taken.take().audit
    assert found is not None
    assert {one.view: (one.lower, one.f_dp, one.strict, one.proved) for one in found.views} == {
        View.ONE_SERVER: (3.2, 2.5, 0.0, 4.377),
        View.CLIENTS_ONLY: (2.0, 1.5, 0.756, 2.9),
    }
    assert taken.take() == taken.take()
    write(tmp_path, report(passed=False))
    status = taken.take()
    assert status.audit is not None
    assert not status.audit.passed
    said = _facts(status)
    proved = "of <= 4.38 proved for 20 rounds"
    assert (
        said["audit (95 %), one server"]
        == f">= 3.20 per round, >= 2.50 f-DP in one run, >= 0.00 strict in one run, {proved}"
    )
    assert ">= 0.75 strict in one run, of <= 2.90" in said["audit (95 %), clients only"]
    assert said["audit (95 %)"].startswith("CONTRADICTS what is proved")
    (tmp_path / FILE).unlink()
    assert taken.take().audit is None


def test_the_status_says_of_how_many_records_of_one_person_an_audit_is(tmp_path: Path) -> None:
    task: dict[str, Any] = {"records_per_person": 3}
    write(tmp_path, report(task_digest=small_task(**task).digest().hex()))
    said = _facts(snapshots(Telemetry(Role.AGGREGATOR_A), Sessions(("alice",)), tmp_path, **task).take())
    assert said["audit (95 %) of 3 records of one person, one server"].startswith(">= 3.20 per round, ")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (report(task_digest="ab" * 32), "expected an audit of this task, found another's"),
        (report(task_digest=""), "expected an audit of this task, found another's"),
        (report(confidence=0.2), "expected an audit, found 1 faults in it"),
        (report(seats=[]), "expected an audit, found 1 faults in it"),
        ({}, "expected an audit, found 6 faults in it"),
        ("[" * 100_000, "expected an audit, found 1 faults in it"),
        (json.dumps(report()).replace("3.9", "NaN"), "expected an audit, found 1 faults in it"),
        (" " * (1 << 20) + json.dumps(report()), "expected at most 1048576 bytes"),
    ],
    ids=["another", "anew", "confidence", "no seat", "empty", "deep", "not a number", "long"],
)
def test_what_is_no_audit_of_this_task_is_not_shown_and_logged_once(content: Any, reason: str, tmp_path: Path) -> None:
    write(tmp_path, content)
    file = AuditFile(tmp_path, small_task().digest())
    with capture_logs() as lines:
        assert [file.read() for _ in range(3)] == [None] * 3
    assert [(line["event"], line["reason"]) for line in lines] == [("audit.not_shown", reason)]


def test_a_folder_in_its_place_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    with capture_logs() as lines:
        assert AuditFile(tmp_path, small_task().digest()).read() is None
    assert lines[0]["reason"] == "Is a directory"
