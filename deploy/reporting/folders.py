"""The runs that a report is about: what kind of folder each is, and whether they can stand on the same axes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from precad.deploy.errors import ConfigError
from precad.deploy.joined import RUN_READERS, joined
from precad.deploy.reporting.audits import with_audit
from precad.deploy.reporting.run_folder import read_deployed
from precad.deploy.reporting.runs import Run, RunReader
from precad.deploy.run_files.folder import shown_trainings

MOST_RUNS: Final = 6
"""So many colours can be told apart."""
_LONGEST_LABEL: Final = 40


def read_folders(paths: Sequence[Path]) -> tuple[Run, ...]:
    """Raises ConfigError naming the folder, what was expected and what was found."""
    if len(paths) > MOST_RUNS:
        raise ConfigError(f"RUN: expected at most {MOST_RUNS} runs, which colours can tell apart, found {len(paths)}")
    for path, n in Counter(path.resolve() for path in paths).items():
        if n > 1:
            raise ConfigError(f"RUN: expected different folders, found {path} {n} times")
    runs = [_read(path) for path in paths]
    for run in runs[1:]:
        _require_comparable(runs[0], run)
    return _labelled(runs)


def require_run_folder(path: Path) -> None:
    """Raises ConfigError."""
    if not (path / "config.toml").is_file():
        is_state_dir = (path / "task.sqlite").is_file()
        instead = ", a server's state_dir, which precad status, audit log and export read" if is_state_dir else ""
        instead = f", which holds {several}" if (several := shown_trainings(path)) else instead
        raise ConfigError(
            f"RUN: expected the folder of precad demo, run or simulate, found no config.toml in {path}{instead}"
        )


def _read(path: Path) -> Run:
    require_run_folder(path)
    if (path / "metrics.jsonl").is_file():
        return with_audit(read_deployed(path))
    if any(path.glob("seed-*.jsonl")):
        return with_audit(_reader_of_simulations(path).read(path))
    raise ConfigError(f"RUN: expected a finished run, found neither metrics.jsonl nor seed-N.jsonl in {path}")


def completed(run: Run) -> Run:
    """Return a run of `read_folders` with what its reader computes from its files. Raises ConfigError."""
    return _reader_of_simulations(run.folder).completed(run) if run.is_simulation else run


def _reader_of_simulations(path: Path) -> RunReader:
    """Raises ConfigError where there is no laboratory to read them."""
    point = joined(RUN_READERS).get("simulation")
    if point is None:
        raise ConfigError(
            f"RUN: expected the folder of precad demo or run, found one of precad simulate: {path}: this installation "
            "holds no laboratory, which reads those"
        )
    reader: RunReader = point.load()
    return reader


def _require_comparable(first: Run, other: Run) -> None:
    """Require that accuracy is on one data set and epsilon at one delta, or axes would mix what cannot be compared."""
    data = "client.dataset" if first.client.records is None else "client.records"
    for name, ours, theirs in (
        (data, first.client.data_name, other.client.data_name),
        ("task.delta", first.task.delta, other.task.delta),
    ):
        if ours != theirs:
            raise ConfigError(
                f"RUN: expected runs of one task, with {name} = {ours!r} as in {first.folder}, "
                f"found {theirs!r} in {other.folder}"
            )


def _labelled(runs: Sequence[Run]) -> tuple[Run, ...]:
    """Return the runs with short labels, no two the same."""
    short = [run.label if len(run.label) <= _LONGEST_LABEL else run.label[: _LONGEST_LABEL - 1] + "…" for run in runs]
    times = Counter(short)
    seen = Counter[str]()
    labels = []
    for label in short:
        seen[label] += 1
        labels.append(label if times[label] == 1 else f"{label} ({seen[label]})")
    return tuple(replace(run, label=label) for run, label in zip(runs, labels, strict=True))
