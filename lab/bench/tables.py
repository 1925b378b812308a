"""The reports, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from precad.lab.bench.validation import COMPARED

MAX_WIDTH = 200


def print_machine(console: Console, facts: Mapping[str, Any]) -> None:
    """Print one line."""
    versions = ", ".join(f"{k} {v}" for k, v in facts.items() if k not in {"cpu", "cores", "ram_gb", "load_1min"} and v)
    console.print(
        f"{facts['cpu']}, {facts['cores']} cores, {facts['ram_gb']} GB, load {facts['load_1min']:.1f}; {versions}",
        highlight=False,
        soft_wrap=True,
    )


def print_validation(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per case; ratios are ours over theirs, so smaller is better."""
    heads = ["implementation", "mode", "d", "clients", "ms/client", "q1..q3", "ns/coord"]
    heads += ["link B/client", "rounds", "sound"]
    table = _table(heads, [f"/ {name}" for name in COMPARED])
    before = None
    for row in sorted(report["rows"], key=lambda row: (row["d"], row["clients"])):
        if before not in (None, (row["d"], row["clients"])):
            table.add_section()
        before = (row["d"], row["clients"])
        ratios = row.get("ratio", {})
        table.add_row(
            row["implementation"],
            row["mode"] or "",
            f"{row['d']:,}",
            str(row["clients"]),
            f"{row['ms_per_client']:.3g}",
            f"{row['ms_per_client_q1']:.3g}..{row['ms_per_client_q3']:.3g}",
            f"{row['ns_per_coordinate']:.3g}",
            f"{row['bytes_link']:,.0f}",
            str(row["rounds"]),
            {True: "yes", False: "no", None: ""}[row["sound"]],
            *[f"{ratios[name]:.3g}" if name in ratios else "" for name in COMPARED],
        )
    _print(console, table)
    console.print(f"one empty exchange between the servers: {report['exchange_ms']:.3g} ms", highlight=False)


