"""The folder that colluders of a deployment share: what they find there, and what a hostile writer cannot do."""

from __future__ import annotations

import os
import stat
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.clients.attacks import shared_folder
from precad.clients.attacks.shared_folder import Colluders

DIM = 5
UPDATE = np.linspace(-1.0, 1.0, DIM)


def member(folder: Path, client: str, others: list[str], patience_s: float = 30.0) -> Colluders:
    """One colluder of vectors of five numbers."""
    return Colluders(folder / "shared", client, others, DIM, patience_s)


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_folder, "GRACE_S", 0.2)


def planted(folder: Path, client: str, key: str = "key") -> Path:
    """Return where an update of that client is looked for, whom the others believe to be in the round."""
    other = member(folder, client, [])
    other.announce(key)
    return other._file(key, client, "update")


def test_everybody_gets_everybodys_update_whoever_is_first(tmp_path: Path) -> None:
    names = ["ann", "bob", "c/../../d"]
    found: dict[str, dict[str, np.ndarray]] = {}
    all_are_here = threading.Barrier(len(names), timeout=30)

    def take_part(i: int, name: str) -> None:
        one = member(tmp_path, name, [other for other in names if other != name])
        one.announce("key")
        all_are_here.wait()  # who comes later than the grace is left out
        time.sleep(0.05 * i)
        found[name] = one.gather("key", UPDATE + i)

    threads = [threading.Thread(target=take_part, args=pair) for pair in enumerate(names)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in names:
        assert list(found[name]) == names
        for i, other in enumerate(names):
            assert_array_equal(found[name][other], UPDATE + i)


def test_nobody_else_may_read_it_and_nothing_lies_outside(tmp_path: Path) -> None:
    one = member(tmp_path, "../../ann", [])
    one.announce("key")
    one.gather("key", UPDATE)
    assert [path.name for path in tmp_path.iterdir()] == ["shared"]
    for path in (tmp_path / "shared").rglob("*"):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o700
    assert len(list((tmp_path / "shared" / "key").iterdir())) == 2  # nothing half written is left


def test_files_of_earlier_rounds_are_removed(tmp_path: Path) -> None:
    one = member(tmp_path, "ann", [])
    for t in range(5):
        one.announce(f"{t}")
        one.gather(f"{t}", UPDATE)
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == ["3", "4"]


HOSTILE = {
    "not a number": lambda: np.full(DIM, np.nan).tobytes(),
    "infinite": lambda: np.full(DIM, np.inf).tobytes(),
    "too short": lambda: UPDATE.tobytes()[:-1],
    "too long": lambda: UPDATE.tobytes() + b"\0",
    "empty": lambda: b"",
    "a pickle": lambda: b"\x80\x04cos\nsystem\n(S'true'\ntR.",
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_is_no_update_is_left_out(tmp_path: Path, what: str) -> None:
    planted(tmp_path, "mallory").write_bytes(HOSTILE[what]())
    one = member(tmp_path, "ann", ["mallory"], patience_s=0.2)
    one.announce("key")
    assert list(one.gather("key", UPDATE)) == ["ann"]


@pytest.mark.parametrize("what", ["link to an update", "link to nothing", "pipe", "folder", "sparse giant"])
def test_no_link_pipe_or_folder_is_read_and_nothing_waits_on_one(tmp_path: Path, what: str) -> None:
    place = planted(tmp_path, "mallory")
    if what.startswith("link"):
        target = tmp_path / "elsewhere"
        if what == "link to an update":
            target.write_bytes(UPDATE.tobytes())
        place.symlink_to(target)
    elif what == "pipe":
        os.mkfifo(place)
    elif what == "folder":
        place.mkdir()
    else:
        with place.open("wb") as file:
            file.truncate(2**40)
    one = member(tmp_path, "ann", ["mallory"], patience_s=0.2)
    one.announce("key")
    start = time.monotonic()
    assert list(one.gather("key", UPDATE)) == ["ann"]
    assert time.monotonic() - start < 20.0


def test_a_planted_link_is_replaced_and_never_written_through(tmp_path: Path) -> None:
    """Whoever plants a link where a colluder writes changes nothing outside the folder."""
    place, outside = planted(tmp_path, "ann"), tmp_path / "precious"
    outside.write_text("precious")
    place.symlink_to(outside)
    here = place.with_suffix(".here")
    here.unlink()
    here.symlink_to(outside)
    one = member(tmp_path, "ann", [])
    one.announce("key")
    assert list(one.gather("key", UPDATE)) == ["ann"]
    assert outside.read_text() == "precious"
    assert not place.is_symlink()
    assert not here.is_symlink()


def test_who_says_nothing_costs_a_bounded_wait(tmp_path: Path) -> None:
    """A client that is not in the round costs the grace, one that is and does not share the patience."""
    one = member(tmp_path, "ann", ["absent"], patience_s=30.0)
    one.announce("key")
    start = time.monotonic()
    assert list(one.gather("key", UPDATE)) == ["ann"]
    assert time.monotonic() - start < 20.0

    planted(tmp_path, "silent", "next")
    two = member(tmp_path, "ann", ["silent"], patience_s=0.3)
    two.announce("next")
    start = time.monotonic()
    assert list(two.gather("next", UPDATE)) == ["ann"]
    assert 0.3 <= time.monotonic() - start < 20.0


def test_a_folder_that_cannot_be_used_leaves_the_colluder_alone(tmp_path: Path) -> None:
    (tmp_path / "shared").write_text("a file, where the folder shall be")
    one = member(tmp_path, "ann", ["bob"])
    one.announce("key")
    assert list(one.gather("key", UPDATE)) == ["ann"]
