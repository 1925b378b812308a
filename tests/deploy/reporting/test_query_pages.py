"""`precad report` of a query: its answer, with error bars, and nothing about trainings."""

from __future__ import annotations

from pathlib import Path

import pytest

from precad.deploy.reporting.write import Report
from tests.harness.command_line import precad
from tests.harness.report_page import Page, report
from tests.harness.run_folders import (
    asked,
    changed,
    deployed,
    of_bins,
)


def test_a_query_has_a_page_with_its_answer(tmp_path: Path) -> None:
    """An estimate with its error bar; no model, no accuracy, no certificate, in page and JSON."""
    made = asked(tmp_path / "run", "mean", estimate={"value": 17.53125, "low": 16.5, "high": 18.625})
    found = Report.of([made])
    page = Page(found.html())
    assert "a query, mean of age, 3 clients" in page.text
    assert "17.53 [16.5, 18.63]" in page.text
    assert "error bar at 90\xa0%" in page.html
    assert 17.53125 in page.values
    assert "accuracy" not in page.charts
    assert found.to_json()["runs"][0]["answer"]["estimate"] == {"value": 17.53125, "low": 16.5, "high": 18.625}
    assert precad("report", made, "--json").exit_code == 0


def test_a_histogram_is_drawn_with_its_error_bars(tmp_path: Path) -> None:
    """As it was estimated, below zero too; the table names each range and its error bar. One round needs no curves."""
    bins = of_bins(-0.5, 7.25, 2.0)
    made = asked(tmp_path / "run", "histogram", bins=bins)
    found = Report.of([made])
    page = Page(found.html())
    (series,) = page.charts["bins"]["series"]
    assert series["points"] == [[5.0, -0.5], [15.0, 7.25], [25.0, 2.0]]
    assert series["band"] == [[5.0, -1.5, 0.5], [15.0, 6.25, 8.25], [25.0, 1.0, 3.0]]
    assert page.charts["bins"]["categories"] == ["0 to 10", "10 to 20", "20 to 30"]
    for text in ("0 to 10 -0.5 [-1.5, 0.5]", "Error bars hold for each column by itself, at 90 %"):
        assert text in page.text
    assert found.to_json()["runs"][0]["answer"]["bins"] == bins
    assert {"epsilon", "uploads"}.isdisjoint(page.charts)


def test_many_bins_are_drawn_together(tmp_path: Path) -> None:
    """Neighbours add up, and their independent noise in squares; the last column has what is left."""
    made = asked(tmp_path / "run", "histogram", bins=of_bins(*[1.0] * 61, reach=3.0))
    page = report(made)
    (series,) = page.charts["bins"]["series"]
    assert len(series["points"]) == 31
    assert series["points"][0] == [pytest.approx(30 / 61), 2.0]
    assert series["band"][0][1:] == [pytest.approx(2 - 18**0.5), pytest.approx(2 + 18**0.5)]
    assert series["band"][-1] == [pytest.approx(30 - 15 / 61), -2.0, 4.0]
    assert "A column adds up 2 bins" in page.text


def test_a_query_is_told_nothing_about_trainings(tmp_path: Path) -> None:
    """No certificate against poisoning, no test records; an answer weighs at most C records."""
    page = report(asked(tmp_path / "run", "histogram", bins=of_bins(1.0, 2.0, 3.0)))
    for stray in ("poison", "certificate", "Poisoning", "test records", "update longer"):
        assert stray not in page.text, stray
    assert "A lie of up to C records is not excluded" in page.text


@pytest.mark.parametrize(("is_query", "found"), [(True, "expected an answer"), (False, "expected no answer")])
def test_a_summary_of_another_kind_is_refused(is_query: bool, found: str, tmp_path: Path) -> None:
    """A query without an answer, a training with one."""
    made = asked(tmp_path / "run", "mean") if is_query else deployed(tmp_path / "run")
    changed(made / "summary.json", level=None if is_query else 0.9)
    refused = precad("report", made)
    assert refused.exit_code == 2
    assert found in refused.stderr
