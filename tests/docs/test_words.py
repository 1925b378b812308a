"""The documents stay short: what people write by hand, without the protocol's reference."""

from __future__ import annotations

from docs.generate.__main__ import DOCS, PAGES

MOST = 30_000


def words() -> dict[str, int]:
    """Return the number of words of every page that counts."""
    pages = {path.relative_to(DOCS).as_posix(): path for path in DOCS.rglob("*.md")}
    counted = (name for name in pages if name not in PAGES and not name.startswith("reference/protocol"))
    return {name: len(pages[name].read_text().split()) for name in counted}


def test_the_documents_have_at_most_30000_words() -> None:
    """Tables that a command can write belong into generated pages."""
    assert len(words()) > 50
    assert sum(words().values()) <= MOST, words()
