"""No code but `protos/task/algorithms.py` decides by the name of an algorithm: it asks the algorithm's row."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

import pytest

from precad.protos.task.algorithms import ALIASES, AS_DEPLOYED, RULES
from tests.test_structure import sources

ROWS: Final = "protos/task/algorithms.py"
TABLES: Final = {"RULES", "ALGORITHMS"}
"""Rows by name: those of tasks, and a simulation's classes."""
NAMES: Final = {*RULES, *ALIASES, AS_DEPLOYED}


def decisions(text: str) -> list[int]:
    """Return the lines in which code decides by the name of an algorithm."""
    return sorted({node.lineno for tree in [ast.parse(text)] for node in _deciding(tree)})


def _deciding(tree: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and not any(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            operands = [node.left, *node.comparators]
            about = [_is_about_an_algorithm(operand) for operand in operands]
            if any(map(_names_one, operands)) or (any(about) and not all(about)):  # two fields may have to agree
                yield node
        elif isinstance(node, ast.Match) and _is_about_an_algorithm(node.subject):
            yield node.subject
        elif isinstance(node, ast.MatchValue) and _names_one(node.value):
            yield node.value
        elif isinstance(node, ast.Subscript) and _is_about_an_algorithm(node.slice) and not _is_table(node.value):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looks_up = node.func.attr == "get" and any(map(_is_about_an_algorithm, node.args[:1]))
            reads = hasattr(str, node.func.attr) and _is_about_an_algorithm(node.func.value)
            if reads or (looks_up and not _is_table(node.func.value)):
                yield node


def _is_about_an_algorithm(node: ast.expr) -> bool:
    """Tell whether it is a variable or field `algorithm`, or an entry "algorithm" of a section."""
    match node:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name in ("algorithm", "task_algorithm")
        case ast.Subscript(slice=ast.Constant(value="algorithm")):
            return True
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value="algorithm"), *_]):
            return True
        case ast.NamedExpr(value=value):
            return _is_about_an_algorithm(value)
    return False


def _names_one(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(map(_names_one, node.elts))
    return isinstance(node, ast.Constant) and node.value in NAMES


def _is_table(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in TABLES


def test_only_the_rows_decide_by_name() -> None:
    """No exceptions: what another place wants to know is a question to the row."""
    found = {path: decisions(text) for path, text in sources().items() if path != ROWS}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "line",
    [
        'task.algorithm == "precad"',
        'if name != "user-dp-fedavg": pass',
        'if x in ("local-dp", "ins-dp-fedavg"): pass',
        'if section.get("algorithm") != other: pass',
        "if task.algorithm == Deployed.name: pass",
        'match task.algorithm:\n    case "precad": pass',
        'match what:\n    case "non-private" | None: pass',
        '{"precad": 1}[task.algorithm]',
        '{"precad": 1}.get(self.algorithm, 0)',
        'task.algorithm.startswith("user")',
    ],
)
def test_a_planted_decision_is_found(line: str) -> None:
    assert decisions(line) == [1] or "match" in line
    assert decisions(line)


@pytest.mark.parametrize(
    "line",
    [
        "RULES[self.algorithm]",
        "summary.algorithm != settings.algorithm",
        "task.rules.is_default",
        'settings = {"algorithm": "precad"}',
        "if algorithm is None: pass",
    ],
)
def test_what_decides_nothing_is_not_found(line: str) -> None:
    assert decisions(line) == []
