"""A server that is killed between rounds in a task whose clients take turns and whose noise is correlated.

Failure means one of these:
- clients get other turns after a restart, or a client is drawn within b rounds of its last one;
- a ledger counts more, or less, than each client's rounds cost in closed form.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from precad.dp.accountants.pld import Conduct, PldAccountant, SampledGaussian, View
from precad.mpc.joint_coin import turns
from precad.mpc.prg import Label, Seed
from precad.servers.store import audit_log
from precad.servers.store.folder import open_ledger, store_path
from tests.faults.deployment import Processes, assert_nothing_wrong
from tests.faults.test_restart import SCENARIO_S, scenario
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS

CLIENTS = ("alice", "bob", "carol")
TASK = small_task(
    CLIENTS, algorithm="user-dp-fedavg", rounds=6, gate="native", min_separation=3, noise_bands=3, noise_multiplier=4.0
)


@pytest.mark.parametrize(
    ("role", "point"),
    [
        (AGGREGATORS[0], "after-record"),
        pytest.param(AGGREGATORS[1], "before-reserve", marks=pytest.mark.slow),
        pytest.param(AGGREGATORS[0], "after-validated", marks=pytest.mark.slow),
        pytest.param(AGGREGATORS[1], "after-begin", marks=pytest.mark.slow),
    ],
)
def test_a_killed_server_goes_on_with_the_same_turns_and_epsilon(role: str, point: str, tmp_path: Path) -> None:
    """Every round's clients are those of its turn. Epsilon is that of the client with most rounds, in closed form."""
    processes = Processes(tmp_path, TASK)
    try:
        asyncio.run(asyncio.wait_for(scenario(processes, role, point), SCENARIO_S))
        assert_nothing_wrong(processes)
        multiplier = 4.0 / math.sqrt(sum((c / 2**16) ** 2 for c in TASK.strategy.coefficients))
        for folder in (tmp_path / role for role in AGGREGATORS):
            entries = audit_log.read(store_path(folder))
            task_id = next(entry.fields["task"] for entry in entries if entry.kind == "task")
            coin = [entry.fields["coin"] for entry in entries if entry.kind == "turns"][-1]
            dealt, rounds_of = turns(Seed(bytes.fromhex(coin)), Label(task_id, 0), CLIENTS, 3), defaultdict(list)
            for t, entry in sorted(audit_log.releases(entries).items()):
                assert all(dealt[client] == t % 3 for client in entry["chosen"])
                for client in entry["chosen"]:
                    rounds_of[client].append(t)
            assert all(later - earlier >= 3 for found in rounds_of.values() for earlier, later in pairwise(found))
            with open_ledger(folder, TASK) as ledger:
                most = max(ledger.participation.values())
                one = SampledGaussian(1.0, multiplier / math.sqrt(most))
                found = ledger.statement(View.ONE_SERVER).epsilon
                assert found == pytest.approx(PldAccountant().epsilon(one, 1, TASK.delta), rel=1e-9)
                assert found == ledger.statement(View.CLIENTS_ONLY).epsilon
                one = SampledGaussian(1.0, multiplier / math.sqrt(math.ceil(TASK.most_draws / 3)))
                if_discarded = ledger.statement(View.ONE_SERVER, conduct=Conduct.MAY_DISCARD).epsilon
                assert if_discarded == pytest.approx(PldAccountant().epsilon(one, 1, TASK.delta), rel=1e-9)
    finally:
        processes.close()
