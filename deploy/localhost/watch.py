"""Show the work of the processes to people: one line a round, on standard error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from precad.deploy.figures import rounded_up
from precad.protos.task.task import Task

VISIBLE_ROUNDS = 14


class LiveTable:
    """A table that grows by a row per round: redrawn in place on a terminal, line by line into a file or a pipe."""

    def __init__(self, console: Console, *, title: str) -> None:
        self._console = console
        self._title = title
        self._rows: list[dict[str, str]] = []
        self._status = "starting processes"
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

    def add(self, metrics: Mapping[str, Any]) -> None:
        """Show a finished round, as `metrics.jsonl` holds it."""
        row = _row(metrics)
        self._rows.append(row)
        if not self._console.is_terminal:
            if len(self._rows) == 1:
                self._console.print(_CAPTION, highlight=False, soft_wrap=True)
            line = "  ".join(f"{name} {row[name]}" for name, _ in COLUMNS if name in row)
            self._console.print(line, highlight=False, soft_wrap=True)

    def _render(self) -> Group:
        return Group(self._table(self._rows[-VISIBLE_ROUNDS:]), Text(self._status, style="dim"))

    def _table(self, rows: list[dict[str, str]]) -> Table:
        table = Table(title=self._title, title_justify="left", caption=_CAPTION, caption_justify="left")
        shown = [(name, justify) for name, justify in COLUMNS if name != _CLIENT or any(name in row for row in rows)]
        for name, justify in shown:
            table.add_column(name, justify="right" if justify else "left", no_wrap=True)
        for row in rows:
            table.add_row(*(row.get(name, "-") for name, _ in shown))
        return table


_CAPTION = "ε: of the rounds so far, if no draw is discarded"
"""Caption of the figure for rounds without a discarded draw. A server that discards draws may learn more, as the
summary at the end says."""

_CLIENT = "ε client"
"""Column of a whole client's epsilon, drawn or not. Only tasks that have a budget for it show the column."""

COLUMNS = (
    ("round", True),
    ("in", True),
    ("accepted", True),
    ("rejected", False),
    ("accuracy", True),
    (_CLIENT, True),
    ("ε server", True),
    ("ε clients", True),
    ("seconds: train", True),
    ("check", True),
    ("all", True),
)


def warning_of(task: Task) -> str | None:
    """Return the warning that comes before a task that protects nobody, None for any other."""
    if task.rules.is_private:
        return None
    return (
        "WARNING: task.algorithm is non-private. No noise is added by anybody, epsilon is infinite, and nothing is "
        "guaranteed for anybody's records against anybody who sees a model. For comparison only."
    )


def _row(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Return cells by column. Epsilons are of the rounds so far."""
    seconds = metrics["seconds"]
    accuracy = metrics["accuracy"]
    left_out = [*metrics["rejected"], *(f"({client})" for client in metrics["missing"])]
    return {
        "round": str(metrics["round"]),
        "in": str(len(metrics["participants"])),
        "accepted": str(len(metrics["accepted"])),
        "rejected": " ".join(left_out) or "-",
        "accuracy": "-" if accuracy is None else f"{accuracy:.3f}",
        **({_CLIENT: rounded_up(metrics["epsilon_client"])} if "epsilon_client" in metrics else {}),
        "ε server": rounded_up(metrics["epsilon_one_server"]),
        "ε clients": rounded_up(metrics["epsilon_clients_only"]),
        "seconds: train": f"{seconds['collect']:.2f}",
        "check": f"{seconds['lock'] + seconds['validate']:.2f}",
        "all": f"{metrics['seconds_total']:.2f}",
    }
