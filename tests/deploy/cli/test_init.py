"""`precad init`: what it writes is checked, trained on and run as it stands, and nothing is overwritten."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from precad.clients import own_code
from precad.deploy.configuration.init import HOSTS, ORGANISATIONS
from precad.protos.tls.identity import Role
from tests.harness.command_line import precad
from tests.harness.organisations import Organisations


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A start, whose module is forgotten afterwards: other tests have a `my_model` too."""
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(own_code, "_BESIDE", [])
    made = precad("init", "local", tmp_path / "mine")
    assert made.exit_code == 0, made.output
    yield tmp_path / "mine"
    sys.modules.pop("my_model", None)


def test_a_local_start_passes_the_check_as_it_stands(local: Path) -> None:
    found = precad("check", local / "train.toml", "--json")
    assert found.exit_code == 0, found.output
    report = json.loads(found.stdout)
    assert report["model"] == "my_model:net, 146 parameters"
    assert "shape (6,) in 2 classes (ill, well)" in report["records"]


def test_a_local_start_says_what_its_commands_are(local: Path) -> None:
    """Every command in the head of the file is one that there is, and the cost is of the file's own numbers."""
    text = (local / "train.toml").read_text()
    task = tomllib.loads(text)["task"]
    commands = re.findall(r"^#   precad (\w+)(.*?)(?:   .*)?$", text, re.MULTILINE)
    assert [name for name, _ in commands] == ["check", "simulate", "run", "account"]
    given = f" --sigma {task['noise_multiplier']:g} -q {task['client_rate']:g} -p {task['record_rate']:g}"
    assert commands[-1][1] == f"{given} --rounds {task['rounds']} --delta 1e-5"


