"""Help lists commands by what they are for, in sentences; three shells complete them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner, Result

from precad.deploy.cli import main as cli
from precad.deploy.cli.panels import OTHER, PANELS, panels_of

VERBS = """
Accept Add Answer Ask Attack Audit Begin Bound Call Certify Check Choose Clip Compare Compute Continue Copy Count
Create Cut Deal Dial Divide Draw Encode Encrypt Exit Export Find Follow Give Hold Host Issue Keep Leave Let Listen Look
Make Measure Name Pay Plan Poison Predict Print Read Register Repeat Require Run Sample Say Seed Set Show Sign Simulate
Spread Start Stop Take Tell Train Trust Use Verify Wish Write
"""
"""Words that a help text begins with. A new one is added here if it is a verb."""


def precad(*arguments: str, **environment: str) -> Result:
    """The command in this process, as in a terminal of 80 columns."""
    return CliRunner().invoke(cli.app, list(arguments), prog_name="precad", env={"COLUMNS": "80", **environment})


def helps(group: typer.core.TyperGroup, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Every help text, after the words that it is of."""
    for name, command in group.commands.items():
        where = " ".join((*path, name))
        yield where, (command.help or "").split("\n\n")[0]
        if isinstance(command, typer.core.TyperGroup):
            yield from helps(command, (*path, name))
        else:
            yield from ((f"{where} {one.name}", one.help) for one in command.params if getattr(one, "help", None))


def test_every_help_text_is_a_sentence() -> None:
    """It begins with a verb, has three words at least, and ends as a sentence does."""
    found = list(helps(typer.main.get_command(cli.app)))
    wrong = [
        (where, text)
        for where, text in found
        if re.split(r"\W", text, maxsplit=1)[0] not in VERBS.split()
        or not text.rstrip().endswith(".")
        or len(text.split()) < 3
    ]
    assert not wrong
    assert len(found) > 200


def test_commands_are_listed_by_what_they_are_for() -> None:
    """Each under one heading, in 80 columns, and none is missing."""
    shown = precad("--help").stdout
    found = {heading: re.findall(r"^  ([\w-]+) ", text, re.MULTILINE) for heading, text in sections(shown)}
    assert {heading: tuple(found[heading]) for heading in PANELS} == PANELS
    assert set(typer.main.get_command(cli.app).commands) == {name for names in PANELS.values() for name in names}
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("group", [(), ("init",), ("pki",), ("audit",), ("bench",), ("experiment",), ("serve",)])
def test_lists_of_commands_have_whole_sentences(group: tuple[str, ...]) -> None:
    """In 80 columns, wrapped and not cut off."""
    shown = precad(*group, "--help").stdout
    listed = shown.partition("Options:")[2]
    assert "..." not in listed
    assert max(map(len, shown.splitlines())) <= 80


def sections(shown: str) -> list[tuple[str, str]]:
    parts = re.split(r"^(\w[^\n]*):\n", shown, flags=re.MULTILINE)[1:]
    return list(zip(parts[::2], parts[1::2], strict=True))


def test_a_command_that_joined_is_listed_with_others() -> None:
    assert panels_of(["paint", "run", "demo"]) == [("Train on this machine", ["demo", "run"]), (OTHER, ["paint"])]


@pytest.mark.parametrize("command", [(), ("run",), ("pki",), ("pki", "sign"), ("simulate",), ("bench", "scale")])
def test_the_short_flag_shows_the_same_help(command: tuple[str, ...]) -> None:
    short, long = precad(*command, "-h"), precad(*command, "--help")
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    assert "-h, --help" in short.stdout


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("bash", "complete -o default -F _precad_completion precad"),
        ("zsh", "compdef _precad_completion precad"),
        ("fish", "complete --command precad"),
    ],
)
def test_each_shell_gets_its_script(shell: str, line: str) -> None:
    """The one that `--install-completion` writes; the shell itself reads it, where it is installed."""
    script = precad(_PRECAD_COMPLETE=f"source_{shell}").stdout
    assert line in script
    assert f"complete_{shell}" in script
    if (program := shutil.which(shell)) is not None:
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [("precad st", {"status"}), ("precad pki si", {"sign"}), ("precad run --a", {"--app"})],
)
def test_words_are_completed(words: str, expected: set[str]) -> None:
    at = str(len(words.split()) - 1)
    found = precad(_PRECAD_COMPLETE="complete_bash", COMP_WORDS=words, COMP_CWORD=at)
    assert set(found.stdout.split()) == expected
    found = precad(_PRECAD_COMPLETE="complete_fish", _TYPER_COMPLETE_ARGS=words, _TYPER_COMPLETE_FISH_ACTION="get-args")
    assert {line.split("\t")[0] for line in found.stdout.splitlines()} == expected
    found = precad(_PRECAD_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=words)
    assert all(f'"{word}"' in found.stdout for word in expected)
