"""Why a run failed, by the processes that have ended."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from rich.console import Console

from precad.deploy.errors import RunFailedError
from precad.deploy.localhost.guarding import Guard
from precad.deploy.localhost.observing import Progress
from precad.deploy.localhost.processes import Children
from precad.deploy.localhost.watch import LiveTable


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (("exit 4", "exit 3", "exit 3"), 3),
        (("exit 4", "exit 4", "exit 2"), 2),
        (("exit 4", "kill -9 $$", "exit 4"), 4),
        (("kill -9 $$", "exit 0", "exit 0"), 4),
    ],
)
def test_a_run_ends_with_the_code_of_the_cause(tmp_path: Path, ends: tuple[str, ...], expected: int) -> None:
    """Servers that miss another one say 4, which is the run's code only where none says more."""
    children = Children(tmp_path)
    servers = [children.start_program(f"server-{n}", "sh", "-c", end) for n, end in enumerate(ends)]
    table = LiveTable(Console(file=io.StringIO()), title="")
    try:
        for server in servers:
            server.process.wait(10)
        with pytest.raises(RunFailedError) as failed:
            asyncio.run(Guard(servers, children, tmp_path, Progress()).run(table))
    finally:
        children.close()
    assert failed.value.exit_code == expected
