"""The summary of a run, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from dp.accounting import Label, PrivacyStatement, Unit, View
from dp.task_privacy import task_privacy
from protos.task import Task


def print_summary(console: Console, summary: Mapping[str, Any], task: Task) -> None:
    """What was trained, what was refused, what is guaranteed to whom, and what it cost."""
    privacy, delta = task_privacy(task), summary["delta"]
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    if task.algorithm != "precad":
        table.add_row("algorithm", task.algorithm)
    table.add_row("model", f"{task.model}, {task.n_parameters} parameters, test accuracy {summary['accuracy']:.3f}")
    if "learnt_bound" in summary:
        table.add_row("clipping", f"updates to {summary['learnt_bound']:.4g} in the end, a bound that was learnt")
    table.add_row("rounds", f"{summary['rounds']} ({summary['ended']})")
    counts = ", ".join(f"{summary[name]} {name}" for name in ("accepted", "rejected", "missing"))
    table.add_row("uploads", counts)
    table.add_row("rejected clients", ", ".join(summary["rejected_clients"]) or "none")
    for view in View:
        of_most = PrivacyStatement(float(summary[f"epsilon_{view}"]), delta, view, Label.BOUND, unit=privacy.unit)
        rests = "" if task.algorithm == "precad" else f"; {privacy.rests_on[view]}"
        is_nothing = privacy.events[view] is None
        table.add_row("privacy", f"no guarantee for one record{rests}" if is_nothing else f"{of_most}{rests}")
    if privacy.unit is Unit.RECORD and "epsilon_client" in summary:
        epsilon = float(summary["epsilon_client"])
        table.add_row(
            "privacy", str(PrivacyStatement(epsilon, delta, View.CLIENTS_ONLY, Label.BOUND, unit=Unit.CLIENT))
        )
    table.add_row(
        "cost",
        f"{summary['seconds_per_round']:.2f} s per round, {summary['seconds_total']:.0f} s in all; "
        f"{summary['bytes_client_up'] / 1e6:.1f} MB from clients, "
        f"{summary['bytes_server_link'] / 1e6:.1f} MB between the servers",
    )
    table.add_row("run folder", summary["output"])
    console.print(table, highlight=False)
