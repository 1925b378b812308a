"""The pages of tables of results: what was run, how, and what came out, from `docs/results/data/`."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from docs.generate.markdown import page, table

DATA: Final = Path(__file__).resolve().parents[1] / "results" / "data"
_TITLES: Final = {
    "experiments": "Tables of experiments",
    "performance": "Tables of performance",
    "privacy": "Tables of privacy",
}
_INTRODUCTIONS: Final = {
    "experiments": "Figures of the experiments, each with its command. [Experiments](experiments.md) interprets them.",
    "performance": "Figures of the benchmarks, each with its command. [Performance](performance.md) describes the "
    "machine, and interprets them.",
    "privacy": "Figures of proofs and accountants. [Privacy](../explanation/privacy.md) interprets them.",
}


def results_page(part: str) -> str:
    """Return the page of one part of `tables.toml`, its tables in the file's order."""
    entries = tomllib.loads((DATA / "tables.toml").read_text(encoding="utf-8"))[part]
    return page(_TITLES[part], _INTRODUCTIONS[part], *(section(entry) for entry in entries))


def section(entry: Mapping[str, str]) -> str:
    """Return one table with its title, setting, command and picture."""
    parts = [f"## {entry['title']}", entry["setting"], f"```text\n{entry['command']}\n```", cells(DATA / entry["file"])]
    if "image" in entry:
        parts.append(f"![{entry['alt']}](../images/{entry['image']})")
    return "\n\n".join(parts)


def cells(path: Path) -> str:
    """Return a result file as Markdown. Raises ValueError for rows of different lengths."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".txt":
        return f"```text\n{text}```"
    header, *rows = csv.reader(text.splitlines())
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(f"{path.name}, line {number}: expected {len(header)} cells, found {len(row)}")
    return table(header, rows)
