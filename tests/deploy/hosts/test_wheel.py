"""The wheel installs one package, `precad`, that runs beside folders that have our folders' names.

Failure means: two distributions fight for the name `clients`, or a user's own folder is imported in our place. It also
means a production image that holds attacks or the laboratory, or does not start without them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.harness import free_addresses
from tests.harness.kits import PARTICIPANTS, SERVERS, Project

ROOT = Path(__file__).resolve().parents[3]
WITHOUT = ("crypten", "onnx", "omegaconf", "precad", "__editable__")
"""Distributions that a plain `pip install` leaves out, and this checkout."""
HOSTILE = ("mpc", "dp", "clients", "servers", "protos", "deploy", "lab", "benchmarks")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an environment that holds the wheel alone, over this one's dependencies without CrypTen's."""
    folder = tmp_path_factory.mktemp("wheel")
    left_out = shutil.ignore_patterns(".git", ".venv*", "runs", "build", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, folder / "source", symlinks=True, ignore=left_out)
    keys = folder / "source" / "deploy" / "hosts" / "docker" / "site"
    keys.mkdir(exist_ok=True)
    (keys / "key.pem").write_text("made here, and not to be given away")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "wheel", *offline, "-w", folder, folder / "source"], check=True, cwd=folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    site = next((folder / "venv" / "lib").glob("python*")) / "site-packages"
    subprocess.run([*pip, "install", *offline, "--target", site, *folder.glob("*.whl")], check=True, cwd=folder)
    (folder / "dependencies").mkdir()
    for here in (Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))):
        for entry in here.iterdir():
            link = folder / "dependencies" / entry.name
            if not entry.name.startswith(WITHOUT) and entry.suffix != ".pth" and not link.exists():
                link.symlink_to(entry)
    (site / "dependencies.pth").write_text(f"{folder / 'dependencies'}\n")
    return folder


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A folder where each of our folders' names means somebody else's program."""
    for name in HOSTILE:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('hostile')\n")
    return tmp_path


def environment_of(hostile: Path) -> dict[str, str]:
    """Return what a process there has of this one's environment: nothing."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(hostile)}


