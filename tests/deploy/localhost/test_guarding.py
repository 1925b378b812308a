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
            server.process.wait(60)
        with pytest.raises(RunFailedError) as failed:
            asyncio.run(Guard(servers, children, tmp_path, Progress()).run(table))
    finally:
        children.close()
    assert failed.value.exit_code == expected


def test_servers_that_end_in_peace_are_no_failure(tmp_path: Path) -> None:
    """The task is over. A client that ended otherwise is reported, no more."""
    children, printed = Children(tmp_path), io.StringIO()
    programs = {"client": "exit 4", "server-a": "sleep 1", "server-b": "exit 0"}
    client, *servers = (children.start_program(name, "sh", "-c", program) for name, program in programs.items())
    try:
        client.process.wait(10)
        table = LiveTable(Console(file=printed, width=100), title="")
        progress = Progress(metrics=[{"round": 0}])
        asyncio.run(asyncio.wait_for(Guard(servers, children, tmp_path, progress).run(table), 20))
    finally:
        children.close()
    assert [server.exit_code for server in servers] == [0, 0]
    assert "client ended with code 4" in printed.getvalue()
