"""How Hypothesis explores: freely on a developer's machine, the same examples each time where CI is set.

And how many threads libraries start: one where tests run in several processes, which have a core each. It is said here,
before NumPy and PyTorch are loaded, and what tests start inherits it. Where there are several, they sleep while they
wait for each other: the core that they would turn on is another test's.

And that byte code is kept: otherwise each of some hundred processes compiles the same source files.

And what the garbage collector walks: not the modules and the thousands of tests that are there when the first begins.
It waits while they are collected, a tenth of that time, leaves them out afterwards, and looks at new objects rarely.
Garbage among them is left out too: to look for it takes half a second of each process, and frees no memory.

And that a file's modules of users' own are forgotten after it: another file's have their names.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

gc.disable()
pytest_plugins = ["tests.layers", "tests.flaky"]

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")

if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    sys.dont_write_bytecode = False

# Processes that tests start find the checkout too, however pytest was started.
ROOT = Path(__file__).resolve().parent.parent
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))

settings.register_profile("precad", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("precad")


def pytest_collection_finish() -> None:
    """Set aside what is loaded and collected: it stays to the end."""
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _forget_own_modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Search the folders that tests of a file add for no other file, and import the modules that lie there anew."""
    before = [*sys.path]
    yield
    sys.path[:] = before
    if (own_code := sys.modules.get("precad.clients.own_code")) is not None:
        own_code._BESIDE[:] = [folder for folder in own_code._BESIDE if str(folder) in before]
    temporary = tmp_path_factory.getbasetemp()
    for name, module in [*sys.modules.items()]:
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).is_relative_to(temporary):
            del sys.modules[name]
