"""The report of `precad account`, printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from precad.deploy.guarantees import conditions
from precad.deploy.guarantees.bins import print_bins
from precad.deploy.shown.figures import at_least, shown
from precad.deploy.shown.tables import titled
from precad.dp.accountants.pld import Label, Unit, View, unit_words


def print_account(console: Console, report: dict[str, Any]) -> None:
    """Print both views, every accountant, strongest label first."""
    words = {View.ONE_SERVER.value: "one server corrupted", View.CLIENTS_ONLY.value: "only clients corrupted"}
    whose, said = unit_words(Unit.RECORD, report.get("records_per_person", 1)), ("accountant", "what it is")
    title = f"epsilon at delta = {report['delta']:g}, add/remove {whose}"
    table = titled(title, *said, *words.values(), words=said)
    first, second = (report[view]["accountants"] for view in words)
    for label in Label:
        for name in first | second:
            of_views = [rows.get(name) for rows in (first, second)]
            if any(row is not None and row["label"] == label.value for row in of_views):
                cells = [shown(row["epsilon"], label) if row else "-" for row in of_views]
                table.add_row(name, label.value.replace("_", " "), *cells)
    console.print(table)
    console.print(
        f"one server: a client that takes part in {report['participation']} of {report['rounds']} rounds, if no draw "
        "is discarded",
        highlight=False,
    )
    _print_evaluations(console, report, words)
    if found := report.get("balls_in_bins"):
        print_bins(console, found, words)
    discarded = {who: report[view]["if_discarded"] for view, who in words.items()}
    most = report[View.ONE_SERVER.value]["if_discarded"]["rounds"]
    figures = ", ".join(f"{who} {shown(found['epsilon'], Label.BOUND)}" for who, found in discarded.items())
    console.print(f"draws discarded or not, a client in at most {most} rounds: {figures}", highlight=False)
    if found := report[View.ONE_SERVER.value].get("bound_by_participation"):
        console.print(
            f"  in a random number of rounds, seen: {shown(found['random'], Label.BOUND)}; in any number up to "
            f"{found['quantile_rounds']}: {shown(found['quantile'], Label.BOUND)}",
            highlight=False,
        )
    for warning in report["warnings"]:
        console.print(warning, highlight=False)
    _print_client_and_calibrated(console, report, words)
    conditions.print_conditions(console, report, words)


def _print_client_and_calibrated(console: Console, report: dict[str, Any], words: Mapping[str, str]) -> None:
    """Print the figures of a whole client, and what a target asks for, where there are any. words: for the views."""
    if client := report.get("client_level"):
        hidden = shown(report["client_level_if_draws_hidden"]["bound"], Label.BOUND)
        console.print(
            f"a whole client, multiplier {client['noise_multiplier']:.3g}: {shown(client['bound'], Label.BOUND)}, "
            f"draws discarded or not: {shown(client['if_discarded'], Label.BOUND)}; "
            f"if no client learns who else is drawn (mode proved, task.round_period_s, no budget of a view): {hidden}",
            highlight=False,
        )
    if found := report.get("calibrated"):
        for view, who in words.items():
            of_view = found[view]
            console.print(
                f"epsilon <= {found['target_epsilon']:g}, {who}, draws discarded or not: sigma >= "
                f"{at_least(of_view['smallest_sigma'])}; if no draw is discarded: sigma >= "
                f"{at_least(of_view['smallest_sigma_if_no_draw_is_discarded'])}; with this sigma "
                f"{of_view['most_rounds_of_a_client']} rounds of a client",
                highlight=False,
            )


def _print_evaluations(console: Console, report: dict[str, Any], words: Mapping[str, str]) -> None:
    """Print what evaluations by clients add, where there are any. words: for the views."""
    if (evaluations := report.get("evaluations")) is None:
        return
    both = ", ".join(f"{who} {shown(report[view]['bound'], Label.BOUND)}" for view, who in words.items())
    console.print(
        f"the table is of the rounds of the training; with {evaluations['most']} evaluations: {both}. All "
        "figures below count these too",
        highlight=False,
    )
