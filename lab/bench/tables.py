"""The reports, for people."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from rich.console import Console
from rich.table import Column, Table

from precad.lab.bench.overhead import NATIVE, PRECAD
from precad.lab.bench.peer_runs import CRYPTEN_TTP
from precad.lab.bench.plain_federation import LOCAL_DP
from precad.lab.bench.proved import PROVED
from precad.lab.bench.validation import COMPARED

PrintTable: TypeAlias = Callable[[Console, Mapping[str, Any]], None]
MAX_WIDTH = 240


def text_of(print_table: PrintTable, report: Mapping[str, Any]) -> str:
    """Return what a table shows, for a file: no colours, and no spaces at the ends of lines."""
    file = io.StringIO()
    print_table(Console(file=file, width=MAX_WIDTH, no_color=True), report)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


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
    table = _table([*_VALIDATION, *(f"/ {name}" for name in COMPARED)])
    in_order = sorted(report["rows"], key=lambda row: (row["d"], row["clients"]))
    for _, of_size in itertools.groupby(in_order, key=lambda row: (row["d"], row["clients"])):
        table.add_section()
        for row in of_size:
            shown = {**row, "mode": row["mode"] or "", "sound": {True: "yes", False: "no", None: ""}[row["sound"]]}
            ratios = row.get("ratio", {})
            found = (f"{ratios[name]:.3g}" if name in ratios else "" for name in COMPARED)
            table.add_row(*(cell.format_map(shown) for cell in _VALIDATION.values()), *found)
    _print(console, table)
    console.print(f"one empty exchange between the servers: {report['exchange_ms']:.3g} ms", highlight=False)
    _print_clients_and_targets(console, report)


def print_proved(console: Console, report: Mapping[str, Any]) -> None:
    """Print mode `proved` alone: a line per size, then what it costs its client, and its targets."""
    by_size: dict[tuple[int, int], dict[str, Any]] = {}
    for row in report["rows"]:
        here = by_size.setdefault((row["d"], row["clients"]), {"d": row["d"], "clients": row["clients"]})
        if row["implementation"] == PROVED:
            here |= {row["mode"]: row["ms_per_client"]}
        if row["mode"] == PROVED:
            here |= {"ttp": _inverse(row["ratio"], CRYPTEN_TTP), "of_native": _over(row["ratio"], NATIVE)}
            here |= {"rows": row["rows_ms_per_client"], "all_ttp": _inverse(row["ratio_with_rows"], CRYPTEN_TTP)}
            here |= {"all_native": _over(row["ratio_with_rows"], NATIVE), "link": row["bytes_link"]}
        if (row["implementation"], row["mode"]) == (NATIVE, "masked"):
            here |= {NATIVE: row["ms_per_client"]}
    print_rows(console, _PROVED, (by_size[size] for size in sorted(by_size)))
    _print_clients_and_targets(console, report)


def _inverse(ratio: Mapping[str, float], name: str) -> str:
    return f"1/{1 / ratio[name]:.3g}" if name in ratio else ""


def _over(ratio: Mapping[str, float], name: str) -> str:
    return f"{ratio[name]:.3g}" if name in ratio else ""


def _print_clients_and_targets(console: Console, report: Mapping[str, Any]) -> None:
    print_rows(console, _PROVED_CLIENT, report["proved_clients"])
    _print_targets(console, report["targets"])


_VALIDATION: Final = {
    "implementation": "{implementation}",
    "mode": "{mode}",
    "d": "{d:,}",
    "clients": "{clients}",
    "ms/client": "{ms_per_client:.3g}",
    "q1..q3": "{ms_per_client_q1:.3g}..{ms_per_client_q3:.3g}",
    "ns/coord": "{ns_per_coordinate:.3g}",
    "link B/client": "{bytes_link:,.0f}",
    "rounds": "{rounds}",
    "sound": "{sound}",
}
_PROVED: Final = {
    "d": "{d:,}",
    "clients": "{clients}",
    "proved ms/client": "{proved:.3g}",
    "holder computes": "{holder:.3g}",
    "seeded computes": "{seeded:.3g}",
    "native": "{native:.3g}",
    "/ native": "{of_native}",
    "/ crypten-ttp": "{ttp}",
    "rows before": "{rows:.3g}",
    "with rows / native": "{all_native}",
    "/ ttp": "{all_ttp}",
    "link B/client": "{link:,.0f}",
}
_PROVED_CLIENT: Final = {
    "client of proved": "d = {d:,}",
    "share ms": "{share_ms:.3g}",
    "proof ms": "{proof_ms:.3g}",
    "q1..q3": "{proof_ms_q1:.3g}..{proof_ms_q3:.3g}",
    "share B": "{bytes_share:,}",
    "proof B": "{bytes_proof:,}",
}
_TARGETS: Final = {
    "target of proved": "{what}{size}",
    "at most": "{target:.4g}",
    "measured": "{measured:.4g}",
    "": "{verdict}",
}
_WORDS: Final = {"implementation", "mode", "sampler", "along", "setting", "gate", "phases, ms"} | {
    "target of proved",
    "target of adapters",
}
"""Columns that hold no numbers."""
_NOISE: Final = {
    "sampler": "{sampler}",
    "exact": "{exact}",
    "std": "{std:g}",
    "coordinates": "{size:,}",
    "ns/coord": "{ns_per_coordinate:.4g}",
    "q1..q3": "{ns_per_coordinate_q1:.4g}..{ns_per_coordinate_q3:.4g}",
    "ours is faster by": "{ratio:.3g}",
}
THREADS: Final = {
    "threads": "{threads}",
    "d": "{d:,}",
    "clients": "{clients}",
    "ms": "{ms:.4g}",
    "q1..q3": "{ms_q1:.4g}..{ms_q3:.4g}",
    "ns/coord": "{ns_per_coordinate:.3g}",
    "/ one thread": "{ratio:.3g}",
}
_STARTUP: Final = {
    "to": "{what}",
    "cold s": "{cold_s:.3g}",
    "warm s": "{warm_s:.3g}",
    "q1..q3": "{warm_s_q1:.3g}..{warm_s_q3:.3g}",
}
_AUDITED: Final = {
    "task": "{setting}",
    "servers ms": "{servers_s:.3g}",
    "q1..q3": "{servers_s_q1:.3g}..{servers_s_q3:.3g}",
    "processor ms": "{cpu}",
    "phases ms": "{phases}",
}
_SCALE: Final = {
    "along": "{along}",
    "d": "{d:,}",
    "clients": "{clients:,}",
    "validate s": "{validate_s:.4g}",
    "aggregate s": "{aggregate_s:.4g}",
    "peak MB/server": "{peak_mb:,.0f}",
    "link B/client": "{bytes_link:,.0f}",
    "sum B/server": "{bytes_link_aggregate:,.0f}",
}
OF_PAPER: Final = 7
"""Running time of PRECAD over that of local DP, as the paper says it."""
_OVERHEAD: Final = {
    "setting": "{setting}",
    "gate": "{gate}",
    "clients": "{clients:.3g}",
    "delay ms": "{delay_ms:g}",
    "s/round": "{seconds_per_round:.3g}",
    "q1..q3": "{seconds_per_round_q1:.3g}..{seconds_per_round_q3:.3g}",
    "/ local DP": "{ratio[local-dp]:.3g}",
    "servers' CPU ms": "{cpu}",
    "clients'": "{clients_cpu}",
    "phases, ms": "{phases}",
}
_TRAINING: Final = {
    "implementation": "{implementation}",
    "ms/round": "{ms_per_round:.4g}",
    "q1..q3": "{ms_per_round_q1:.4g}..{ms_per_round_q3:.4g}",
    "CPU ms/round": "{cpu_ms_per_round:.4g}",
    "samples/s": "{samples_per_s:,.0f}",
    "error / float64": "{error}",
}
_LOCAL_TRAINING: Final = {
    "model": "{model}",
    "kind": "{kind}",
    "clients": "{clients}",
    "way": "{implementation}{star}",
    "ms/round": "{ms_per_round:.4g}",
    "CPU ms/round": "{cpu_ms_per_round:.4g}",
    "samples/s": "{samples_per_s:,.0f}",
    "x loop": "{ratio[loop]:.3g}",
    "error / f64": "{relative_error:.1e}",
}
_SIMULATION: Final = {
    "along": "{along}",
    "registered": "{registered:,}",
    "drawn": "{drawn:.1f}",
    "records": "{records:,.0f}",
    "rounds/s": "{rounds_per_s:.3g}",
    "ms/round": "{ms_per_round:.3g}",
    "gradients": "{gradients_ms:.3g}",
    "rest": "{rest_ms:.3g}",
    "CPU ms": "{cpu_ms_per_round:.3g}",
    "peak MB": "{peak_mb:,.0f}",
}
ROBUST: Final = {
    "implementation": "{implementation}",
    "clients": "{clients}",
    "ms/round": "{ms:.4g}",
    "q1..q3": "{ms_q1:.4g}..{ms_q3:.4g}",
    "/ native": "{ratio:.3g}",
    "rounds": "{rounds}",
    "link B": "{bytes_link:,}",
    "dealer ms": "{dealer_ms:.4g}",
    "dealer B": "{bytes_dealer:,}",
    "peak MB": "{peak_mb:,.0f}",
}
"""Columns, and what each shows of a row."""


def table_of(columns: Mapping[str, str]) -> PrintTable:
    """Return what prints one line per row of a report."""
    return lambda console, report: print_rows(console, columns, map(_in_megabytes, report["rows"]))


def print_startup(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per wait, then each target."""
    print_rows(console, _STARTUP, report["rows"])
    for row in report["targets"]:
        verdict = "met" if row["met"] else "missed"
        said = f"{row['what']}: {row['measured']:.3g}, target at most {row['target']:.3g}: {verdict}"
        console.print(said, highlight=False)


