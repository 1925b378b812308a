"""`precad init`: the commented files that a local run or a deployment begins with, as the installation holds them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from precad.deploy.errors import ConfigError
from precad.deploy.files.whole import appearing

HOSTS: Final = Path(__file__).resolve().parents[1] / "hosts"
START: Final = ("train.toml", "my_model.py", "records.csv")
"""A training on records of one's own, with made-up rows."""
ORGANISATIONS: Final = {
    "aggregator-a": ("precad-aggregator-a.service", "organisation-a"),
    "aggregator-b": ("precad-aggregator-b.service", "organisation-b"),
    "dealer": ("precad-dealer.service", "dealer"),
    "client": ("precad-client@.service", "client-organisation"),
}
"""Each organisation's folder and sample, with its systemd unit and its Kubernetes manifests."""
_SAMPLE_BESIDE: Final = re.compile(r"\.\./samples/([\w-]+)\.toml")
_SAMPLE_NAMED: Final = re.compile(r"deploy/hosts/samples/([\w-]+\.toml)")


def local_files() -> dict[str, str]:
    """Return by path what a training on this machine begins with: configuration, model, made-up records."""
    return {name: _text(HOSTS / "start" / name) for name in START}


def deployment_files() -> dict[str, str]:
    """Return by path a folder for each of four organisations, and what all of them may use.

    A folder holds the role's configuration with every field explained, its systemd unit and Kubernetes manifests.
    """
    found: dict[str, str] = {}
    for name, (unit, manifests) in ORGANISATIONS.items():
        found[f"{name}/{name}.toml"] = _text(HOSTS / "samples" / f"{name}.toml")
        found[f"{name}/{unit}"] = _text(HOSTS / "systemd" / unit)
        for path in sorted((HOSTS / "kubernetes" / manifests).iterdir()):
            found[f"{name}/kubernetes/{path.name}"] = _SAMPLE_NAMED.sub(r"../\1", _text(path))
    compose = _text(HOSTS / "docker" / "compose.yaml").replace("deploy/hosts/docker/site/", "site/")
    found["one-machine/compose.yaml"] = _SAMPLE_BESIDE.sub(r"../\1/\1.toml", compose)
    found |= {f"monitoring/{path.name}": _text(path) for path in sorted((HOSTS / "grafana").iterdir())}
    return found


def write(files: Mapping[str, str], folder: Path) -> None:
    """Write the files into a new or empty folder, all of them or none. Raises ConfigError for any other.

    An empty folder stays the one that it is, with its mode: the caller's shell may be in it.
    """
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"FOLDER: expected a new or empty folder, found {folder}: nothing is overwritten")
        if folder.exists():
            with tempfile.TemporaryDirectory(prefix=".precad-", dir=folder) as staging:
                _fill(Path(staging), files)
                for path in Path(staging).iterdir():
                    path.rename(folder / path.name)
            return
        target = folder.absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        with appearing(target, mode=0o755) as made:
            _fill(made, files)
    except OSError as error:
        raise ConfigError(f"FOLDER: expected a folder to write to, found {folder}: {error.strerror}") from None


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _text(path: Path) -> str:
    """Return a file of the installation. Raises ConfigError where whoever installed precad left it out."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: expected a file that precad installs, found: {error.strerror}") from None
