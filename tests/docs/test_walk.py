"""The walk of one update in docs/explanation/architecture.md is the code's: its files, their order, their rooms."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.test_structure import graph, room_of, sources

ROOT = Path(__file__).resolve().parents[2]
STEPS: Final = {
    "Select": "select",
    "Invite": "invite",
    "Train": "",
    "Upload": "",
    "Collect": "wait",
    "Lock": "lock",
    "Charge": "charge",
    "Validate": "validate",
    "Open": "open_sum",
    "Commit": "commit",
}
"""Each step, and what `RoundRunner` calls for it; nothing where the client does it."""
STARTS: Final = ("servers/rounds/round.py", "clients/process.py", "servers/door/servicers.py")
"""Where the walk enters a program: a server's round, a client's process, a server's door."""
CONTROL: Final = "servers/rounds"
"""The room that calls all others, and so is entered again after each."""
RETURNS: Final = {"Commit": ["servers/store"]}
"""Rooms that a step enters again. The model's owner has the next model computed, and writes it."""


def walk() -> dict[str, list[str]]:
    """Return the files that each step names, in order."""
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    section = page.partition("\n## The walk of one update\n")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d+\. \*\*(\w+)\.?\*\*(.*?)(?=^\d+\. |\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    return {name: re.findall(r"`([\w/]+\.py)`", text) for name, text in steps}


def reached_from_nowhere(files: Sequence[str], imports: Mapping[str, set[str]]) -> list[str]:
    """Return the files that no file before them imports, but for the programs' starts."""
    return [
        file
        for i, file in enumerate(files)
        if file not in STARTS and not any(file in imports[earlier] for earlier in files[:i]) and file not in files[:i]
    ]


def entered_again(files: Sequence[str]) -> list[str]:
    """Return the rooms that these files leave and enter again."""
    rooms = [room_of(file).name for file in files]
    stays = [room for i, room in enumerate(rooms) if i == 0 or room != rooms[i - 1]]
    return [room for i, room in enumerate(stays) if room in stays[:i] and room != CONTROL]


def called(function: str) -> list[str]:
    """Return the methods that a method of `RoundRunner` awaits, in the order in which they begin."""
    tree = ast.parse((ROOT / "servers/rounds/round.py").read_text())
    body = next(node for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef) and node.name == function)
    calls = [node for node in ast.walk(body) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    return [call.func.attr for call in calls if isinstance(call.func, ast.Attribute)]


def test_the_steps_are_those_of_a_round_in_order() -> None:
    assert list(walk()) == list(STEPS)

    inside = [name for name in called("collect") if name in ("invite", "wait", "lock")]
    found: list[str] = []
    for name in called("run_round"):
        found += inside if name == "collect" else [name] if name in STEPS.values() else []
    assert found == [name for name in STEPS.values() if name]


def test_each_file_is_imported_by_an_earlier_one() -> None:
    files = [file for step in walk().values() for file in step]

    assert len(files) > 20
    assert [file for file in files if not (ROOT / file).exists()] == []
    assert [file for file in STARTS if file not in files] == []
    assert reached_from_nowhere(files, graph(sources())) == []


@pytest.mark.parametrize("steps", [["Train", "Upload"], *([step] for step in STEPS)], ids="-".join)
def test_a_step_enters_each_room_once(steps: list[str]) -> None:
    """A client's two steps are one walk; a server's begin and end at its round."""
    named = walk()

    again = entered_again([file for step in steps for file in named[step]])
    assert again == [room for step in steps for room in RETURNS.get(step, ())]


def test_planted_detours_are_found() -> None:
    files = ["clients/process.py", "clients/gradients/engine.py", "clients/encoding.py", "clients/gradients/layers.py"]

    assert reached_from_nowhere(files, graph(sources())) == ["clients/encoding.py"]
    assert entered_again(files) == ["clients/gradients"]
