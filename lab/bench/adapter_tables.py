"""The report of `precad bench adapters`, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console

from precad.lab.bench import tables

_ROWS: Final = {
    "implementation": "{implementation}",
    "records a client": "{records_per_client}",
    "ms/round": "{ms_per_round:.4g}",
    "q1..q3": "{ms_per_round_q1:.4g}..{ms_per_round_q3:.4g}",
    "CPU ms/round": "{cpu_ms_per_round:.4g}",
    "error / float64": "{error}",
}
_MEMORY: Final = {
    "implementation": "{implementation}",
    "records a client": "{records_per_client}",
    "process with its model, MB": "{model_mb:.1f}",
    "pass, MB": "{pass_mb:.1f}",
}
_TARGETS: Final = {
    "target of adapters": "{what}",
    "": "{bound}",
    "target": "{target:,.4g}",
    "measured": "{measured:,.4g}",
    "verdict": "{verdict}",
}


def print_adapters(console: Console, report: Mapping[str, Any]) -> None:
    """Print a line per way and size, memory, and the targets; ratios are theirs over this one's time."""
    first = report["rows"][0]
    console.print(f"{first['clients']} clients, d = {first['d']:,}, {first['threads']} thread(s), cpu", highlight=False)
    others = {f"x {name}": f"{{ratio[{name}]:.3g}}" for name in ("opacus", "plain") if name in first["ratio"]}
    rows = (
        {**row, "error": "" if row["relative_error"] is None else f"{row['relative_error']:.1e}"}
        for row in report["rows"]
    )
    tables.print_rows(console, _ROWS | others, rows)
    memory = (
        {**row, "model_mb": row["model_bytes"] / 1e6, "pass_mb": row["pass_bytes"] / 1e6} for row in report["memory"]
    )
    tables.print_rows(console, _MEMORY, memory)
    targets = ({**row, "verdict": "met" if row["met"] else "missed"} for row in report["targets"])
    tables.print_rows(console, _TARGETS, targets)
