"""An experiment's report as one HTML page, beside `precad report` of a run: nothing is loaded from anywhere.

The tables are beside it as they were printed: `table.csv`, and `table-2.csv` and so on where there are more.

The page has what the command printed for people, its tables as tables, and the folder's pictures inside. It runs no
script. Its content security policy allows one style, by its hash, and pictures that are in the page itself.
"""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup
from rich.console import Console
from rich.table import Table
from rich.text import Text

from precad.deploy.files.whole import write_whole
from precad.deploy.reporting.page import asset, source_of, templates

NAME: Final = "report.html"
_PICTURES: Final = """\
img { max-width: 100%; height: auto; background: #ffffff; border-radius: 6px; }
@media (max-width: 40rem) { img { max-width: none; } }
"""
"""On a narrow screen a picture is scrolled, as its words would be too small to read."""
_NOT_SETTINGS: Final = frozenset({"experiment", "output", "title", "paragraph"})


@dataclass(frozen=True, slots=True)
class Shown:
    """A table as it was printed: text alone."""

    title: str
    headings: list[str]
    rows: list[tuple[str, ...]]
    note: str

    @classmethod
    def of(cls, table: Table) -> Shown:
        """Take a table's cells, without their looks."""
        columns = [[_plain(cell) for cell in column.cells] for column in table.columns]
        headings = [_plain(column.header) for column in table.columns]
        return cls(_plain(table.title), headings, list(zip(*columns, strict=True)), _plain(table.caption))

    def cells(self) -> str:
        """Return the table as CSV, as files of results have it."""
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.headings)
        writer.writerows(self.rows)
        return text.getvalue()


class _Reader(Console):
    """A console that prints nowhere, and keeps what it is asked to print."""

    def __init__(self) -> None:
        super().__init__(file=io.StringIO(), width=120)
        self.tables: list[Shown] = []
        self.lines: list[str] = []

    def print(self, *objects: Any, **looks: Any) -> None:
        """Keep tables and lines."""
        self.tables += [Shown.of(it) for it in objects if isinstance(it, Table)]
        self.lines += [it for it in objects if isinstance(it, str)]


SIMULATED, DEPLOYED, COMPUTED = (
    "simulated in one process",
    "two real servers and processes of clients",
    "computed, not trained",
)
"""How the page says where its numbers come from."""


def write(
    folder: Path,
    name: str,
    report: Mapping[str, Any],
    print_report: Callable[[Console, Any], None],
    *,
    is_computed: bool = False,
) -> None:
    """Write the page into the folder of an experiment, in one step, and the tables that it shows.

    is_computed  of a report without trainings, and so without curves.csv
    """
    reader = _Reader()
    print_report(reader, report)
    style = asset("report.css") + _PICTURES
    made = (
        templates("precad.lab.papers")
        .get_template("experiment.html.j2")
        .render(
            name=name,
            where=COMPUTED if is_computed else DEPLOYED if report.get("deployed") else SIMULATED,
            files="report.json" if is_computed else "report.json and curves.csv",
            policy="default-src 'none'; img-src data:; "
            f"style-src '{source_of(style)}'; base-uri 'none'; form-action 'none'",
            style=Markup(style),  # noqa: S704 - a file of this package
            paragraphs=[line for line in reader.lines if not line.startswith("written to ")],
            tables=reader.tables,
            pictures=[(path.name, _inside(path)) for path in sorted(folder.glob("*.png"))],
            settings=_settings(report),
            version=metadata.version("precad"),
        )
    )
    for number, table in enumerate(reader.tables, 1):
        write_whole(folder / ("table.csv" if number == 1 else f"table-{number}.csv"), table.cells().encode())
    write_whole(folder / NAME, made.encode())


def _settings(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the report's own fields that are one value, or a list of such."""
    found = []
    for name, value in report.items():
        values = value if isinstance(value, list | tuple) else [value]
        if name not in _NOT_SETTINGS and all(isinstance(it, str | int | float | None) for it in values):
            found.append((name, ", ".join(map(_setting, values)) or "-"))
    return found


def _setting(it: str | float | None) -> str:
    """Return a value as the page has it: of a path of this machine its end."""
    if isinstance(it, str) and Path(it).is_absolute():
        return Path(it).name
    return "-" if it is None else str(it)


def _plain(it: Any) -> str:
    """Return what is read of a cell, which rich may mark up."""
    if it is None:
        return ""
    return it.plain if isinstance(it, Text) else Text.from_markup(str(it)).plain


def _inside(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
