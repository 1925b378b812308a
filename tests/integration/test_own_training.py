"""A stranger's script, with records, model and loss of its own: a notebook, organisations and processes give one model.

The same app is simulated from objects, and trained by clients that import it by name, each on records of its own, over
two servers. From equal seeds, coins and noise the final models are equal, byte by byte.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

import precad
from precad.clients.config import ClientConfig
from precad.clients.loading import load_records
from precad.clients.process import Trainer
from precad.clients.submission import agree, make_submission
from precad.clients.training.conduct import Honest
from precad.clients.upload.session import ClientSession
from precad.deploy.configuration.apps import app_at, client_of_app
from precad.lab.simulation import SeededRandomness, Simulation, SimulationSettings
from precad.lab.simulation.apps import resolve_apps
from precad.mpc.channel import memory_pair
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.rounds.states import Collecting, Committed
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
    upload_to,
)

SITES = ("anna", "boris", "chloe")
SEED, N_ROUNDS, N_RECORDS = 5, 2, 24
DRAWS = SeededRandomness(SEED)
TASK = precad.Task(
    name="patients",
    rounds=N_ROUNDS,
    client_rate=1.0,
    record_rate=0.5,
    record_clip=1.0,
    client_clip=4.0,
    noise_multiplier=0.5,
    learning_rate=1.0,
    gate="native",
    clients=list(SITES),
)
TABLE = """
import precad
import torch
from torch import nn
from torch.nn import functional

def net(width=6):
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2))

def missed_diagnoses_cost_more(model, record):
    features, label = record
    weight = torch.tensor([1.0, 3.0], dtype=features.dtype)
    return functional.cross_entropy(model(features), label, weight=weight, reduction="sum")

app = precad.App(model=net, records="csv:patients.csv", label="sick", loss=missed_diagnoses_cost_more)
"""
SCANS = """
import precad
from torch import nn

class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))

app = precad.App(model=lambda: precad.fix(Net()), records="folder:scans")
"""


def write_table(folder: Path, seed: int) -> None:
    """Three numbers of a patient, and whether their sum is positive."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(seed).standard_normal((N_RECORDS, 3))
    lines = [",".join([*(f"{value:.6f}" for value in row), str(int(row.sum() > 0))]) for row in rows]
    (folder / "patients.csv").write_text("\n".join(["age,pressure,dose,sick", *lines]) + "\n")


def write_doses(folder: Path, seed: int) -> None:
    """Three numbers of a patient, and a dose that is linear in them."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.random.default_rng(seed).standard_normal((N_RECORDS, 3))
    lines = [",".join(f"{value:.6f}" for value in (*row, row @ (0.5, -0.25, 1.0))) for row in rows]
    (folder / "patients.csv").write_text("\n".join(["age,pressure,weight,dose", *lines]) + "\n")


def write_scans(folder: Path, seed: int) -> None:
    """Dark pictures of one class, bright ones of the other."""
    draw = np.random.default_rng(seed)
    for i in range(N_RECORDS):
        kind = ("healthy", "sick")[i % 2]
        (folder / "scans" / kind).mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 128, (8, 8, 3)) + 127 * (i % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "scans" / kind / f"{i}.png")


DOSES = """
import precad
from torch import nn

def net():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))

def worst(outputs, labels):
    return float(abs(outputs.reshape(labels.shape) - labels).max())

app = precad.App(model=net, records="csv:patients.csv", label="dose", loss="mse", metrics=["mae", worst])
"""
CASES: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "table": (TABLE, write_table),
    "scans": (SCANS, write_scans),
    "doses": (DOSES, write_doses),
}


class Organisations:
    """A folder of records for each, and one module in the current folder: all of them are in one process here."""

    def __init__(self, root: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
        code, write = CASES[case]
        self.module = f"hospital_{case}"
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.delitem(sys.modules, self.module, raising=False)
        self.folders = {site: root / site for site in SITES}
        for seed, folder in enumerate(self.folders.values()):
            write(folder, seed)
        (root / f"{self.module}.py").write_text(code)
        monkeypatch.chdir(root)
        self.path = f"{self.module}:app"
        self.app = app_at(self.path)

    def in_a_notebook(self) -> tuple[Task, Callable[[Mapping[int, Sequence[str]]], bytes]]:
        """Return the resolved task, and from who was drawn to the final model."""
        kind, _, place = str(self.app.records).partition(":")
        apps = {site: self.app.with_records(f"{kind}:{folder / place}") for site, folder in self.folders.items()}
        plan = resolve_apps({"task": TASK}, apps)

        def train(chosen: Mapping[int, Sequence[str]]) -> bytes:
            simulation = Simulation(
                task=plan.task,
                settings=SimulationSettings(algorithm="deployed", batching="client"),
                records=plan.records,
                test=plan.split.test,
                randomness=_Replayed(chosen),
                device="cpu",
                initial=np.zeros(plan.task.dim, dtype=np.float32),
                learning=plan.learning,
            )
            list(simulation.run())
            return simulation.progress.parameters.tobytes()

        return plan.task, train

    def task(self, notebook: Task) -> Task:
        """Return the task of a deployment: the app is named where the notebook has functions."""
        own = {"model": self.path, **({} if isinstance(self.app.loss, str) else {"loss": self.path})}
        return notebook.model_copy(update=own)

    def client(self, site: str, task: Task) -> _Client:
        """Return a client's trainer, as `precad client client.toml --app` makes it."""
        raw = {"certificates": "c", "authority": "a", "folder": str(self.folders[site])}
        config = client_of_app(task, ClientConfig.model_validate(raw, context={"base": "/"}), self.path)
        return _Client(site, task, config)


