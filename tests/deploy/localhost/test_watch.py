"""The table of rounds on terminals of 80 and 120 columns, and in a file; and how long the rest takes, in words."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from precad.deploy.localhost import watch
from precad.deploy.localhost.watch import COLUMNS, LiveTable, columns_that_fit
from precad.deploy.shown.durations import in_words

ALL = [name for name, _ in COLUMNS]


def round_of(number: int, *, rejected: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "round": number,
        "participants": range(8),
        "accepted": range(6),
        "rejected": [f"hospital-{i}" for i in range(rejected)],
        "missing": ["hospital-7"],
        "accuracy": 0.91234,
        "seconds": {"collect": 1.0, "lock": 0.1, "validate": 0.2},
        "seconds_total": 1.4,
        "epsilon_one_server": 1.234,
        "epsilon_clients_only": 0.9,
        **more,
    }


def shown(width: int, rounds: list[dict[str, Any]], *, is_terminal: bool = True) -> str:
    """The table at its end, without colours."""
    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=is_terminal, no_color=True, legacy_windows=False)
    with LiveTable(console, title="digits: two aggregators, a dealer, 8 clients", rounds=len(rounds)) as table:
        for one in rounds:
            table.add(one)
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", file.getvalue())
    return text[text.rindex("digits: ") :] if is_terminal else text


@pytest.mark.parametrize(("width", "least"), [(40, 3), (80, 6), (120, 10), (200, 11)])
@pytest.mark.parametrize("n_rejected", [0, 1, 40])
def test_the_table_fits_the_terminal(width: int, least: int, n_rejected: int) -> None:
    """No line is longer, none is broken, and the columns that matter most are there."""
    rounds = [round_of(i, rejected=n_rejected, epsilon_client=1.5) for i in range(12)]
    lines = shown(width, rounds).splitlines()
    assert max(map(len, lines)) <= width
    heading = next(line for line in lines if "round" in line)
    names = [name.strip() for name in heading.strip("┃").split("┃")]
    assert ("all" in names) is ("seconds: train" in names)  # alone, it says what it counts
    names = ["all" if name == "seconds" else name for name in names]
    assert names == [name for name in ALL if name in names]
    assert len(names) >= least
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert [row[0] for row in cells] == [str(i) for i in range(12)]
    assert {len(row) for row in cells} == {len(names)}
    assert "…" not in "".join(lines)


def test_columns_go_in_the_order_of_what_they_are_worth() -> None:
    """A narrower terminal has a subset, in the same order. The figure that a budget limits outlives all others."""
    rows = [dict.fromkeys(ALL, "12345678")]
    before = ALL
    for width in range(160, 0, -1):
        found = [name for name, _ in columns_that_fit(rows, width)]
        assert found == [name for name in before if name in found]
        before = found
    assert before == ["round", "accepted"]
    assert [name for name, _ in columns_that_fit(rows, 40)] == ["round", "accepted", "ε client"]


def test_a_file_has_every_name_and_figure() -> None:
    """It has no width that a line must fit."""
    text = shown(80, [round_of(0, rejected=40)], is_terminal=False)
    line = text.splitlines()[-1]
    assert all(f"hospital-{i}" in line for i in range(40))
    assert all(name in line for name in ALL if name not in ("ε client", "attack"))


def test_the_attackers_success_has_a_column_only_where_it_is_measured() -> None:
    """A run without attackers who aim at anything has no such figure."""
    attacked = round_of(0) | {"attack_success": 0.4375}
    assert "0.438" in shown(200, [attacked])
    for rows, is_there in (([watch._row(round_of(0))], False), ([watch._row(attacked)], True)):
        assert ("attack" in [name for name, _ in columns_that_fit(rows, 200)]) is is_there


def test_a_terminal_says_how_long_the_rest_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once two rounds show how long one takes."""
    now = 100.0
    monkeypatch.setattr(watch.time, "monotonic", lambda: now)
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    table = LiveTable(console, title="t", rounds=15)
    said = []
    for i in range(15):
        said.append(table._left())
        table.add(round_of(i))
        now += 90
    said.append(table._left())
    assert said[0] == ""
    assert said[1] == "round 2 of 15; "
    assert said[6] == "round 7 of 15, 16 minutes left; "  # nine rounds of 90 s and the waiting since the sixth
    assert said[-1] == ""


def test_a_run_that_goes_on_counts_the_rounds_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """And says how long the rest takes by the rounds that it saw itself."""
    clock = iter((100.0, 102.0))
    monkeypatch.setattr(watch.time, "monotonic", lambda: next(clock))
    table = LiveTable(Console(file=io.StringIO()), title="", rounds=10, done=6)
    table.add(round_of(8))
    table._first_at = 90.0
    assert table._left() == "round 8 of 10; "
    table.add(round_of(9))
    assert table._left() == f"round 9 of 10, {in_words(2 * 10.0)} left; "


def test_a_round_without_times_has_a_row() -> None:
    """Its server died before it wrote them down."""
    line = shown(120, [round_of(0, seconds={}, seconds_total=0.0)], is_terminal=False).splitlines()[-1]
    assert "seconds: train -  check -  all 0.00" in line
