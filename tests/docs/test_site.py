"""The documentation's site: its navigation names every page, and it builds without a broken link or another host."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def pages(entry: object) -> Iterator[str]:
    """Yield the pages below an entry of the navigation, in order."""
    for inner in entry if isinstance(entry, list) else entry.values() if isinstance(entry, dict) else ():
        yield from pages(inner) if isinstance(inner, list | dict) else [str(inner)]


def test_the_navigation_names_every_page_once() -> None:
    """Decisions are linked from the list of all decisions."""
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    there -= {page for page in there if page.startswith("explanation/decisions/0")}
    assert sorted(pages(SITE["nav"])) == sorted(there)


def test_the_navigation_has_a_part_for_each_kind_of_page() -> None:
    """A page's part is the folder that it lies in."""
    for entry in SITE["nav"][1:]:
        ((title, inner),) = entry.items()
        assert {page.partition("/")[0] for page in pages(inner)} == {title.lower()}


def test_nothing_is_loaded_from_other_hosts() -> None:
    """Fonts and search for files would be: the theme gets them elsewhere."""
    assert SITE["theme"]["font"] is False
    assert SITE["plugins"] == ["search"]
    assert "extra_javascript" not in SITE
    for sheet in SITE["extra_css"]:  # a file of ours, which names no other
        assert not re.search(r"url\(|@import", (DOCS / sheet).read_text())


def test_the_site_follows_the_systems_colours() -> None:
    """At every visit, as pictures do: with a scheme alone a browser keeps what it saw first, and loses their text."""
    first, *others = (entry["media"] for entry in SITE["theme"]["palette"])
    assert first == "(prefers-color-scheme)"
    assert others == ["(prefers-color-scheme: light)", "(prefers-color-scheme: dark)"]


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="needs mkdocs-material: pip install '.[docs]'")
def test_the_site_builds_and_its_links_lead_somewhere(tmp_path: Path) -> None:
    """With --strict, a page outside the navigation, a missing target or a missing heading ends the build."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = {re.sub(r"README$", "index", page.removesuffix(".md")) + ".html" for page in pages(SITE["nav"])}
    built = {path.relative_to(tmp_path / "site").as_posix(): path.read_text() for path in tmp_path.rglob("*.html")}
    assert expected <= built.keys()
    assert {re.search(r"""(?:src|<link[^>]*href)=["']?(?:https?:)?//""", text) for text in built.values()} == {None}
