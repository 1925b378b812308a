"""Every page of docs/ is linked from docs/index.md, which stays short."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
INDEX = (DOCS / "index.md").read_text()


def test_the_index_names_every_page() -> None:
    """Decisions have an index of their own."""
    pages = {path.relative_to(DOCS).as_posix() for pattern in ("*.md", "*.ipynb") for path in DOCS.rglob(pattern)}
    pages -= {page for page in pages if "/decisions/0" in page} | {"index.md"}
    assert set(re.findall(r"]\(([^)#]+)\)", INDEX)) == pages


def test_the_index_has_at_most_250_words() -> None:
    assert len(INDEX.split()) <= 250
