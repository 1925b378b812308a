"""The prose linter finds what it is for, and nothing in what is no prose."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose import (
    EXCEPTIONS,
    check,
    check_beginning,
    check_mean,
    check_sentences,
    docstrings_of,
    mean_of,
    sentences_of,
)

LONG = " ".join(["word"] * 41) + "."
FAIRLY_LONG = " ".join(["Word", *["word"] * 25]) + "."


def lengths(text: str) -> list[int]:
    """Return the words of each sentence."""
    return [sentence.words for sentence in sentences_of(text, "x")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One two. Three four five.", [2, 3]),
        ("One `a b c` two.", [3]),
        ("See [the long name](there/it.md) now.", [5]),
        ("See Sec. 4.2 there, e.g. here. Then.", [6, 1]),
        ("It costs 1.5 s. Yes.", [4, 1]),
        ("One two\nthree.\n\nFour.", [3, 1]),
        ("- one two\n- three\n  four\n1. five", [2, 2, 1]),
        ("# A heading here\n\nText.", [1]),
        ("Text.\n\n| a table | of words |\n|---|---|\n", [1]),
        ("Text.\n\n```\nno prose at all\n```\nMore text.", [1, 2]),
        ("Text:\n\n    name   what it is\n    other  more of it\n\nEnd.", [1, 1]),
        ("a - b = c", [3]),
    ],
)
def test_sentences_are_told_from_what_is_no_prose(text: str, expected: list[int]) -> None:
    """By hand: code, links, abbreviations, numbers, lists, headings, tables and blocks."""
    assert lengths(text) == expected


@pytest.mark.parametrize("said", ["Of two.", "What is it.", "Who pays.", "Whose key.", "The same again."])
def test_a_docstring_that_begins_with_a_noun_clause_is_found(said: str) -> None:
    assert [finding.fails for finding in check_beginning(said, "x", 1)] == [True]


@pytest.mark.parametrize("said", ["Offer two.", "Whatever.", "Return what it is.", "The sum.", ""])
def test_other_beginnings_pass(said: str) -> None:
    assert check_beginning(said, "x", 1) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Two came. Of these, one stays.", ["Of these, one stays."]),
        ("- **Of two**, one.", ["**Of two**, one."]),
        ('"Of two," it says.', ['"Of two," it says.']),
        ("Offers of two. One of two.\n\n    Of code, nothing.\n", []),
        ("Written as `x`. Often so.", []),
    ],
)
def test_a_sentence_that_begins_with_of_fails(text: str, found: list[str]) -> None:
    """Wherever in a paragraph; not a longer word, nor a block of code."""
    findings = check_sentences(sentences_of(text, "x"))
    assert [finding.text for finding in findings] == found
    assert all(finding.fails for finding in findings)


def test_every_kind_of_docstring_is_read() -> None:
    """Modules, classes, methods and attributes have them; each comes with its line."""
    in_class = '    """C."""\n    y: int\n    """D."""\n    def f(self):\n        """E."""\n'
    source = f'"""A."""\nX = lambda: 1 if 2 else 3\n"""B."""\nclass C:\n{in_class}'
    assert sorted(docstrings_of(source)) == [(1, "A."), (3, "B."), (5, "C."), (7, "D."), (9, "E.")]


def test_a_tree_is_checked_whole(tmp_path: Path) -> None:
    """Too long fails and fairly long warns, each with its paragraph's line. A linked folder is not read twice.

    Virtual environments are not ours, whatever their names end with."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(f"# Title\n\nShort one.\n\n{LONG}\n\n{FAIRLY_LONG}\n")
    (tmp_path / "code.py").write_text('def f():\n    """What it is."""\n')
    (tmp_path / "link").symlink_to("docs")
    (tmp_path / ".venv-other").mkdir()
    (tmp_path / ".venv-other" / "code.py").write_text('"""What it is."""\n')
    findings, prose = check(tmp_path)

    assert [(f.path, f.line, f.fails) for f in findings if f.line] == [
        ("code.py", 2, True),
        ("docs/a.md", 5, True),
        ("docs/a.md", 7, False),
    ]
    assert mean_of(prose["documents"]) == (2 + 41 + 26) / 3
    assert [f.path for f in check_mean(prose["documents"], "documents")] == ["documents"]


def test_the_list_of_exceptions_is_empty() -> None:
    assert not EXCEPTIONS
