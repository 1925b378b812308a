"""The client's part of mode `proved` takes the same steps whatever its update is: who times it learns nothing of it.

What is looked at are the lines that Python runs. The compiled loops below have no branch on an element, by their rule.
Failure means a line that runs for one update and not for another, or another number of times.
"""

from __future__ import annotations

import functools
import itertools
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import precad.mpc
from precad.mpc.prg import Label, Seed
from precad.mpc.proved.client import OpenUpload, make_upload
from precad.mpc.proved.shares import payload_pieces
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.proved.submission import Binding
from tests.mpc.proved.two_servers import with_norm

SIZES = ProofSizes(1.0, 300, 8)
SEED, CHALLENGE, LABEL = bytes(range(16)), bytes(range(1, 17)), Label("task", 0, "4")
BLANK = Binding("task", 0, "alice", b"c", b"m", SIZES.dim, b"")
MPC = str(Path(precad.mpc.__file__).parent.resolve())


def updates() -> dict[str, np.ndarray]:
    """Updates within the bound that have little in common."""
    axis, alternating = np.zeros(SIZES.dim, dtype=np.int64), np.ones(SIZES.dim, dtype=np.int64)
    axis[17] = -256
    alternating[::2] = -1
    return {
        "zero": np.zeros(SIZES.dim, dtype=np.int64),
        "one coordinate": axis,
        "every coordinate": 14 * alternating,
        "at the bound": with_norm(SIZES, SIZES.threshold),
    }


def take_part(x: np.ndarray) -> None:
    """Share an update, upload it, and prove it, for the same seed and rows."""
    seed = Seed(SEED)
    made = make_upload(x, BLANK, seed, LABEL)
    for _ in payload_pieces(x, seed, LABEL):
        pass
    assert isinstance(made.binding, Binding)
    upload = OpenUpload(x, SIZES, made.binding, seed, 4)
    upload.prepare()
    assert upload.hear(0, CHALLENGE) is None
    assert upload.hear(1, CHALLENGE) is not None


@functools.cache
def is_ours(file: str) -> bool:
    """Tell whether code of this file is of `precad.mpc`."""
    return str(Path(file).resolve()).startswith(MPC)


def steps_of(x: np.ndarray) -> list[tuple[str, int]]:
    """Return the lines of `precad.mpc` that run, in order."""
    found: list[tuple[str, int]] = []

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if not is_ours(frame.f_code.co_filename):
            return None
        found.append((frame.f_code.co_filename, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        take_part(x)
    finally:
        sys.settrace(before)
    return found


def test_the_same_lines_run_for_every_update() -> None:
    take_part(updates()["zero"])  # tables are made once, and kept
    found = {name: steps_of(x) for name, x in updates().items()}
    assert len(found["zero"]) > 200
    for name, steps in found.items():
        differs = next((pair for pair in itertools.zip_longest(steps, found["zero"]) if pair[0] != pair[1]), None)
        assert differs is None, (name, differs)
