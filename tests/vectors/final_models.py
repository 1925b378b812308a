"""Makes `final_models.json`: digests of final models under fixed seeds, coins and noise, of every algorithm.

    python -m tests.vectors.final_models

The file is made anew only where a change moves models on purpose. As it stands, it shows that the same seeds, coins and
noise give the same bytes before and after a change.

The bytes are the same on all CPUs. All draws are of SHAKE-128, records are small binary fractions, and the model is one
linear layer, whose gradients are written here in NumPy. An order of additions changes a value by less than 2^-50 of it.
The grid of the uploads and the parameters' float32 hide that: PyTorch's kernels give the same bytes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from precad.clients.encoding import encode_update
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import ROUNDING_SLACK, RecordClip
from precad.clients.models.learning import Learning
from precad.clients.models.losses import loss_of
from precad.clients.record_bins import KEY_BYTES
from precad.clients.records import Records
from precad.clients.training.projection import project
from precad.clients.training.record_draws import BinKey
from precad.clients.upload.session import ClientSession
from precad.dp.noise import rounded_gaussian
from precad.lab.simulation import Simulation, SimulationSettings
from precad.lab.simulation.algorithms import ALGORITHMS
from precad.mpc import joint_coin
from precad.mpc.prg import Label, RandomBytes, Seed
from precad.mpc.ring import RingArray
from precad.protos.task.algorithms import AS_DEPLOYED, RULES
from precad.protos.task.task import Task
from precad.servers.rounds.equipment import NoiseSource
from tests.harness.harness import Deployment, running
from tests.harness.pki import AGGREGATORS, Pki

FILE: Final = Path(__file__).with_name("final_models.json")
CLIENTS: Final = tuple(f"client-{i}" for i in range(5))
N_RECORDS: Final = 8
INPUTS, OUTPUTS = 3, 2
DIM: Final = INPUTS * OUTPUTS + OUTPUTS
LOCAL: Final[dict[str, Any]] = {"local_steps": 2, "local_rate": 0.125}


def drawn(name: str, size: int) -> bytes:
    """Return bytes that follow from a name."""
    return hashlib.shake_128(f"final model/{name}".encode()).digest(size)


def stream(name: str) -> RandomBytes:
    """Return a source whose n-th call follows from a name and n."""
    calls = iter(range(1 << 62))
    return lambda size: drawn(f"{name}/{next(calls)}", size)


def fractions(name: str, shape: tuple[int, ...], bits: int) -> NDArray[np.float64]:
    """Return multiples of 2^-bits in [-1, 1)."""
    words = np.frombuffer(drawn(name, 2 * int(np.prod(shape))), dtype="<i2").reshape(shape)
    return (words >> (15 - bits)) / 2.0**bits


class Draws:
    """Everything that a simulation draws, by name. See `precad.lab.simulation.randomness.Sources`."""

    def chosen(self, t: int, clients: Sequence[str], client_rate: float) -> list[str]:
        """Draw by the servers' own function."""
        coin = Seed(drawn(f"coin/{t}", 16))
        return joint_coin.select_poisson(coin, Label("simulation", t), clients, client_rate)

    def turns(self, clients: Sequence[str], n_turns: int) -> Mapping[str, int]:
        """Deal by the servers' own function."""
        return joint_coin.turns(Seed(drawn("turns", 16)), Label("simulation", 0), clients, n_turns)

    def records(self, t: int, client: str) -> RandomBytes:
        """See Randomness."""
        return stream(f"records/{t}/{client}")

    def bins(self, client: str) -> BinKey:
        """See Randomness."""
        return BinKey(drawn(f"bins/{client}", KEY_BYTES), "simulation")

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """Draw by the servers' own sampler, which is exact."""
        return rounded_gaussian.sample(std_on_grid, dim, stream(f"noise/{t}/{source}"))

    def rule(self, t: int) -> RandomBytes:
        """See Randomness."""
        return stream(f"rule/{t}")

    def attack(self, t: int, client: str) -> np.random.Generator:
        """Nobody attacks."""
        raise NotImplementedError


def records_of(name: str, size: int = N_RECORDS) -> Records:
    """Return records in eighths: targets are near a linear map of the features."""
    features = fractions(f"features/{name}", (size, INPUTS), 3)
    targets = features[:, :OUTPUTS] - features[:, 1:] + fractions(f"targets/{name}", (size, OUTPUTS), 3) / 4
    return Records(features.astype(np.float32), targets.astype(np.float32))


