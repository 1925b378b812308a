"""When a server that is asked to leave does so: after what it still has to do, and at once where that is nothing."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from precad.protos.tls.identity import Role
from precad.servers.config import AggregatorConfig
from precad.servers.errors import StoppedError
from precad.servers.task.drain import Drain
from precad.servers.telemetry.events import Telemetry
from tests.harness.harness import asynchronous
from tests.harness.pki import Pki


def drain_of(timeout_s: float) -> Drain:
    return Drain("aggregator-a", timeout_s, Telemetry(Role.AGGREGATOR_A))


@asynchronous
async def test_a_signal_ends_the_lingering_of_a_server_that_has_said_goodbye(tmp_path: Path) -> None:
    """Though it waited for that goodbye's time, in a task that hides draws."""
    config: AggregatorConfig = Pki.create(tmp_path / "pki", ()).aggregator(
        0, listen="127.0.0.1:1", folder=tmp_path, operations_listen="127.0.0.1:2", operations_linger_s=600.0
    )
    drain, began = drain_of(60.0), time.monotonic()
    drain.ends_the_task()
    asyncio.get_running_loop().call_later(0.1, lambda: drain.request(is_busy=False))
    await drain.linger(config)
    assert time.monotonic() - began < 30


@asynchronous
async def test_a_goodbye_that_is_due_is_waited_for_as_long_as_a_round_is() -> None:
    drain = drain_of(0.3)
    drain.ends_the_task()
    began = time.monotonic()
    drain.request(is_busy=False)
    with pytest.raises(StoppedError):
        await drain.until_stopped(asyncio.sleep(60.0))
    assert time.monotonic() - began >= 0.3
