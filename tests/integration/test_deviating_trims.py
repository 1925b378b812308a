"""A dealer or a server B that deviates in rounds that test a margin and trim a sum. Everybody else is honest.

Failure means one of these:
- a model that moves by a sum that the dealer's or B's words made;
- a margin that B learns, and that server A did not pay for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.mpc.errors import PeerMismatchError
from precad.mpc.tuples.held import Dealt
from precad.protos.task.task import Task
from precad.servers.errors import PeerUnreachableError, TaskRefusedError
from tests.harness.harness import asynchronous, small_task
from tests.integration.deviating import HangsUpAt, deviating_b
from tests.integration.deviating_robust import (
    attacked,
    committed,
    other_trims,
    require_no_model_by_a_lying_dealer,
    require_the_end_of_a_paid_task_without_a_sum,
)
from tests.integration.test_deviating_server import charges, end_of_a

CLIENTS = ("alice", "bob", "carol")
LENGTHS = {"alice": 0.1, "bob": 0.2, "carol": 0.3}
LOST_ROUNDS = 3


def task_of(**changes: Any) -> Task:
    """Every update is within tau C, and F is 1 of three: a test passes but for e^-90, by the noise of its margin."""
    fields = {"trim_tau": 0.5, "trim_noise": 0.01, "trim_failure": 0.4, "trim_count": 1, "noise_multiplier": 1.0}
    return small_task(
        CLIENTS, algorithm="tsgd-ptr", gate="native", rounds=5, lost_rounds=LOST_ROUNDS, batches_ahead=0,
        **fields | changes,
    )  # fmt: skip


def longer(b: Dealt) -> Dealt:
    return replace(b, trims=np.append(b.trims, np.int64(0)))


def shorter(b: Dealt) -> Dealt:
    return replace(b, trims=b.trims[:-1])


UNTESTED: dict[str, Any] = {"trim_count": 1, "noise_multiplier": 1.0}


@pytest.mark.parametrize("is_tested", [True, False], ids=["tested", "untested"])
@pytest.mark.parametrize("change", [longer, shorter, other_trims])
@asynchronous
async def test_no_model_moves_by_what_a_dealer_makes_up(
    change: Callable[[Dealt], Dealt], is_tested: bool, tmp_path: Path
) -> None:
    """Words of another number are refused before a round, others with the sum that they make. F of three is one."""
    noisy, task = " and both servers' noise", task_of()
    if not is_tested:
        task = small_task(
            CLIENTS, algorithm="tsgd-gaussian", gate="native", rounds=5, lost_rounds=LOST_ROUNDS, batches_ahead=0,
            **UNTESTED,
        )  # fmt: skip
    await require_no_model_by_a_lying_dealer(task, tmp_path, LENGTHS, change, sum_of=noisy, words="trims")


@pytest.mark.parametrize("step", ["robust/test/margin", "robust/test/compare"])
@asynchronous
async def test_a_margin_on_which_servers_differ_ends_the_task_paid_and_without_a_sum(step: str, tmp_path: Path) -> None:
    """A sees it for itself, or B's word comes first: A then waits for B in vain, and passes that word on."""
    error = await require_the_end_of_a_paid_task_without_a_sum(
        task_of(), tmp_path, LENGTHS, step, lambda payload: bytes([payload[0] ^ 1]) + payload[1:]
    )
    if isinstance(error, PeerUnreachableError):
        assert "before that: the other aggregator ended the task: noisy margin differs" in str(error)
    else:
        assert isinstance(error, PeerMismatchError)
        assert "noisy margin" in str(error)


@asynchronous
async def test_every_margin_that_b_reads_before_it_hangs_up_is_paid_and_there_are_at_most_lost_rounds(
    tmp_path: Path,
) -> None:
    task, margins = task_of(), list[int]()

    def seen(ours: bytes, theirs: bytes) -> None:
        word = int.from_bytes(ours, "little") + int.from_bytes(theirs, "little")
        margins.append(word % 2**64)

    with deviating_b(lambda channel: HangsUpAt(channel, "robust/test/margin", seen)):
        async with attacked(task, tmp_path, LENGTHS) as servers:
            error = await end_of_a(servers)
    assert isinstance(error, TaskRefusedError)
    assert f"lost_rounds: expected fewer than {LOST_ROUNDS}" in str(error)
    assert margins == pytest.approx([1 << 20] * LOST_ROUNDS, rel=0.9)  # F stays: a lost round moves it nowhere
    assert charges(tmp_path) == dict.fromkeys(range(LOST_ROUNDS), sorted(CLIENTS))
    assert committed(task, tmp_path) == []
