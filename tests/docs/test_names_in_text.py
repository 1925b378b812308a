"""Names of this project's code that pages, docstrings and comments give in backticks: each is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
_FOLDERS: Final = ("clients", "deploy", "dp", "lab", "mpc", "protos", "servers", "tests")
_DOTTED: Final = re.compile(r"`(precad(?:\.\w+)+)")
_OF_A_CLASS: Final = re.compile(r"`([A-Z]\w+)\.(\w+)")
_DEFINITION: Final = re.compile(r"^(?:class|message) (?P<name>\w+).*\n(?:(?:[ )}].*)?\n)*", re.MULTILINE)
_NO_MODULES: Final = frozenset({"precad.NAME", "precad.json", "precad.toml"})
"""A placeholder and two files' names."""


def pages() -> list[Path]:
    """Return whatever people read: pages, and modules for their docstrings and comments."""
    code = [path for folder in _FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *code]


def is_there(dotted: str) -> bool:
    """Tell whether a dotted name is a package, a module, or a word that its module's text has."""
    at, rest = ROOT / "precad", dotted.split(".")[1:]
    while rest and (at / rest[0]).is_dir():
        at, rest = at / rest[0], rest[1:]
    if rest and (at / f"{rest[0]}.py").is_file():
        at, rest = at / f"{rest[0]}.py", rest[1:]
    module = at if at.is_file() else at / "__init__.py"
    text = module.read_text(encoding="utf-8") if module.is_file() else ""
    return all(re.search(rf"\b{name}\b", text) for name in rest)


@pytest.mark.parametrize(
    ("dotted", "wanted"),
    [("precad.dp", True), ("precad.dp.trimmed.two_servers.MARGIN_BITS", True), ("precad.dp.trimmed.no_such", False)],
)
def test_a_dotted_name_is_looked_up(dotted: str, wanted: bool) -> None:
    assert is_there(dotted) is wanted


def test_dotted_names_are_of_modules_that_are_there() -> None:
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    known = _NO_MODULES | set(groups)
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in pages()
        for name in sorted(set(_DOTTED.findall(path.read_text(encoding="utf-8"))) - known)
        if not is_there(name)
    ]
    assert not wrong


def test_pages_name_no_attribute_that_a_class_lacks() -> None:
    """By the words of the body of each class or message of that name, and of its bases."""
    sources = [path for folder in _FOLDERS for kind in ("*.py", "*.proto") for path in (ROOT / folder).rglob(kind)]
    bodies: dict[str, list[str]] = {}
    for path in sources:
        for body in _DEFINITION.finditer(path.read_text(encoding="utf-8")):
            bodies.setdefault(body["name"], []).append(body[0])

    def names(owner: str, attribute: str) -> bool:
        return any(
            re.search(rf"\b{attribute}\b", body)
            or any(names(base, attribute) for base in re.findall(r"[A-Z]\w+", body.split("\n", 1)[0]) if base != owner)
            for body in bodies.get(owner, [])
        )

    wrong = [
        f"{path.relative_to(ROOT)}: {owner}.{attribute}"
        for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for owner, attribute in sorted(set(_OF_A_CLASS.findall(path.read_text(encoding="utf-8"))))
        if owner in bodies and not names(owner, attribute)
    ]
    assert not wrong
