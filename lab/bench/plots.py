"""The reports as PNG files. matplotlib is an extra (`bench`), loaded when a plot is drawn and only then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from precad.deploy.shown.drawing import load_pyplot
from precad.lab.bench.checks import FLOOR, UNSOUND
from precad.lab.bench.errors import PlotUnavailableError
from precad.lab.bench.proved import PROVED
from precad.mpc.gate_names import GATES

SIZE = (11.0, 5.0)
DPI = 130
OURS = (*GATES, PROVED)
"""Our sound checks."""


def require_matplotlib() -> Any:
    """Return matplotlib's pyplot, drawing to files. Raises PlotUnavailableError."""
    return load_pyplot(
        PlotUnavailableError("--plot needs matplotlib: install 'precad[bench]' from where precad came from")
    )


@contextmanager
def _figure(path: Path, panels: int = 1, **looks: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its panels in a row, which the file holds when the block has ended."""
    pyplot = require_matplotlib()
    figure, axes = pyplot.subplots(1, panels, squeeze=False, layout="constrained", **{"figsize": SIZE} | looks)
    yield figure, axes[0]
    _save(pyplot, figure, path)


def plot_validation(report: Mapping[str, Any], path: Path) -> None:
    """Draw milliseconds per client against d, log-log: one client on the left, the largest batch on the right."""
    rows = report["rows"]
    batches = sorted({row["clients"] for row in rows})
    panels = sorted({batches[0], batches[-1]})
    series = sorted({(row["implementation"], row["mode"]) for row in rows}, key=_order)
    colours = {key: f"C{i}" for i, key in enumerate(series)}  # the same in every panel, whoever is missing there
    shown: dict[str, Any] = {}
    with _figure(path, len(panels), sharey=True) as (figure, axes):
        for axis, clients in zip(axes, panels, strict=True):
            here = [row for row in rows if row["clients"] == clients]
            for name, mode in sorted({(row["implementation"], row["mode"]) for row in here}, key=_order):
                line = [row for row in here if (row["implementation"], row["mode"]) == (name, mode)]
                label = f"{name}, {mode}" if name in OURS and mode != name else name
                style = {FLOOR: ":", UNSOUND: "--"}.get(name, "-" if name in OURS else "-.")
                _line(axis, line, "d", "ms_per_client", label=label, style=style, colour=colours[name, mode])
            shown |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
            _finish(axis, "d", "one client" if clients == 1 else f"batch of {clients} clients")
        axes[0].set_ylabel("ms per client")
        figure.legend(shown.values(), shown.keys(), loc="outside right upper", fontsize=8)


def plot_noise(report: Mapping[str, Any], path: Path) -> None:
    """Draw nanoseconds per coordinate, on a logarithmic axis."""
    rows = report["rows"]
    with _figure(path, figsize=(SIZE[0] / 2, SIZE[1] / 1.5)) as (_, (axis,)):
        bars = axis.barh([row["sampler"] for row in rows], [row["ns_per_coordinate"] for row in rows])
        axis.bar_label(bars, fmt="%.3g", padding=3)
        axis.set(xscale="log", xlabel="ns per coordinate")
        axis.margins(x=0.3)
        axis.invert_yaxis()


def plot_scale(report: Mapping[str, Any], path: Path) -> None:
    """Draw seconds against d and against the number of clients, log-log, with the fitted exponents."""
    with _figure(path, 2) as (_, axes):
        for axis, along in zip(axes, ("d", "clients"), strict=True):
            rows = [row for row in report["rows"] if row["along"] == along]
            for name, label in (("validate_s", "validate"), ("aggregate_s", "aggregate")):
                slope = report["slopes"][along][name]
                suffix = "" if slope is None else f", slope {slope:.2f}"
                _line(axis, rows, along, name, label=label + suffix, style="-")
            fixed = {row["clients" if along == "d" else "d"] for row in rows}
            other = f"{fixed.pop():,} {'clients' if along == 'd' else 'coordinates'}" if len(fixed) == 1 else ""
            _finish(axis, along, other)
            axis.set_ylabel("s per round")
            axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12))  # where it covers no curve


def plot_overhead(report: Mapping[str, Any], path: Path) -> None:
    """Draw seconds per round, one bar per setting, made of its phases' medians."""
    rows = report["rows"]
    labels = [_label_of_round(row) for row in rows]
    left = [0.0] * len(rows)
    with _figure(path) as (figure, (axis,)):
        for phase in dict.fromkeys(name for row in rows for name in row["phases_s"]):
            widths = [row["phases_s"].get(phase, 0.0) for row in rows]
            axis.barh(labels, widths, left=left, label=phase)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        _finish_bars(axis, "s per round")
        figure.legend(loc="outside right upper", fontsize=8)


def _label_of_round(row: Mapping[str, Any]) -> str:
    delay = f"{row['delay_ms']:g} ms apart" if row.get("delay_ms") else ""
    return ", ".join(part for part in (row["setting"], row["gate"], delay) if part)


def plot_training(report: Mapping[str, Any], path: Path) -> None:
    """Draw samples per second, one bar per implementation."""
    _plot_samples(report["rows"], ("implementation",), path)


def plot_local_training(report: Mapping[str, Any], path: Path) -> None:
    """Draw samples per second, one bar per model, kind of step, number of clients and way."""
    _plot_samples(report["rows"], ("model", "kind", "clients", "implementation"), path)


def plot_simulation(report: Mapping[str, Any], path: Path) -> None:
    """Draw milliseconds of a round by its records, and by the registered clients; gradients, and the rest."""
    of_panels = (("drawn", "records", "records of a round"), ("registered", "registered", "registered clients"))
    with _figure(path, 2, sharey=True) as (figure, axes):
        for axis, (along, x, label) in zip(axes, of_panels, strict=True):
            rows = [row for row in report["rows"] if row["along"] == along]
            _line(axis, rows, x, "ms_per_round", label="round", style="-")
            for part in ("gradients", "rest"):
                axis.plot([row[x] for row in rows], [row[f"{part}_ms"] for row in rows], ".--", label=part)
            axis.set(xscale="log", yscale="log", xlabel=label)
        axes[0].set_ylabel("milliseconds")
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _plot_samples(rows: Sequence[Mapping[str, Any]], names: Sequence[str], path: Path) -> None:
    labels = [" ".join(str(row[name]) for name in names) for row in rows]
    with _figure(path) as (_, (axis,)):
        bars = axis.barh(labels, [row["samples_per_s"] for row in rows])
        axis.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
        _finish_bars(axis, "samples per second")


def _order(line: tuple[str, str | None]) -> tuple[bool, str, str]:
    """Return ours first."""
    return line[0] not in OURS, line[0], line[1] or ""


def _line(
    axis: Any, rows: Sequence[Mapping[str, Any]], x: str, y: str, *, label: str, style: str, colour: str | None = None
) -> None:
    """Draw medians, with quartiles as bars; the next colour of the cycle where none is named."""
    rows = sorted(rows, key=lambda row: float(row[x]))
    below = [row[y] - row[f"{y}_q1"] for row in rows]
    above = [row[f"{y}_q3"] - row[y] for row in rows]
    look = {"linestyle": style, "color": colour, "marker": "o", "markersize": 3, "capsize": 2}
    axis.errorbar([row[x] for row in rows], [row[y] for row in rows], yerr=(below, above), label=label, **look)


def _finish(axis: Any, x: str, title: str) -> None:
    axis.set(xscale="log", yscale="log", xlabel="coordinates d" if x == "d" else "clients in the round")
    axis.set_title(title, fontsize=10)
    axis.grid(visible=True, which="both", alpha=0.25)


def _finish_bars(axis: Any, xlabel: str) -> None:
    axis.set_xlabel(xlabel)
    axis.margins(x=0.15)
    axis.invert_yaxis()


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=DPI)
    pyplot.close(figure)
