"""A query over two real servers: the sum is that of the honest clients, but for one ball for each liar."""

from __future__ import annotations

import asyncio
import functools
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from precad.clients.queries.answers import Answers
from precad.clients.query_consent import QueryConsent
from precad.clients.training.conduct import Conduct, Honest
from precad.clients.upload.session import ClientSession
from precad.deploy.exporting.answers import finished_answer
from precad.deploy.oversight.log_audit import check_log
from precad.deploy.run_files.answers import opened_sum
from precad.dp.queries.estimates import Rounding, answer
from precad.mpc import fixed_point
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from precad.protos.tls.identity import AGGREGATORS, Role
from precad.servers.store.folder import open_ledger
from tests.harness.harness import asynchronous, running
from tests.harness.pki import Pki
from tests.protos.task.test_query_task import HISTOGRAM, MEAN, query_task

CLIENTS = ("anna", "bert", "liar", "overreacher")
N, C = 200, 250.0


class Liar(Conduct):
    """Answer whatever does most harm within the ball."""

    def on_update(self, update: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the longest vector that the check accepts, all of it on one number."""
        lie = np.zeros_like(update)
        lie[-1] = -C
        return lie


class Overreacher(Conduct):
    """Answer more than the ball holds."""

    def encode(self, update: NDArray[np.float64], task: Task) -> RingArray:
        """Return a vector whose norm is 1.001 C."""
        lie = np.zeros_like(update)
        lie[-1] = 1.001 * C
        return fixed_point.encode(lie, task.frac_bits)


CONDUCTS: dict[str, Conduct] = {"anna": Honest(), "bert": Honest(), "liar": Liar(), "overreacher": Overreacher()}


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    """One authority for all of this file."""
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


def ages(client: str) -> NDArray[np.float64]:
    """Return a client's column, with cells that hold no number."""
    found = np.random.default_rng(len(client)).normal(45, 20, N)
    return np.append(found, [math.nan, math.inf])


@pytest.mark.parametrize(
    ("query", "mode"), [(MEAN, "masked"), (HISTOGRAM, "proved"), ({**MEAN, "kind": "count"}, "shares")]
)
@asynchronous
async def test_a_liar_moves_the_sum_by_at_most_its_ball(
    query: dict[str, Any], mode: str, pki: Pki, tmp_path: Path
) -> None:
    """Servers that add no noise show the sum itself: exact, in every wire form; longer answers are rejected.

    In mode `proved` nobody can prove an answer that is longer: tests/mpc/proved has those who try.
    """
    clients = CLIENTS[:3] if mode == "proved" else CLIENTS
    dim = {"mean": 2, "histogram": 64, "count": 1}[query["kind"]]
    task = query_task(
        clients=dict.fromkeys(clients, N), query=query, dim=dim, client_clip=C, mode=mode,
        accept_weak_wire_form=mode == "shares", frac_bits=14, lost_rounds=1,
    )  # fmt: skip
    consent = QueryConsent.model_validate({"columns": {"age": {"low": 0, "high": 120}}, "limit_epsilon": 2})
    answers = Answers(
        task=task, values={c: ages(c) for c in clients}, conducts=CONDUCTS, consent=consent, state_dir=tmp_path / "own"
    )
    nothing = (lambda std, dim: np.zeros(dim, dtype=np.int64),) * 2
    async with running(task, pki, tmp_path, noises=nothing) as deployment:
        sessions = [
            ClientSession(
                client=client,
                task=task,
                addresses=deployment.addresses,
                tls=pki.tls(client),
                train=functools.partial(answers.train, client),
                conduct=CONDUCTS[client],
            )
            for client in clients
        ]
        await asyncio.gather(*(session.run() for session in sessions))
        await deployment.finish()

    opened = opened_sum(np.load(tmp_path / AGGREGATORS[0] / "model.npy"), task)
    honest = answers.answer("anna") + answers.answer("bert")
    (record,) = deployment.rounds(1)
    assert (record["accepted"], record["rejected"]) == (["anna", "bert", "liar"], list(clients[3:]))
    assert np.linalg.norm(opened - honest) == pytest.approx(C, rel=1e-5)
    assert np.linalg.norm(opened - honest) <= C * (1 + 1e-5)  # the model is kept in float32
    for role in AGGREGATORS:
        with open_ledger(tmp_path / role, task) as ledger:
            assert ledger.participation == dict.fromkeys(clients, 1)
    assert check_log(tmp_path / AGGREGATORS[0], against=tmp_path / AGGREGATORS[1], known=None)["releases"] == 1
    assert task.query is not None
    rounding = Rounding(len(clients) * 2.0**-14, 2.0**-23)
    encoding, noise = task.query.encoding(task.frac_bits), math.sqrt(2) * task.noise_multiplier
    shown = answer(encoding, opened, noise, rounding=rounding)
    assert shown.estimate is not None or len(shown.bins) == 64
    at_servers = [finished_answer(tmp_path / role, task, Role(role), 0.95) for role in AGGREGATORS]
    assert at_servers[0] == at_servers[1]
    assert at_servers[0]["bins"] == [pytest.approx(asdict(one), rel=1e-6) for one in shown.bins]
    if shown.estimate is not None:
        assert at_servers[0]["estimate"] == pytest.approx(asdict(shown.estimate), rel=1e-6)
