"""Every relative link of the documents leads to a file, and to a heading where it names one."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")


def anchors(text: str) -> set[str]:
    """Return what a heading is called in a link: lower case, hyphens for spaces, no punctuation."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere. Addresses of other hosts are not looked up."""
    text, found = FENCE.sub("", page.read_text()), []
    for target in (one or other for one, other in LINK.findall(text)):
        path, _, anchor = target.partition("#")
        there = page.parent / path if path else page
        if not re.match(r"\w+:", target) and (
            not there.exists() or (anchor and anchor not in anchors(there.read_text()))
        ):
            found.append(target)
    return found


def test_links_lead_somewhere() -> None:
    assert len(PAGES) > 20
    assert {page.name: links for page in PAGES if (links := broken(page))} == {}


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    """A missing file and a missing heading; code is not read."""
    page = tmp_path / "a.md"
    page.write_text("# One `two`, three\n[a](b.md) [a](#one-two-three) [a](a.md#four)\n```\n[a](c.md)\n```\n")
    assert broken(page) == ["b.md", "a.md#four"]
