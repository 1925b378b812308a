"""The walk of one update in docs/explanation/architecture.md is the code's: its files, their order, their rooms.

So are the entries of the bound C, and of a round's randomness.
"""

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


READS_C: Final = re.compile(r"\.(?:client_clip|norm_bound|norm_check|update_set|convex_set|proof_sizes|sum_bound)\b")
"""The bound C as a task has it: its number, and what a check and a sum are held against."""
DRAWS: Final = re.compile(r"\brandomness\.(?:coin|noise|margin_noise|share_seeds|tuples)\b")
"""A source of `Randomness`, as a server takes it up."""


def files_with(pattern: re.Pattern[str], texts: Mapping[str, str], package: str) -> dict[str, list[str]]:
    """Return the files of a package whose code, texts aside, has it: by room."""
    found: dict[str, list[str]] = {}
    for path, text in texts.items():
        if path.startswith(package) and pattern.search(ast.unparse(_without_texts(ast.parse(text)))):
            found.setdefault(room_of(path).name, []).append(path)
    return found


def _without_texts(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
    return tree


def test_c_enters_each_room_of_a_server_once() -> None:
    """A round checks updates against it, and the model's owner refuses a sum that is too long. Nobody else reads it."""
    found = files_with(READS_C, sources(), "servers/")

    assert found.keys() == {CONTROL, "servers/store"}
    assert found["servers/store"] == ["servers/store/state.py"]


def test_c_enters_a_client_where_it_clips_and_where_it_encodes() -> None:
    """Apart from attacks, which are free to do without."""
    found = files_with(READS_C, sources(), "clients/")
    found.pop("clients/attacks")

    assert found == {
        "clients": ["clients/encoding.py"],
        "clients/queries": ["clients/queries/answers.py"],
        "clients/training": [f"clients/training/{name}.py" for name in ("held_out", "round_update")],
        "clients/upload": ["clients/upload/proved.py"],
    }


def test_a_rounds_randomness_enters_the_meeting_and_the_rounds_alone() -> None:
    """A task's name and turns are of the meeting. `tests/servers/rounds/test_rounds_randomness.py` has the draws."""
    assert files_with(DRAWS, sources(), "servers/").keys() == {CONTROL, "servers/task"}


def test_planted_entries_are_found() -> None:
    planted = {
        "servers/store/folder.py": "def _of(task):\n    return task.update_set\n",
        "servers/door/calls.py": 'TEXT = "task.client_clip"\n',
        "servers/links/peer.py": "def _of(compute):\n    return compute.randomness.noise\n",
    }

    assert files_with(READS_C, planted, "servers/") == {"servers/store": ["servers/store/folder.py"]}
    assert files_with(DRAWS, planted, "servers/").keys() == {"servers/links"}