@pytest.mark.slow
def test_a_local_start_learns(local: Path, tmp_path: Path) -> None:
    """The made-up records can be learnt from under the noise of the file."""
    found = precad("simulate", local / "train.toml", "--output", tmp_path / "simulated", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["seeds"][0]["accuracy"] > 0.8


@pytest.mark.slow
def test_a_local_start_runs_over_real_processes(local: Path, tmp_path: Path) -> None:
    text = (local / "train.toml").read_text()
    (local / "train.toml").write_text(text.replace("rounds = 20 ", "rounds = 3 ").replace('"c", "d"', '"c"'))
    found = precad("run", local / "train.toml", "--output", tmp_path / "run", "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["ended"] == "3 rounds done"


@pytest.mark.parametrize("mode", ["proved", "dealer"])
def test_a_deployment_s_files_pass_the_check_once_the_keys_are_made(mode: str, tmp_path: Path) -> None:
    """With the keys of docs/guides/runbook.md, in every role's folder, and one digest everywhere.

    A client's records are the made-up ones that are written too.
    """
    assert precad("init", "deployment", tmp_path / "start", "--mode", mode).exit_code == 0
    organisations = Organisations.create(tmp_path / "machines", has_dealer=mode == "dealer")
    roles = (*organisations.servers, Role.CLIENT)
    for role in roles:
        text = (tmp_path / "start" / role / f"{role}.toml").read_text()
        text = text.replace('"/var/lib/precad"', '"state"').replace("/srv/records/", "records/")
        organisations.config(role).write_text(text)
        assert list((tmp_path / "start" / role).glob("precad-*.service"))
        assert (tmp_path / "start" / role / "kubernetes" / "kustomization.yaml").is_file()
    for table in (organisations.folder(Role.CLIENT) / "records").iterdir():
        shutil.copy(tmp_path / "start" / "client" / "records.csv", table)
    digests = set()
    for role in roles:
        if role in (Role.AGGREGATOR_A, Role.AGGREGATOR_B):
            model = organisations.folder(role) / "initial.npy"
            assert precad("initial-model", organisations.config(role), model).exit_code == 0
        found = precad("check", organisations.config(role), "--json")
        assert found.exit_code == 0, found.output
        digests.add(json.loads(found.stdout)["task_digest"])
    assert len(digests) == 1


def test_a_deployment_is_without_a_dealer_unless_one_is_asked_for(tmp_path: Path) -> None:
    """No file has one, and the word stands in one comment alone, but for the chart and the recipes, which are for
    every mode. Both say what is next."""
    without = precad("init", "deployment", tmp_path / "without")
    with_one = precad("init", "deployment", tmp_path / "with", "--mode", "dealer")
    assert (without.exit_code, with_one.exit_code) == (0, 0)
    said = "mode proved rests on proofs of our own, which nobody outside the project has read"
    assert (said in without.output, said in with_one.output) == (True, False)
    files = [path for path in (tmp_path / "without").rglob("*") if path.is_file()]
    assert not [path for path in files if "dealer" in str(path.relative_to(tmp_path))]
    shared = {tmp_path / "without" / name for name in ("helm", "identities")}
    files = [path for path in files if not shared & set(path.parents)]
    lines = {line for path in files for line in path.read_text().splitlines() if "dealer" in line.lower()}
    assert len(lines) == 1
    assert lines.pop().startswith("# ")
    assert (tmp_path / "with" / "dealer" / "dealer.toml").is_file()
    marked = re.compile(r"^# (With a dealer \{|\})$", re.MULTILINE)
    assert not [path for path in tmp_path.rglob("*.*") if path.is_file() and marked.search(path.read_text())]


@pytest.mark.parametrize("mode", ["proved", "dealer"])
def test_a_deployment_s_files_name_only_files_that_are_there(mode: str, tmp_path: Path) -> None:
    """Compose's configurations, and the sample that explains a manifest's; no path of our repository is left."""
    start, roles = tmp_path / "start", set(ORGANISATIONS) - ({"dealer"} if mode == "proved" else set())
    assert precad("init", "deployment", start, "--mode", mode).exit_code == 0
    assert {path.name for path in start.iterdir()} == {
        *roles,
        "helm",
        "identities",
        "one-machine",
        "monitoring",
        "project.toml",
        "task.toml",
    }
    compose = (start / "one-machine" / "compose.yaml").read_text()
    named = re.findall(r"file: (\.\./\S+)}", compose)
    assert len(named) == len(roles)
    assert all((start / "one-machine" / path).is_file() for path in named)
    for path in start.glob("*/kubernetes/precad.toml"):
        assert (path.parent / re.findall(r"(\.\./\S+\.toml)", path.read_text())[0]).is_file()
    assert not [path for path in start.rglob("*") if path.is_file() and "deploy/hosts/samples" in path.read_text()]


def test_the_folder_that_a_shell_is_in_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`precad init local .` fills an empty folder, closed to others, that is neither replaced nor opened."""
    tmp_path.chmod(0o700)
    before = tmp_path.stat()
    monkeypatch.chdir(tmp_path)
    assert precad("init", "local", ".").exit_code == 0
    after = tmp_path.stat()
    assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["my_model.py", "records.csv", "train.toml"]


@pytest.mark.parametrize("kind", ["local", "deployment"])
def test_nothing_is_overwritten(kind: str, tmp_path: Path) -> None:
    """A folder with anything in it, a file, and a folder that cannot be made are refused. An empty folder is taken."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for place in ("mine", "file", "file/below"):
        found = precad("init", kind, tmp_path / place)
        assert (found.exit_code, "FOLDER: expected" in found.output) == (2, True), found.output
    assert (tmp_path / "mine" / "notes").read_text() == (tmp_path / "file").read_text() == "mine"
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "file"}
    (tmp_path / "empty").mkdir()
    assert precad("init", kind, tmp_path / "empty").exit_code == 0


def test_an_installation_without_the_files_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precad.deploy.configuration.init.HOSTS", tmp_path / "nothing")
    found = precad("init", "local", tmp_path / "mine")
    assert (found.exit_code, "expected a file that precad installs" in found.output) == (2, True)
    assert not (tmp_path / "mine").exists()
    assert HOSTS.is_dir()
