"""Make a release, here only: `make release VERSION=1.2.3 KEY=~/.ssh/id_ed25519`. Nothing is pushed.

Whatever a later step needs is asked for first: a key that signs, an author of commits, a new tag, tools, packages.

1. Set the version in pyproject.toml and CITATION.cff, date the changelog's unreleased part, and commit. Where they name
   the version already, nothing changes.
2. Build the wheel and the sdist from the commit, twice, and refuse if their bytes differ.
3. Write the bill of materials (CycloneDX), digests (SHA256SUMS) and their signature, by ssh-keygen with the key.
4. Make the tag (.ci/release), which holds the changes.

The files are in dist/VERSION, once there are all of them. Times in them are the commit's, so whoever builds the commit
gets the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import sbom
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
NAMESPACE = "precad-release"
"""Purpose of the signature, which `ssh-keygen -Y verify` names too."""

_BUILD = """
import sys
from setuptools import build_meta
out = sys.argv[1]
build_meta.build_sdist(out)
build_meta.build_wheel(out)
"""


def refuse(why: str) -> NoReturn:
    """End with exit code 2."""
    print(f"release: {why}", file=sys.stderr)
    raise SystemExit(2)


def git(root: Path, *arguments: str) -> str:
    """Return what git prints. Raises CalledProcessError."""
    done = subprocess.run(["git", *arguments], cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def replaced(text: str, pattern: str, by: str, where: str) -> str:
    """Return the text with its first match replaced. Ends with exit code 2 where there is none."""
    found, n = re.subn(pattern, lambda _: by, text, count=1, flags=re.MULTILINE)
    if not n:
        refuse(f"{where}: expected a line {pattern!r}, found none")
    return found


def prepare(root: Path, version: str, today: str) -> bool:
    """Write version and date into the three files. Return whether that changed any. The unreleased part has changes."""
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    texts = {
        "pyproject.toml": (r'^version = ".*"$', f'version = "{version}"'),
        "CITATION.cff": (r"^version: .*$", f"version: {version}"),
    }
    if f"\n## [{version}] - " not in changelog:
        unreleased = re.search(r"^## \[Unreleased\]\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
        if unreleased is None or not unreleased[1].strip():
            refuse("CHANGELOG.md: expected changes under '## [Unreleased]', found none")
        texts["CHANGELOG.md"] = (r"^## \[Unreleased\]$", f"## [Unreleased]\n\n## [{version}] - {today}")
    changed = False
    for name, (pattern, by) in texts.items():
        before = (root / name).read_text(encoding="utf-8")
        after = replaced(before, pattern, by, name)
        if after != before:  # a file that is written anew lets make set everything up once more
            (root / name).write_text(after, encoding="utf-8")
            changed = True
    return changed


def build(root: Path, out: Path, epoch: int) -> list[Path]:
    """Build wheel and sdist of the last commit into `out`, from an export of it, with the times of `epoch`."""
    with tempfile.TemporaryDirectory() as scratch:
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=root, check=True, stdout=subprocess.PIPE)
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as exported:
            exported.extractall(scratch, filter="tar")
        command = [sys.executable, "-c", _BUILD, str(out)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        done = subprocess.run(command, cwd=scratch, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            refuse(f"expected a build, found an error of setuptools:\n{done.stderr[-2000:]}")
    for sdist in out.glob("*.tar.gz"):
        sdist.write_bytes(repacked(sdist.read_bytes(), epoch))
    return sorted(out.iterdir())


def repacked(sdist: bytes, epoch: int) -> bytes:
    """Return a .tar.gz with the same files in the order of their names, of nobody, with the times of `epoch`."""
    plain = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(sdist)) as before,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda one: one.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = epoch, {}
            member.mode = 0o755 if member.mode & 0o100 else 0o644
            after.addfile(member, before.extractfile(member) if member.isreg() else None)
    return gzip.compress(plain.getvalue(), mtime=epoch)


def build_reproducibly(root: Path, out: Path, epoch: int) -> list[Path]:
    """Build into `out`, build once more elsewhere, and refuse unless both gave the same files."""
    made = build(root, out, epoch)
    with tempfile.TemporaryDirectory() as again:
        for path in build(root, Path(again), epoch):
            if not (out / path.name).is_file() or (out / path.name).read_bytes() != path.read_bytes():
                refuse(f"{path.name}: expected the same bytes from a second build, found others")
    return made


def require_ready(root: Path, version: str, key: Path) -> None:
    """End with exit code 2, and one line, where a later step would fail. Nothing was written."""
    if not key.is_file():
        refuse(f"expected KEY=FILE, a private key of SSH, found none at {key}")
    if shutil.which("ssh-keygen") is None:
        refuse("expected ssh-keygen (OpenSSH 8.1 or newer), which signs, in PATH, found none")
    probe = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE]
    done = subprocess.run(probe, input=b"", capture_output=True, check=False)
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        refuse(f"expected a key that signs, found at {key}: {said[-1] if said else 'ssh-keygen failed'}")
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, check=False).returncode != 0:
        refuse(f"expected a git repository with a commit, found none in {root}")
    for ident in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT"):
        if subprocess.run(["git", "var", ident], cwd=root, capture_output=True, check=False).returncode != 0:
            refuse("expected a name and an address that commit and tag, found none: git config user.name, user.email")
    if git(root, "tag", "--list", f"v{version}"):
        refuse(f"expected a new version, found the tag v{version}")
    require_packages(root)
    if git(root, "status", "--porcelain"):
        refuse("expected a clean tree, found changes: git status")


def require_packages(root: Path) -> None:
    """End with exit code 2 where this environment lacks what builds the wheel, or what the bill of materials lists."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    try:
        for wanted in map(Requirement, project["build-system"]["requires"]):
            if (found := metadata.version(wanted.name)) not in wanted.specifier:
                refuse(f"expected {wanted}, which builds the wheel, found {found}")
        sbom.closure(project["project"]["dependencies"])
    except metadata.PackageNotFoundError as error:
        refuse(f"expected the package {error.name} in this environment, found none: make setup")


