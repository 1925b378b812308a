"""A report's page, as a browser would read it."""

from __future__ import annotations

import json
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from precad.deploy.reporting.write import Report


class Page(HTMLParser):
    """Hold what a browser would make of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.values: list[float] = []
        self.raw: dict[str, str] = {}
        self.words: list[str] = []
        self._inside = ""
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        found = dict(attrs)
        if tag == "data":
            self.values.append(float(found["value"] or "nan"))
        if tag in ("script", "style"):
            self._inside = found.get("id") or tag
            self.raw[self._inside] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside] += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def charts(self) -> dict[str, Any]:
        charts: dict[str, Any] = json.loads(self.raw["data"])
        return charts

    def series(self, chart: str) -> dict[str, list[tuple[float, float | None]]]:
        return {series["name"]: [tuple(p) for p in series["points"]] for series in self.charts[chart]["series"]}


def report(*folders: Path) -> Page:
    """The page, without the figures beside it, which take seconds to draw."""
    return Page(Report.of(folders).html())
