"""Phases of a round: their order, and the dashboard's own list of them."""

from __future__ import annotations

import json
from importlib import resources

from precad.protos.messages.phases import PHASES, in_order


def test_phases_are_put_in_order_each_once() -> None:
    """Those of another version come last, in the order in which they are named."""
    assert in_order(["later", "commit", "select", "another", "commit", "prove"]) == [
        "select",
        "prove",
        "commit",
        "later",
        "another",
    ]


def test_the_dashboard_has_the_same_phases() -> None:
    """Its script cannot import them. Shades are in another order, which is that of colours."""
    script = (resources.files("precad.servers.operations") / "dashboard" / "dashboard.js").read_text(encoding="utf-8")
    lists = {name: _list_in(script, name) for name in ("PHASES", "SHADES")}
    assert lists["PHASES"] == list(PHASES)
    assert sorted(lists["SHADES"]) == sorted(PHASES)


def _list_in(script: str, name: str) -> list[str]:
    """Return a constant of a script that is a list of texts."""
    line = next(line for line in script.splitlines() if line.startswith(f"const {name} = "))
    found: list[str] = json.loads(line.removeprefix(f"const {name} = ").removesuffix(";"))
    return found
