"""The generated pages are those that their sources give, and they name every field, command and name."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import precad
from docs.generate.__main__ import DOCS, PAGES, main, stale
from docs.generate.configuration import described
from docs.generate.names import docstring
from docs.generate.results import DATA, cells
from tests.harness.command_line import CliRunner

ROOT = Path(__file__).resolve().parents[2]


def text_of(page: str) -> str:
    """Return the text of a page of docs/."""
    return (DOCS / page).read_text()


def test_generated_pages_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise: `python -m docs.generate`."""
    status = main(["--check"])
    assert (status, capsys.readouterr().out) == (0, "")


def test_a_page_that_is_missing_or_was_edited_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = "reference/refusals.md"  # asks every row, which takes two seconds, as in the test above
    monkeypatch.setitem(PAGES, refusals, partial(text_of, refusals))
    for page in PAGES:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(text_of(page))
    one, other, *_ = PAGES
    (tmp_path / one).write_text(text_of(one).replace("required", "optional", 1))
    (tmp_path / other).unlink()
    assert stale(tmp_path) == {page: text_of(page) for page in (one, other)}


def keys(table: dict[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the section and the name of every value in a TOML file. Tables whose keys are its user's are one value,
    and every column of records is one called NAME."""
    for name, value in table.items():
        if isinstance(value, dict) and (path, name) not in {("task", "clients"), ("task", "model_arguments")}:
            inner = "NAME" if path == "task.columns" else name
            yield from keys(value, f"{path}.{inner}".strip("."))
        else:
            yield path, name


@pytest.mark.parametrize("sample", ["aggregator-a", "aggregator-b", "client", "dealer"])
def test_every_field_of_a_sample_has_a_row(sample: str) -> None:
    """The samples are written by hand. A field in a comment is taken as if it were none."""
    text = (ROOT / f"deploy/hosts/samples/{sample}.toml").read_text()
    sections = dict(
        re.findall(r"^## \[([\w.]+)\]\n(.*?)(?=^## |\Z)", text_of("reference/configuration.md"), re.M | re.S)
    )
    found = list(keys(tomllib.loads(text)))
    assert len(found) > 20
    for section, name in found:
        assert f"\n| `{name}` |" in sections[section.replace("aggregator.b", "aggregator.a")], (section, name)


def test_commands_are_those_that_the_help_lists() -> None:
    """The help lists groups and single commands; a group's commands come under its name."""
    from precad.deploy.cli.main import app
    from precad.deploy.cli.panels import PANELS

    listed = CliRunner().invoke(app, ["--help"]).stdout.partition(f"{next(iter(PANELS))}:")[2]
    said = re.findall(r"^## precad ([\w-]+)", text_of("reference/commands.md"), re.MULTILINE)
    assert set(said) == set(re.findall(r"^  ([\w-]+)", listed, re.MULTILINE))


@pytest.mark.parametrize("name", ["demo", "check", "pki renew"])
def test_a_block_is_what_the_help_prints(name: str) -> None:
    """On a terminal of 80 columns, of which the help takes 78."""
    from precad.deploy.cli.main import app

    shown = CliRunner().invoke(app, [*name.split(), "--help"], terminal_width=78, prog_name="precad").stdout
    block = text_of("reference/commands.md").partition(f"\n## precad {name}\n\n```text\n")[2].partition("\n```")[0]
    assert [line.rstrip() for line in shown.strip().splitlines()] == block.splitlines()


def test_every_name_of_the_front_door_has_a_heading() -> None:
    said = re.findall(r"^### precad\.(\w+)", text_of("reference/python.md"), re.MULTILINE)
    assert sorted(said) == sorted(set(precad.__all__) - {"__version__"})


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "maximum": 1000000}, "integer at least 1 and at most 1 000 000"),
        ({"anyOf": [{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5}, {"type": "null"}]},
         "number above 0 and below 0.5"),
        ({"type": "array", "items": {"enum": ["a", 1]}}, 'list, each value one of `"a"`, `1`'),
        ({"type": "object", "additionalProperties": {"type": "boolean"}}, "table, each value true or false"),
        ({"$ref": "#/$defs/X"}, "secret text"),
    ],
)  # fmt: skip
def test_types_and_bounds_in_words(schema: dict[str, object], words: str) -> None:
    assert described(schema, {"X": {"type": "string", "format": "password"}}) == words


def test_a_docstring_becomes_markdown() -> None:
    """Arguments are a table, whose cells hold no line break and no bar; an example is code."""
    text = "Do it (docs/guides/data.md).\n\n    one    a | b,\n           and c\n    two    d\n\n    >>> 1\n    1"
    assert docstring(text) == (
        "Do it ([data](../guides/data.md)).\n\n"
        "| argument | meaning |\n| --- | --- |\n| `one` | a \\| b, and c |\n| `two` | d |\n\n"
        "```pycon\n>>> 1\n1\n```"
    )


def test_every_result_file_is_in_one_table() -> None:
    """A file that no page shows, or two pages show, is a mistake; so is a picture that is not there."""
    entries = [one for part in tomllib.loads((DATA / "tables.toml").read_text()).values() for one in part]
    assert sorted(one["file"] for one in entries) == sorted(p.name for p in DATA.iterdir() if p.name != "tables.toml")
    assert len({one["title"] for one in entries}) == len(entries)
    for one in entries:
        assert {"file", "title", "command", "setting"} <= one.keys()
        assert "image" not in one or (DOCS / "images" / one["image"]).exists()


def test_a_row_that_is_too_short_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('one,two\n1,"2, or | 3"\n')
    assert cells(tmp_path / "a.csv") == "| one | two |\n| --- | --- |\n| 1 | 2, or \\| 3 |"
    (tmp_path / "a.csv").write_text("one,two\n1\n")
    with pytest.raises(ValueError, match=r"a\.csv, line 2: expected 2 cells, found 1"):
        cells(tmp_path / "a.csv")


def test_help_texts_fit_the_column_of_the_site() -> None:
    """Blocks of more than 80 columns are cut off at 1280 px, beside the navigation."""
    blocks = (DOCS / "reference" / "commands.md").read_text().split("```")[1::2]
    assert len(blocks) > 40
    assert max(len(line) for block in blocks for line in block.splitlines()) <= 80
