"""Names and paths on a console are what they are. Failure means that a user is sent to a folder of another name."""

from __future__ import annotations

import io

import pytest

from precad.deploy.cli import common
from precad.deploy.shown import tables
from precad.deploy.shown.consoles import LiteralConsole, ProgressConsole


@pytest.mark.parametrize("kind", [LiteralConsole, ProgressConsole, type(common.results)])
@pytest.mark.parametrize("name", ["run[neu]", "run[/b]", "run:smile:", "[red]run", r"run\[b]"])
def test_a_folder_has_its_own_name_in_tables_and_lines(kind: type[LiteralConsole], name: str) -> None:
    """As rich's markup, a part would be a style, an emoji, or an error that ends the command."""
    written = io.StringIO()
    console = kind(file=written, width=80)
    table = tables.facts()
    table.add_row("run folder", name)
    console.print(table, highlight=False)
    console.print(name, highlight=False)
    said = written.getvalue().splitlines()
    assert [said[0].split()[-1], said[1]] == [name, name]
