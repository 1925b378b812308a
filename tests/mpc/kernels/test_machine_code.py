"""Where compiled loops are kept: with the bytecode, in a folder closed to everybody else, or nowhere.

Failure means that a server runs machine code, or unpickles what describes it, from a folder where others may write. Or
it compiles at every start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from precad.mpc.kernels.private_cache import PrivateCacheLocator, cache_home, make_private

ROOT = Path(__file__).parents[3]


def load_loops(package: Path, home: Path) -> str:
    """Load the loops in a new process, and return what Numba says about its cache."""
    return subprocess.run(
        [sys.executable, "-B", "-c", "from precad.mpc.kernels import field as kernels; print(kernels.__file__)"],
        env={
            **os.environ,
            "PYTHONPATH": str(package),
            "HOME": str(home),
            "XDG_CACHE_HOME": str(home / "cache"),
            "NUMBA_DEBUG_CACHE": "1",
        },
        cwd=package,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


def test_what_cannot_be_kept_beside_the_source_is_kept_closed_to_others(tmp_path: Path) -> None:
    """An image that is read-only, with a home that is not: the first process compiles, and the second one reads."""
    package, home = tmp_path / "package", tmp_path / "home"
    shutil.copytree(ROOT / "mpc", package / "precad" / "mpc", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "precad" / "__init__.py").touch()
    (package / "precad" / "mpc" / "kernels" / "__pycache__").write_bytes(b"")  # no folder, for root neither
    first, second = load_loops(package, home), load_loops(package, home)
    assert str(package) in first.splitlines()[-1]
    assert ("data saved" in first, "data loaded" in first) == (True, False)
    assert ("data saved" in second, "data loaded" in second) == (False, True)
    (folder,) = (home / "cache" / "precad").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.suffix for path in folder.iterdir()} == {".nbi", ".nbc"}


def test_machine_code_is_made_anew_when_a_loop_that_it_calls_changes(tmp_path: Path) -> None:
    """A file of its own for the callee: Numba by itself would go on with the callee's old machine code."""
    package = tmp_path / "package"
    shutil.copytree(ROOT / "mpc", package / "precad" / "mpc", ignore=shutil.ignore_patterns("__pycache__"))
    (package / "precad" / "__init__.py").touch()
    load_loops(package, tmp_path)
    with (package / "precad" / "mpc" / "kernels" / "wide.py").open("a") as file:
        file.write("# changed\n")
    assert "data saved" in (found := load_loops(package, tmp_path))
    assert "data loaded" not in found


def opened(folder: Path) -> None:
    folder.chmod(0o750)


def opened_above(folder: Path) -> None:
    folder.parent.chmod(0o775)


def with_a_file_that_others_write(folder: Path) -> None:
    (folder / "loops.nbc").touch()
    (folder / "loops.nbc").chmod(0o664)


def with_a_link(folder: Path) -> None:
    (folder / "loops.nbc").symlink_to("/etc/hostname")


def with_a_stranger_s_file(folder: Path) -> None:
    (folder / "loops.nbc").touch()
    os.chown(folder / "loops.nbc", 12345, -1)


def of_a_stranger(folder: Path) -> None:
    os.chown(folder, 12345, -1)


def below_a_stranger(folder: Path) -> None:
    os.chown(folder.parent, 12345, -1)


def replaced_by_a_link(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    folder.symlink_to(folder.with_name("elsewhere"))


AS_ROOT = (with_a_stranger_s_file, of_a_stranger, below_a_stranger)


@pytest.mark.parametrize(
    "spoil", [opened, opened_above, with_a_file_that_others_write, with_a_link, replaced_by_a_link, *AS_ROOT]
)
def test_a_folder_that_others_could_have_written_to_is_refused(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    """Numba takes the OSError for a place that cannot be written, and keeps nothing."""
    if spoil in AS_ROOT and os.geteuid() != 0:
        pytest.skip("only root gives files away")
    folder = tmp_path / "precad" / "kernels"
    make_private(folder)
    make_private(folder)  # its own work is no reason to refuse
    spoil(folder)
    with pytest.raises(OSError, match="only this user"):
        make_private(folder)


def test_the_folder_is_the_user_s_own_wherever_links_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative $XDG_CACHE_HOME is invalid, as its specification says; a link is followed once, before the check."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, expected in ((str(tmp_path / "link"), tmp_path / "real"), ("cache", tmp_path / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        assert cache_home() == expected / "precad"


def test_a_user_without_a_home_keeps_nothing_and_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container may run us under a number that no file of users names, with no HOME; links may lead in a circle."""

    def nobody(self: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "circle"))
    assert PrivateCacheLocator.from_function(make_private, __file__) is None
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "expanduser", nobody)
    assert PrivateCacheLocator.from_function(make_private, __file__) is None