def run(installed: Path, hostile: Path, *arguments: str) -> tuple[str, str]:
    """Run `precad` of that environment in the hostile folder; return its standard output and error."""
    python = installed / "venv" / "bin" / "python"
    command = [python, "-P", "-m", "precad.deploy.cli.main", *arguments]
    done = subprocess.run(
        command, cwd=hostile, env=environment_of(hostile), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_wheel_installs_one_package(installed: Path) -> None:
    site = next((installed / "venv" / "lib").glob("python*")) / "site-packages"
    gained = {path.name for path in site.iterdir() if not path.name.endswith((".dist-info", ".pth"))} - {"bin"}

    assert gained == {"precad"}
    assert (site / "precad" / "py.typed").exists()


def test_the_installed_command_starts_beside_hostile_folders(installed: Path, hostile: Path) -> None:
    assert run(installed, hostile, "--version")[0].startswith("precad ")


def test_the_wheel_holds_what_a_deployment_begins_with(installed: Path, hostile: Path) -> None:
    """`precad init` writes every sample, unit and manifest of the repository, and no key that lay beside them."""
    run(installed, hostile, "init", "deployment", str(hostile / "start"), "--mode", "dealer")
    run(installed, hostile, "init", "local", str(hostile / "mine"))
    written = {path.name for path in hostile.glob("start/**/*.*")} | {path.name for path in hostile.glob("mine/*")}
    hosts = ROOT / "deploy" / "hosts"
    folders = ("samples", "systemd", "start", "grafana", "kubernetes", "helm", "identities")
    ours = [path for name in folders for path in hosts.glob(f"{name}/**/*.*")]
    assert {path.name for path in ours if "__pycache__" not in path.parts} | {"compose.yaml", "task.toml"} == written
    site = next((installed / "venv" / "lib").glob("python*")) / "site-packages" / "precad" / "deploy" / "hosts"
    assert not (site / "docker" / "site").exists()


@pytest.mark.slow
def test_the_installed_demo_runs_beside_hostile_folders(installed: Path, hostile: Path) -> None:
    """The dealer, both aggregators and the clients are processes of the installed package, which lacks CrypTen."""
    made, said = run(
        installed, hostile, "demo", "--clients", "3", "--rounds", "2", "--json", "--output", str(hostile / "run")
    )

    assert (json.loads(made)["ended"], json.loads(made)["gate"]) == ("2 rounds done", "native")
    assert said.splitlines()[:2] == [
        "starting a dealer, two aggregators and 3 clients in 6 processes: about 8 s to the first round",
        "gate: native, as CrypTen is not installed; `task.gate` chooses one for good",
    ]


OWN_MODEL = """
from torch import nn

def net():
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
"""
OWN_TASK = {
    'model = "torch.nn:Linear"': 'model = "ward:net"',
    "model_arguments = { in_features = 6, out_features = 2 }\n": "",
    "dim = 14": "dim = 38",
}
PREDICTED = """
import sys, torch
sys.path.append(".")
from ward import net
model = net()
model.load_state_dict(torch.load("a/model.pt", weights_only=True))
print(*model(torch.ones(3, 6)).shape)
"""


def joined_and_ended(installed: Path, project: Project, digest: str) -> dict[str, int]:
    """Start every organisation in a folder of its own, beside ours by name. Return their exit codes."""
    python, started = installed / "venv" / "bin" / "python", {}
    for who in PARTICIPANTS:
        home = project.root / who
        for name in HOSTILE:
            (home / name).symlink_to(project.root / name)
        if who not in SERVERS:
            (project.home(who) / who / "ward.py").write_text(OWN_MODEL)
        command = [python, "-P", "-m", "precad.deploy.cli.main", *project.join(who, digest)]
        with (project.root / f"{who}.log").open("wb") as log:
            started[who] = subprocess.Popen(
                command, cwd=home, env=environment_of(project.root), stdout=log, stderr=log
            )  # fmt: skip
    try:
        return {who: process.wait(300) for who, process in started.items()}
    finally:
        for process in started.values():
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_installed_package_trains_a_model_of_one_s_own_in_mode_proved(installed: Path, hostile: Path) -> None:
    """Five organisations by kits, from `precad init` to a signed export that is verified and predicts.

    The model's code is at the project's owner and at clients. Servers need it for the export alone.
    """
    project = Project(hostile, lambda *arguments: "".join(run(installed, hostile, *map(str, arguments))))
    project.begin(dict(zip((*SERVERS, "lane"), free_addresses(3), strict=True)))
    Project.replace(project.start / "task.toml", OWN_TASK)
    (project.start / "ward.py").write_text(OWN_MODEL)
    project.request()
    digest = project.provision()
    project.give_records()
    codes = joined_and_ended(installed, project, digest)
    assert set(codes.values()) == {0}, {who: (hostile / f"{who}.log").read_text()[-2000:] for who in codes}
    (hostile / "ward.py").write_text(OWN_MODEL)
    for who in SERVERS:
        home = project.home(who) / who
        (home / "ward.py").write_text(OWN_MODEL)
        run(installed, hostile, "export", str(home / "state"), "--config", str(home / f"{who}.toml"), "--out", who[-1])
    authority = str(project.start / "authority" / "ca.pem")
    verified = "".join(run(installed, hostile, "verify-export", "a", "--against", "b", "--authority", authority))
    assert all(f"signed by {server}" in verified for server in SERVERS)
    python = [installed / "venv" / "bin" / "python", "-P", "-c", PREDICTED]
    done = subprocess.run(python, cwd=hostile, env=environment_of(hostile), check=True, capture_output=True, text=True)
    assert done.stdout == "3 2\n"


# -- what a production image has of it ---------------------------------------------------------------------------------

DOCKER = ROOT / "deploy" / "hosts" / "docker"
STARTED = """
import json, sys

def loaded():
    return sorted(name for name in sys.modules if name.partition(".")[0] == "precad")

import precad.servers.aggregator, precad.servers.dealer
servers = loaded()
import precad.deploy.cli.main, precad.deploy.cli.roles
commands = loaded()
from precad.clients.config import Attacking, ClientConfig
from precad.deploy.conducts import conducts_of
from precad.deploy.errors import ConfigError
from types import SimpleNamespace
task = SimpleNamespace(audit_clients=[], real_audit_clients=[])
honest = conducts_of(["alice"], ClientConfig.model_construct(attacks={}), task)["alice"]
try:
    attacks = {"alice": Attacking(kind="feature-noise")}
    refused = conducts_of(["alice"], ClientConfig.model_construct(attacks=attacks), task)
except ConfigError as error:
    refused = str(error)
print(json.dumps([servers, commands, type(honest).__name__, refused]))
"""


@pytest.fixture(scope="module")
def image(installed: Path) -> Path:
    """The installed environment after what the images' Dockerfile leaves out, by the images' own script."""
    runs = re.findall(r"--without-folders ([\w/ ]+)", (DOCKER / "Dockerfile").read_text())
    assert len(runs) == 2
    assert len(set(runs)) == 1
    shutil.copytree(installed / "venv", installed / "image", symlinks=True)
    command = "import sys; from prune import remove_folders; remove_folders('precad', sys.argv[1:])"
    python, environment = installed / "image" / "bin" / "python", {"PYTHONPATH": str(DOCKER)}
    subprocess.run([python, "-c", command, *runs[0].split()], check=True, cwd=installed, env=environment)
    return installed / "image"


def python_in(image: Path, *arguments: str) -> str:
    """Run the image's Python from another folder; return its standard output."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(image)}
    command = [image / "bin" / "python", "-P", *arguments]
    done = subprocess.run(command, cwd=image, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_image_holds_the_product_alone(image: Path) -> None:
    """By its files: six packages and the front door. Attacks and the laboratory are gone, the honest client is not."""
    precad = next((image / "lib").glob("python*")) / "site-packages" / "precad"
    packages = {path.name for path in precad.iterdir() if path.is_dir()} - {"__pycache__"}
    files = {path.relative_to(precad).as_posix() for path in precad.rglob("*.py")}

    assert packages == {"protos", "mpc", "dp", "servers", "clients", "deploy"}
    assert not [name for name in files if name.startswith(("lab/", "clients/attacks/"))]
    assert {"clients/process.py", "servers/aggregator.py", "servers/dealer.py"} <= files


def test_an_image_lists_the_product_s_commands(image: Path) -> None:
    """Help shows none of the laboratory's, although the installed metadata still names them."""
    shown = python_in(image, "-m", "precad.deploy.cli.main", "--help")

    assert set(re.findall(r"^  (run|serve|client|bench|simulate|experiment) ", shown, re.MULTILINE)) == {
        "run",
        "serve",
        "client",
    }


def test_an_image_s_servers_and_clients_start(image: Path) -> None:
    """A server loads four packages, and its command nothing of attacks or the laboratory. A client is honest, and a
    configuration that names an attack is refused."""
    servers, commands, client, refused = json.loads(python_in(image, "-c", STARTED))

    assert {"precad.servers.aggregator", "precad.servers.dealer"} <= set(servers)
    assert {name.split(".")[1] for name in servers if "." in name} == {"protos", "mpc", "dp", "servers"}
    assert "precad.deploy.cli.roles" in commands
    assert not [name for name in commands if name.startswith(("precad.lab", "precad.clients.attacks"))]
    assert client == "Honest"
    assert refused == (
        "client.attacks.alice: expected 'none', as this installation holds no attacks (precad.clients.attacks), "
        "found 'feature-noise'"
    )


@pytest.mark.slow
def test_an_image_s_client_process_starts(image: Path) -> None:
    """With PyTorch, which takes most of the time."""
    assert python_in(image, "-c", "import precad.clients.process") == ""


def test_an_image_does_not_keep_silently_what_it_was_to_lose(installed: Path) -> None:
    """A folder that is not there, because it was moved, stops the build."""
    command = "from prune import remove_folders; remove_folders('precad', ['precad/laboratory'])"
    done = subprocess.run(
        [installed / "venv" / "bin" / "python", "-c", command],
        env={"PYTHONPATH": str(DOCKER)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "expected a folder that precad installed, found none" in done.stderr
