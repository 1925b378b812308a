"""Run a quarantined test a second time: `@pytest.mark.flaky(reason="...")`.

The marker is for a test that loses a race which is not ours to repair, and says which race. Only a failure of the test
itself counts, not one of its fixtures. Both outcomes are printed; a test that fails twice fails.
"""

from __future__ import annotations

from typing import Any

import pytest
from _pytest.runner import runtestprotocol

RERUN = "rerun"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", "flaky(reason): loses a race that is not ours; tried again once")


def _reason_of(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("flaky")
    if mark is None:
        return None
    reason = mark.kwargs.get("reason")
    if not isinstance(reason, str) or not reason:
        raise pytest.UsageError(f"{item.nodeid}: expected flaky(reason=TEXT), found {mark}")
    return reason


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a quarantine without a reason before anything runs."""
    for item in items:
        _reason_of(item)


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a marked test, and once more if it fails."""
    reason = _reason_of(item)
    if reason is None:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    if [report.when for report in reports if report.failed] == ["call"]:
        for report in reports:
            if report.failed:
                report.outcome = RERUN  # type: ignore[assignment]
                report.user_properties.append((RERUN, reason))
            item.ihook.pytest_runtest_logreport(report=report)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def pytest_report_teststatus(report: pytest.TestReport) -> tuple[str, str, tuple[str, dict[str, bool]]] | None:
    """Show a first failure as R."""
    return (RERUN, "R", ("RERUN", {"yellow": True})) if report.outcome == RERUN else None


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print each first failure with its reason; the second outcome stands with all others."""
    for report in terminalreporter.stats.get(RERUN, ()):
        terminalreporter.section(f"tried again: {report.nodeid}", yellow=True)
        terminalreporter.line(f"reason: {dict(report.user_properties)[RERUN]}")
        terminalreporter.line(str(report.longrepr))
