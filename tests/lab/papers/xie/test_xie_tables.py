"""`precad experiment xie-tables`: the printed epsilons, all of them, to their digits."""

import json

import pytest

from precad.deploy.cli.main import app
from precad.lab.papers.xie import tables
from precad.lab.papers.xie.tables import EXPLAINED, REPRODUCED, is_reproduced, xie_tables
from tests.harness.command_line import CliRunner
from tests.lab.papers.in_small import marks_of


@pytest.fixture(scope="module")
def report():
    return xie_tables()


def test_every_printed_epsilon_is_reproduced_or_explained(report):
    """80 to the printed digits; the other four are named by the errata (X2), each with its reason."""
    exact = [row for row in report["rows"] if row["verdict"] == REPRODUCED]
    others = [row for row in report["rows"] if row["verdict"] != REPRODUCED]

    assert (len(exact), report["n_reproduced"], report["n_printed"]) == (80, 80, 84)
    assert [row["printed"] for row in others] == ["0.2238", "0.2234", "0.87", "2.70"]
    assert all(row["verdict"] == EXPLAINED and row["note"] for row in others)


def test_the_tables_are_whole(report):
    """As many values as Tables 4 to 8 have columns with noise."""
    sizes = {n: sum(row["table"] == f"CCS '23, Table {n}" for row in report["rows"]) for n in (4, 5, 6, 7, 8)}

    assert sizes == {4: 8, 5: 6, 6: 5, 7: 8, 8: 8}


def test_what_is_proved_is_less(report):
    """The recipe is the weakest of three bounds for Poisson sampling: loss distributions <= Renyi <= recipe."""
    without = [row["table"] for row in report["rows"] if row["pld"] is None]
    compared = [row for row in report["rows"] if row["pld"] is not None]

    assert (len(compared), without) == (82, ["CCS '23, Figure 9"] * 2)
    for row in compared:
        assert row["pld"] < row["rdp"] < row["reproduction"]


@pytest.mark.parametrize(
    ("value", "printed", "is_it"),
    [(0.62975, "0.6298", True), (0.62984, "0.6298", True), (0.62986, "0.6298", False), (0.546, "0.5460", True)],
)
def test_reproduced_means_the_printed_digits(value, printed, is_it):
    """Rounded to as many decimals as there are."""
    assert is_reproduced(value, printed) is is_it


def test_what_the_papers_print_is_marked(monkeypatch, report, tmp_path):
    """Each printed value of a drawn table is a mark at its sigma."""
    pytest.importorskip("matplotlib")
    marked = marks_of(monkeypatch)
    tables.save(report, tmp_path)
    assert {(0.5, 6.9269), (15, 0.2029), (1.7, 0.8781), (20, 0.2179)} <= set(marked)
    assert len(marked) == 75


def test_the_command(monkeypatch, report):
    """A table for people, one object for programs."""
    monkeypatch.setattr(tables, "xie_tables", lambda: report)
    done = CliRunner().invoke(app, ["experiment", "xie-tables", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["n_reproduced"] == 80

    shown = CliRunner().invoke(app, ["experiment", "xie-tables"]).stdout
    assert "reproduced to the printed digits: 80 of 84" in shown
    assert "0.6298" in shown
