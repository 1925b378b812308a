"""Trainings of algorithm `tsgd-ptr`: a test on shares in every round, and the sum of its branch.

Trainings from equal seeds and noise are simulated in the clear, simulated on shares, run by two round runners, and run
by processes. Failure means a server that trains, charges or releases something else than the mechanism in the clear.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from precad.clients.attacks import ATTACKS
from precad.clients.training.conduct import Honest
from precad.clients.upload.session import ClientSession
from precad.deploy.localhost.deployment import LocalRun
from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.pld import SampledGaussian, View
from precad.dp.accountants.ptr_event import SampledProposeTestRelease
from precad.mpc.channel import memory_pair
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.rounds.states import Collecting, Committed
from precad.servers.store import audit_log
from precad.servers.store.folder import open_ledger, store_path
from tests.harness import server_main
from tests.harness.forked import exit_codes, servers
from tests.harness.harness import (
    AGGREGATORS,
    DealerInMemory,
    Pki,
    ServerInProcess,
    asynchronous,
    free_addresses,
    link_pair,
    read_rounds,
)
from tests.harness.seeded_servers import SeededNoise
from tests.integration.test_simulated_training import (
    ATTACKERS,
    CLIENTS,
    SEED,
    Client,
    simulated,
    simulated_epsilons,
    simulation_of,
    take_part,
    training_task,
)

BOTH_BRANCHES: dict[str, Any] = {
    "client_clip": 0.2, "learning_rate": 1.0, "local_steps": 3, "rounds": 6, "noise_multiplier": 4.0, "trim_tau": 0.9,
    "trim_noise": 0.01, "trim_failure": 0.4, "trim_count": 2,
}  # fmt: skip
"""Margins of 0 pass with probability 0.4, and others for certain: six rounds of the seed have both branches."""


def task_of(**changes: Any) -> Task:
    return training_task("user-dp-fedavg", algorithm="tsgd-ptr", **BOTH_BRANCHES | changes)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


@pytest.mark.parametrize(
    "form",
    [{}, {"mode": "shares", "accept_weak_wire_form": True}, {"min_separation": 2}],
    ids=["masked", "shares", "turns"],
)
@asynchronous
async def test_a_simulation_gives_the_bytes_of_two_round_runners(form: dict[str, Any], tmp_path: Path) -> None:
    """Both branches are met, F moves as released outcomes say, noise is of the branch, and the epsilons are equal."""
    task = task_of(**form)  # at rate 1, so that the seed decides everything
    rule = task.trim_rule
    assert rule is not None
    dealer, links, lanes = DealerInMemory(), link_pair(), memory_pair()
    noises = [SeededNoise(SEED, party) for party in (0, 1)]
    runners = tuple(
        ServerInProcess(
            task,
            links[party],
            lanes[party],
            dealer.source(party),
            noises[party].noise,
            tmp_path / AGGREGATORS[party],
            margin_noise=noises[party].margin_noise,
        )
        for party in (0, 1)
    )
    background = [asyncio.create_task(link.run()) for link in links]
    background += [asyncio.create_task(take_part(client, runners)) for client in CLIENTS]
    for t in range(task.rounds):
        last, others = await asyncio.gather(*(server.runner.run_round(t) for server in runners))
        assert last.test == others.test
    for waiting in background:
        waiting.cancel()
    await asyncio.gather(*background, return_exceptions=True)

    chosen = {state.round: state.chosen for state in runners[0].of_kind(Collecting)}
    committed = runners[0].of_kind(Committed)
    tests = [state.record.test for state in committed]
    passed = [test.has_passed for test in tests]
    assert {True, False} == set(passed)
    F = rule.first_count
    for test in tests:
        assert test.trim_count == F
        F = rule.next_count(F, has_passed=test.has_passed)
    assert len({test.trim_count for test in tests}) > 1
    stds = [task.noise_std_on_grid * (task.trim_tau if one else 1) for one in passed]
    assert noises[0].stds == noises[1].stds == pytest.approx(stds)
    expected = committed[-1].parameters.tobytes(), [sorted(state.record.rejected) for state in committed]
    assert simulated(task, chosen, "cleartext") == expected
    assert simulated(task, chosen, "mpc") == expected
    assert [last.epsilon_one_server, last.epsilon_clients_only] == simulated_epsilons(task, chosen)


def trained_by_processes(task: Task, pki: Pki, folder: Path) -> list[list[dict[str, Any]]]:
    """Run a dealer's and two aggregators' processes to the task's end; return both servers' records."""
    addresses = dict(zip((*AGGREGATORS, Role.DEALER), free_addresses(3), strict=True))
    deployment = {"task": task.model_dump(), "pki": str(pki.directory), "addresses": addresses, "seed": SEED}
    (folder / "deployment.json").write_text(json.dumps(deployment))
    np.save(folder / "initial.npy", np.zeros(task.dim, dtype=np.float32))

    @asynchronous
    async def everybody_takes_part() -> None:
        sessions = [
            ClientSession(
                client=client,
                task=task,
                addresses=(addresses[Role.AGGREGATOR_A], addresses[Role.AGGREGATOR_B]),
                tls=pki.tls(client),
                train=Client(client, task).train_next,
                conduct=ATTACKS[ATTACKERS[client]]() if client in ATTACKERS else Honest(),
            )
            for client in CLIENTS
        ]
        await asyncio.gather(*(session.run() for session in sessions))

    with servers(folder, server_main.main) as processes:
        everybody_takes_part()
        codes = exit_codes(processes)
    assert codes == dict.fromkeys(processes, 0), {r: (folder / f"{r}.log").read_text() for r in codes if codes[r]}
    return [read_rounds(folder / role) for role in AGGREGATORS]


def test_server_processes_train_the_simulated_model(pki: Pki, tmp_path: Path) -> None:
    """The dealer's trim tuples come over the wire; records, store, audit log and ledger say what was released."""
    task = task_of()
    of_a, of_b = trained_by_processes(task, pki, tmp_path)
    everybody = dict.fromkeys(range(task.rounds), CLIENTS)
    simulation = simulation_of(task, everybody, "cleartext")
    rejected = [sorted(metrics.rejected) for metrics in simulation.run()]
    assert rejected == [sorted(ATTACKERS)] * task.rounds
    for role, records in zip(AGGREGATORS, (of_a, of_b), strict=True):
        assert np.load(tmp_path / role / "model.npy").tobytes() == simulation.progress.parameters.tobytes()
        tests = [record["test"] for record in records]
        assert {test.get("passed", False) for test in tests} == {True, False}
        assert tests == [record["test"] for record in of_a]
        logged = [
            entry.fields["test"] for entry in audit_log.read(store_path(tmp_path / role)) if "test" in entry.fields
        ]
        assert [test["noisy_margin"] for test in logged[::2]] == [int(test["noisy_margin"]) for test in tests]
        assert logged[::2] == logged[1::2]  # with the verdicts, and with the commit
        rule = task.trim_rule
        assert rule is not None
        with open_ledger(tmp_path / role, task) as ledger:
            for view in View:
                expected = rule.mechanism.event(view).epsilon(task.rounds, task.delta)
                assert ledger.statement(view).epsilon == pytest.approx(expected, rel=1e-12)


