"""Evaluations by clients over two real servers: what they open, what a liar can do, and who is asked how often.

Failure means: a liar moves the sum by more than its ball, or an evaluation moves the model. Or one is charged otherwise
than it took place, or a client takes it for a round of the training.
"""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.clients.errors import ProtocolError, RestoredServersError, UploadLimitError
from precad.clients.records import Records
from precad.clients.submission import RoundInvitation, round_task
from precad.clients.training.conduct import Conduct, Honest
from precad.clients.training.held_out import HeldOut
from precad.clients.upload.session import ClientSession
from precad.clients.upload_limit import UploadLimit
from precad.deploy.oversight.log_audit import check_log
from precad.deploy.oversight.state_dirs import read_state_dir
from precad.mpc import fixed_point
from precad.mpc.ring import RingArray
from precad.protos.precad.v1 import aggregator_pb2
from precad.protos.task.evaluation_figures import figures_of
from precad.protos.task.task import Task
from precad.protos.tls.identity import AGGREGATORS
from precad.servers.store.folder import open_ledger, open_task_store
from precad.servers.store.rounds import EvaluatedRound
from precad.servers.telemetry.model_figures import FILE
from tests.clients.training.test_held_out import some, task_of
from tests.harness.harness import asynchronous, running
from tests.harness.pki import Pki

CLIENTS = ("anna", "bert", "liar", "overreacher")
C = 40.0


class Liar(Conduct):
    """Answer evaluations with what does most harm within the ball."""

    def encode_evaluation(self, total: NDArray[np.float64], task: Task) -> RingArray:
        """Return the longest vector that the check accepts, all of it on what is right."""
        return fixed_point.encode(np.array([0.0, -C, 0.0]), task.frac_bits)


class Overreacher(Conduct):
    """Answer evaluations with more than the ball holds."""

    def encode_evaluation(self, total: NDArray[np.float64], task: Task) -> RingArray:
        """Return a vector whose norm is 1.001 C."""
        return fixed_point.encode(np.array([0.0, 1.001 * C, 0.0]), task.frac_bits)


CONDUCTS: dict[str, Conduct] = {"anna": Honest(), "bert": Honest(), "liar": Liar(), "overreacher": Overreacher()}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """One authority for all of this file."""
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


def nothing(std: float, dim: int) -> RingArray:
    """Add no noise, so that the sum itself is seen."""
    return np.zeros(dim, dtype=np.int64)


def evaluated_task(clients: tuple[str, ...], **changes: Any) -> Task:
    """Return one of four rounds, evaluated after every second."""
    fields = {"rounds": 4, "evaluation_every": 2, "evaluation_clip": C, "gate": "native", "delta": 1e-3}
    if changes.get("mode") == "proved":
        del fields["gate"]
    task = task_of(**fields, **changes)
    return Task.model_validate({**task.model_dump(exclude_none=True), "clients": dict.fromkeys(clients, 30)})


async def trained(
    task: Task, pki: Pki, folder: Path, records: dict[str, Records]
) -> tuple[HeldOut, dict[str, list[EvaluatedRound]]]:
    """Run the task with clients that upload zeros, and return what both servers keep of evaluations, by role."""
    held_out = HeldOut(task=task, records=records, conducts=CONDUCTS, device="cpu")
    async with running(task, pki, folder, noises=(nothing, nothing)) as deployment:
        sessions = [
            ClientSession(
                client=client,
                task=task,
                addresses=deployment.addresses,
                tls=pki.tls(client),
                train=lambda parameters: np.zeros(task.dim, dtype=np.int64),
                evaluate=(functools.partial(held_out.evaluate, client), UploadLimit(client, task.digest(), most=1)),
            )
            for client in task.clients
        ]
        await asyncio.gather(*(session.run() for session in sessions))
        await deployment.finish()
    kept = {}
    for role in AGGREGATORS:
        with open_task_store(folder / role, task, bytes(4 * task.dim)) as store:
            kept[role] = store.evaluations()
    return held_out, kept


@pytest.mark.parametrize("mode", ["masked", "shares", "proved"])
@asynchronous
async def test_a_liar_moves_an_evaluation_by_at_most_its_ball(mode: str, pki: Pki, tmp_path: Path) -> None:
    """Beside the honest clients' sum, exact on the grid; longer answers are rejected and the model stays.

    In mode `proved` nobody can prove an answer that is longer: tests/mpc/proved has those who try.
    """
    clients = CLIENTS[:3] if mode == "proved" else CLIENTS
    task = evaluated_task(clients, mode=mode, accept_weak_wire_form=mode == "shares")
    of_round = task.evaluation_round
    assert of_round is not None
    held_out, kept = await trained(task, pki, tmp_path, {c: some(30, seed=i) for i, c in enumerate(clients)})

    zeros = np.zeros(task.dim, np.float32)
    honest = held_out.evaluate("anna", zeros) + held_out.evaluate("bert", zeros)
    assert kept[AGGREGATORS[0]] == kept[AGGREGATORS[1]]
    assert [one.number for one in kept[AGGREGATORS[0]]] == [2, 5]
    for one in kept[AGGREGATORS[0]]:
        assert (one.accepted, one.rejected) == (("anna", "bert", "liar"), clients[3:])
        moved = fixed_point.decode(np.array(one.noisy_sum) - honest, of_round.frac_bits)
        assert np.linalg.norm(moved) == pytest.approx(C, abs=1e-4)
        assert np.linalg.norm(moved) <= C
    for role in AGGREGATORS:
        assert not np.load(tmp_path / role / "model.npy").any()
        with open_ledger(tmp_path / role, task) as ledger:
            assert (ledger.rounds, ledger.evaluations) == ({0, 1, 2, 3, 4, 5}, {2, 5})
            assert ledger.participation == dict.fromkeys(clients, 4)
            assert ledger.evaluations_of == dict.fromkeys(clients, 2)
    report = check_log(tmp_path / AGGREGATORS[0], against=tmp_path / AGGREGATORS[1], known=None)
    assert (report["releases"], report["agreed_releases"]) == (6, 6)