def sign(folder: Path, key: Path) -> None:
    """Write SHA256SUMS of the folder's files and its signature, SHA256SUMS.sig. Raises CalledProcessError."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    sums = folder / "SHA256SUMS"
    sums.write_text("".join(lines), encoding="utf-8")
    subprocess.run(["ssh-keygen", "-q", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(sums)], check=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the release. Ends with exit code 2 where something is not ready."""
    parser = argparse.ArgumentParser(prog="make release", description="Make a release, here only.")
    parser.add_argument("version", metavar="VERSION")
    parser.add_argument("--key", type=Path, required=True, help="private key of SSH that signs")
    given = parser.parse_args(arguments)
    version, key = given.version, given.key.expanduser()
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        refuse(f"expected VERSION=x.y.z, found {version!r}")
    out = ROOT / "dist" / version
    if out.exists():
        refuse(f"expected no folder {out}, found one")
    require_ready(ROOT, version, key)
    if prepare(ROOT, version, datetime.now(UTC).date().isoformat()):
        git(ROOT, "commit", "--quiet", "--all", "--message", f"Release {version}")
    epoch = int(git(ROOT, "log", "-1", "--format=%ct"))
    out.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as unfinished:
        made = Path(unfinished) / version
        made.mkdir()
        build_reproducibly(ROOT, made, epoch)
        bill = sbom.written(ROOT, datetime.fromtimestamp(epoch, UTC).isoformat())
        (made / "sbom.cdx.json").write_text(bill, encoding="utf-8")
        sign(made, key)
        made.rename(out)
    subprocess.run([str(ROOT / ".ci" / "release"), version], check=True)
    print(f"release: {out.relative_to(ROOT)} holds", *(path.name for path in sorted(out.iterdir())))


if __name__ == "__main__":
    main()
