"""A folder whose modules have the names of precad's packages, and of libraries: whoever imports one leaves a mark."""

from __future__ import annotations

from pathlib import Path

PACKAGES = ("benchmarks", "deploy", "dp", "mpc", "protos", "servers", "joblib")
MODULES = ("clients", "grpc", "multiprocessing", "numba", "structlog", "torch")
MARKING = """
from pathlib import Path
Path(__file__).absolute().with_suffix(".was_run").touch()
raise ImportError("this is a file of the user's")
"""


def hostile_folder(folder: Path) -> Path:
    """Fill the folder with such modules. Return it."""
    for name in PACKAGES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(MARKING)
    for name in MODULES:
        (folder / f"{name}.py").write_text(MARKING)
    return folder


def executed(folder: Path) -> list[str]:
    """Return those of its modules that were run."""
    return sorted(str(mark.relative_to(folder)) for mark in folder.rglob("*.was_run"))
