"""A server draws all that a round makes known to others from its `Randomness`: no draw goes past it."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from precad.servers.rounds.equipment import SYSTEM_RANDOMNESS

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = ("servers/rounds", "servers/task")
MODULES = sorted(path.relative_to(ROOT).as_posix() for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
NEVER_LEAVES: Final = {"servers/rounds/uploads.py": 1}
"""Draws of what only this process ever holds: the key of uploads on disk."""


def draws(source: str, names: Mapping[str, object]) -> Iterator[tuple[int, bool]]:
    """Yield the line of every call that takes `random_bytes`, and whether it is given.

    The call may be made here, or handed to a thread with its arguments.
    """
    for call in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)):
        function, arguments = call.func, call.args
        if isinstance(function, ast.Attribute) and function.attr in ("in_mpc_thread", "to_thread") and arguments:
            function, *arguments = arguments
        if (place := _place_of_random_bytes(_named(function, names))) is not None:
            yield call.lineno, len(arguments) > place or any(word.arg == "random_bytes" for word in call.keywords)


def _named(expression: ast.expr, names: Mapping[str, object]) -> object:
    """Return what a name, or a name of a module, stands for; None where it is known only at run time."""
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
        return getattr(names.get(expression.value.id), expression.attr, None)
    return None


def _place_of_random_bytes(called: object) -> int | None:
    """Return the place of the parameter `random_bytes`; None where there is none."""
    if not callable(called):
        return None
    try:
        parameters = list(inspect.signature(called).parameters)
    except ValueError:  # some builtins have no signature
        return None
    return parameters.index("random_bytes") if "random_bytes" in parameters else None


def found_in(path: str) -> list[tuple[int, bool]]:
    """Return the draws of a module."""
    module = importlib.import_module("precad." + path.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    return list(draws((ROOT / path).read_text(), vars(module)))


@pytest.mark.parametrize("path", MODULES)
def test_every_draw_of_a_round_names_its_source(path: str) -> None:
    past = [line for line, given in found_in(path) if not given]

    assert len(past) == NEVER_LEAVES.get(path, 0), f"{path}: draws past Randomness in lines {past}"


def test_the_draws_are_found() -> None:
    """The coins of selection and turns, both modes' locks, share seeds, the noise's key, and the check of `proved`."""
    assert {path for path in MODULES if any(given for _, given in found_in(path))} == {
        "servers/rounds/dealt_form.py",
        "servers/rounds/equipment.py",
        "servers/rounds/form.py",
        "servers/rounds/proved_form.py",
        "servers/task/meeting.py",
        "servers/task/run.py",
    }


def test_a_planted_draw_past_the_source_is_found() -> None:
    """Called here, and handed to a thread."""
    from precad.mpc import joint_coin
    from precad.mpc.proved.submission import ShareSeeds

    names = {"ShareSeeds": ShareSeeds, "joint_coin": joint_coin}
    planted = "ShareSeeds(0)\nself.in_mpc_thread(joint_coin.commit, context, channel)\nShareSeeds(0, coin)"

    assert list(draws(planted, names)) == [(1, False), (2, False), (3, True)]


def test_only_the_equipment_names_the_systems_generator() -> None:
    names = [path for path in MODULES if {"urandom", "SYSTEM_BYTES"} & set(_words(path))]
    assert names == ["servers/rounds/equipment.py"]


def test_the_systems_generator_is_taken_up_once() -> None:
    """One constant is the default of every source of bytes in the packages; whoever names another hands it in."""
    packages = ("mpc", "dp", "protos", "servers", "clients", "deploy", "lab")
    paths = [path.relative_to(ROOT).as_posix() for package in packages for path in (ROOT / package).rglob("*.py")]

    assert [path for path in sorted(paths) if "urandom" in _words(path)] == ["mpc/prg.py"]
    assert _words("mpc/prg.py").count("urandom") == 1


def test_noise_of_the_system_does_not_repeat() -> None:
    """Two calls share no more than chance allows: at std = 2^17, 1000 equal draws have probability 0."""
    first, second = (SYSTEM_RANDOMNESS.noise(2.0**17, 1000) for _ in range(2))

    assert not np.array_equal(first, second)


def _words(path: str) -> list[str]:
    """Return every name and attribute that a file's code names."""
    nodes = ast.walk(ast.parse((ROOT / path).read_text()))
    return [str(getattr(node, "attr", getattr(node, "id", getattr(node, "name", "")))) for node in nodes]