class NumpyEngine(RecordEngine):
    """Take the gradients of the linear layer by their formula, record by record, in place of PyTorch's kernels."""

    def clipped_sums(
        self, parameters: NDArray[np.float32] | NDArray[np.float64], clients: Sequence[Records], clip: RecordClip
    ) -> NDArray[np.float64]:
        """See RecordEngine."""
        bound = clip.norm * (1 - ROUNDING_SLACK)
        sums = np.zeros((len(clients), DIM))
        for i, records in enumerate(clients):
            for gradient in gradients_of(parameters, records):
                norm = math.sqrt(sum(value * value for value in gradient.tolist()))
                sums[i] += gradient * min(1.0, bound / norm if norm else 1.0)
        return sums

    def gradient_sum(
        self, parameters: NDArray[np.float32] | NDArray[np.float64], records: Records
    ) -> NDArray[np.float64]:
        """See RecordEngine."""
        return sum(gradients_of(parameters, records), start=np.zeros(DIM))


def gradients_of(parameters: NDArray[np.floating[Any]], records: Records) -> list[NDArray[np.float64]]:
    """Return each record's gradient of the mean of squares of W x + b - y over the outputs, first W's, then b's."""
    at = parameters.astype(np.float64)
    weights, bias = at[: INPUTS * OUTPUTS].reshape(OUTPUTS, INPUTS), at[INPUTS * OUTPUTS :]
    found = []
    for x, y in zip(records.features.astype(np.float64), records.labels.astype(np.float64), strict=True):
        error = (weights * x).sum(axis=1) + bias - y
        slope = 2 / OUTPUTS * error
        found.append(np.concatenate([np.outer(slope, x).ravel(), slope]))
    return found


@cache
def engine(kind: type[RecordEngine] = NumpyEngine) -> RecordEngine:
    """Return an engine of the model, in float64."""
    learning, label = learnt(), torch.zeros(OUTPUTS)
    return kind(
        learning.build(0), torch.zeros(INPUTS), loss=learning.loss, label=label, device="cpu", dtype=torch.float64
    )


def learnt() -> Learning:
    """Return what is trained: one linear layer that begins at fixed fractions, by its squared error."""

    def build(seed: int) -> torch.nn.Module:
        layer = torch.nn.Linear(INPUTS, OUTPUTS)
        with torch.no_grad():
            for name, parameter in layer.named_parameters():
                parameter.copy_(torch.from_numpy(fractions(f"model/{seed}/{name}", tuple(parameter.shape), 3)))
        return layer

    return Learning(build, loss_of("mse"))


OF_TASKS: Final[dict[str, dict[str, Any]]] = {
    "user-dp-fedavg": LOCAL | {"client_clip": 0.5},
    "tsgd-ptr": LOCAL
    | {"client_clip": 0.5, "noise_multiplier": 4.0, "trim_tau": 0.5, "trim_noise": 0.01, "trim_failure": 0.4},
    "tsgd-gaussian": LOCAL | {"client_clip": 0.5, "trim_count": 1},
    "ins-dp-fedavg": LOCAL | {"local_momentum": 0.5},
    "local-dp": {"client_clip": 64.0},
    "distributed-dp": {"client_clip": 64.0, "non_colluding": 2},
    "non-private": {"noise_multiplier": 0.0},
    "fedavg": LOCAL | {"noise_multiplier": 0.0, "local_batch": 4},
    "krum": LOCAL | {"noise_multiplier": 0.0, "krum_attackers": 0},
    "multi-krum": LOCAL | {"noise_multiplier": 0.0, "krum_attackers": 0, "krum_keep": 2},
}
"""Fields of the algorithms that need some; all others run with what `task_of` says."""
OF_SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "distributed-dp": {"non_colluding": 2},
    "fedavg": LOCAL,
    "central-dp": LOCAL,
    "user-dp-fedavg": LOCAL,
    "ins-dp-fedavg": LOCAL,
}
BUDGETS: Final = {"central-dp": {"epsilon_budget_clients_only": 1000.0}}
"""Budgets without which an algorithm of a simulation does not begin."""
SIMULATED: Final = tuple(name for name in ALGORITHMS if name != AS_DEPLOYED)
CASES: Final = (*(f"deployed/{name}" for name in RULES), *(f"simulated/{name}" for name in SIMULATED))


