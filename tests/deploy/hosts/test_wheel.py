"""The wheel installs one package, `precad`, that runs beside folders that have our folders' names.

Failure means: two distributions fight for the name `clients`, or a user's own folder is imported in our place.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = ("mpc", "dp", "clients", "servers", "protos", "deploy", "lab", "benchmarks")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment that holds the wheel alone, over this one's dependencies."""
    folder = tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns(".git", ".venv*", "runs", "build", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=left_out)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *offline, "-w", folder, folder / "source"], check=True, cwd=folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    site = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    subprocess.run([*pip, "install", *offline, "--target", site, *folder.glob("*.whl")], check=True, cwd=folder)
    here = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (site / "dependencies.pth").write_text("\n".join(here) + "\n")
    return folder


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder where each of our folders' names means somebody else's program."""
    for name in HOSTILE:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('hostile')\n")
    return tmp_path


def run(installed: Path, hostile: Path, *arguments: str) -> str:
    """Run `precad` of that environment in the hostile folder; return its standard output."""
    python = installed / "venv" / "bin" / "python"
    command = [python, "-P", "-m", "precad.deploy.cli.main", *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(hostile)}
    done = subprocess.run(command, cwd=hostile, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_installs_one_package(installed: Path) -> None:
    site = next((installed / "venv" / "lib").glob("python*")) / "site-packages"
    gained = {path.name for path in site.iterdir() if not path.name.endswith((".dist-info", ".pth"))} - {"bin"}

    assert gained == {"precad"}
    assert (site / "precad" / "py.typed").exists()


def test_the_installed_command_starts_beside_hostile_folders(installed: Path, hostile: Path) -> None:
    assert run(installed, hostile, "--version").startswith("precad ")


@pytest.mark.slow
def test_the_installed_demo_runs_beside_hostile_folders(installed: Path, hostile: Path) -> None:
    """The dealer, both aggregators and the clients are processes of the installed package."""
    made = run(
        installed, hostile, "demo", "--clients", "3", "--rounds", "2", "--json", "--output", str(hostile / "run")
    )

    assert json.loads(made)["ended"] == "2 rounds done"
