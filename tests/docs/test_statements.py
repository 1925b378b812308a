"""Statements of hand-written pages that a file or the code decides: lists of files, and ratios of measured tables."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Final

from precad.mpc.gate_names import make_gate
from precad.mpc.norm_bound import NormBound
from precad.mpc.ring import WORD_BYTES
from precad.mpc.robust.krum import Krum, blocks

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


def test_the_dealers_words_for_krum_outweigh_trim_tuples_where_the_page_says() -> None:
    """By what a round of m clients draws: bytes of its comparisons against 8 d for each client."""
    dim, said, each = 26_010, list[int](), list[int]()
    for clip in (16.0, 1.0):
        bound, m = NormBound(clip_norm=clip, dim=dim), 3
        while sum(block.n_products for block in blocks(make_gate("native"), m, Krum(bound, 0, 1))) <= m * dim:
            m += 1
        said.append(m)
        of_distances = blocks(make_gate("native"), m, Krum(bound, 0, 1))[:2]
        each.append(round(sum(WORD_BYTES * block.n_products for block in of_distances) / (m * math.comb(m - 1, 2))))
    assert NormBound(clip_norm=1.0, dim=dim).threshold.bit_length() == 33
    page = (DOCS / "reference" / "protocol-krum.md").read_text()
    assert f"From m = {said[0]}, or {said[1]}, comparisons outweigh trim tuples" in page
    assert f"takes it {each[0]} bytes there, and {each[1]} with" in page
