"""One command makes a release: version, dated changes, equal bytes twice, a bill of materials, a signature, a tag."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
CHANGES = (
    "# Changelog\n\n## [Unreleased]\n\n### Added\n- A thing.\n\n## [1.2.2] - 2026-01-01\n\n### Fixed\n- An older one.\n"
)


def loaded(name: str) -> ModuleType:
    """Import a module of `.ci`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


sbom = loaded("sbom")
making = loaded("make_release")


def project(folder: Path, changes: str = CHANGES) -> Path:
    """Write the three files that name a version."""
    (folder / "pyproject.toml").write_text('[project]\nname = "x"\nversion = "1.2.2"\n')
    (folder / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 1.2.2\n")
    (folder / "CHANGELOG.md").write_text(changes)
    return folder


def test_version_and_date_are_written_once(tmp_path: Path) -> None:
    """A second call, after a failure further on, changes nothing."""
    assert making.prepare(project(tmp_path), "1.3.0", "2026-02-03") is True
    assert tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["version"] == "1.3.0"
    assert (tmp_path / "CITATION.cff").read_text() == "cff-version: 1.2.0\nversion: 1.3.0\n"
    dated = "## [Unreleased]\n\n## [1.3.0] - 2026-02-03\n\n### Added\n- A thing.\n\n## [1.2.2] - "
    assert dated in (tmp_path / "CHANGELOG.md").read_text()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert making.prepare(tmp_path, "1.3.0", "2026-02-04") is False
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


def test_a_release_without_changes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(tmp_path, "# Changelog\n\n## [Unreleased]\n\n## [1.2.2] - 2026-01-01\n- x\n")
    with pytest.raises(SystemExit) as ended:
        making.prepare(tmp_path, "1.3.0", "2026-02-03")
    assert ended.value.code == 2
    assert "CHANGELOG.md: expected changes under '## [Unreleased]', found none" in capsys.readouterr().err
    assert 'version = "1.2.2"' in (tmp_path / "pyproject.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1.2", "--key", __file__], "expected VERSION=x.y.z, found '1.2'"),
        (["1.2.3", "--key", ""], "expected KEY=FILE"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        making.main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def repository(folder: Path) -> Path:
    """Make a project with a commit, of this project's requirements."""
    project(folder)
    ours = (ROOT / "pyproject.toml").read_text().replace('version = "0.1.0"', 'version = "1.2.2"')
    (folder / "pyproject.toml").write_text(ours)
    for command in (
        ("init", "--quiet"),
        ("config", "user.name", "x"),
        ("config", "user.email", "x@example.org"),
        ("add", "."),
        ("commit", "--quiet", "-m", "All"),
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


def no_key(folder: Path, key: Path) -> None:
    key.write_text("not a key\n")


def no_author(folder: Path, key: Path) -> None:
    for name in ("user.name", "user.email"):
        subprocess.run(["git", "config", name, ""], cwd=folder, check=True)


def a_tag(folder: Path, key: Path) -> None:
    subprocess.run(["git", "tag", "v1.3.0"], cwd=folder, check=True)


def a_change(folder: Path, key: Path) -> None:
    (folder / "new").touch()


def no_package(folder: Path, key: Path) -> None:
    text = (folder / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(text.replace('"aiohttp>=3.10"', '"no-such-package"'))


def no_builder(folder: Path, key: Path) -> None:
    text = (folder / "pyproject.toml").read_text()
    (folder / "pyproject.toml").write_text(text.replace('"setuptools>=77"', '"setuptools>=9999"'))


def no_repository(folder: Path, key: Path) -> None:
    (folder / ".git").rename(folder / "git")


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        (no_key, "release: expected a key that signs, found at "),
        (no_repository, "release: expected a git repository with a commit, found none in "),
        (no_author, "release: expected a name and an address that commit and tag, found none: git config"),
        (a_tag, "release: expected a new version, found the tag v1.3.0"),
        (a_change, "release: expected a clean tree, found changes: git status"),
        (no_package, "release: expected the package no-such-package in this environment, found none: make setup"),
        (no_builder, "release: expected setuptools>=9999, which builds the wheel, found "),
    ],
)
def test_what_a_release_lacks_is_said_before_anything_is_made(
    lacks: Callable[[Path, Path], None],
    message: str,
    tmp_path: Path,
    key: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one line, with exit code 2: the commit, the version and the changes are as they were."""
    folder = tmp_path / "project"
    folder.mkdir()
    lacks(repository(folder), key)
    before = {path: path.read_bytes() for path in folder.glob("*.*") if path.is_file()}
    monkeypatch.setattr(making, "ROOT", folder)
    with pytest.raises(SystemExit) as ended:
        making.main(["1.3.0", "--key", str(key)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(message), line
    assert {path: path.read_bytes() for path in folder.glob("*.*") if path.is_file()} == before
    assert not (folder / "dist").exists()


def test_without_ssh_keygen_nothing_is_signed(
    tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit):
        making.require_ready(tmp_path, "1.3.0", key)
    assert "expected ssh-keygen" in capsys.readouterr().err


def archive(names: list[str], mtime: int, user: str) -> bytes:
    """Return a .tar.gz with these files, in this order."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = len(name), mtime, user
            tar.addfile(member, io.BytesIO(name.encode()))
    return gzip.compress(plain.getvalue(), mtime=mtime)


def test_repacked_archives_are_equal_bytes() -> None:
    """Whatever order, times and owners were; the contents stay."""
    one, other = archive(["a", "bb"], 1, "x"), archive(["bb", "a"], 2, "y")
    assert one != other
    packed = making.repacked(one, 3)
    assert packed == making.repacked(other, 3)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        found = {member.name: (member.mtime, member.uname, tar.extractfile(member)) for member in tar}
    assert [(name, *rest[:2]) for name, rest in found.items()] == [("a", 3, ""), ("bb", 3, "")]


def test_the_bill_of_materials_names_what_precad_runs_on() -> None:
    """Direct requirements and theirs, with the versions of the lock file; every reference leads to a component."""
    bill: dict[str, Any] = sbom.bill(ROOT, "2026-01-01T00:00:00+00:00")
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    versions = {part["name"]: part["version"] for part in bill["components"]}
    assert {"torch", "grpcio", "numpy", "protobuf", "typing-extensions"} <= versions.keys()
    assert not {"pytest", "ruff", "crypten", "precad"} & versions.keys()
    locked: dict[str, set[Version]] = {}
    text = "".join((ROOT / name).read_text() for name in ("requirements.lock", "requirements-cuda.lock"))
    for name, version in re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE):
        locked.setdefault(name, set()).add(Version(version))
    wrong = {
        name: version for name, version in versions.items() if Version(Version(version).public) not in locked[name]
    }
    assert wrong == {}
    refs = {part["bom-ref"] for part in bill["components"]}
    own = bill["metadata"]["component"]["bom-ref"]
    assert len(refs) == len(versions)
    assert [edge["ref"] for edge in bill["dependencies"]] == [own, *(part["bom-ref"] for part in bill["components"])]
    assert {ref for edge in bill["dependencies"] for ref in edge["dependsOn"]} == refs


def verified(folder: Path, key: Path) -> bool:
    """Check digests and signature by the commands of CONTRIBUTING.md."""
    (folder.parent / "allowed_signers").write_text(f"releaser {key.with_suffix('.pub').read_text()}")
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (commands,) = (
        block for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) if "ssh-keygen -Y verify" in block
    )
    script = "set -e\n" + commands.replace("-f allowed_signers", "-f ../allowed_signers")
    return subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, check=False).returncode == 0


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """Make a key of SSH."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "key"], check=True)
    return tmp_path / "key"


def test_the_signature_covers_every_file(tmp_path: Path, key: Path) -> None:
    """A file or a digest that was changed does not verify."""
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "a.whl").write_text("a")
    making.sign(folder, key)
    assert verified(folder, key)
    (folder / "a.whl").write_text("b")
    assert not verified(folder, key)
    sums = folder / "SHA256SUMS"
    sums.write_text(sums.read_text().replace("ca978112", "3e23e816"))
    assert not verified(folder, key)


@pytest.mark.slow
def test_one_command_makes_a_release(tmp_path: Path, key: Path) -> None:
    """In a clone: the files, equal bytes of a later build, a signature, and a tag of the commit."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    for name, value in (("user.name", "x"), ("user.email", "x@example.org")):
        subprocess.run(["git", "config", name, value], cwd=clone, check=True)
    command = [sys.executable, clone / ".ci" / "make_release.py", "7.8.9", "--key", key]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    made = clone / "dist" / "7.8.9"
    names = ["SHA256SUMS", "SHA256SUMS.sig", "precad-7.8.9-py3-none-any.whl", "precad-7.8.9.tar.gz", "sbom.cdx.json"]
    assert sorted(path.name for path in made.iterdir()) == names
    assert verified(made, key)
    assert json.loads((made / "sbom.cdx.json").read_text())["metadata"]["component"]["version"] == "7.8.9"
    epoch = int(making.git(clone, "log", "-1", "--format=%ct", "v7.8.9"))
    (tmp_path / "again").mkdir()
    for path in making.build(clone, tmp_path / "again", epoch):
        assert path.read_bytes() == (made / path.name).read_bytes(), path.name
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (refused.returncode, "found one" in refused.stderr) == (2, True)
