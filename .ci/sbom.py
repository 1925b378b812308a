"""Write the bill of materials of a release, as CycloneDX JSON: what precad runs on, from the packages' metadata.

Versions are those of the environment, which `make setup` installs from the lock file. Extras are left out: a plain
`pip install precad` has none of them. The same environment gives the same bytes.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def requirements_of(lines: Iterable[str], extras: frozenset[str]) -> list[Requirement]:
    """Return the requirements that hold in this environment, with these extras of whoever has them."""
    parsed = [Requirement(line) for line in lines]
    wanted = extras or frozenset({""})
    return [one for one in parsed if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in wanted)]


def closure(direct: Iterable[str]) -> dict[str, list[str]]:
    """Return every package that these requirements bring, by name, with the names that each asks for itself.

    Raises PackageNotFoundError for one that is not installed.
    """
    graph: dict[str, set[str]] = {}
    waiting = [(canonicalize_name(one.name), frozenset(one.extras)) for one in requirements_of(direct, frozenset())]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        name, extras = one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        asked = requirements_of(metadata.requires(name) or (), extras)
        graph.setdefault(name, set()).update(canonicalize_name(other.name) for other in asked)
        waiting += [(canonicalize_name(other.name), frozenset(other.extras)) for other in asked]
    return {name: sorted(graph[name]) for name in sorted(graph)}


def component(name: str) -> dict[str, Any]:
    """Return a package as CycloneDX has it: name, version, package URL, and its licence as its metadata says."""
    version, said = metadata.version(name), metadata.metadata(name).json.get("license_expression")
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
    }
    found["purl"] = found["bom-ref"]
    return {**found, "licenses": [{"expression": said}]} if said else found


def bill(root: Path, timestamp: str) -> dict[str, Any]:
    """Return the bill of materials of the project in `root`. timestamp: of the release, as ISO 8601."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    graph = closure(project["dependencies"])
    parts = {name: component(name) for name in graph}
    reference = f"pkg:pypi/{project['name']}@{project['version']}"
    own = {"type": "application", "bom-ref": reference, "name": project["name"], "version": project["version"]}
    direct: list[str] = sorted(
        {canonicalize_name(one.name) for one in requirements_of(project["dependencies"], frozenset())}
    )
    edges: dict[str, list[str]] = {reference: direct}
    edges |= {parts[name]["bom-ref"]: asked for name, asked in graph.items()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": timestamp,
            "component": {**own, "purl": reference, "licenses": [{"expression": project["license"]}]},
        },
        "components": list(parts.values()),
        "dependencies": [
            {"ref": ref, "dependsOn": [parts[name]["bom-ref"] for name in asked]} for ref, asked in edges.items()
        ],
    }


def written(root: Path, timestamp: str) -> str:
    """Return the bill as the text of its file."""
    return json.dumps(bill(root, timestamp), indent=2) + "\n"
