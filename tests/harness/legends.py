"""Whether the legends of a figure leave its curves to be seen."""

from __future__ import annotations

import importlib
from typing import Any


def require_clear_of_curves(figure: Any) -> None:
    """Fail where a legend lies over a panel, or partly outside the figure."""
    legends = [*figure.legends, *(legend for axis in figure.axes if (legend := axis.get_legend()) is not None)]
    canvas = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # saving had another resolution
    renderer = canvas.get_renderer()
    for legend in legends:
        box = legend.get_window_extent(renderer)
        assert figure.bbox.x0 <= box.x0 <= box.x1 <= figure.bbox.x1 + 1, "a legend is wider than the figure"
        assert figure.bbox.y0 - 1 <= box.y0 <= box.y1 <= figure.bbox.y1 + 1, "a legend is higher than the figure"
        for axis in figure.axes:
            assert not box.overlaps(axis.get_window_extent(renderer)), f"a legend covers {axis.get_title()!r}"