@pytest.mark.slow  # three real clients, and the accounting of tested rounds
def test_evaluations_by_clients_count_beside_the_tests(tmp_path: Path) -> None:
    """`precad run` of three real clients: the ledger's figure is that of four tested rounds and two evaluations."""
    task = {
        "algorithm": "tsgd-ptr", "clients": 3, "rounds": 4, "client_rate": 1.0, "record_rate": 1.0, "record_clip": 1.0,
        "client_clip": 1.0, "noise_multiplier": 4.0, "learning_rate": 1.0, "gate": "native", "trim_noise": 3.0,
        "evaluation": "clients", "evaluation_every": 2, "evaluation_noise": 500.0, "evaluation_clip": 100.0,
    }  # fmt: skip
    run = LocalRun({"task": task}, tmp_path / "run", Console(file=io.StringIO()))
    summary = asyncio.run(run.run())
    assert [one["rounds_done"] for one in summary["evaluations"]] == [2, 4]
    for view, factor in ((View.ONE_SERVER, 1.0), (View.CLIENTS_ONLY, math.sqrt(2))):
        tested = SampledProposeTestRelease(
            sampling_rate=1.0, noise_multiplier=4.0 * factor, tau=0.5, laplace_scale=3.0, test_failure=1e-8
        )
        together = composed_epsilon([(tested, 4), (SampledGaussian(1.0, 5.0 * factor), 2)], 1e-5)
        assert summary[f"realised_epsilon_{view}"] == pytest.approx(together, rel=1e-6)
