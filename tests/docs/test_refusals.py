"""Everything that a run refuses stands in one table, and what the table says is so."""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import pytest
import tomli_w

from docs.generate.refusals import SOURCE, Refusal, asked, refusals, refusals_page
from precad.clients import config
from precad.deploy import conducts
from precad.deploy.cli import main as cli
from precad.deploy.configuration import (
    auditing,
    client_ids,
    initial_model,
    local,
    local_servers,
    model_and_records,
    sections,
    update_set,
)
from precad.deploy.localhost import needs, whole
from precad.lab.simulation.config import SimulationSettings
from precad.protos.task import (
    algorithms,
    audit_fields,
    bin_fields,
    convex_fields,
    core_fields,
    evaluation,
    function_fields,
    grid,
    krum_fields,
    proved_fields,
    query,
    record_fields,
    server_step,
    target,
    task,
    trim_fields,
    turns,
    validation_fields,
)
from precad.protos.task import (
    refusals as of_tasks,
)
from precad.protos.task.algorithms import ONLY_SIMULATED, TRUSTED
from precad.protos.task.task import Task
from precad.servers import config as of_servers
from tests.harness.command_line import CliRunner

ROWS = refusals()
NAMES = [row.wish for row in ROWS]
ONLY_SIMULATED_CLIPPING = {*get_args(SimulationSettings.model_fields["update_clipping"].annotation)} - {
    *get_args(Task.model_fields["update_clipping"].annotation)
}
ASKED = (
    *(algorithms, audit_fields, bin_fields, convex_fields, core_fields, evaluation, function_fields, grid, krum_fields),
    *(proved_fields, query, record_fields, of_tasks, server_step, target, task, trim_fields, turns, validation_fields),
    *(config, conducts, auditing, client_ids, initial_model, local, local_servers, model_and_records, needs),
    *(sections, update_set, of_servers),
)
"""Modules that decide whether a configuration runs."""
ELSEWHERE = {
    "sections.py": {
        **dict.fromkeys(("_toml", "_beside", "_included", "_path_beside", "_with_own"), "files, not what they say"),
        **dict.fromkeys(("load", "parse", "parse_section", "section"), "of a deployment over several machines"),
        "_check_dealer": "a run supplies the dealer's section, whose address is asked for first",
        "section_of": "of apps, accounts and simulations",
    },
    "config.py": {
        "_pins_both_or_none": "a run makes the pins itself",
        "require_own_role": "certificates, which a run makes itself",
    },
    "auditing.py": {
        "audit_ids": "types, which a task's fields are asked for first",
        "refuse_audit_clients": "of simulations",
    },
    "convex_fields.py": dict.fromkeys(("_half_spaces_of", "_read_directions"), "a file of integers, not what it says"),
    "initial_model.py": {"read_given": "a file of numbers, not what it says"},
    "needs.py": {"require_free_ports": "ports that are taken, not what they are"},
    "conducts.py": {
        "attacks_of": "an image without attacks, and parameters that its tests give",
        "wanted_of": "asked by the row of the semantic backdoor, which raises it again",
        "needs_folder": "told with all other faults",
    },
    "client_ids.py": {"with_clients": "flags"},
    "local_servers.py": {"with_operations": "flags"},
    "model_and_records.py": {
        "_model": "a model's own errors, passed on",
        "load_split": "a model's own errors, passed on",
    },
}
"""Functions whose errors are not of a configuration's settings, and why."""


@pytest.fixture(scope="module")
def asked_once() -> tuple[dict[str, str | None], set[tuple[str, int]]]:
    """Return what each row is told, and the lines of `ASKED` that run meanwhile."""
    return _asked_of_all()


@pytest.fixture(scope="module")
def messages(asked_once: tuple[dict[str, str | None], set[tuple[str, int]]]) -> dict[str, str | None]:
    """Return what each row is told."""
    return asked_once[0]


def test_the_settings_are_added_to_a_task_that_runs() -> None:
    assert asked(tomllib.loads(SOURCE.read_text())["base"]) is None


