"""Hold a simulation's folder, and read what it keeps of each seed: where its training stands, and its rounds."""

from __future__ import annotations

import fcntl
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.deploy.errors import ConfigError, refusing
from precad.protos.task.model_update import moments_shape
from precad.protos.task.task import Task


@contextmanager
def saved_training(path: Path) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Give the arrays of a save. Raise ConfigError where they, or what is made of them, are not those of a training."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            yield saved
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ConfigError(f"--output: expected a training to go on with, found {path}: {error}") from None


def kept_lines(metrics: Path, rounds: int) -> bytes:
    """Return the lines of a save's rounds. Lines of later rounds are left out, and so is one that was cut off.

    Raises ConfigError where a round of the save has no whole line: no earlier save is kept to train it again from.
    """
    with refusing(OSError, f"--output: expected a file of rounds, found {metrics}"):
        lines = metrics.read_bytes().splitlines(keepends=True) if metrics.exists() else []
    whole = next((number for number, line in enumerate(lines) if not _is_round(line, number)), len(lines))
    if whole < rounds:
        raise ConfigError(f"--output: expected {rounds} rounds in {metrics}, found {whole}")
    return b"".join(lines[:rounds])


def _is_round(line: bytes, number: int) -> bool:
    """Tell whether a line is whole and of the round of this number."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    if not line.endswith(b"\n") or not isinstance(found, dict):
        return False
    has_all = isinstance(found.get("rejected"), list) and isinstance(found.get("seconds"), int | float)
    return has_all and found.get("round") == number


def require_kept(folder: Path, seeds: Sequence[int]) -> None:
    """Require the lines of every seed's saved rounds. Nothing is changed. Raises ConfigError."""
    for seed in seeds:
        if (path := folder / f"seed-{seed}.npz").exists():
            with saved_training(path) as saved:
                rounds = int(saved["rounds"])
            kept_lines(folder / f"seed-{seed}.jsonl", rounds)


def moments_in(saved: Mapping[str, NDArray[np.float32]], task: Task) -> NDArray[np.float32]:
    """Return the optimiser's moments of a training; a file of a task without any may have none. Raises ValueError."""
    shape = moments_shape(task)
    found = saved["moments"] if "moments" in saved or shape[0] else np.zeros(shape, dtype=np.float32)
    if found.shape != shape or found.dtype != np.float32:
        raise ValueError(f"expected moments of shape {shape}, found {found.shape}")
    return found


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Hold the folder, whose files two processes would write over each other's; of a refused plan none is left.

    Raises ConfigError.
    """
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    with refusing(OSError, f"--output: expected a folder to write to, found {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"--output: expected a folder in which no other process trains, found one in {folder}"
            ) from None
        yield
    finally:
        os.close(descriptor)
        with suppress(OSError):  # it is not empty
            for path in made:
                path.rmdir()
