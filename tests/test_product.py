"""The product alone, as a production image holds it: no laboratory and no attacks.

Failure means: an image that removes `lab` and `clients/attacks` does not start, or a server loads what it shall not.
What an installed server holds is in `tests/deploy/hosts/test_wheel.py`.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from precad.protos.tls.identity import Role
from tests.harness.organisations import Organisations
from tests.harness.tree_without_attacks import environment_of, tree_without

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = ("precad.lab", "precad.clients.attacks")
DOORS = (
    "precad.deploy.cli.main",
    "precad.deploy.localhost.deployment",
    "precad.deploy.reporting.write",
    "precad.deploy.exporting.export",
    "precad.deploy.guarantees.certificates",
    "precad.servers.aggregator",
    "precad.servers.dealer",
    "precad.clients.process",
)
"""Modules that between them import the product."""


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The product alone."""
    return tree_without(tmp_path_factory.mktemp("product"), "lab", "clients/attacks")


def run_in(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`precad` of the sources in that folder."""
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main", *arguments]
    return subprocess.run(command, cwd=tree, env=environment_of(tree), capture_output=True, text=True, check=False)


def test_help_lists_no_command_of_the_laboratory_and_a_call_says_so(product: Path) -> None:
    """Help without them, and exit code 2 with what is missing."""
    shown, refused = run_in(product, "--help"), run_in(product, "simulate", "--rounds", "3")

    assert shown.returncode == 0, shown.stderr
    listed = re.findall(r"^  (run|simulate|client|audit|bench|experiment) ", shown.stdout, re.MULTILINE)
    assert listed == ["run", "client", "audit"]
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "precad: precad simulate: expected the laboratory, found none: this installation holds no laboratory\n"
    )


def test_the_product_does_the_rest(product: Path, tmp_path: Path) -> None:
    """It checks an organisation's configuration and accounts for a training."""
    organisations = Organisations.create(tmp_path)
    organisations.write_configs()
    checked = run_in(product, "check", str(organisations.config(Role.DEALER)), "--json")
    assert checked.returncode == 0, checked.stderr
    assert set(json.loads(checked.stdout)) >= {"task_digest", "dealer"}

    setting = ("--sigma", "1", "-q", ".1", "-p", ".05", "--rounds", "50", "--delta", "1e-5")
    accounted = run_in(product, "account", *setting, "--json")
    assert accounted.returncode == 0, accounted.stderr
    assert json.loads(accounted.stdout)["one_server"]["bound"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("module", DOORS)
def test_every_part_of_the_product_starts(product: Path, module: str) -> None:
    """Importing it needs no file that is not there."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import {module}; print({module}.__file__)"],
        cwd=product,
        env=environment_of(product),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(product)


@pytest.mark.slow
def test_a_report_on_a_simulations_folder_is_refused(product: Path, tmp_path: Path) -> None:
    """It says what would read it."""
    (tmp_path / "config.toml").touch()
    (tmp_path / "seed-0.jsonl").touch()
    refused = run_in(product, "report", str(tmp_path))

    assert refused.returncode == 2, refused.stderr
    assert "this installation holds no laboratory" in refused.stderr


def test_a_servers_command_loads_nothing_of_the_laboratory_and_help_nothing_heavy() -> None:
    """A joined command is imported when it is called or listed; what it needs, when it runs."""
    code = (
        "import sys, typer, precad.deploy.cli.main as cli; main = typer.main.get_command(cli.app).main\n"
        "main(['serve', 'dealer', '--help'], standalone_mode=False); print('', *sys.modules, sep='\\n- ')\n"
        "main(['--help'], standalone_mode=False); print('', *sys.modules, sep='\\n+ ')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    served = re.findall(r"^- (.*)$", done.stdout, re.MULTILINE)
    helped = re.findall(r"^\+ (.*)$", done.stdout, re.MULTILINE)

    assert "precad.deploy.cli.roles" in served
    assert [name for name in served if name.startswith(LEFT_OUT)] == []
    assert "precad.lab.commands.bench" in helped
    assert {"torch", "crypten", "scipy", "numba", "sklearn"}.isdisjoint(helped)
