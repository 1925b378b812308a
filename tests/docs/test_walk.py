"""The walk of one update in docs/explanation/architecture.md is the code's: its files, their order, their rooms.

So are the entries of the bound C, and of a round's randomness.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from functools import cache
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
WALKS: Final = (["Train", "Upload"], *([step] for step in STEPS))
"""Steps that run without another program between them. A client's two are one."""
CONTROL: Final = "servers/rounds"
"""The room that calls all others, and so is entered again after each."""
RETURNS: Final = {"Train": ["clients/training"], "Commit": ["servers/store"]}
"""Rooms that a step enters again. Gradients come back to be projected. The model's owner has the next model computed,
and writes it."""


def _section() -> str:
    page = (ROOT / "docs/explanation/architecture.md").read_text()
    return page.partition("\n## The walk of one update\n")[2].partition("\n## ")[0]


def walk_of_mode_proved() -> list[str]:
    """Return the files of the paragraph on mode `proved`, in order."""
    return re.findall(r"`([\w/]+\.py)`", _section().partition("\nIn mode `proved`")[2])


def walk() -> dict[str, list[str]]:
    """Return the files that each step names, in order."""
    section = _section()
    steps = re.findall(r"^\d+\. \*\*(\w+)\.?\*\*(.*?)(?=^\d+\. |\n\n|\Z)", section, re.MULTILINE | re.DOTALL)
    return {name: re.findall(r"`([\w/]+\.py)`", text) for name, text in steps}


def reached_from_nowhere(files: Sequence[str], imports: Mapping[str, set[str]]) -> list[str]:
    """Return the files that no file before them imports, but for the programs' starts."""
    return [
        file
        for i, file in enumerate(files)
        if file not in STARTS and not any(file in imports[earlier] for earlier in files[:i]) and file not in files[:i]
    ]


