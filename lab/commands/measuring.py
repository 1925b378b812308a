"""Show, write and draw the report of a benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from precad.deploy.cli.common import results, write_json

PrintTable: TypeAlias = Callable[[Console, Mapping[str, Any]], None]


def measure(
    run: Callable[[], dict[str, Any]],
    print_table: PrintTable,
    draw: Callable[[Mapping[str, Any], Path], None] | None = None,
    *,
    plot: Path | None = None,
    as_json: bool,
    table: Path | None = None,
    print_to_file: PrintTable | None = None,
) -> None:
    """Run a benchmark, and print its report. Where asked for, it goes into a file and a picture as well, and to
    standard output as JSON. What a picture needs is looked for before anything is measured."""
    from precad.lab.bench import plots, tables

    if plot is not None:
        plots.require_matplotlib()
    report = run()
    print_table(results, report)
    tables.print_machine(results, report["machine"])
    if table is not None:
        table.write_text(tables.text_of(print_to_file or print_table, report), encoding="utf-8")
    if as_json:
        write_json(report)
    if plot is not None and draw is not None:
        draw(report, plot)
