"""docs/guides/runbook.md says what is there: its commands, the files that it names, and the words that programs say."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from precad.deploy import errors
from tests.harness.command_line import CommandRefusedError, require_accepted
from tests.harness.organisations import ROOT

ONE_MACHINE = ROOT / "deploy" / "hosts" / "docker" / "one-machine.sh"
RUNBOOK = (ROOT / "docs" / "guides" / "runbook.md").read_text()


def shell_lines() -> Iterator[str]:
    """Yield the lines of the fenced blocks of shell, and those of the script that the runbook runs."""
    for block in re.findall(r"```sh\n(.*?)```", RUNBOOK, re.DOTALL):
        yield from block.strip().splitlines()
    yield from map(str.strip, ONE_MACHINE.read_text().splitlines())


def precad_commands() -> list[list[str]]:
    """In blocks, and in running text where arguments follow."""
    lines = [line for line in shell_lines() if line.startswith("precad ")]
    inline = re.findall(r"`(precad [^`]+)`", RUNBOOK)
    return [shlex.split(line, comments=True)[1:] for line in (*lines, *inline)]


def test_every_command_is_one_that_the_command_line_takes() -> None:
    """With its options and values; one that is only named needs to exist."""
    commands = precad_commands()
    assert len(commands) > 25
    for arguments in commands:
        require_accepted(arguments, may_be_named_only=True)


@pytest.mark.parametrize(
    "command",
    ["serve aggregator a.toml --role c", "pki sing x", "check", "audit log --agianst x y", "pki sign a b --days x"],
)
def test_a_wrong_command_is_noticed(command: str) -> None:
    with pytest.raises(CommandRefusedError):
        require_accepted(command.split())


def test_every_exit_code_is_explained() -> None:
    page = (ROOT / "docs/reference/endings.md").read_text()
    table = page.partition("## Exit codes")[2].partition("\n## ")[0]
    codes = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert codes == {
        errors.SUCCESS,
        errors.FAILURE,
        errors.INVALID_INPUT,
        errors.REFUSED,
        errors.UNREACHABLE,
        errors.INTERRUPTED,
    }


def said() -> str:
    """Everything that our programs could say: their sources, where neighbouring literals are one."""
    packages = ("clients", "deploy", "dp", "mpc", "protos", "servers")
    text = "\n".join(path.read_text() for package in packages for path in (ROOT / package).rglob("*.py"))
    return re.sub(r"\"\s*\n\s*f?\"", "", text)


def test_the_words_of_refusals_are_those_that_programs_say() -> None:
    """Each quoted text is in a source, once what a message fills in is left out."""
    table = (ROOT / "docs/reference/endings.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)` \| (\d) \|", table, re.MULTILINE)
    assert len(quoted) > 20
    sources = said()
    for text, code in quoted:
        words = text.removesuffix(" differs between the servers")
        filled_in = {"config_digest", "protocol_version", "task", "model"}  # names of fields, given as they are
        assert (f'"{words}"' in sources) if words in filled_in else (words in sources), text
        assert int(code) in {errors.INVALID_INPUT, errors.REFUSED, errors.UNREACHABLE}
    assert "differs between the servers" in sources


def test_files_and_headings_that_are_referred_to_exist() -> None:
    """Links of the operators' documents, and the sections that other files send them to."""
    headings = set(re.findall(r"^## (.+)$", RUNBOOK, re.MULTILINE))
    for document in ("docs/guides/runbook.md", "docs/explanation/threat-model.md", "SECURITY.md"):
        text = (ROOT / document).read_text()
        for target in re.findall(r"]\(([\w./-]+)\)", text):
            assert (ROOT / document).parent.joinpath(target).exists(), (document, target)
    referred_to = [
        (path, heading)
        for folder in ("samples", "docker", "kubernetes", "helm", "identities", "systemd")
        for path in files(folder)
        for heading in re.findall(r"docs/guides/runbook\.md, \"([^\"]+)\"", path.read_text().replace("\n# ", " "))
    ]
    assert referred_to
    assert [(path, heading) for path, heading in referred_to if heading not in headings] == []


def files(folder: str) -> list[Path]:
    return [
        path for path in (ROOT / "deploy" / "hosts" / folder).rglob("*") if path.is_file() and path.suffix != ".pyc"
    ]
