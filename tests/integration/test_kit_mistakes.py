"""Mistakes of the runbook's table that only running servers can make, made by organisations that joined by kits.

Every organisation is a process of this machine with a folder of its own. Failure means: a mistake that is not refused,
or another last line or exit code than docs/guides/runbook.md has for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from precad.deploy.cli.main import app
from precad.deploy.errors import REFUSED, UNREACHABLE
from tests.harness.command_line import CliRunner
from tests.harness.harness import free_addresses
from tests.harness.kits import SERVERS, Project
from tests.harness.organisations import ROOT

pytestmark = pytest.mark.slow

A, B = SERVERS
TIMEOUT_S = 200.0
COMMAND = (sys.executable, "-P", "-m", "precad.deploy.cli.main")


def precad(*arguments: object) -> str:
    """In this process."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="precad")
    assert done.exit_code == 0, done.output
    return done.output


def new_project(root: Path, task: Mapping[str, str]) -> tuple[Project, str]:
    """Make kits of a task with these changes; return them and what the operators of A and B read out."""
    project = Project(root, precad)
    project.begin(dict(zip((*SERVERS, "lane"), free_addresses(3), strict=True)))
    Project.replace(project.start / "task.toml", task)
    project.request()
    digest = project.provision()
    project.give_records()
    return project, digest


class Started:
    """Organisations that joined and started."""

    def __init__(self, project: Project, digest: str, participants: Iterable[str]) -> None:
        self.logs = {name: project.root / f"{name}.log" for name in participants}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        for name, path in self.logs.items():
            with path.open("wb") as log:
                command = [*COMMAND, *project.join(name, digest)]
                self._running[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def codes(self) -> dict[str, int]:
        """Wait for all ends."""
        deadline = time.monotonic() + TIMEOUT_S
        return {name: process.wait(max(0.1, deadline - time.monotonic())) for name, process in self._running.items()}

    def said(self) -> dict[str, str]:
        return {name: path.read_text()[-2000:] for name, path in self.logs.items()}


def require_in_the_table(words: str, code: int) -> None:
    table = (ROOT / "docs/reference/endings.md").read_text()
    assert (words, str(code)) in re.findall(r"^\| `([^`]+)` \| (\d) \|", table, re.MULTILINE)


def of_one_s_own(who: str, text: str) -> Callable[[Project], object]:
    return lambda project: (project.home(who) / who / "own.toml").write_text(text)


WITHOUT_CLIENTS = {
    "no client": ({"registration_timeout_s = 120.0": "registration_timeout_s = 3.0"}, None),
    "one strict server": ({}, of_one_s_own(A, "[aggregator.a]\nrequire_pqc = true\n")),
    "a closed lane": (
        {},
        lambda project: (
            of_one_s_own(A, "[aggregator.a]\nconnect_timeout_s = 5.0\n")(project),
            of_one_s_own(B, '[aggregator.b]\nlane_listen = "127.0.0.2:0"\nconnect_timeout_s = 30.0\n')(project),
        ),
    ),
}


@pytest.mark.parametrize(
    ("mistake", "words", "code"),
    [
        ("no client", "min_clients: expected", REFUSED),
        ("one strict server", "require_pqc differs between the servers", REFUSED),
        ("a closed lane", "must be open to us", UNREACHABLE),
    ],
)
def test_servers_that_cannot_begin_say_why(mistake: str, words: str, code: int, tmp_path: Path) -> None:
    """At A, in its last line."""
    require_in_the_table(words, code)
    task, change = WITHOUT_CLIENTS[mistake]
    project, digest = new_project(tmp_path, task)
    if change is not None:
        change(project)
    with Started(project, digest, SERVERS) as started:
        codes = started.codes()
    assert codes[A] == code, started.said()
    assert words in started.said()[A].splitlines()[-1], started.said()
