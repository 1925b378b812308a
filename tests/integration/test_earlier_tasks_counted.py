"""Servers that count a finished task of the same clients show it in every figure, from their start on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.dp.accountants.pld import Conduct, View
from precad.dp.ledgers.earlier import earlier_tasks
from precad.servers.store.counted import MARK
from precad.servers.store.folder import ledger_path, open_ledger
from tests.harness.harness import asynchronous, running, small_task, until
from tests.harness.pki import Pki

CLIENTS = ("alice", "bob")
TASK = small_task(CLIENTS, rounds=6)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """One authority for all of this file."""
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


@asynchronous
async def test_a_servers_page_counts_earlier_tasks_before_the_first_round(pki: Pki, tmp_path: Path) -> None:
    """As by a ledger of the same two tasks; each server has the earlier one in a file of its own."""
    before = [tmp_path / f"before-{party}" for party in (0, 1)]
    for folder in before:
        with open_ledger(folder, TASK) as ledger:
            for number in range(5):
                ledger.charge(number, ["alice"])

    def own(party: int) -> dict[str, Any]:
        return {"earlier_ledgers": [{"path": ledger_path(before[party]), "most_rounds": 6}]}

    nothing = (lambda std, dim: np.zeros(dim, dtype=np.int64),) * 2
    async with running(TASK, pki, tmp_path, noises=nothing, own=own) as deployment:
        await until(lambda: all(aggregator._telemetry.cost is not None for aggregator in deployment.aggregators))
        pages = [aggregator._snapshots.take() for aggregator in deployment.aggregators]
    with open_ledger(tmp_path / "alike", TASK, earlier_tasks([(ledger_path(before[0]), 6)])) as ledger:
        expected = {view: [ledger.statement(view, conduct=c).epsilon for c in Conduct] for view in View}
    assert [(folder / MARK).read_text() for folder in before] == [
        f'"{ledger_path(aggregator.config.state_dir)}"\n' for aggregator in deployment.aggregators
    ]
    for page in pages:
        found = {one.view: [one.if_discarded, one.spent] for one in page.epsilons}
        assert found == expected
