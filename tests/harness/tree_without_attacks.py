"""This source tree as an image has it: without the folders that a production image removes."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mpc", "dp", "protos", "servers", "clients", "deploy", "lab")
_NO_OTHER_COPY = """\
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
"""
"""An editable installation would find what is left out in the checkout that it was made from."""


def tree_without(folder: Path, *left_out: str) -> Path:
    """Make the tree in `folder`, of links to files of this one, without some folders. Return it.

    left_out: paths from the root, such as `lab` or `clients/attacks`.
    """
    (folder / "precad").mkdir(parents=True)
    for entry in (ROOT / "precad").iterdir():
        if not entry.is_symlink():
            (folder / "precad" / entry.name).symlink_to(entry)
    for package in PACKAGES:
        if package not in left_out:
            _link(ROOT / package, folder / "precad" / package, left_out)
    (folder / "sitecustomize.py").write_text(_NO_OTHER_COPY)
    return folder


def _link(source: Path, target: Path, left_out: tuple[str, ...]) -> None:
    """Link a folder as a whole, or entry by entry where something in it is left out."""
    inside = [path for path in left_out if path.startswith(f"{source.relative_to(ROOT)}/")]
    if not inside:
        target.symlink_to(source)
        return
    target.mkdir()
    for entry in source.iterdir():
        if str(entry.relative_to(ROOT)) not in inside:
            (target / entry.name).symlink_to(entry)


def tree_without_attacks(folder: Path) -> Path:
    """Make a tree in which the client knows no attack. Return it."""
    return tree_without(folder, "clients/attacks")


def environment_of(tree: Path) -> dict[str, str]:
    """Return what makes a Python process import from that tree, and from no current folder."""
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
