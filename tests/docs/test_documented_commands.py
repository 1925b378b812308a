"""Every command that a document shows is one: its name, its options, and all that it cannot do without."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from typer.exceptions import TyperException
from typer.main import get_group

from docs.generate.__main__ import DOCS, PAGES
from precad.deploy.cli.main import app

ROOT: Final = Path(__file__).resolve().parents[2]
WRITTEN: Final = sorted(
    [*ROOT.glob("*.md"), *(page for page in DOCS.rglob("*.md") if page.relative_to(DOCS).as_posix() not in PAGES)]
)
FENCE: Final = re.compile(r"^```[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
INLINE: Final = re.compile(r"`(precad [^`]+)`")
LINE: Final = re.compile(r"(?:^|[;(]) *(precad [a-z][^\n;|>#&)]*)", re.MULTILINE)


def shown(text: str) -> Iterator[str]:
    """Yield the commands of a page: in the running text, and a line each in its blocks."""
    text = re.sub(r"\|(?=[A-Z])", "/", text)  # one of several, as in CONFIG|URL
    blocks = "\n".join(FENCE.findall(text)).replace("\\\n", " ")
    yield from (found.strip() for found in LINE.findall(blocks))
    yield from (found.replace("\n", " ").split("|")[0] for found in INLINE.findall(FENCE.sub("", text)))


def fault(line: str) -> str | None:
    """Return what the command line would refuse of a command; None where it takes it, or its name is all there is."""
    command: Any = get_group(app)
    words = shlex.split(line)[1:]
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        if (name := words.pop(0)) not in command.commands:
            return f"no command {name!r}"
        command = command.commands[name]
    if not words or hasattr(command, "commands"):
        return None
    with command.make_context("precad", [], resilient_parsing=True) as context:
        context.resilient_parsing = False  # or its parser would drop what it does not know
        try:
            named = ["VALUE"] if words[-1].startswith("-") else []  # an option that the text speaks of
            given, _, _ = command.make_parser(context).parse_args([*words, *named])
        except TyperException as error:
            return str(error)
    return without(command, given)


def without(command: Any, given: dict[str, Any]) -> str | None:
    """Return the first option that is missing of a command whose arguments are all given."""
    needed = [one for one in command.params if one.required and given.get(one.name) in (None, (), [])]
    is_whole = all(one.param_type_name == "option" for one in needed)
    return f"missing {needed[0].opts[0]}" if needed and is_whole else None


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_each_command_can_be_given(page: Path) -> None:
    assert {line: why for line in shown(page.read_text()) if (why := fault(line)) is not None} == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("`precad clint FILE`", "no command 'clint'"),
        ("`precad client FILE --app a:b`", "missing --id"),
        ("```sh\nprecad check FILE --conect\n```", "No such option: --conect"),
        ("`precad pki request`", None),
    ],
)
def test_a_command_that_is_none_is_found(text: str, why: str | None) -> None:
    (found,) = map(fault, shown(text))
    assert found == why
