"""The charts as PNG files, for papers and slides. matplotlib is an extra (`bench`), loaded to draw only."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from precad.deploy.errors import ConfigError
from precad.deploy.reporting.charts import Chart, Dash, Kind, Series
from precad.deploy.reporting.numbers import shown
from precad.deploy.shown.drawing import load_pyplot

SIZE: Final = (8.0, 4.6)  # inches; with DPI, 1200 pixels wide
DPI: Final = 150
_COLOURS: Final = ("#0b6bb8", "#b45309", "#15803d", "#7c3aed", "#be185d", "#475569")
"""Those of the page, on paper."""
_LONG_NAME: Final = 52
"""Characters; two longer names do not fit side by side."""
_STYLES: Final = {Dash.SOLID: "-", Dash.DASHED: "--", Dash.DOTTED: ":", Dash.DASH_DOTTED: "-."}


def require_matplotlib() -> Any:
    """Return matplotlib's pyplot, drawing to files. Raises ConfigError."""
    return load_pyplot(ConfigError("--figures needs matplotlib: install 'precad[bench]' from where precad came from"))


def png_files(charts: Sequence[Chart]) -> dict[str, bytes]:
    """Return file name to contents. Raises ConfigError without matplotlib."""
    pyplot = require_matplotlib()
    return {f"{chart.key}.png": _png(pyplot, chart) for chart in charts}


def _png(pyplot: Any, chart: Chart) -> bytes:
    figure, axis = pyplot.subplots(figsize=(SIZE[0], SIZE[1] + _more_height(chart)), layout="constrained")
    try:
        _DRAW[chart.kind](axis, chart)
        axis.set_title(_plain(chart.title), loc="left", fontsize=11)
        if len(chart.series) > 1:
            figure.legend(loc="outside lower center", ncols=_legend_columns(chart), fontsize=8, frameon=False)
        file = io.BytesIO()
        figure.savefig(file, dpi=DPI, format="png", metadata={"Software": None})
        return file.getvalue()
    finally:
        pyplot.close(figure)


def _more_height(chart: Chart) -> float:
    """Return inches for many bars and long legends."""
    bars = len(chart.categories) * len(chart.series) if chart.kind is Kind.BARS else 0
    rows = math.ceil(len(chart.series) / _legend_columns(chart))
    return max(0.0, 0.17 * (bars - 20)) + 0.17 * max(0, rows - 2)


def _legend_columns(chart: Chart) -> int:
    return 2 if max(len(series.name) for series in chart.series) <= _LONG_NAME else 1


def _lines(axis: Any, chart: Chart) -> None:
    for series in chart.series:
        xs, ys = _columns_of(series)
        style: dict[str, Any] = {"color": _COLOURS[series.colour], "linestyle": _STYLES[series.dash]}
        if chart.kind is Kind.STEPS:
            style |= {"drawstyle": "steps-post", "marker": "o", "markersize": 4, "clip_on": False}
        axis.plot(xs, ys, label=_plain(series.name), linewidth=1.8, **style)
        if series.band:
            at, low, high = zip(*series.band, strict=True)
            axis.fill_between(at, low, high, color=_COLOURS[series.colour], alpha=0.13, linewidth=0)
    _finish(axis, chart)


def _columns(axis: Any, chart: Chart) -> None:
    base: dict[float, float] = {}
    for series in chart.series:
        xs, ys = _columns_of(series)
        width = 0.8 * min((b - a for a, b in pairwise(xs)), default=1)
        bottoms = [base.get(x, 0.0) for x in xs]
        axis.bar(xs, ys, width, bottom=bottoms, color=_COLOURS[series.colour], label=_plain(series.name))
        base = {x: bottom + y for x, bottom, y in zip(xs, bottoms, ys, strict=True)}
    _finish(axis, chart)


def _columns_of(series: Series) -> tuple[list[float], list[float]]:
    """Return x and y; what has no number is a gap."""
    return [x for x, _ in series.points], [float("nan") if y is None else y for _, y in series.points]


def _intervals(axis: Any, chart: Chart) -> None:
    for i, series in enumerate(chart.series):
        xs, ys = _columns_of(series)
        width = 0.84 * min((b - a for a, b in pairwise(xs)), default=1)
        places = [x + (i - (len(chart.series) - 1) / 2) * width / (len(chart.series) + 4) for x in xs]
        reach = [[y - low for y, (_, low, _) in zip(ys, series.band, strict=True)]]
        reach += [[high - y for y, (_, _, high) in zip(ys, series.band, strict=True)]]
        colour = _COLOURS[series.colour]
        axis.bar(xs, ys, width, color=colour, alpha=0.35, label=_plain(series.name))
        axis.errorbar(places, ys, yerr=reach, fmt="none", ecolor=colour, elinewidth=1.2, capsize=2)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xlabel(_plain(chart.x_label))
    axis.set_ylabel(chart.y_label)
    axis.grid(visible=True, alpha=0.25)
    axis.set_axisbelow(True)


def _finish(axis: Any, chart: Chart) -> None:
    axis.set_xlabel(chart.x_label)
    axis.set_ylabel(chart.y_label)
    axis.set_ylim(0, chart.y_max)
    axis.xaxis.get_major_locator().set_params(integer=True)
    axis.grid(visible=True, alpha=0.25)
    axis.set_axisbelow(True)


def _bars(axis: Any, chart: Chart) -> None:
    thick = 0.8 / len(chart.series)
    for i, series in enumerate(chart.series):
        _, values = _columns_of(series)
        places = [at + (i - (len(chart.series) - 1) / 2) * thick for at in range(len(values))]
        bars = axis.barh(places, values, thick * 0.92, color=_COLOURS[series.colour], label=_plain(series.name))
        axis.bar_label(bars, [shown(value, chart.format) for value in values], padding=3, fontsize=8)
    axis.set_yticks(range(len(chart.categories)), chart.categories)
    axis.invert_yaxis()
    axis.margins(x=0.16)
    axis.set_xlabel(chart.y_label)
    axis.xaxis.set_major_formatter(lambda value, _: shown(value, chart.format) if value else "0")
    axis.grid(visible=True, axis="x", alpha=0.25)
    axis.set_axisbelow(True)


_DRAW: Final[Mapping[Kind, Callable[[Any, Chart], None]]] = {
    Kind.LINES: _lines,
    Kind.STEPS: _lines,
    Kind.COLUMNS: _columns,
    Kind.BARS: _bars,
    Kind.INTERVALS: _intervals,
}


def _plain(text: str) -> str:
    """Return the label with dollar signs as plain text: labels come from run folders, and none is a formula."""
    return text.replace("$", r"\$")