def before_their_callers(files: Sequence[str], imports: Mapping[str, set[str]]) -> list[str]:
    """Return the files that a later one imports, as far as no earlier one does."""
    return [
        file
        for i, file in enumerate(files)
        if any(file in imports[later] for later in files[i + 1 :])
        and not any(file in imports[earlier] for earlier in files[:i])
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


@pytest.mark.parametrize("steps", WALKS, ids="-".join)
def test_files_stand_in_the_order_in_which_they_run(steps: list[str]) -> None:
    """A file that calls another one stands before it."""
    named = walk()

    assert before_their_callers([file for step in steps for file in named[step]], graph(sources())) == []


def test_mode_proved_has_a_walk_of_its_own() -> None:
    """Its files follow from a server's round and from a client's session, and are all that the mode's row names."""
    files, imports = walk_of_mode_proved(), graph(sources())

    assert len(files) == 7
    assert before_their_callers(files, imports) == []
    entries = ["servers/rounds/round.py", "clients/upload/session.py"]
    assert reached_from_nowhere([*entries, *files], imports) == [entries[1]]


@pytest.mark.parametrize("steps", WALKS, ids="-".join)
def test_a_step_enters_each_room_once(steps: list[str]) -> None:
    """A client's two steps are one walk; a server's begin and end at its round."""
    named = walk()

    again = entered_again([file for step in steps for file in named[step]])
    assert again == [room for step in steps for room in RETURNS.get(step, ())]


def test_planted_detours_are_found() -> None:
    files = ["clients/process.py", "clients/gradients/engine.py", "clients/encoding.py", "clients/gradients/layers.py"]

    assert reached_from_nowhere(files, graph(sources())) == ["clients/encoding.py"]
    assert entered_again(files) == ["clients/gradients"]


READS_C: Final = (
    *("client_clip", "enforced_bound", "update_bound", "norm_bound", "norm_check", "update_set", "convex_set"),
    *(
        "proof_sizes",
        "sum_bound",
        "trim_rule",
        "krum_rule",
        "noise_clip",
        "noise_std_on_grid",
        "client_noise_std_on_grid",
    ),
)
"""The bound C as a task has it: its number, and what a check, a rule, a sum and noise take from it."""
READS_PRIVACY: Final = ("task_privacy",)
"""The cost of a task's rounds, for which C counts in some algorithms: a function of the task."""
DRAWS: Final = ("coin", "noise", "margin_noise", "share_seeds", "tuples")
"""A source of `Randomness`, as a server takes it up."""
HOLDERS: Final = ("randomness", "_randomness", "ours")
"""Names under which a server has its `Randomness`."""

ENTRIES_OF_C: Final[dict[str, list[str]]] = {
    "clients": ["encoding"],
    "clients^": ["process"],
    "clients/queries": ["answers"],
    "clients/training": ["held_out", "round_update"],
    "clients/upload": ["proved"],
    "deploy/configuration": ["check_privacy", "check_records", "evaluation_clip"],
    "deploy/exporting": ["statement"],
    "deploy/guarantees": ["accounting", "planning"],
    "deploy/localhost": ["watch"],
    "deploy/run_files": ["answers"],
    "deploy/reporting": ["guarantees"],
    "dp/certificates": ["planner"],
    "dp^": ["task_privacy"],
    "protos/task": [
        "audit_fields",
        "convex_fields",
        "derived",
        "krum_fields",
        "proved_fields",
        "refusals",
        "target",
        "task",
        "trim_fields",
        "turns",
    ],
    "servers^": ["aggregator"],
    "servers/rounds": ["dealt_blocks", "dealt_form", "form", "memory", "own_noise", "proved_form", "trimmed_sum"],
    "servers/store": ["state"],
}
"""Every file that reads C, by room. Attacks are free to do without, and a laboratory may look everywhere."""
ENTRIES_OF_PRIVACY: Final[dict[str, list[str]]] = {
    "clients/queries": ["answers"],
    "dp^": ["task_privacy"],
    "servers/store": ["folder"],
    "servers/telemetry": ["status"],
}
"""Every file that asks what a task's rounds cost, but for those of `deploy`, which print it."""


def reads(names: Sequence[str], text: str, holders: Sequence[str] = ()) -> bool:
    """Return whether code reads an attribute of such a name, or calls such a function. holders: of what, if not all."""
    attributes, functions = _names_in(text)
    return any(name in names and (not holders or holder in holders) for name, holder in attributes) or any(
        name in names for name in functions
    )


@cache
def _names_in(text: str) -> tuple[frozenset[tuple[str, str]], frozenset[str]]:
    """Return each attribute that code names, with the name of what holds it, and the functions that it calls."""
    nodes = [*ast.walk(ast.parse(text))]
    attributes = {(node.attr, _name(node.value)) for node in nodes if isinstance(node, ast.Attribute)}
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    return frozenset(attributes), frozenset(function.id for function in calls if isinstance(function, ast.Name))


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def files_with(
    names: Sequence[str], texts: Mapping[str, str], packages: Sequence[str], holders: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Return the files of packages that read one of these names: by room."""
    found: dict[str, list[str]] = {}
    for path, text in texts.items():
        if path.split("/")[0] in packages and reads(names, text, holders):
            found.setdefault(room_of(path).name, []).append(Path(path).stem)
    return {room: sorted(files) for room, files in found.items()}


def test_c_enters_where_it_is_declared_enforced_and_shown() -> None:
    """Server: rounds check updates against it, and the model's owner refuses a sum that is too long."""
    found = files_with(READS_C, sources(), ("mpc", "dp", "protos", "servers", "clients", "deploy"))
    found.pop("clients/attacks")

    assert found == ENTRIES_OF_C


def test_what_a_round_costs_is_asked_where_it_is_charged_and_shown() -> None:
    found = files_with(READS_PRIVACY, sources(), ("mpc", "dp", "protos", "servers", "clients"))

    assert found == ENTRIES_OF_PRIVACY


def test_a_rounds_randomness_enters_the_meeting_the_rounds_and_the_dealer() -> None:
    """A task's name and turns are of the meeting. An audit's canaries take the noise's place where a server begins.

    `tests/servers/rounds/test_rounds_randomness.py` has the draws.
    """
    found = files_with(DRAWS, sources(), ("servers",), HOLDERS)

    assert found == {
        "servers^": ["aggregator", "dealer"],
        CONTROL: ["dealt_form", "form", "proved_form", "round"],
        "servers/task": ["run"],
    }


@pytest.mark.parametrize("path", ["servers/store/folder.py", "servers/rounds/round.py", "protos/task/grid.py"])
@pytest.mark.parametrize("name", READS_C)
def test_a_planted_entry_of_c_is_found(path: str, name: str) -> None:
    """In a room that has none, and a second one in a room that has: but not in a text, nor in an import."""
    planted = {**sources(), path: f"def _of(task):\n    return task.{name}\n"}
    texts = {path: f'from precad.mpc.convex_set import ConvexSet\nTEXT = "task.{name}"\n'}

    room, package = room_of(path).name, path.partition("/")[0]
    found = files_with(READS_C, planted, (package,))[room]
    assert set(found) - set(ENTRIES_OF_C.get(room, [])) == {Path(path).stem}
    assert files_with(READS_C, texts, (package,)) == {}


@pytest.mark.parametrize(
    "text", ["compute.randomness.noise", "self._randomness.tuples", "ours.noise", "randomness.share_seeds"]
)
def test_a_planted_draw_is_found(text: str) -> None:
    planted = {"servers/links/peer.py": f"def _of(self, compute, ours, randomness):\n    return {text}\n"}

    assert files_with(DRAWS, planted, ("servers",), HOLDERS) == {"servers/links": ["peer"]}
    assert files_with(DRAWS, {"servers/links/peer.py": "x = config.noise"}, ("servers",), HOLDERS) == {}
