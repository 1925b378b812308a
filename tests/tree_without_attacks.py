"""This source tree as a production image has it: without the folder `clients/attacks`."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("mpc", "dp", "protos", "servers", "clients", "deploy", "benchmarks")
_NO_OTHER_COPY = """\
import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]
"""
"""An editable installation would find the attacks in the checkout that it was made from."""


def tree_without_attacks(folder: Path) -> Path:
    """Make the tree in `folder`, of links to the files of this one. Return it."""
    (folder / "clients").mkdir(parents=True)
    for package in PACKAGES:
        if package != "clients":
            (folder / package).symlink_to(ROOT / package)
    for entry in (ROOT / "clients").iterdir():
        if entry.name != "attacks":
            (folder / "clients" / entry.name).symlink_to(entry)
    (folder / "sitecustomize.py").write_text(_NO_OTHER_COPY)
    return folder


def environment_of(tree: Path) -> dict[str, str]:
    """Return what makes a Python process import from that tree, and from no current folder."""
    return {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