OF_MODES: Final[dict[str, dict[str, Any]]] = {
    "masked": {"gate": "native"},
    "shares": {"gate": "native", "mode": "shares", "accept_weak_wire_form": True},
    "proved": {"mode": "proved", "frac_bits": 16},
}
"""Forms in which both servers train, and the fields of their tasks."""


def task_of(**changes: Any) -> Task:
    """Return a small task. R shortens most gradients, and C some updates."""
    values: dict[str, Any] = {
        "name": "final-models",
        "clients": dict.fromkeys(CLIENTS, N_RECORDS),
        "rounds": 4,
        "client_rate": 0.75,
        "record_rate": 0.5,
        "record_clip": 1.0,
        "client_clip": 2.0,
        "noise_multiplier": 0.25,
        "learning_rate": 0.5,
        "loss": "mse",
        "dim": DIM,
    }
    return Task(**values | changes)


def final_model(case: str, kind: type[RecordEngine] = NumpyEngine) -> NDArray[np.float32]:
    """Train a case to its end. Return the model."""
    where, _, name = case.partition("/")
    is_deployed = where == "deployed"
    task = task_of(algorithm=name, **OF_TASKS.get(name, {})) if is_deployed else task_of(**BUDGETS.get(name, {}))
    settings = {"algorithm": AS_DEPLOYED} if is_deployed else {"algorithm": name, **OF_SETTINGS.get(name, {})}
    batching = "client" if kind is NumpyEngine else "round"  # clients' own models pass through the engine, or a stack
    simulation = Simulation(
        task=task,
        settings=SimulationSettings(**settings, batching=batching),
        records={client: records_of(client) for client in CLIENTS},
        test=records_of("test"),
        randomness=Draws(),
        engine=engine(kind),
        learning=learnt(),
    )
    rounds = [*simulation.run()]
    assert len(rounds) == task.rounds, simulation.diverged
    return simulation.progress.parameters


def trainer(task: Task, client: str) -> Callable[[NDArray[np.float32]], RingArray]:
    """Return what a client uploads for a model: the whole of its gradients, within C, as integers."""
    records = records_of(client)

    def train(parameters: NDArray[np.float32]) -> RingArray:
        total = sum(gradients_of(parameters, records), start=np.zeros(DIM))
        return encode_update(project(-total, task.client_clip), task)

    return train


def noise_of(name: str, party: int) -> NoiseSource:
    """Return one server's noise, draw after draw."""
    draws = iter(range(1 << 62))
    return lambda std, dim: rounded_gaussian.sample(std, dim, stream(f"{name}/{next(draws)}/server-{party}"))


def coins_of() -> tuple[RandomBytes, RandomBytes]:
    """Return both servers' halves of every coin, which do not depend on the order in which coins are tossed."""
    return lambda size: drawn("coin/a", size), lambda size: drawn("coin/b", size)


def session_of(client: str, deployment: Deployment) -> ClientSession:
    """Return a client's session with real servers."""
    task, tls = deployment.task, deployment.pki.tls(client)
    return ClientSession(client=client, task=task, addresses=deployment.addresses, tls=tls, train=trainer(task, client))


async def model_of_servers(mode: str, folder: Path) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Train by a dealer, both servers and all clients over mutual TLS. Return A's and B's final model."""
    task = task_of(**OF_MODES[mode], registration_timeout_s=60.0)
    pki, noises = Pki.create(folder / "pki", CLIENTS), (noise_of("noise", 0), noise_of("noise", 1))
    async with running(task, pki, folder, noises=noises, coins=coins_of(), tuples=stream("tuples")) as deployment:
        await asyncio.gather(*(session_of(client, deployment).run() for client in CLIENTS))
        await deployment.finish()
    of_a, of_b = (np.load(folder / role / "model.npy") for role in AGGREGATORS)
    return of_a, of_b


def digest_of(model: NDArray[np.float32]) -> str:
    """Return SHA-256 of a model's parameters, little-endian."""
    return hashlib.sha256(model.astype("<f4").tobytes()).hexdigest()


def served_model(mode: str, folder: Path) -> NDArray[np.float32]:
    """Train by real servers. Return the final model, which is the same at both."""
    of_a, of_b = asyncio.run(model_of_servers(mode, folder))
    assert of_a.tobytes() == of_b.tobytes()
    return of_a


def main() -> None:
    """Write the digests of all final models."""
    found = {case: digest_of(final_model(case)) for case in CASES}
    for mode in OF_MODES:
        with TemporaryDirectory() as folder:
            found[f"servers/{mode}"] = digest_of(served_model(mode, Path(folder)))
    FILE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