def print_noise(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per sampler."""
    print_rows(console, _NOISE, ({**row, "exact": "yes" if row["exact"] else "no"} for row in report["rows"]))


def print_scale(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per size, then the fitted exponents."""
    print_rows(console, _SCALE, map(_in_megabytes, report["rows"]))
    for along, slopes in report["slopes"].items():
        shown = ", ".join(f"{name} {value:.3f}" for name, value in slopes.items() if value is not None)
        console.print(f"slope along {along}: {shown or 'one size only'}", highlight=False, soft_wrap=True)


def print_audited(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per setting, then the ratios beside their target."""
    ms = ("servers_s", "servers_s_q1", "servers_s_q3")
    rows = ({**row, **{name: 1e3 * row[name] for name in ms}, **_phases_and_cpu(row)} for row in report["rows"])
    print_rows(console, _AUDITED, rows)
    for target in report["targets"]:
        low, high = target["interval"]
        said = f"{target['what']}: {target['measured']:.3f} ({low:.3f} to {high:.3f}) of the plain task's"
        said += f", at most {target['target']:g}"
        console.print(said, highlight=False, soft_wrap=True)


def _phases_and_cpu(row: Mapping[str, Any]) -> dict[str, str]:
    """Return milliseconds of each phase, and of the servers' processors where they were measured."""
    phases = ", ".join(f"{name} {1e3 * seconds:.3g}" for name, seconds in row["phases_s"].items())
    of_servers: Mapping[str, float] = row.get("servers_cpu_s") or {}
    of_clients = f"{1e3 * row['clients_cpu_s']:.3g}" if "clients_cpu_s" in row else ""
    cpu = " + ".join(f"{1e3 * seconds:.3g}" for seconds in of_servers.values())
    return {"phases": phases, "cpu": cpu, "clients_cpu": of_clients}


def print_overhead(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per setting; the phases' medians need not add up to the median of the round."""
    console.print(f"records: {report['dataset']}, d = {report['d']:,}", highlight=False)
    rows = ({**row, "gate": row["gate"] or "", **_phases_and_cpu(row)} for row in report["rows"])
    print_rows(console, _OVERHEAD, rows)
    for said in (*_by_thread(report["rows"]), _beside_the_paper(report["rows"])):
        console.print(said, highlight=False, soft_wrap=True)
    _print_targets(console, report["targets"])


def _by_thread(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Say by which threads the servers of our own rounds spend their processor time."""
    for row in rows:
        if row["setting"] == PRECAD and not row["delay_ms"] and (spent := row.get("servers_threads_s")):
            parts = ", ".join(f"{kind} {100 * s / sum(spent.values()):.0f} %" for kind, s in spent.items())
            yield f"servers' processor time by thread, {row['gate']}: {parts}"


def _beside_the_paper(rows: Iterable[Mapping[str, Any]]) -> str:
    """Say what PRECAD's rounds cost here and in the paper (Sec. 6.2, Figure 3), whose machine and model are others."""
    ours = ", ".join(
        f"{row['gate']} {row['ratio'][LOCAL_DP]:.3g}" + (f" at {row['delay_ms']:g} ms" if row["delay_ms"] else "")
        for row in rows
        if row["setting"] == PRECAD
    )
    return f"a round over one of local DP, by gate: {ours}; the paper, by CrypTen on its machine: about {OF_PAPER}"


def _print_targets(console: Console, targets: Iterable[Mapping[str, Any]]) -> None:
    """Print what mode `proved` was to reach, and what was measured."""
    rows = (
        {
            **row,
            "size": f", d = {row['d']:,}, clients: {row['clients']}" if "d" in row else "",
            "verdict": "met" if row["met"] else "missed",
        }
        for row in targets
    )
    print_rows(console, _TARGETS, rows)


def print_training(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per implementation; ratios are theirs over this one's time, so larger is better."""
    first = report["rows"][0]
    size = f"{first['clients']} clients x {first['records_per_client']} records"
    console.print(f"{size}, {first['threads']} thread(s), {first['device']}", highlight=False)
    others = {f"x {name}": f"{{ratio[{name}]:.3g}}" for name in ("opacus", "plain-batch") if name in first["ratio"]}
    rows = (
        {**row, "error": "" if row["relative_error"] is None else f"{row['relative_error']:.1e}"}
        for row in report["rows"]
    )
    print_rows(console, _TRAINING | others, rows)


def print_local_training(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per model, kind of step, number of clients and way; `*` is the way that a simulation takes."""
    first = report["rows"][0]
    size = f"{first['steps']} steps of {first['records_per_step']} records"
    console.print(f"{size}, {first['threads']} thread(s), {first['device']}", highlight=False)
    print_rows(console, _LOCAL_TRAINING, ({**row, "star": " *" if row["is_chosen"] else ""} for row in report["rows"]))


def print_simulation(console: Console, report: Mapping[str, Any]) -> None:
    """Print one line per size; `rest` is what an accelerator does not take over."""
    first = report["rows"][0]
    size = f"{first['model']}, {first['repetitions']} rounds, {first['threads']} thread(s), {first['device']}"
    console.print(size, highlight=False)
    print_rows(console, _SIMULATION, map(_in_megabytes, report["rows"]))
    if report["slope"] is not None:
        console.print(f"time grows as records^{report['slope']:.2f} along the drawn", highlight=False)


def _in_megabytes(row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "peak_mb": row.get("peak_rss_bytes", 0) / 1e6}


def print_rows(console: Console, columns: Mapping[str, str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Print a table whose columns are formats of a row."""
    table = _table([*columns])
    for row in rows:
        table.add_row(*(cell.format_map(row) for cell in columns.values()))
    _print(console, table)


def _print(console: Console, table: Table) -> None:
    """Print at the table's own width, whatever the terminal's: it may scroll, and a file or a pipe has no width."""
    Console(file=console.file, width=max(console.width, MAX_WIDTH), force_terminal=console.is_terminal).print(table)


def _table(heads: Sequence[str]) -> Table:
    columns = (Column(head, justify="left" if head in _WORDS else "right", no_wrap=True) for head in heads)
    return Table(*columns, box=None, pad_edge=False, header_style="bold")
