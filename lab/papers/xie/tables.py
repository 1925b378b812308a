"""`precad experiment xie-tables`: every epsilon that Xie et al. print, beside ours.

The numbers and what they were computed from are in `xie_tables.toml`. A value is reproduced if `XieAccountant`,
rounded to the digits printed, is it; where it is not, the file says why. Beside it stands what is proved of the same
rounds with Poisson sampling, which is not the sampling that the papers describe (errata X3).
"""

from __future__ import annotations

import math
import tomllib
import warnings
from fractions import Fraction
from importlib import resources
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Column, Table

from precad.dp.accountants.pld import Label, PldAccountant, SampledGaussian
from precad.dp.accountants.renyi_accounting import OrderGridWarning
from precad.dp.accountants.side_by_side import RdpAccountant, XieAccountant
from precad.lab.papers import runner

EXPLAINED, UNEXPLAINED, REPRODUCED = "not reproduced, explained", "NOT REPRODUCED", "reproduced"


def xie_tables() -> dict[str, Any]:
    """Return one row for each printed value: what is printed, our reproduction of it, and two proved bounds."""
    tables = tomllib.loads(
        resources.files("precad.lab.papers.xie").joinpath("xie_tables.toml").read_text(encoding="utf-8")
    )["table"]
    rows = [
        _row(table, sigma, printed)
        for table in tables
        for sigma, printed in zip(table["sigma"], table["epsilon"], strict=True)
    ]
    return {
        "labels": {
            "reproduction": Label.PUBLISHED_REPRODUCTION.value,
            "pld": Label.BOUND.value,
            "rdp": Label.BOUND.value,
        },
        "n_printed": len(rows),
        "n_reproduced": sum(row["verdict"] == REPRODUCED for row in rows),
        "rows": rows,
    }


def _row(table: dict[str, Any], sigma: float, printed: str) -> dict[str, Any]:
    event = SampledGaussian(float(Fraction(table["q"])), sigma)
    steps, delta = table["steps"], table["delta"]
    reproduction = XieAccountant().epsilon(event, steps, delta)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OrderGridWarning)  # a bound all the same
        renyi = RdpAccountant().epsilon(event, steps, delta)
    why_not, is_proved = table.get("why_not"), table.get("is_proved", True)
    return {
        "table": table["name"],
        "setting": table["what"],
        "q": table["q"],
        "steps": steps,
        "delta": delta,
        "sigma": sigma,
        "printed": printed,
        "reproduction": reproduction,
        "pld": PldAccountant().epsilon(event, steps, delta) if is_proved else None,
        "rdp": renyi if is_proved else None,
        "verdict": _verdict(reproduction, printed, why_not),
        "note": why_not if why_not is not None else table.get("stated"),
    }


def _verdict(reproduction: float, printed: str, why_not: str | None) -> str:
    if is_reproduced(reproduction, printed):
        return REPRODUCED
    return UNEXPLAINED if why_not is None else EXPLAINED


def is_reproduced(value: float, printed: str) -> bool:
    """Return whether `value`, rounded to as many decimals as are printed, is what is printed."""
    return f"{value:.{len(printed.partition('.')[2])}f}" == printed


def print_xie_tables(console: Console, report: dict[str, Any]) -> None:
    """Print a section for each of the papers' tables, what needs a note below."""
    of_numbers = ("sigma", "published", "recipe", "proved rdp", "proved pld", "")
    table = Table(
        *("table", "setting", "q", "steps", "delta"),
        *(Column(head, justify="right", no_wrap=True) for head in of_numbers),
        title="Xie et al.'s epsilons (published, not a guarantee), their recipe, what is proved for Poisson sampling",
        title_justify="left",
    )
    previous, notes = None, dict[str, str]()
    for row in report["rows"]:
        section = (row["table"], row["setting"], row["q"], str(row["steps"]), f"{row['delta']:g}")
        if section != previous:
            table.add_section()
        if row["note"] is not None:
            notes[f"{row['table']}, {row['setting']}"] = row["note"]
        table.add_row(
            *(section if section != previous else ("",) * len(section)),
            f"{row['sigma']:.4g}",
            row["printed"],
            f"{row['reproduction']:.4f}",
            _bound(row["rdp"]),
            _bound(row["pld"]),
            "same" if row["verdict"] == REPRODUCED else "differs",
        )
        previous = section
    console.print(table)
    for where, note in notes.items():
        console.print(f"{where}: {note}", highlight=False)
    console.print(
        f"reproduced to the printed digits: {report['n_reproduced']} of {report['n_printed']}", highlight=False
    )


def _bound(epsilon: float | None) -> str:
    """Return four decimals, rounded up so that it stays a bound."""
    return "-" if epsilon is None else f"<= {math.ceil(epsilon * 10_000) / 10_000:.4f}"


_LEAST: Final = 4
"""Printed values of a table that is drawn: fewer are no curve."""


def save(report: dict[str, Any], folder: Path) -> None:
    """Draw each table's epsilon by sigma: printed, by the recipe, and proved. Raises ConfigError without matplotlib."""
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in report["rows"]:
        tables.setdefault((row["table"], row["setting"]), []).append(row)
    drawn = {names: sorted(rows, key=lambda row: row["sigma"]) for names, rows in tables.items() if len(rows) >= _LEAST}
    runner.save_figure(lambda axes: _draw(axes, drawn), folder / "xie-tables.png", panels=len(drawn))


def _draw(panels: Any, tables: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
    for axes, ((name, setting), rows) in zip(panels, tables.items(), strict=True):
        sigmas = [row["sigma"] for row in rows]
        axes.plot(sigmas, [row["reproduction"] for row in rows], "--", color=runner.COLOURS[0], label="their recipe")
        proved = [row["pld"] for row in rows]
        if None not in proved:
            axes.plot(sigmas, proved, color=runner.COLOURS[2], marker=".", label="proved, Poisson sampling")
        points = [(row["sigma"], float(row["printed"])) for row in rows]
        runner.mark_paper(axes, points, colour=runner.COLOURS[1], label="the paper")
        axes.set(xlabel="σ", ylabel=f"ε at δ = {rows[0]['delta']:g}", title=f"{name}: {setting}")
        axes.set_ylim(bottom=0)
