"""docs/tutorial/own-data.md in its reading order: its files, its commands, and the three machines on one."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from precad.deploy.configuration.sections import load
from tests.harness.command_line import require_accepted
from tests.harness.harness import free_addresses

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "tutorial" / "own-data.md").read_text()
FILE = re.compile(r"^```(?:python|toml)\n# ([\w.]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
PORTS = ("alpha.example.org:7001", "beta.example.org:7002", "0.0.0.0:7003", "gamma.example.org:7004")


def steps() -> Iterator[list[str]]:
    """Yield the commands of the page in order: one after another, and those of several machines together."""
    together: list[str] = []
    for block in BLOCK.findall(PAGE):
        machine, *started = block.strip().splitlines()
        if machine.startswith("# on "):
            together += started
            continue
        if together:
            yield together
            together = []
        yield from ([line] for line in block.strip().splitlines())


def write_files(folder: Path) -> None:
    """Write the page's files. The three machines are addresses of this one, with ports that are free."""
    for name, text in FILE.findall(PAGE):
        (folder / name).write_text(text)
    servers = (folder / "servers.toml").read_text()
    for here, address in zip(PORTS, free_addresses(len(PORTS)), strict=True):
        port = here.rpartition(":")[2]
        servers = servers.replace(here, address).replace(f"0.0.0.0:{port}", address)
    (folder / "servers.toml").write_text(servers)


def run(command: str, folder: Path) -> subprocess.Popen[str]:
    """Start a line of the page in a shell in which `precad` is this one."""
    function = (
        f'precad() {{ {sys.executable} -P -m precad.deploy.cli.main "$@"; }}; python() {{ {sys.executable} "$@"; }}; '
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        ["bash", "-c", function + command], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )


def test_every_command_of_the_page_is_one() -> None:
    commands = [command for step in steps() for command in step if command.startswith("precad ")]
    assert len(commands) > 15
    for command in commands:
        require_accepted(shlex.split(command)[1:])


def test_the_files_of_the_page_make_a_deployment(tmp_path: Path) -> None:
    """Up to the certificates: the script makes the tables, the file of all machines is valid, and fits the model."""
    write_files(tmp_path)
    for step in steps():
        for command in step:
            if command.startswith(("python", "cat")):
                assert run(command, tmp_path).wait() == 0
    deployment = load(tmp_path / "deployment.toml")
    names: dict[str, object] = {}
    exec((tmp_path / "my_model.py").read_text(), names)
    assert deployment.task.dim == sum(p.numel() for p in names["net"]().parameters())  # type: ignore[operator]
    for client, records in deployment.task.clients.items():
        assert len((tmp_path / f"{client}.csv").read_text().splitlines()) == records + 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_from_its_first_command_to_its_last(tmp_path: Path) -> None:
    write_files(tmp_path)
    for step in steps():
        started = [run(command, tmp_path) for command in step]
        for command, process in zip(step, started, strict=True):
            _, said = process.communicate(timeout=400)
            assert process.returncode == 0, f"{command}: {said[-2000:]}"
    assert (tmp_path / "demo" / "report.html").exists()
    one, other = (np.load(tmp_path / f"state-{letter}" / "model.npy") for letter in "ab")
    assert one.tobytes() == other.tobytes()
    assert (tmp_path / "exported" / "model.pt").exists()
