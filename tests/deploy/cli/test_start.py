"""How little happens before people hear of a fault, and how early the demo begins to load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from precad.deploy.cli import local
from precad.deploy.cli.joined_commands import OWN
from precad.deploy.cli.main import app

LATE = ("aiohttp", "asyncio", "dp_accounting", "grpc", "numba", "numpy", "scipy", "torch")
"""Packages that take from a hundredth of a second to several: no fault of a file waits for one."""
FAULTS = ("[task]\nrounds = 0\n", '[task]\nclients = ["a", "b"]\nmodel = "mlp"\n', "[task]\nname = \n", "")


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_in_a_file_is_told_before_anything_large_is_imported(text: str, tmp_path: Path) -> None:
    (tmp_path / "faulty.toml").write_text(text)
    program = f"""
import sys
from precad.deploy.cli.main import main
sys.argv = ["precad", "run", "faulty.toml"]
try:
    main()
except SystemExit as end:
    print(end.code, *sorted(sys.modules.keys() & {set(LATE)!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["2"]
    assert done.stderr.startswith("precad: ")
    assert [path.name for path in tmp_path.iterdir()] == ["faulty.toml"]


def test_every_command_of_the_product_is_imported_when_it_is_called() -> None:
    """With the subcommands that other modules add."""
    group = get_command(app)
    commands = group.commands  # type: ignore[attr-defined]  # of the group, which typer types as a command
    assert [name for name in commands if name in OWN] == list(OWN)
    assert {name: commands[name].name for name in OWN} == {name: name for name in OWN}
    assert list(commands["pki"].commands) == ["init", "issue", "request", "sign", "renew", "token", "serve"]
    assert list(commands["serve"].commands) == ["aggregator", "dealer"]


def test_the_demo_starts_to_load_at_once_and_ends_that_where_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    class Recorded:
        def __init__(self) -> None:
            seen.append("started")

        def close(self) -> None:
            seen.append("closed")

    monkeypatch.setattr(local, "Forks", Recorded)
    refused = CliRunner().invoke(app, ["demo", "--clients", "2"])
    assert (refused.exit_code, seen) == (2, ["started", "closed"])
