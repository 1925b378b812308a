"""`precad init`: the commented files that a local run or a deployment begins with, as the installation holds them."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from precad.deploy.errors import ConfigError, refusing
from precad.deploy.files.whole import appearing
from precad.protos.task.proved_fields import MODE as PROVED

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
_LINE: Final = f"# {'-' * 117}"
"""The line between a sample's sections."""
RECORDS: Final = "client/records.csv"
"""Made-up rows in the form that the samples' task expects."""
_SAMPLE_BESIDE: Final = re.compile(r"\.\./samples/([\w-]+)\.toml")
_SAMPLE_NAMED: Final = re.compile(r"deploy/hosts/samples/([\w-]+\.toml)")
_WITH_A_DEALER: Final = re.compile(r"^# With a dealer \{\n(.*?)^# \}\n", re.MULTILINE | re.DOTALL)
"""A part of a file that only a deployment with a dealer has."""


def organisations(*, has_dealer: bool) -> tuple[str, ...]:
    """Return the names of the folders that a deployment has for its organisations."""
    return tuple(name for name in ORGANISATIONS if has_dealer or name != "dealer")


def local_files() -> dict[str, str]:
    """Return by path what a training on this machine begins with: configuration, model, made-up records."""
    return {name: _text(HOSTS / "start" / name) for name in START}


def deployment_files(*, has_dealer: bool) -> dict[str, str]:
    """Return by path a folder for each organisation of a deployment, and what all of them may use.

    A folder holds the role's configuration with every field explained, its systemd unit and Kubernetes manifests. The
    task is of mode `masked` with a dealer, and of mode `proved` without one. Raises ConfigError for a file that is not
    installed.
    """
    found: dict[str, str] = {}
    for name in organisations(has_dealer=has_dealer):
        unit, manifests = ORGANISATIONS[name]
        found[f"{name}/{name}.toml"] = _text(HOSTS / "samples" / f"{name}.toml")
        found[f"{name}/{unit}"] = _text(HOSTS / "systemd" / unit)
        for path in sorted((HOSTS / "kubernetes" / manifests).iterdir()):
            found[f"{name}/kubernetes/{path.name}"] = _SAMPLE_NAMED.sub(r"../\1", _text(path))
    found |= {"project.toml": _text(HOSTS / "samples" / "project.toml"), "task.toml": _shared()}
    compose = _text(HOSTS / "docker" / "compose.yaml").replace("deploy/hosts/docker/site/", "site/")
    found |= _charts(has_dealer=has_dealer)
    found["one-machine/compose.yaml"] = _SAMPLE_BESIDE.sub(r"../\1/\1.toml", compose)
    found |= {f"monitoring/{path.name}": _text(path) for path in sorted((HOSTS / "grafana").iterdir())}
    records = {RECORDS: _text(HOSTS / "start" / "records.csv")}
    return records | {name: _of_mode(text, has_dealer=has_dealer) for name, text in found.items()}


def _charts(*, has_dealer: bool) -> dict[str, str]:
    """Return the Helm chart of the manifests, with each role's values, and certificates for authorities of others."""
    names = organisations(has_dealer=has_dealer)
    chart, identities = HOSTS / "helm", HOSTS / "identities"
    paths = [chart / "Chart.yaml", chart / "values.yaml", chart / "values.schema.json"]
    paths += sorted((chart / "templates").iterdir())
    paths += [chart / "roles" / f"{name}.yaml" for name in names]
    paths += [identities / "README.md"]
    paths += [identities / "cert-manager" / f"{name}.yaml" for name in names]
    forms = sorted({name.removesuffix("-a").removesuffix("-b") for name in names})
    paths += [identities / "step-ca" / f"{name}.tpl" for name in forms]
    return {path.relative_to(HOSTS).as_posix(): _text(path) for path in paths}


def _shared() -> str:
    """Return `[task]` and `[network]` with every field explained, as the samples have them."""
    _, task, network, *_ = _text(HOSTS / "samples" / "client.toml").split(f"{_LINE}\n")
    return task + network.rstrip() + "\n"


def _of_mode(text: str, *, has_dealer: bool) -> str:
    """Return a file with the parts that such a deployment has, none of them marked."""
    if has_dealer:
        return _WITH_A_DEALER.sub(r"\1", text)
    return _WITH_A_DEALER.sub("", text).replace('\nmode = "masked"\n', f'\nmode = "{PROVED}"\n')


def write(files: Mapping[str, str], folder: Path) -> None:
    """Write the files into a new or empty folder, all of them or none. Raises ConfigError for any other.

    An empty folder stays the one that it is, with its mode: the caller's shell may be in it.
    """
    with refusing(OSError, f"FOLDER: expected a folder to write to, found {folder}"):
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


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _text(path: Path) -> str:
    """Return a file of the installation. Raises ConfigError where whoever installed precad left it out."""
    with refusing(OSError, f"{path}: expected a file that precad installs, found"):
        return path.read_text(encoding="utf-8")
