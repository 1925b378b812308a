"""One thread for PyTorch, as two test processes of two threads each wait for one another; and a sound deployment."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from precad.deploy.configuration import sections as configuration
from precad.lab.auditing.deployment import audit_deployment
from tests.lab.auditing import planted


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Give the number back after the module."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a deployment without a fault, and without a false alarm. Tests that change files copy it.

    Whichever process of the tests needs it first runs it, and each has a copy of its own: an audit writes into a run.
    """
    base = tmp_path_factory.getbasetemp()
    base = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "sound-deployment"
    base.mkdir(exist_ok=True)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / "run").exists():
            _run_until_sound(base / "tries").rename(base / "run")
    return Path(shutil.copytree(base / "run", tmp_path_factory.mktemp("audited") / "run"))


def _run_until_sound(tries: Path) -> Path:
    """Run deployments until an audit accuses none.

    At 95 % an audit accuses one run of twenty. All of three are accused once in 8,000. At 1 - 10^-6 none may be.
    """
    tries.mkdir(exist_ok=True)
    for _ in range(3):
        folder = Path(tempfile.mkdtemp(dir=tries)) / "run"
        planted.run(planted.CONFIG, folder, {})
        task = configuration.load(folder / "config.toml").task
        members = ([folder / "a", folder / "b"], [folder / "clients"])
        assert audit_deployment(task, *members, 1 - 1e-6)["passed"]
        if audit_deployment(task, *members)["passed"]:
            return folder
    pytest.fail("a sound deployment was accused three times")


@pytest.fixture
def copied(sound: Path, tmp_path: Path) -> Path:
    """A copy, whose files a test may change."""
    return Path(shutil.copytree(sound, tmp_path / "run"))
