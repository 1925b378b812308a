"""`precad experiment precad-theorem-1`: PRECAD's Figure 2, left: epsilon by epoch, as its Theorem 1 prints it.

Beside it is what is proved. The paper's values come from a central limit and are no bounds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from rich.console import Console

from precad.deploy.shown.figures import plain, rounded_up
from precad.deploy.shown.tables import titled
from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.dp.accountants.pld import View
from precad.dp.published.precad import gdp_mu_precad_clients_only, gdp_mu_precad_server_corrupt
from precad.lab.papers import runner
from precad.lab.papers.precad.mnist import (
    CLIENT_RATE,
    DELTA,
    PRINTED_EPSILON,
    RECORD_RATE,
    ROUNDS,
    SIGMAS,
    proved_epsilon,
)
from precad.lab.papers.runner import EPOCH

EPOCHS: Final = (5, 10, 15, 20, 25)
DIM: Final = 26_010
"""Coordinates of the model on MNIST: rounding adds to what is proved, by less than is shown."""


def theorem_1() -> dict[str, Any]:
    """Return a row for each sigma and epoch: both views' epsilon, published and proved."""
    rows = [_row(sigma, epoch) for sigma in SIGMAS for epoch in EPOCHS]
    order = all(row["one_server"]["published"] > row["clients_only"]["published"] for row in rows)
    return {
        "experiment": "precad-theorem-1",
        "delta": DELTA,
        "rounds": ROUNDS,
        "statements": {"a server's epsilon is larger than the clients'": order},
        "rows": rows,
    }


def _row(sigma: float, epoch: int) -> dict[str, Any]:
    rounds = epoch * EPOCH
    expected = round(CLIENT_RATE * rounds)
    mus = {
        View.ONE_SERVER: gdp_mu_precad_server_corrupt(RECORD_RATE, sigma, expected),
        View.CLIENTS_ONLY: gdp_mu_precad_clients_only(CLIENT_RATE, RECORD_RATE, sigma, rounds),
    }
    found = {
        view.value: {
            "published": eps_from_mu(DELTA, mu),
            "proved": plain(proved_epsilon(view, sigma, expected, DIM)),
        }
        for view, mu in mus.items()
    }
    return {"sigma": sigma, "epoch": epoch, **found}


def print_theorem_1(console: Console, report: dict[str, Any]) -> None:
    """Print the report for people."""
    views = ("one server", "proved", "clients only", "proved")
    table = titled("PRECAD, Figure 2, left: epsilon as printed, and as proved", "sigma", "epoch", *views)
    for row in report["rows"]:
        cells = [row[view.value] for view in (View.ONE_SERVER, View.CLIENTS_ONLY)]
        shown = [text for cell in cells for text in (f"{float(cell['published']):.3f}", rounded_up(cell["proved"], 3))]
        table.add_row(f"{row['sigma']:g}", str(row["epoch"]), *shown)
    console.print(table, highlight=False)


_VIEWS: Final = ((View.ONE_SERVER, "One server and other clients"), (View.CLIENTS_ONLY, "Other clients alone"))


def save(report: dict[str, Any], folder: Path) -> None:
    """Draw epsilon by epoch, published and proved, with the paper's values. Raises ConfigError without matplotlib."""
    runner.save_figure(lambda axes: _draw(axes, report["rows"]), folder / "figure-2-left.png", panels=len(_VIEWS))


def _draw(panels: Any, rows: list[dict[str, Any]]) -> None:
    for axes, (view, title) in zip(panels, _VIEWS, strict=True):
        for colour, sigma in zip(runner.COLOURS, SIGMAS, strict=False):
            own = [row for row in rows if row["sigma"] == sigma]
            for name, style in (("published", "--"), ("proved", "-")):
                curve = [float(row[view.value][name]) for row in own]
                label = f"σ = {sigma:g}, {name}"
                axes.plot([row["epoch"] for row in own], curve, style, color=colour, marker=".", label=label)
            if view is View.ONE_SERVER:
                printed = [(ROUNDS / EPOCH, PRINTED_EPSILON[sigma])]
                runner.mark_paper(axes, printed, colour=colour, label=f"σ = {sigma:g}, the paper's text")
        axes.set(xlabel="epoch (200 rounds)", ylabel="ε at δ = 10⁻⁵", title=title)
        axes.set_ylim(bottom=0)
