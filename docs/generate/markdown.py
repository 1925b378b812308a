"""Markdown: what pages are made of, and how text of docstrings becomes text of a page."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

NOTE: Final = "<!-- Written by `python -m docs.generate`: change the source, never this page. -->"
_PAGE: Final = re.compile(r"\(?\b(docs/[\w/-]+\.md)\)?")


def page(title: str, *parts: str) -> str:
    """Return a page with its title and parts, a blank line between any two."""
    return "\n\n".join([f"# {title}", NOTE, *(part.strip("\n") for part in parts if part.strip())]) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table. Cells are Markdown; a line break in one becomes a space."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell(text) for text in line)} |" for line in lines)


def cell(text: str) -> str:
    """Return text that does not end its cell early."""
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


def code(text: str) -> str:
    """Return text as inline code; it holds no backtick."""
    return f"`{text}`"


def linked(text: str) -> str:
    """Return text of a docstring for a page of `docs/reference/`: a named page becomes a link to it."""
    return _PAGE.sub(lambda found: _link(found[0], found[1]), text)


def _link(whole: str, path: str) -> str:
    name = path.rpartition("/")[2].removesuffix(".md").replace("-", " ")
    made = f"[{name}](../{path.removeprefix('docs/')})"
    return f"({made})" if whole.startswith("(") and whole.endswith(")") else made
