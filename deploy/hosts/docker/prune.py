"""Remove from an image's environment the packages that its processes do not need. deploy/hosts/docker/Dockerfile runs
it.

    python prune.py ROOT ... [--without NAME ...] [--without-folders FOLDER ...]

ROOT is a distribution, with extras if wished (`precad[crypten-runtime]`). The requirements of ROOT stay, with all that
they require in turn. The names after --without go, and so does what nobody else requires. All else is uninstalled, pip
last. Folders of the first ROOT are deleted, such as `precad/lab`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def needed(roots: Iterable[str], *, without: Iterable[str] = ()) -> set[str]:
    """Return canonical names of the installed distributions that the roots require, themselves included.

    A requirement that is not installed is passed over: CrypTen's metadata asks for names that do not exist. Raises
    PackageNotFoundError when a root is not installed.
    """
    excluded = {canonicalize_name(name) for name in without}
    waiting = [Requirement(root) for root in roots]
    for root in waiting:
        metadata.distribution(root.name)
    found: set[str] = set()
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen or key[0] in excluded:
            continue
        seen.add(key)
        try:
            required = metadata.requires(requirement.name) or []
        except metadata.PackageNotFoundError:
            continue
        found.add(key[0])
        waiting += [inner for inner in map(Requirement, required) if _applies(inner, requirement.extras)]
    return found


def _applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Tell whether a requirement applies here, and for one of the extras that were asked for."""
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))


def remove_folders(distribution: str, folders: Iterable[str]) -> None:
    """Delete folders of an installed distribution, named from site-packages on. Exit where one is not there."""
    for folder in folders:
        path = Path(str(metadata.distribution(distribution).locate_file(folder)))
        if not path.is_dir():
            sys.exit(f"--without-folders: expected a folder that {distribution} installed, found none: {path}")
        shutil.rmtree(path)


def main() -> None:
    """Uninstall the rest."""
    parser = argparse.ArgumentParser(description="Uninstalls all but what ROOT needs.")
    parser.add_argument("roots", nargs="+", metavar="ROOT")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--without-folders", nargs="*", default=[], metavar="FOLDER")
    arguments = parser.parse_args()
    remove_folders(Requirement(arguments.roots[0]).name, arguments.without_folders)
    kept = needed(arguments.roots, without=arguments.without)
    installed = {canonicalize_name(found.name) for found in metadata.distributions()}
    rest = [*sorted(installed - kept - {"pip"}), "pip"]
    subprocess.run([sys.executable, "-m", "pip", "uninstall", "--quiet", "--yes", *rest], check=True)


if __name__ == "__main__":
    main()
