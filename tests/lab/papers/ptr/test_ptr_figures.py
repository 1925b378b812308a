"""Compare the propose-test-release paper's curves with the formulas written out anew."""

from __future__ import annotations

import math

import pytest

from precad.lab.papers.ptr import figures
from tests.lab.papers.printed import delta, report


def test_direct_analysis_is_the_test_and_a_gaussian() -> None:
    for row in figures.one_release(0.5):
        gaussian = row["direct"] - 1 / figures.LAPLACE
        assert delta(gaussian, 1 / row["sigma_1"]) == pytest.approx(figures.DELTA - row["delta_0"], rel=1e-5)


def test_strong_composition_is_no_more_than_the_sum_and_infinite_without_delta() -> None:
    one = figures.composed_directly(1)
    assert figures.composed_directly(10) <= 10.5 * one * 1.2
    assert figures.composed_directly(10_000) < 10_000 * one
    assert figures.composed_directly(10**6) == math.inf


def test_the_papers_statements_about_its_curves() -> None:
    found = {one["figure"]: one["statements"] for one in report("ptr-figures")["figures"]}
    assert all(all(found[name].values()) for name in "135")
    assert list(found["2"].values()) == [True, False]
    assert list(found["4"].values()) == [True, False]