def print_noise(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per sampler."""
    table = _table(["sampler", "exact", "std", "coordinates", "ns/coord", "q1..q3", "ours is faster by"])
    for row in report["rows"]:
        table.add_row(
            row["sampler"],
            "yes" if row["exact"] else "no",
            f"{row['std']:g}",
            f"{row['size']:,}",
            f"{row['ns_per_coordinate']:.4g}",
            f"{row['ns_per_coordinate_q1']:.4g}..{row['ns_per_coordinate_q3']:.4g}",
            f"{row['ratio']:.3g}",
        )
    _print(console, table)


def print_threads(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per number of threads."""
    table = _table(["threads", "d", "clients", "ms", "q1..q3", "ns/coord", "/ one thread"])
    for row in report["rows"]:
        table.add_row(
            str(row["threads"]),
            f"{row['d']:,}",
            str(row["clients"]),
            f"{row['ms']:.4g}",
            f"{row['ms_q1']:.4g}..{row['ms_q3']:.4g}",
            f"{row['ns_per_coordinate']:.3g}",
            f"{row['ratio']:.3g}",
        )
    _print(console, table)


def print_scale(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per size, then the fitted exponents."""
    sizes, costs = ["along", "d", "clients"], ["validate s", "aggregate s", "peak MB/server", "link B/client"]
    table = _table([*sizes, *costs, "sum B/server"])
    for row in report["rows"]:
        table.add_row(
            row["along"],
            f"{row['d']:,}",
            f"{row['clients']:,}",
            f"{row['validate_s']:.4g}",
            f"{row['aggregate_s']:.4g}",
            f"{row['peak_rss_bytes'] / 1e6:,.0f}",
            f"{row['bytes_link']:,.0f}",
            f"{row['bytes_link_aggregate']:,.0f}",
        )
    _print(console, table)
    for along, slopes in report["slopes"].items():
        shown = ", ".join(f"{name} {value:.3f}" for name, value in slopes.items() if value is not None)
        console.print(f"slope along {along}: {shown or 'one size only'}", highlight=False, soft_wrap=True)


def print_overhead(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per setting; the phases' medians need not add up to the median of the round."""
    console.print(f"records: {report['dataset']}", highlight=False)
    table = _table(["setting", "gate", "s/round", "q1..q3", "/ local DP", "phases, ms"])
    for row in report["rows"]:
        table.add_row(
            row["setting"],
            row["gate"] or "",
            f"{row['seconds_per_round']:.3g}",
            f"{row['seconds_per_round_q1']:.3g}..{row['seconds_per_round_q3']:.3g}",
            f"{row['ratio']['local-dp']:.3g}",
            ", ".join(f"{name} {1e3 * seconds:.3g}" for name, seconds in row["phases_s"].items()),
        )
    _print(console, table)


def print_training(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per implementation; ratios are theirs over this one's time, so larger is better."""
    row = report["rows"][0]
    size = (
        f"{row['clients']} clients x {row['records_per_client']} records, {row['threads']} thread(s), {row['device']}"
    )
    console.print(size, highlight=False)
    others = [name for name in ("opacus", "plain-batch") if name in report["rows"][0]["ratio"]]
    heads = ["implementation", "ms/round", "q1..q3", "CPU ms/round", "samples/s", "error / float64"]
    table = _table([*heads, *(f"x {name}" for name in others)])
    for row in report["rows"]:
        table.add_row(
            row["implementation"],
            f"{row['ms_per_round']:.4g}",
            f"{row['ms_per_round_q1']:.4g}..{row['ms_per_round_q3']:.4g}",
            f"{row['cpu_ms_per_round']:.4g}",
            f"{row['samples_per_s']:,.0f}",
            "" if row["relative_error"] is None else f"{row['relative_error']:.1e}",
            *(f"{row['ratio'][name]:.3g}" for name in others),
        )
    _print(console, table)


def print_local_training(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per model, kind of step, number of clients and way; `*` is the way that a simulation takes."""
    row = report["rows"][0]
    size = f"{row['steps']} steps of {row['records_per_step']} records, {row['threads']} thread(s), {row['device']}"
    console.print(size, highlight=False)
    table = _table(
        ["model", "kind", "clients", "way", "ms/round", "CPU ms/round", "samples/s", "x loop", "error / f64"]
    )
    for row in report["rows"]:
        table.add_row(
            row["model"],
            row["kind"],
            str(row["clients"]),
            row["implementation"] + (" *" if row["is_chosen"] else ""),
            f"{row['ms_per_round']:.4g}",
            f"{row['cpu_ms_per_round']:.4g}",
            f"{row['samples_per_s']:,.0f}",
            f"{row['ratio']['loop']:.3g}",
            f"{row['relative_error']:.1e}",
        )
    _print(console, table)


def print_simulation(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per size; `rest` is what an accelerator does not take over."""
    row = report["rows"][0]
    size = f"{row['model']}, {row['repetitions']} rounds, {row['threads']} thread(s), {row['device']}"
    console.print(size, highlight=False)
    heads = [
        "along",
        "registered",
        "drawn",
        "records",
        "rounds/s",
        "ms/round",
        "gradients",
        "rest",
        "CPU ms",
        "peak MB",
    ]
    table = _table(heads)
    for row in report["rows"]:
        table.add_row(
            row["along"],
            f"{row['registered']:,}",
            f"{row['drawn']:.1f}",
            f"{row['records']:,.0f}",
            f"{row['rounds_per_s']:.3g}",
            f"{row['ms_per_round']:.3g}",
            f"{row['gradients_ms']:.3g}",
            f"{row['rest_ms']:.3g}",
            f"{row['cpu_ms_per_round']:.3g}",
            f"{row['peak_rss_bytes'] / 1e6:,.0f}",
        )
    _print(console, table)
    if report["slope"] is not None:
        console.print(f"time grows as records^{report['slope']:.2f} along the drawn", highlight=False)


def _print(console: Console, table: Table) -> None:
    """Print at the table's own width, whatever the terminal's: it may scroll, and a file or a pipe has no width."""
    wide = Console(file=console.file, width=max(console.width, MAX_WIDTH), force_terminal=console.is_terminal)
    wide.print(table)


def _table(heads: list[str], ratios: list[str] | None = None) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for head in [*heads, *(ratios or [])]:
        is_word = head in {"implementation", "mode", "sampler", "along", "setting", "gate", "phases, ms"}
        table.add_column(head, justify="left" if is_word else "right", no_wrap=True)
    return table
