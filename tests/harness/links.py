"""The table of docs/explanation/architecture.md that says who may connect to whom: what firewalls are compared with."""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.harness.organisations import ROOT

MONITORING = "monitoring"
"""Whoever looks at the operations ports; no role of the protocol."""


class Link(NamedTuple):
    """One line: a role may open TCP connections to a port of another."""

    source: str
    target: str
    port: int


def architecture_links() -> frozenset[Link]:
    """All lines of the table."""
    section = (
        (ROOT / "docs" / "explanation" / "architecture.md").read_text().partition("## Links")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| ([a-z-]+) \| ([a-z-]+) \| (\d+) \|", section, re.MULTILINE)
    return frozenset(Link(source, target, int(port)) for source, target, port in rows)