def test_every_wish_is_refused_and_has_a_row_of_its_own(messages: dict[str, str | None]) -> None:
    assert len(messages) == len(ROWS) == len({str(row.configuration) for row in ROWS}) > 60
    assert [wish for wish, said in messages.items() if not said] == []


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_the_command_says_the_same_with_exit_code_2(
    row: Refusal, messages: dict[str, str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ask `precad run` itself, over a file. It starts no process and leaves no folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(whole, "Forks", _NoForks)
    (tmp_path / "task.toml").write_text(tomli_w.dumps(dict(row.configuration)))
    result = CliRunner().invoke(cli.app, ["run", "task.toml"], terminal_width=2000)
    said = messages[row.wish]
    assert said is not None
    assert result.exit_code == 2, result.output
    assert all(f"precad: {line}" in result.output for line in said.splitlines())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["task.toml"]


class _NoForks:
    """Stand for the fork server of a run that never begins."""

    def choose_gate(self, gate: str) -> None:
        """Take any."""

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("row", [row for row in ROWS if row.runs is not None], ids=lambda row: row.wish)
def test_what_stands_beside_a_contradiction_runs(row: Refusal) -> None:
    assert row.runs is not None
    assert asked(row.runs) is None


def test_what_needs_computation_runs_where_one_server_sees_all() -> None:
    """Each is a name of the simulation's that tasks refuse, and there is no such name without a row."""
    needs = [row for row in ROWS if row.part == "computation"]
    named = {row.settings.get("task.algorithm") for row in needs} - {"user-dp-fedavg"}
    assert named == set(ONLY_SIMULATED) - {TRUSTED}
    assert [row.part for row in ROWS if row.settings.get("task.algorithm") == TRUSTED] == ["unbuilt"]
    assert {row.settings.get("task.update_clipping") for row in needs} - {None} == ONLY_SIMULATED_CLIPPING
    assert all(row.why and row.instead is None for row in needs)
    assert all(row.why and row.instead is not None for row in ROWS if row.part != "computation")


def test_what_needs_another_proof_runs_with_a_dealer() -> None:
    """Each names the mode that refuses it, which what runs in its place does not."""
    for row in (row for row in ROWS if row.part == "proof"):
        assert row.settings["task.mode"] == "proved"
        assert row.instead is not None
        assert "task.mode" not in row.instead


def test_every_refusal_of_the_code_has_a_row(
    asked_once: tuple[dict[str, str | None], set[tuple[str, int]]],
) -> None:
    """Each line that raises was reached by a row, or is of a function in `ELSEWHERE`, which all exist."""
    reached = asked_once[1]
    for module in ASKED:
        path = Path(str(module.__file__))
        raising = dict(_raising(path))
        elsewhere = ELSEWHERE.get(path.name, {})
        missed = {f"{path.name}:{line} {name}" for line, name in raising.items() if (str(path), line) not in reached}
        missed -= {f"{path.name}:{line} {name}" for line, name in raising.items() if name in elsewhere}
        assert not missed
    every = {path: {name for _, name in _raising(Path(path))} for path in (str(module.__file__) for module in ASKED)}
    for file, functions in ELSEWHERE.items():
        assert functions.keys() <= set().union(*(names for path, names in every.items() if Path(path).name == file))


def _raising(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line of every `raise` of a new error, with its function's name."""
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            for inner in ast.walk(function):
                if isinstance(inner, ast.Raise) and inner.exc is not None:
                    yield inner.lineno, function.name


def _asked_of_all() -> tuple[dict[str, str | None], set[tuple[str, int]]]:
    """Return what each row is told, and the lines of `ASKED` that run while all are asked."""
    files, found = {str(module.__file__) for module in ASKED}, set[tuple[str, int]]()

    def of_line(frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            found.add((frame.f_code.co_filename, frame.f_lineno))
        return of_line

    def of_call(frame: FrameType, event: str, argument: object) -> Any:
        return of_line if frame.f_code.co_filename in files else None

    before = sys.gettrace()
    sys.settrace(of_call)
    try:
        messages = {row.wish: asked(row.configuration) for row in ROWS}
    finally:
        sys.settrace(before)
    return messages, found


def test_a_row_that_runs_stops_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from docs.generate import refusals as page

    monkeypatch.setattr(page, "asked", lambda configuration: None)
    with pytest.raises(ValueError, match="Bulyan: expected settings that are refused, found ones that run"):
        refusals_page()
