"""`precad bench startup`: how long people wait before something happens.

Each row is a new process, in the environment of a child of `precad run`:

    import          `import precad`
    help            `precad --help`
    config-error    `precad run` on a file with a fault, to its exit code
    first-line      `precad demo`, to the first line on screen
    first-round     the same, to the first line of a round, then interrupted

A warm start finds bytecode and compiled loops, and other processes have read the libraries' files. The cold one runs
from a copy of precad without either: the first start after an installation.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from precad.deploy.localhost.processes import COMMAND_LINE, SAFE_PATH, isolated_python
from precad.lab.bench import machine
from precad.lab.bench.errors import ProcessFailedError
from precad.lab.bench.statistics import Spread

PACKAGE: Final = Path(machine.__file__).absolute().parents[2]
"""The folder `precad`, as it is installed or linked."""

FAULTY: Final = '[task]\nname = "faulty"\nclients = ["a", "b"]\nrounds = 0\n'
TIMEOUT_S: Final = 120.0
IMPORT_TARGET_S: Final = 0.2
"""At most so long takes a warm `import precad`, which loads none of its parts."""


def run(*, repetitions: int, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "targets": [...], "machine": {...}}`. Raises ProcessFailedError."""
    facts = machine.facts()
    with tempfile.TemporaryDirectory(prefix="precad-startup-") as name:
        folder = Path(name)
        say("cold: a copy without bytecode and compiled loops")
        cold = _measured(_environment(_copy(folder)), folder / "cold")
        say(f"warm: {repetitions} times, after once more")
        environment = _environment(PACKAGE.parent)
        warm = [_measured(environment, folder / f"warm-{i}") for i in range(repetitions + 1)][1:]
    rows = [
        {"what": what, "cold_s": cold[what], **Spread.of([seconds[what] for seconds in warm]).fields("warm_s")}
        for what in cold
    ]
    return {"rows": rows, "targets": [target_of(rows)], "machine": facts}


def target_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the target of the import, beside the median of the warm ones."""
    (measured,) = [row["warm_s"] for row in rows if row["what"] == "import"]
    is_met = measured <= IMPORT_TARGET_S
    return {"what": "import, warm s", "target": IMPORT_TARGET_S, "measured": measured, "met": is_met}


def _copy(folder: Path) -> Path:
    """Copy the package, without what a start leaves beside the source. Return the folder that holds it."""
    shutil.copytree(PACKAGE, folder / "copy" / "precad", ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "copy"


def _environment(holds_precad: Path) -> dict[str, str]:
    return {**os.environ, **SAFE_PATH, "PYTHONPATH": str(holds_precad)}


def _measured(environment: dict[str, str], folder: Path) -> dict[str, float]:
    """Return seconds by row."""
    folder.mkdir()
    faulty = folder / "faulty.toml"
    faulty.write_text(FAULTY)
    command = [*isolated_python(), "-m", COMMAND_LINE]
    return {
        "import": _to_exit([*isolated_python(), "-c", "import precad"], environment, code=0),
        "help": _to_exit([*command, "--help"], environment, code=0),
        "config-error": _to_exit([*command, "run", str(faulty)], environment, code=2),
        **_demo([*command, "demo", "--output", str(folder / "run")], environment),
    }


def _to_exit(command: list[str], environment: dict[str, str], *, code: int) -> float:
    start = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    seconds = time.perf_counter() - start
    if done.returncode != code:
        raise ProcessFailedError(f"{' '.join(command)}: expected exit code {code}, found {done.returncode}")
    return seconds


def _demo(command: list[str], environment: dict[str, str]) -> dict[str, float]:
    """Return seconds to its first line and to its first round, after which it is interrupted."""
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    with _interrupted(command, environment) as lines:
        for line in lines:
            seconds.setdefault("first-line", time.perf_counter() - start)
            if line.startswith("round "):
                return {**seconds, "first-round": time.perf_counter() - start}
    raise ProcessFailedError(f"{' '.join(command)}: expected a round, found its end")


@contextmanager
def _interrupted(command: list[str], environment: dict[str, str]) -> Iterator[Iterator[str]]:
    """Start a command. Give its lines for people, and interrupt it at the end."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None  # it is a pipe
        try:
            yield iter(process.stderr)
        finally:
            process.send_signal(signal.SIGINT)
            process.stderr.read()
