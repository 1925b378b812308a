"""Every promise of tests/promises.toml names its adversary, and a test that attacks it and is really there.

Failure means: a promise without an adversary or a test, or a test that was renamed or deleted.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROMISES: dict[str, list[dict[str, Any]]] = tomllib.loads((ROOT / "tests" / "promises.toml").read_text())


@cache
def defined(path: Path) -> frozenset[str]:
    """Names of the tests in a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.walk(ast.parse(path.read_text()))
    return frozenset(node.name for node in nodes if isinstance(node, functions) and node.name.startswith("test_"))


def amiss(promise: dict[str, Any], root: Path = ROOT) -> list[str]:
    """Return what a promise lacks: words, or tests that are there."""
    found = [field for field in ("promise", "adversary", "tests") if not promise.get(field)]
    for test in promise.get("tests", []):
        path, _, name = test.partition("::")
        if not (root / path).is_file() or name not in defined(root / path):
            found.append(test)
    return found


@pytest.mark.parametrize("part", ["protocol", "privacy", "operations"])
def test_every_promise_has_an_adversary_and_a_test_that_exists(part: str) -> None:
    assert len(PROMISES[part]) >= 5
    assert {promise["promise"]: lacks for promise in PROMISES[part] if (lacks := amiss(promise))} == {}


def test_there_are_no_other_parts_or_fields() -> None:
    assert PROMISES.keys() == {"protocol", "privacy", "operations"}
    assert {field for part in PROMISES.values() for one in part for field in one} == {"promise", "adversary", "tests"}


def test_a_test_that_does_not_exist_is_found(tmp_path: Path) -> None:
    """The check itself can fail."""
    (tmp_path / "test_x.py").write_text("def test_one():\n    pass\n")
    tests = ["test_x.py::test_one", "test_x.py::test_two", "test_y.py::test_one"]
    assert amiss({"promise": "p", "tests": tests}, tmp_path) == ["adversary", *tests[1:]]
