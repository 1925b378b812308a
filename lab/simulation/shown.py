"""Show people what came out of simulations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from precad.deploy.localhost.summary import quality
from precad.deploy.shown import tables
from precad.lab.simulation.algorithms import ALGORITHMS
from precad.lab.simulation.holder_key import FILE


def print_simulation(console: Console, summary: Mapping[str, Any]) -> None:
    """Print what was trained, and what it guarantees, for people."""
    table = tables.facts()
    name = summary["algorithm"]
    kind = ALGORITHMS.get(name)
    name = f"{summary['task_algorithm']} as deployed" if kind is not None and kind.is_of_any_task else name
    table.add_row("training", f"{name}, {summary['clients']} clients, {summary['model']}")
    for run in summary["seeds"]:
        attack = "" if run["attack_success"] is None else f", attack success {run['attack_success']:.3f}"
        speed = "" if run["rounds_per_second"] is None else f", {run['rounds_per_second']:.1f} rounds/s"
        table.add_row(
            f"seed {run['seed']}",
            f"{', '.join(quality(run))}{attack} after {run['rounds']} rounds ({run['ended']}){speed}",
        )
        if run["learnt_bound"] is not None:
            table.add_row("", f"updates clipped to {run['learnt_bound']:.4g} in the end, a bound that was learnt")
        if run["rejected_clients"]:
            table.add_row("", f"rejected {run['rejected']} times: {', '.join(run['rejected_clients'])}")
        for guarantee in run["guarantees"]:
            table.add_row("", guarantee["sentence"])
    if sum(any(one["epsilon"] is not None for one in run["guarantees"]) for run in summary["seeds"]) > 1:
        table.add_row("all models", "who sees several of them adds up their epsilons, and their deltas")
    if (paid := summary.get("holder_uploads_paid")) is not None:
        said = f"{sum(paid.values())} uploads of {len(paid)} clients" if paid else "nothing: all of it was paid before"
        table.add_row("holders paid", f"{said} (client.holder)")
        table.add_row("randomness", f"from a secret key of the operating system, in {FILE}: who has it knows the noise")
    else:
        table.add_row("randomness", "from seeds: what is guaranteed holds with the operating system's generator")
    table.add_row("run folder", summary["output"])
    console.print(table, highlight=False)
