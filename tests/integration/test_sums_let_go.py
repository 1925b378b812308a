"""Rule S4 while a server waits for one that hung up: no sum without noise is in its memory, nor a share of one.

How long it waits, the other server decides. Failure means: who takes this server over meanwhile, and has what the other
one holds, reads a sum that nobody was to see. With one client that counts, it is that client's update.
"""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.mpc.proved.check import ProofCheck
from precad.mpc.proved.field import FieldArray
from tests.harness.harness import asynchronous, free_addresses, until
from tests.harness.pki import Pki
from tests.integration.deviating_proved import Deviant, Plan, hangs_up
from tests.integration.test_deviating_proved import CLIENTS, FEW_BITS, session_of
from tests.integration.test_plain_over_sockets import Beside, at_work, fields_of
from tests.integration.test_proved_rounds import proved_task


def noting(made: list[weakref.ref[FieldArray]]) -> Callable[[ProofCheck], FieldArray]:
    """Return `ProofCheck._room_for_sum` that notes each array which a sum is added up in."""
    room_of = ProofCheck._room_for_sum

    def noted(check: ProofCheck) -> FieldArray:
        room = room_of(check)
        made.append(weakref.ref(room))
        return room

    return noted


@pytest.mark.parametrize("step", ["validation/verifier", "validation/accepted", "noisy sum", "model"])
@asynchronous
async def test_no_sum_is_kept_while_a_server_that_hung_up_is_waited_for(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B hangs up with A's frame in its hands, and does not come back."""
    made: list[weakref.ref[FieldArray]] = []
    monkeypatch.setattr(ProofCheck, "_room_for_sum", noting(made))
    pki = Pki.create(tmp_path / "pki", CLIENTS)
    changes: dict[str, Any] = {"rounds": 2, "lost_rounds": 3, "submit_timeout_s": 5.0, **FEW_BITS}
    task = proved_task(CLIENTS, **changes)
    addresses = free_addresses(2)
    beside = Beside(task, pki, tmp_path, 0, addresses, reconnect_timeout_s=60.0)
    server = Deviant(1, fields_of(task), task.divisor, pki.directory, (addresses[0], addresses[1]))
    server.plans, server.comes_back = [Plan({step: hangs_up})], False
    vector = np.zeros(task.dim, dtype=np.int64)
    clients = [session_of(client, task, pki, addresses, vector).run() for client in CLIENTS]
    async with at_work(*clients, server.run()) as working:
        honest = asyncio.create_task(beside.server.run())
        try:
            await asyncio.wait(working[-1:], timeout=60.0)
            assert made, "no sum was begun"
            beside.states.clear()  # the test's own list
            await until(lambda: gc.collect() >= 0 and not any(room() is not None for room in made))
            assert not honest.done()  # it waits
        finally:
            honest.cancel()
            await asyncio.gather(honest, return_exceptions=True)