@asynchronous
async def test_operators_get_figures_with_error_bars(pki: Pki, tmp_path: Path) -> None:
    """In the file, and in the status that is read from it: of the model that the evaluation was of."""
    task = evaluated_task(CLIENTS[:2])
    records = {client: some(30, seed=i) for i, client in enumerate(CLIENTS[:2])}
    _, kept = await trained(task, pki, tmp_path, records)
    a = AGGREGATORS[0]
    lines = [json.loads(line) for line in (tmp_path / a / FILE).read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 4]
    figures = figures_of(task, kept[a][-1].noisy_sum).named()
    for name, one in figures.items():
        found = lines[-1]["figures"]
        assert (found[name], found[f"{name}_low"], found[f"{name}_high"]) == (one.value, one.low, one.high)
    right = sum(int((own.labels == 0).sum()) for own in records.values())  # zeros say class 0 of every record
    assert figures["accuracy"].value == pytest.approx(right / 60, abs=1e-4)
    assert figures["records"].value == pytest.approx(60, abs=1e-3)
    rounds = {one.round: one for one in read_state_dir(tmp_path / a).rounds}
    assert [number for number, one in rounds.items() if one.quality] == [1, 4]


def invited(**fields: Any) -> aggregator_pb2.Invitation:
    """Return an invitation to the evaluation after two rounds."""
    return aggregator_pb2.Invitation(**{"round": 2, "dim": 3, "n_committed": 2, "evaluation": True, **fields})


@pytest.mark.parametrize("n_committed", [0, 1, 3, 5, 6])
def test_an_evaluation_that_is_not_due_is_refused(n_committed: int) -> None:
    """Both servers would have to ask for it; after four rounds of four it is the last."""
    task, both = evaluated_task(CLIENTS), [invited(n_committed=n_committed)] * 2
    with pytest.raises(ProtocolError, match=f"evaluation: expected none after {n_committed} committed rounds"):
        round_task(both[0], both[1], task)
    for due in (2, 4):
        assert round_task(invited(n_committed=due), invited(n_committed=due), task) is task.evaluation_round


def test_one_server_alone_cannot_pass_off_a_round_as_another_kind() -> None:
    """Nor can both in a task that has no evaluations."""
    task = evaluated_task(CLIENTS)
    for from_a, from_b in ((invited(), invited(evaluation=False)), (invited(evaluation=False), invited())):
        with pytest.raises(ProtocolError, match="the servers' invitations differ in evaluation"):
            round_task(from_a, from_b, task)
    plain = task.model_copy(update={"evaluation": "none"})
    del plain.__dict__["evaluation_round"]
    with pytest.raises(ProtocolError, match="expected none after 2 committed rounds"):
        round_task(invited(), invited(), plain)


def test_a_second_evaluation_of_one_model_costs_its_own_round_alone() -> None:
    """Asked again, the client stays silent and in the task; a third upload for a model of the training ends it.

    So does an evaluation by servers that both were put back.
    """
    task = evaluated_task(CLIENTS[:2])
    limits = [UploadLimit("anna", task.digest(), most=1) for _ in range(2)]
    session = ClientSession(
        client="anna",
        task=task,
        addresses=("a:1", "b:1"),
        tls=None,  # type: ignore[arg-type] # nothing is dialled
        train=lambda _: np.zeros(task.dim, dtype=np.int64),
        limit=limits[0],
        evaluate=(lambda _: np.zeros(3, dtype=np.int64), limits[1]),
    )
    asked = RoundInvitation("small-1", 2, 0, bytes(32), None, n_committed=2)
    training, evaluation = session._training, session._evaluation
    assert evaluation is not None
    session._enter(evaluation, asked)
    limits[1].count(asked.model_digest, asked.n_committed)
    with pytest.raises(ProtocolError, match="anna"):
        session._enter(evaluation, asked)
    session._enter(training, asked)
    limits[0].count(asked.model_digest, asked.n_committed)
    with pytest.raises(UploadLimitError):
        session._enter(training, asked)
    limits[1].count(bytes(32), 4)
    with pytest.raises(RestoredServersError):
        session._enter(evaluation, asked)
