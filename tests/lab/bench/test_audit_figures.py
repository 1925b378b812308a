"""`precad bench audit-figures`: its rows against direct computations, and the judged lines themselves (slow)."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.dp.auditing import f_dp
from precad.dp.auditing.guesses import Plan as Guessing
from precad.lab.bench import audit_figures
from precad.lab.bench.audit_figures import Mechanism, Plan

ONE = Mechanism(1.0, 1.0, 1)
SMALL = Plan(audits=0, runs=5, observations=2000, one_run=(ONE,), by_rounds=(Mechanism(0.5, 4.6, 30),))


def shown(report: dict[str, Any]) -> str:
    said = io.StringIO()
    audit_figures.print_audit_figures(Console(file=said, width=200), report)
    return said.getvalue()


def test_a_row_of_one_run_is_what_its_guesses_refute() -> None:
    """120 of each, as planned for this mechanism: the medians of five runs, by the seeds' own guesses."""
    report = audit_figures.run(SMALL)
    row = next(row for row in report["rows"] if row["what"] == "f-DP")
    event = SampledGaussian(1.0, 1.0)
    printed = PldAccountant().epsilon(event, 1, 1e-5)
    guesses = [ONE.observed(2000, seed).guesses(event, Guessing(120, 120)) for seed in range(5)]
    found = [f_dp.refuted_epsilon(one, event, 1, 1e-5, 0.95) / printed for one in guesses]
    assert row["median"] == pytest.approx(np.median(found))
    assert (row["runs"], row["printed"], row["accused"]) == (5, pytest.approx(printed), None)


def test_a_target_that_is_missed_is_said() -> None:
    """2,000 observations show 90 % of the demo's epsilon."""
    report = audit_figures.run(SMALL)
    by_rounds, one_run = report["targets"]
    assert (by_rounds["met"], one_run["met"]) == (False, True)
    assert 0.85 < by_rounds["measured"] < 0.95
    assert "30 rounds: least share: 0.9" in shown(report)
    assert "at least 0.95: not met" in shown(report)


@pytest.mark.parametrize(("runs", "most"), [(200, 17), (20, 4)])
def test_as_many_false_alarms_are_allowed_as_one_audit_of_twenty_has(runs: int, most: int) -> None:
    row = audit_figures._row("whole", ONE, 1.0, [0.9], runs=runs, above=most + 1, accused=most)
    accused, above = audit_figures._targets([row])
    assert (accused["met"], above["met"]) == (True, False)
    assert accused["target"] == f"at most {most} of {runs}"


def test_audits_of_the_demo_have_the_target_of_single_rounds() -> None:
    row = audit_figures._row("demo", ONE, 1.0, [0.96, 0.94], runs=8, above=0, accused=0)
    accused, above, least = audit_figures._targets([row])
    assert (accused["met"], above["met"], least["met"]) == (True, True, False)
    assert (least["target"], least["measured"]) == ("at least 0.95", pytest.approx(0.94))


@pytest.mark.slow
def test_sound_systems_are_audited_as_they_are_judged() -> None:
    """40 whole audits, 8 of the demo, all mechanisms in the clear: every target, as with `--audits 40`."""
    report = audit_figures.run(Plan(audits=40))
    assert [target["what"] for target in report["targets"] if not target["met"]] == []
