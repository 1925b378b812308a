"""Print the report of an audit for people. A lower figure is rounded down, a proved one up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Column, Table

from precad.deploy.shown.figures import AUDIT_METHODS, three_digits_down, three_digits_up
from precad.dp.accountants.pld import Unit, unit_words

_SEATS: Final = {
    "server_a": "server A corrupted",
    "server_b": "server B corrupted",
    "clients": "only clients corrupted",
}


def print_audit(console: Console, report: Mapping[str, Any]) -> None:
    """Print each seat's lower figures beside the printed epsilon, and what contradicts it."""
    label = report["label"]
    of_figures = (Column(head, justify="right") for head in (*AUDIT_METHODS.values(), "proved"))
    seat_column = Column(f"epsilon at delta = {report['delta']:g}", no_wrap=True)
    table = Table(seat_column, *of_figures, box=None, pad_edge=False)
    for seat in report["seats"]:
        found = [three_digits_down(seat["figures"][method]) for method in AUDIT_METHODS]
        who = f"{_SEATS[seat['seat']]}, {seat['participation']} rounds"
        table.add_row(who, *found, three_digits_up(seat["printed"]))
    console.print(table, highlight=False)
    console.print(
        f"{label} <= true <= proved{_whose(report)}; {report['canaries']} canaries in "
        f"{report['audit_clients']} audit clients, {report['rounds']} rounds, {report['observations']} observations; "
        f"noise is found too small below {_share(report)} of what is printed, with power 95 %",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    for seat in report["seats"]:
        if left_out := seat.get("rounds_left_out"):
            said = f"{_SEATS[seat['seat']]}: {left_out} released rounds left out, of which too little was written down"
            console.print(said, highlight=False, markup=False, soft_wrap=True)
    if real := report.get("real"):
        said = f"{label} by {real['records']} real records in {real['rounds']} rounds: "
        said += "; ".join(_of_real(seat) for seat in real["seats"])
        console.print(said, highlight=False, markup=False, soft_wrap=True)
    if (kinks := report.get("kinks")) and kinks["pairs"]:
        moved = f"{kinks['pairs']} pairs of samples at kinks of the model: one record more moved a sum by at most "
        console.print(f"{moved}{kinks['most']:.9f} R", highlight=False, markup=False, soft_wrap=True)


def _whose(report: Mapping[str, Any]) -> str:
    """Return whose epsilons these are, where it is not one record's."""
    size = report.get("records_per_person", 1)
    return "" if size == 1 else f", of {unit_words(Unit.RECORD, size)}"


def _of_real(seat: Mapping[str, Any]) -> str:
    """Return what real records showed at one seat."""
    methods = [(name, method) for name, method in AUDIT_METHODS.items() if name in seat]
    found = ", ".join(f"{three_digits_down(seat[name])} ({method})" for name, method in methods)
    return f"{_SEATS[seat['seat']]} {found} of {three_digits_up(seat['printed'])}"


def _share(report: Mapping[str, Any]) -> str:
    """Return the share of the printed noise below which the best seat finds it, in percent."""
    return f"{100 * max(seat['finds_noise_below'] for seat in report['seats']):.1f} %"


def faults_of(report: Mapping[str, Any]) -> list[str]:
    """Return a line for each contradiction of what is printed, by seat."""
    lines = []
    for seat in report["seats"]:
        where = _SEATS[seat["seat"]]
        lines += [f"{where}: {alarm}" for alarm in seat["alarms"]]
        for method in seat["exceeded"]:
            figure = seat["figures"][method]
            lines.append(
                f"{where}: expected an epsilon of at most {seat['printed']:.4g}, found {figure:.4g} by "
                f"{report['label']}, {AUDIT_METHODS[method]}"
            )
    lines += _faults_of_real(report.get("real"))
    lines += report.get("charging", {"alarms": ()})["alarms"]
    return [*lines, *(f"records at kinks: {alarm}" for alarm in report.get("kinks", {"alarms": ()})["alarms"])]


def _faults_of_real(real: Mapping[str, Any] | None) -> list[str]:
    """Return a line for each contradiction by real records."""
    if real is None:
        return []
    lines = [f"real records: {alarm}" for alarm in real["alarms"]]
    for seat in real["seats"]:
        where = f"real records, {_SEATS[seat['seat']]}"
        lines += [f"{where}: {alarm}" for alarm in seat["alarms"]]
        if seat["exceeded"]:
            most = max(seat[name] for name in AUDIT_METHODS if name in seat)
            lines.append(f"{where}: expected an epsilon of at most {seat['printed']:.4g}, found {most:.4g}")
    return lines
