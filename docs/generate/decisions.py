"""The list of all decisions, from the records themselves: date, number and title."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from docs.generate.markdown import page

DECISIONS: Final = Path(__file__).resolve().parents[1] / "explanation" / "decisions"
INTRODUCTION: Final = """\
One record for each choice that shaped [the architecture](../architecture.md). A later decision that replaces an earlier
one gets a record of its own, and both say so."""
_HEAD: Final = re.compile(r"# (\d{4})\. (.+)\n\n(\d{4}-\d{2}-\d{2})\. ")


def decisions_page() -> str:
    """Return the page. Raises ValueError for a record that does not begin with number, title and date."""
    lines = []
    for path in sorted(DECISIONS.glob("[0-9]*.md")):
        head = _HEAD.match(path.read_text(encoding="utf-8"))
        if head is None or not path.name.startswith(head[1]):
            raise ValueError(f"{path.name}: expected its number, title and date first, found something else")
        lines.append(f"- {head[3]} [{head[1]}]({path.name}): {head[2]}")
    return page("Design decisions", INTRODUCTION, "\n".join(lines))
