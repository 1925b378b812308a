"""Name the layer of every test by its folder: `python -m tests.layers LAYER` lists the layer's files.

A file belongs to the row with the longest path that it begins with. `unit` is one part by itself: no other process, no
socket, no training, and all of them within a minute on two cores. A unit test that starts a process or opens a
connection fails. What is in no other layer is `integration`: several parts, real processes, or a long computation.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
LAYERS: Final[dict[str, str]] = {
    "unit": "one part by itself: no process, no socket, no training",
    "vectors": "the cases of docs/reference/protocol.md, by two implementations",
    "integration": "several parts, real processes, or a long computation",
    "faults": "kills, full disks, bad networks, floods, simulated and real",
    "texts": "the layout, the documents and their examples",
}
ROWS: Final[dict[str, tuple[str, ...]]] = {
    "vectors": ("tests/vectors",),
    "faults": ("tests/faults",),
    "texts": ("tests/docs", "tests/precad", "tests/test_"),
    "unit": (
        "tests/clients/attacks",
        "tests/clients/records",
        "tests/clients/upload/test_patience",
        "tests/deploy/hosts/test_grafana",
        "tests/deploy/shown/test_durations",
        "tests/dp/accountants/test_gaussian_dp",
        "tests/dp/published/test_levels",
        "tests/dp/test_arguments",
        "tests/dp/test_oracle",
        "tests/lab/bench/test_canonne",
        "tests/lab/bench/test_checks",
        "tests/lab/bench/test_statistics",
        "tests/lab/simulation/rules",
        "tests/mpc",
        "tests/protos/messages/test_convert",
        "tests/protos/task",
        "tests/protos/test_config_path",
        "tests/servers/links/test_peer",
        "tests/servers/rounds",
        "tests/servers/store",
        "tests/servers/task",
        "tests/servers/telemetry/test_logs",
        "tests/servers/test_errors",
        "tests/servers/test_private_files",
    ),
    "integration": (
        "tests/clients/records/own/test_bad_records",
        "tests/mpc/crypten",
        "tests/mpc/gate/test_equality.py",
        "tests/mpc/gate/test_top_bits",
        "tests/mpc/kernels",
        "tests/mpc/robust",
        "tests/mpc/local/test_local_step",
        "tests/mpc/local/test_rows",
        "tests/mpc/test_fixed_point",
        "tests/mpc/test_mpc_imports",
        "tests/mpc/test_secure_validation",
        "tests/mpc/test_validation_streaming",
        "tests/protos/task/test_task_fields",
        "tests/servers/rounds/test_fuzzed_uploads",
        "tests/servers/rounds/test_uploads_on_disk",
        "tests/servers/store/test_burnt_tuples_record",
        "tests/servers/store/test_printed_figures",
        "tests/",
    ),
}
OUTSIDE: Final = ("socket.bind", "socket.connect", "subprocess.Popen", "os.fork", "os.exec", "os.posix_spawn")
"""Audit events of Python that no unit test may cause."""
_running: str | None = None


def layer_of(path: str) -> str:
    """Return the layer of a file, given from the root of the repository."""
    found = [(len(row), layer) for layer, rows in ROWS.items() for row in rows if path.startswith(row)]
    if not found:
        raise ValueError(f"path: expected one below tests/, found {path!r}")
    return max(found)[1]


def files_of(layer: str) -> Iterator[str]:
    """Yield the files of tests in a layer, in order."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        if layer_of(name) == layer:
            yield name


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this repository with its layer."""
    for path, those in itertools.groupby(items, lambda item: item.path):
        if path.is_relative_to(ROOT / "tests"):
            layer = layer_of(path.relative_to(ROOT).as_posix())
            for item in those:
                item.add_marker(layer)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Let no unit test reach out of its process."""
    global _running  # noqa: PLW0603 - an audit hook cannot be removed, and has no argument of its own
    _running = item.nodeid if item.get_closest_marker("unit") else None
    try:
        return (yield)
    finally:
        _running = None


def _refuse_outside(event: str, arguments: tuple[Any, ...]) -> None:
    if _running is not None and event in OUTSIDE:
        raise RuntimeError(f"{_running}: expected a unit test to stay in its process, found {event}")


sys.addaudithook(_refuse_outside)

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in LAYERS:
        sys.exit(f"layer: expected one of {', '.join(LAYERS)}, found {' '.join(sys.argv[1:])!r}")
    print(*files_of(sys.argv[1]))
