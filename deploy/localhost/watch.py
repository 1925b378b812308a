"""Show the work of the processes to people: one line a round, on standard error.

A terminal that is too narrow for all columns shows those that matter most, in their usual order.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from precad.deploy.shown.durations import in_words
from precad.deploy.shown.figures import LARGEST_USEFUL, NO_USEFUL_BOUND, rounded_up, says_nothing
from precad.dp.accountants.slack import NO_BOUND
from precad.protos.task.function_fields import NO_BOUND as NO_FACTOR
from precad.protos.task.task import Task
from precad.protos.task.validation_fields import UNCHECKED

VISIBLE_ROUNDS = 14


class LiveTable:
    """A table that grows by a row per round: redrawn in place on a terminal, line by line into a file or a pipe."""

    def __init__(self, console: Console, *, title: str, rounds: int | None = None, done: int = 0) -> None:
        """Begin with no round. Given how many there will be, show how long those that are left take.

        done: rounds before the first that is shown.
        """
        self._console = console
        self._title = title
        self._planned, self._n_before = rounds, done
        self._first_at: float | None = None
        self._rows: list[dict[str, str]] = []
        self._status = "starting processes"
        self.why_no_bound = ""
        """Why a bound may be missing, shown once one is."""
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()
            self._console.print(self._table(self._rows))

    def say(self, status: str) -> None:
        """Show one line under the table, about what is going on; into a file, until there are rounds to tell of."""
        if status != self._status and not self._console.is_terminal and not self._rows:
            self._console.print(status, highlight=False, soft_wrap=True)
        self._status = status

    def warn(self, message: str) -> None:
        """Print one line that stays, above the table."""
        self._console.print(message, style="yellow", markup=False, highlight=False, soft_wrap=True)

    def note(self, message: str) -> None:
        """Print one line that stays, above the table, as it is."""
        self._console.print(message, markup=False, highlight=False, soft_wrap=True)

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Show a finished round, as `metrics.jsonl` holds it."""
        row = _row(metrics)
        self._rows.append(row)
        self._first_at = self._first_at or time.monotonic()
        if not self._console.is_terminal:
            if len(self._rows) == 1:
                self._console.print(_CAPTION, highlight=False, soft_wrap=True)
            for why in self._explained(self._rows):
                if why not in self._explained(self._rows[:-1]):
                    self._console.print(why, highlight=False, soft_wrap=True)
            line = "  ".join(f"{name} {row[name]}" for name, _ in COLUMNS if name in row)
            self._console.print(line, highlight=False, soft_wrap=True)

    def measured(self, metrics: Mapping[str, Any]) -> None:
        """Show the accuracy of a round that is shown already: its model was measured after it."""
        row = _row(metrics)
        if (at := next((i for i, known in enumerate(self._rows) if known["round"] == row["round"]), None)) is None:
            return
        self._rows[at] = row
        if not self._console.is_terminal:
            self._console.print(f"round {row['round']}  accuracy {row['accuracy']}", highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        return Group(self._table(self._rows[-VISIBLE_ROUNDS:]), Text(self._left() + self._status, style="dim"))

    def _left(self) -> str:
        """Say which round it is, and how long those that are left take once two show how long one is."""
        n_shown = len(self._rows)
        n_done = self._n_before + n_shown
        if self._planned is None or self._first_at is None or n_done >= self._planned:
            return ""
        number = f"round {n_done + 1} of {self._planned}"
        if n_shown < 2:
            return f"{number}; "
        each = (time.monotonic() - self._first_at) / (n_shown - 1)
        return f"{number}, {in_words(each * (self._planned - n_done))} left; "

    def _explained(self, rows: list[dict[str, str]]) -> list[str]:
        """Say what stands in these rows in the place of a bound, and why."""
        why = {_USELESS: _WHY_USELESS, NO_BOUND: self.why_no_bound}
        return [text for cell, text in why.items() if text and any(cell in row.values() for row in rows)]

    def _table(self, rows: list[dict[str, str]]) -> Table:
        caption = "; ".join((_CAPTION, *self._explained(rows)))
        table = Table(title=self._title, title_justify="left", caption=caption, caption_justify="left")
        rows = [{**row, "rejected": _short(row["rejected"])} for row in rows]
        shown = columns_that_fit(rows, self._console.width)
        is_of_phases = any(name == "seconds: train" for name, _ in shown)
        for name, justify in shown:
            title = _SECONDS if name == "all" and not is_of_phases else name
            table.add_column(title, justify="right" if justify else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(row.get(name, "-") for name, _ in shown))
        return table


_CAPTION = "ε: of the rounds so far, if no draw is discarded"
"""Caption of the figure for rounds without a discarded draw. A server that discards draws may learn more, as the
summary at the end says."""
_USELESS = "none"
"""A cell in place of a bound that says nothing."""
_WHY_USELESS = f"{_USELESS}: {NO_USEFUL_BOUND}, as it is above {LARGEST_USEFUL:g}"

_CLIENT = "ε client"
"""Column of a whole client's epsilon, drawn or not. Only tasks that have a budget for it show the column."""

_ATTACK: Final = "attack"
"""Column of the attackers' success. Only runs whose attackers aim at anything show the column."""

COLUMNS = (
    ("round", True),
    ("in", True),
    ("accepted", True),
    ("rejected", False),
    ("accuracy", True),
    (_ATTACK, True),
    (_CLIENT, True),
    ("ε server", True),
    ("ε clients", True),
    ("seconds: train", True),
    ("check", True),
    ("all", True),
)

_SECONDS: Final = "seconds"
"""Title of the last column where no other says what it counts."""
_LEAST_FIRST: Final = (
    "seconds: train",
    "check",
    "in",
    "ε clients",
    "all",
    "rejected",
    "ε server",
    "accuracy",
    _ATTACK,
    _CLIENT,
)
"""Columns in the order in which a narrow terminal drops them. What is not here always stays."""
_FRAME, _MOST_NAMES = 3, 24
"""Characters of a column's frame and padding; and of the names of those who were left out of a round."""


def columns_that_fit(rows: Sequence[Mapping[str, str]], width: int) -> list[tuple[str, bool]]:
    """Return the columns, and whether they are aligned right, that a table of so many characters has room for."""
    found = {name for row in rows for name in row}
    shown = [(name, is_right) for name, is_right in COLUMNS if name not in (_CLIENT, _ATTACK) or name in found]
    titles = {"all": _SECONDS}
    sizes = {name: max(len(titles.get(name, name)), *(len(row.get(name, "-")) for row in rows), 1) for name, _ in shown}
    for name in _LEAST_FIRST:
        if 1 + sum(size + _FRAME for size in sizes.values()) <= width:
            break
        sizes.pop(name, None)
    return [(name, is_right) for name, is_right in shown if name in sizes]


def _short(names: str) -> str:
    """Return as many of these names as a cell has room for, and how many more there are."""
    found = shown = names.split()
    while len(text := " ".join(shown)) > _MOST_NAMES and len(found) > 1:
        found = found[:-1]
        shown = [*found, f"+{len(names.split()) - len(found)}"]
    return text


def warning_of(task: Task) -> str | None:
    """Return the warning that comes before a task that protects nobody, or enforces nothing; None for any other."""
    if task.rules.is_private:
        return None if task.checks_norms else f"WARNING: {UNCHECKED}."
    unchecked = "" if task.checks_norms else f" And {UNCHECKED}."
    unchecked += f" And {NO_FACTOR}." if task.has_unbounded_sum else ""
    released = "" if task.krum_rule is None else f" It is {task.krum_rule.released}."
    return (
        f"WARNING: task.algorithm is {task.algorithm}. No noise is added by anybody, epsilon is infinite, and nothing "
        "is guaranteed for anybody's records against anybody who sees a model. For comparison only."
        + released
        + unchecked
    )


def _bound(epsilon: float | str) -> str:
    if math.isinf(float(epsilon)):
        return NO_BOUND
    return _USELESS if says_nothing(float(epsilon)) else rounded_up(epsilon)


def _seconds(of_phases: Mapping[str, float], *phases: str) -> str:
    """Return a cell. A server that died before it wrote down a round's times does not have them afterwards."""
    return f"{sum(of_phases[name] for name in phases):.2f}" if of_phases else "-"


def _row(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return cells by column. Epsilons are of the rounds so far."""
    seconds = metrics["seconds"]
    accuracy = metrics["accuracy"]
    return {
        "round": str(metrics["round"]),
        "in": str(len(metrics["participants"])),
        "accepted": str(len(metrics["accepted"])),
        "rejected": " ".join([*metrics["rejected"], *(f"({client})" for client in metrics["missing"])]) or "-",
        "accuracy": "-" if accuracy is None else f"{accuracy:.3f}",
        **({_ATTACK: f"{metrics['attack_success']:.3f}"} if "attack_success" in metrics else {}),
        **({_CLIENT: _bound(metrics["epsilon_client"])} if "epsilon_client" in metrics else {}),
        "ε server": _bound(metrics["epsilon_one_server"]),
        "ε clients": _bound(metrics["epsilon_clients_only"]),
        "seconds: train": _seconds(seconds, "collect"),
        "check": _seconds(seconds, "lock", "validate"),
        "all": f"{metrics['seconds_total']:.2f}",
    }
