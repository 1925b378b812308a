"""Where compiled loops are kept: with the bytecode, or nowhere.

Failure means: a server that runs machine code, or unpickles what describes it, from a folder where others may write.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_what_cannot_be_kept_beside_the_source_is_kept_nowhere(tmp_path: Path) -> None:
    """An image that is read-only, with a home that is not: Numba alone would keep, and read, its files there."""
    package, home = tmp_path / "package", tmp_path / "home"
    shutil.copytree(ROOT / "mpc", package / "precad" / "mpc", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "precad" / "__init__.py").touch()
    (package / "precad" / "mpc" / "kernels" / "__pycache__").write_bytes(b"")  # no folder, for root neither
    done = subprocess.run(
        [
            sys.executable,
            "-B",
            "-c",
            "from precad.mpc.kernels import field as field_kernels; print(field_kernels.__file__)",
        ],
        env={**os.environ, "PYTHONPATH": str(package), "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache")},
        cwd=package,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(package)
    assert not home.exists()
