"""Every promise of the documents names its adversary, and a test that attacks it and is really there.

Failure means: a row without an adversary or a test, a test that was renamed or deleted, or a document without a table.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEADER = "| promise | adversary | test that attacks it |"
DOCUMENTS = ("docs/explanation/threat-model.md", "docs/explanation/privacy.md", "docs/guides/operations.md")
REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def rows(document: str) -> list[list[str]]:
    """The cells of the document's table of promises."""
    lines = (ROOT / document).read_text().splitlines()
    start = lines.index(HEADER) + 2
    end = next(i for i in range(start, len(lines) + 1) if i == len(lines) or not lines[i].startswith("|"))
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[start:end]]


def defined(path: str) -> set[str]:
    """Names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions) and node.name.startswith("test_")}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_promise_has_an_adversary_and_a_test_that_exists(document: str) -> None:
    found = rows(document)
    assert len(found) >= 5
    for promise, adversary, tests in found:
        assert promise, found
        assert adversary, promise
        named = REFERENCE.findall(tests)
        assert named, promise
        for path, name in named:
            assert name in defined(path), f"{promise}: {path}::{name}"


def test_a_test_that_does_not_exist_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check itself can fail."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text("def test_one():\n    pass\n")
    row = "| p | a | `tests/test_x.py::test_two` |"
    (tmp_path / "d.md").write_text("\n".join([HEADER, "| --- | --- | --- |", *[row] * 5]))
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    with pytest.raises(AssertionError, match="test_two"):
        test_every_promise_has_an_adversary_and_a_test_that_exists("d.md")
