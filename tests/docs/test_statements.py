"""Statements of hand-written pages that a file or the code decides: lists of files, and ratios of measured tables."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
KEPT: Final = re.compile(r"state_dir / f?\"(?:\{client\})?([^\"{}]*?[a-z.-]+)\"")


def test_the_threat_model_lists_what_is_kept_in_a_state_dir() -> None:
    """Partial files apart, which take the place of the whole one."""
    sources = [path.read_text() for room in ("servers", "clients") for path in (ROOT / room).rglob("*.py")]
    kept = {name for text in sources for name in KEPT.findall(text) if not name.endswith(".tmp")}
    assert {".prom", "task.sqlite"} <= kept
    listed = (DOCS / "explanation" / "threat-model.md").read_text()
    assert {name for name in kept if name not in listed} == set()


def test_the_exact_methods_lead_is_that_of_its_table() -> None:
    found = list(csv.DictReader((DOCS / "results" / "data" / "tightness.csv").open()))
    ratios, gaps = [], []
    for row in found:
        published, exact, needed = (
            [int(number) for number in re.findall(r"\d+", row[name])]
            for name in ("published", "exact", "the attack needs")
        )
        ratios += [ours / theirs for ours, theirs in zip(exact, published, strict=True)]
        gaps += [attack - ours for attack, ours in zip(needed, exact, strict=True)]
    stated = f"tolerates {int(min(ratios))} to {int(max(ratios))} times the published one's attackers."
    page = " ".join((DOCS / "explanation" / "certificates.md").read_text().split())
    assert f"{stated} An attack needs at most {max(gaps)} more" in page