class _Replayed(SeededRandomness):
    def __init__(self, chosen: Mapping[int, Sequence[str]]) -> None:
        super().__init__(SEED)
        self._chosen = chosen

    def chosen(self, t: int, clients: Sequence[str], client_rate: float) -> list[str]:
        """As a deployment's coins chose."""
        return sorted(self._chosen[t])


class _Client:
    """A deployed client, with the seed's draws in place of the operating system's."""

    def __init__(self, site: str, task: Task, config: ClientConfig) -> None:
        self._site, self._stream, self._round = site, DRAWS.records(-1, site), -1
        self._trainer = Trainer(
            task=task,
            records=load_records(task, config, [site]),
            conducts={site: Honest()},
            device="cpu",
            random_bytes=self._draw,
        )

    def _draw(self, n: int) -> bytes:
        return self._stream(n)

    def train(self, parameters: NDArray[np.float32]) -> RingArray:
        """The next round's, for a client that is in all of them."""
        self._round += 1
        self._stream = DRAWS.records(self._round, self._site)
        return self._trainer.train(self._site, parameters)


def noise_of_both(task: Task) -> NDArray[np.int64]:
    """Return what the simulation draws for both servers, (2, rounds, d)."""
    std = task.noise_std_on_grid
    return np.array([[DRAWS.noise(t, f"server-{i}", std, task.dim) for t in range(N_ROUNDS)] for i in (0, 1)])


async def take_part(site: str, client: _Client, servers: tuple[ServerInProcess, ServerInProcess]) -> None:
    """Wire a client to both servers' objects."""
    task, queues = servers[0].task, [server.sessions.enter(site) for server in servers]
    while True:
        from_a, from_b = [(await queue.get()).invitation for queue in queues]
        invitation = agree(from_a, from_b, task)
        encoded = client.train(servers[0].state.model.parameters)
        submission = make_submission(encoded, invitation, task=task, client=site)
        for party in submission.servers:
            await upload_to(servers[party].intake, submission)


@pytest.mark.parametrize("case", ["table", pytest.param("scans", marks=pytest.mark.slow), "doses"])
@asynchronous
async def test_a_notebook_gives_the_bytes_of_organisations(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both servers in this process, a trainer for each organisation's folder."""
    organisations = Organisations(tmp_path / "sites", case, monkeypatch)
    notebook, train = organisations.in_a_notebook()
    task = organisations.task(notebook)
    noise, dealer, links, lanes = noise_of_both(task), DealerInMemory(), link_pair(), memory_pair()
    servers = tuple(
        ServerInProcess(
            task, links[party], lanes[party], dealer.source(party), noise[party], tmp_path / AGGREGATORS[party]
        )
        for party in (0, 1)
    )
    background = [asyncio.create_task(link.run()) for link in links]
    for site in SITES:
        background.append(asyncio.create_task(take_part(site, organisations.client(site, task), servers)))
    for t in range(N_ROUNDS):
        await asyncio.gather(*(server.runner.run_round(t) for server in servers))
    for waiting in background:
        waiting.cancel()
    await asyncio.gather(*background, return_exceptions=True)

    chosen = {state.round: state.chosen for state in servers[0].of_kind(Collecting)}
    final = servers[0].of_kind(Committed)[-1].parameters
    assert train(chosen) == final.tobytes()
    assert servers[0].of_kind(Committed)[-1].record.accepted == SITES


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_notebook_gives_the_bytes_of_server_processes(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dealer and both servers are processes, to which the user's module is nowhere; clients call them over TLS."""
    organisations = Organisations(tmp_path / "sites", case, monkeypatch)
    notebook, train = organisations.in_a_notebook()
    task = organisations.task(notebook)
    pki = Pki.create(tmp_path / "pki", SITES)
    addresses = dict(zip((*AGGREGATORS, Role.DEALER), free_addresses(3), strict=True))
    deployment = {"task": task.model_dump(), "pki": str(pki.directory), "addresses": addresses}
    (tmp_path / "deployment.json").write_text(json.dumps(deployment))
    np.save(tmp_path / "initial.npy", np.zeros(task.dim, dtype=np.float32))
    np.save(tmp_path / "noise.npy", noise_of_both(task))

    @asynchronous
    async def everybody_takes_part() -> None:
        sessions = [
            ClientSession(
                client=site,
                task=task,
                addresses=(addresses[Role.AGGREGATOR_A], addresses[Role.AGGREGATOR_B]),
                tls=pki.tls(site),
                train=organisations.client(site, task).train,
            )
            for site in SITES
        ]
        await asyncio.gather(*(session.run() for session in sessions))

    with servers(tmp_path, server_main.main) as processes:
        everybody_takes_part()
        codes = exit_codes(processes)
    assert codes == dict.fromkeys(processes, 0), {r: (tmp_path / f"{r}.log").read_text() for r in codes if codes[r]}
    final = train(dict.fromkeys(range(N_ROUNDS), SITES))
    assert [np.load(tmp_path / role / "model.npy").tobytes() for role in AGGREGATORS] == [final, final]
