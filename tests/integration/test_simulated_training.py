"""Three trainings from equal seeds and noise: simulated, in process, and over processes.

The final models are equal, byte by byte, and so is what every round accepted. This holds for every algorithm that a
deployment has.

Clients train for real, on digits, two of them malicious. Each is a process's only client, so a simulation that takes
one client's records at a time rounds as they do. The draw of clients, which servers toss from their own coins, is
replayed; everything else comes from one seed.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from precad.clients.attacks import ATTACKS, Attack, NoAttack
from precad.clients.attacks.named import attacks_of
from precad.clients.config import ClientConfig
from precad.clients.process import Trainer
from precad.clients.records import Records, digits
from precad.clients.submission import agree, make_submission
from precad.clients.training.conduct import Conduct, Honest, Trained
from precad.clients.training.record_draws import BinKey, RecordDraws, draws_of
from precad.clients.upload.session import ClientSession
from precad.deploy.conducts import conducts_of
from precad.dp.accountants.balls_in_bins import BallsInBins
from precad.dp.task_privacy import task_privacy
from precad.lab.simulation import SeededRandomness, Simulation, SimulationSettings
from precad.mpc.channel import memory_pair
from precad.mpc.ring import RingArray
from precad.protos.task.algorithms import RULES
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
    read_rounds,
    running,
    small_task,
    upload_to,
)
from tests.harness.models import dimension_of

ATTACKERS = {"mallory": "scaled", "trudy": "wrap"}
CRAFTING = {
    "mallory": {"kind": "pixel-backdoor", "parameters": {"gamma": 0.5, "side": 3, "steps": 2}},
    "trudy": {"kind": "min-max", "parameters": {"sees": "colluders", "direction": "unit"}},
}
"""Attacks with parameters that a client process crafts of what it knows; both colluders know one another's update."""
CLIENTS = ("alice", "bob", "carol", *ATTACKERS)
N_RECORDS, N_ROUNDS, SEED = 40, 3, 11
DRAWS = SeededRandomness(SEED)


@functools.cache
def records() -> dict[str, Records]:
    """Forty digits for each client."""
    train = digits().train
    return {c: train.take(np.arange(i * N_RECORDS, (i + 1) * N_RECORDS)) for i, c in enumerate(CLIENTS)}


LOCAL = {"client_clip": 0.2, "learning_rate": 1.0, "local_steps": 3, "local_momentum": 0.5}
LAYERS = {"layer_sizes": [4160, 650], "accept_weak_wire_form": True}
BY_LAYERS = {"algorithm": "precad", "client_clip": 3.5, **LAYERS, "layer_clips": [3.0, 2.5]}
"""Bounds of both layers of the MLP, which honest updates of the first round exceed; the whole then exceeds C, too."""
ALGORITHMS: dict[str, dict[str, object]] = {
    "precad": {},
    "user-dp-fedavg": LOCAL,
    "user-dp-fedavg, per-layer": {"algorithm": "user-dp-fedavg", "update_clipping": "per-layer", **LOCAL},
    "user-dp-fedavg, private-quantile": {
        "algorithm": "user-dp-fedavg",
        "update_clipping": "private-quantile",
        "dim": dimension_of("mlp") + 1,
        "server_optimizer": "momentum",
        **LOCAL,
    },
    "user-dp-fedavg, private-quantile-per-layer": {
        "algorithm": "user-dp-fedavg",
        "update_clipping": "private-quantile-per-layer",
        "dim": dimension_of("mlp") + 1,
        **LOCAL,
    },
    "user-dp-fedavg, correlated": {"algorithm": "user-dp-fedavg", "min_separation": 2, "noise_bands": 2, **LOCAL},
    "ins-dp-fedavg": {"client_clip": 3.0, "learning_rate": 1.0, "local_steps": 2, "local_rate": 0.5},
    "ins-dp-fedavg, momentum": {
        "algorithm": "ins-dp-fedavg",
        "client_clip": 3.0,
        "local_weight_decay": 0.05,
        **{name: value for name, value in LOCAL.items() if name != "client_clip"},
    },
    "local-dp": {"server_optimizer": "adam", "learning_rate_schedule": "cosine", "decay_rounds": 2},
    "distributed-dp": {"client_clip": 50.0, "non_colluding": 2},
    "precad, unchecked": {"algorithm": "precad", "validation": "none"},
    "precad, unchecked shares": {
        "algorithm": "precad",
        "validation": "none",
        "mode": "shares",
        "accept_weak_wire_form": True,
    },
    "precad, bounds of layers": BY_LAYERS,
    "precad, bounds of layers, shares": {**BY_LAYERS, "mode": "shares"},
    "user-dp-fedavg, bounds of layers": {
        "algorithm": "user-dp-fedavg",
        **LAYERS,
        "layer_clips": [0.1, 0.19],
        **LOCAL,
    },
    "tsgd-ptr, bounds of layers": {
        "algorithm": "tsgd-ptr",
        **LAYERS,
        "layer_clips": [0.1, 0.19],
        "noise_multiplier": 4.0,
        **{name: value for name, value in LOCAL.items() if name != "local_momentum"},
    },
    "tsgd-gaussian": {"trim_count": 2, **LOCAL},
    "tsgd-gaussian, correlated": {
        "algorithm": "tsgd-gaussian",
        "trim_count": 1,
        "min_separation": 2,
        "noise_bands": 2,
        **LOCAL,
    },
    "non-private": {"noise_multiplier": 0.0},
    "fedavg": {"noise_multiplier": 0.0, "local_batch": 16, **LOCAL},
    "krum": {"noise_multiplier": 0.0, **LOCAL},
    "multi-krum": {"noise_multiplier": 0.0, "krum_attackers": 0, "krum_keep": 2, **LOCAL},
}


OF_EVERYBODY = [name for name in ALGORITHMS if "correlated" not in name]
"""Those in whose rounds everybody is, at rate 1: clients take no turns."""
PROVED: dict[str, object] = {"mode": "proved", "gate": None, "frac_bits": 16}


def training_task(algorithm: str = "precad", /, **changes: object) -> Task:
    """Return a task on the digits' MLP, whose bound honest updates of the first round exceed, too.

    The exception is distributed-dp, where C leaves room for noise.
    """
    values = {
        "algorithm": algorithm,
        "rounds": N_ROUNDS,
        "dim": dimension_of("mlp"),
        "model": "mlp",
        "client_clip": 4.0,
        "noise_multiplier": 0.5,
        "learning_rate": 2.0,
        "gate": "native",
        **ALGORITHMS[algorithm],
    }
    chosen = {**values, **changes}
    return small_task(dict.fromkeys(CLIENTS, N_RECORDS), **{name: v for name, v in chosen.items() if v is not None})


def proved_task(algorithm: str) -> Task:
    """Return the same task in mode `proved`, with the word that two algorithms need there."""
    rules = RULES[training_task(algorithm).algorithm]
    needs_word = rules.clients_share_noise or not rules.is_private
    return training_task(algorithm, **PROVED, **({"servers_follow_protocol": True} if needs_word else {}))


def noise_of_both(task: Task) -> NDArray[np.int64]:
    """(2, rounds, d): what the simulation draws for both servers. Zeros that nobody asks for where they add none."""
    if task.noise_std_on_grid == 0:
        return np.zeros((2, task.rounds, task.dim), dtype=np.int64)
    sources, std = ("server-0", "server-1"), task.noise_std_on_grid * (1 if task.noise_bands == 1 else 2**16)
    draws = [[DRAWS.noise(t, s, std, task.dim) for t in range(task.rounds)] for s in sources]
    return np.array(draws)


class Replayed(SeededRandomness):
    """The seed's draws, with the clients that a deployment's coins chose, and the keys of its clients' bins."""

    def __init__(self, chosen: Mapping[int, Sequence[str]], keys: Mapping[str, BinKey] | None = None) -> None:
        super().__init__(SEED)
        self._chosen, self._keys = chosen, keys or {}

    def chosen(self, t: int, clients: Sequence[str], client_rate: float) -> list[str]:
        """As they were."""
        return sorted(self._chosen[t])

    def bins(self, client: str) -> BinKey:
        """As they were."""
        return self._keys[client]


def simulation_of(
    task: Task,
    chosen: Mapping[int, Sequence[str]],
    servers: str,
    attacks: Mapping[str, Attack] | None = None,
    keys: Mapping[str, BinKey] | None = None,
) -> Simulation:
    """One that has not begun, with these clients in its rounds."""
    return Simulation(
        task=task,
        settings=SimulationSettings(algorithm="deployed", batching="client", servers=servers),
        records=records(),
        test=digits().test,
        randomness=Replayed(chosen, keys),
        attacks=attacks or {client: ATTACKS[name]() for client, name in ATTACKERS.items()},
        device="cpu",
        initial=np.zeros(task.dim, dtype=np.float32),
    )


def simulated(
    task: Task,
    chosen: Mapping[int, Sequence[str]],
    servers: str,
    attacks: Mapping[str, Attack] | None = None,
    keys: Mapping[str, BinKey] | None = None,
) -> tuple[bytes, list[list[str]]]:
    """The final model, and whom each round rejected."""
    simulation = simulation_of(task, chosen, servers, attacks, keys)
    rejected = [sorted(metrics.rejected) for metrics in simulation.run()]
    return simulation.progress.parameters.tobytes(), rejected


def simulated_epsilons(task: Task, chosen: Mapping[int, Sequence[str]]) -> list[float]:
    """Return what the simulation says of both views; infinity where it says that there is nothing."""
    participation = Counter(client for clients in chosen.values() for client in clients)
    guarantees = simulation_of(task, chosen, "cleartext").algorithm.guarantees(task.rounds, participation)
    return [math.inf if found.epsilon is None else found.epsilon for found in guarantees]


class Client:
    """A client process's trainer, with the seed's draws in place of the operating system's."""

    def __init__(
        self,
        client: str,
        task: Task,
        conduct: Conduct | None = None,
        draws: RecordDraws | None = None,
        held: Records | None = None,
    ) -> None:
        self.round, self._draws = -1, draws
        self._client, self._stream = client, DRAWS.records(-1, client)
        attack = ATTACKS[ATTACKERS[client]]() if client in ATTACKERS else Honest()
        if conduct is not None:
            attack = _Rewinding(conduct, self)
        self._trainer = Trainer(
            task=task,
            records={client: records()[client] if held is None else held},
            conducts={client: attack},
            device="cpu",
            draws=draws,
            random_bytes=self._draw,
            noise=lambda step, std, dim: DRAWS.noise(self.round, f"{client}/{step}", std, dim),
        )

    def _draw(self, n: int) -> bytes:
        return self._stream(n)

    def enter(self, task_id: str, number: int) -> None:
        """Hear which round is next, as both servers number it."""
        if self._draws is not None:
            self._draws.enter(self._client, task_id, number)

    def rewind(self) -> None:
        """Begin the round's draws again, as a simulation does when an attacker trains."""
        self._stream = DRAWS.records(self.round, self._client)

    def train_round(self, t: int, parameters: NDArray[np.float32]) -> RingArray:
        """Round t."""
        self.round, self._stream = t, DRAWS.records(t, self._client)
        return self._trainer.train(self._client, parameters)

    def train_next(self, parameters: NDArray[np.float32]) -> RingArray:
        """The round after the last one, for a client that is in all of them."""
        return self.train_round(self.round + 1, parameters)


class _Rewinding(Conduct):
    """A client's conduct, for which its process draws again what it drew for the honest update."""

    def __init__(self, conduct: Conduct, client: Client) -> None:
        self._conduct, self._client = conduct, client

    @property
    def follows_protocol(self) -> bool:
        return self._conduct.follows_protocol

    def on_records(self, records: Records) -> Records:
        return self._conduct.on_records(records)

    def on_trained(self, trained: Trained) -> NDArray[np.float64]:
        self._client.rewind()
        return self._conduct.on_trained(trained)

    def encode(self, update: NDArray[np.float64], task: Task) -> RingArray:
        return self._conduct.encode(update, task)


async def take_part(client: str, servers: tuple[ServerInProcess, ServerInProcess]) -> None:
    """An enrolled client, wired to both servers' objects directly."""
    task = servers[0].task
    trainer = Client(client, task)
    queues = [server.sessions.enter(client) for server in servers]
    while True:
        from_a, from_b = [(await queue.get()).invitation for queue in queues]
        invitation = agree(from_a, from_b, task)
        encoded = trainer.train_round(invitation.round, servers[0].state.model.parameters)
        submission = make_submission(encoded, invitation, task=task, client=client)
        for party in submission.servers:
            await upload_to(servers[party].intake, submission)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@asynchronous
async def test_a_simulation_gives_the_bytes_of_two_round_runners(algorithm: str, tmp_path: Path) -> None:
    """In process, with clients that the servers' joint coin draws; the simulation in the clear and with its own MPC.
    The ledger's epsilons are those that the simulation reports."""
    fewer = {"krum_attackers": 0} if algorithm == "krum" else {}  # a round expects 3.5 clients
    task = training_task(algorithm, client_rate=0.7, **fewer)
    noise, dealer, links, lanes = noise_of_both(task), DealerInMemory(), link_pair(), memory_pair()
    servers = tuple(
        ServerInProcess(
            task, links[party], lanes[party], dealer.source(party), noise[party], tmp_path / AGGREGATORS[party]
        )
        for party in (0, 1)
    )
    background = [asyncio.create_task(link.run()) for link in links]
    background += [asyncio.create_task(take_part(client, servers)) for client in CLIENTS]
    for t in range(task.rounds):
        last, _ = await asyncio.gather(*(server.runner.run_round(t) for server in servers))
    for waiting in background:
        waiting.cancel()
    await asyncio.gather(*background, return_exceptions=True)

    chosen = {state.round: state.chosen for state in servers[0].of_kind(Collecting)}
    committed = servers[0].of_kind(Committed)
    expected = committed[-1].parameters.tobytes(), [sorted(state.record.rejected) for state in committed]
    assert simulated(task, chosen, "cleartext") == expected
    assert simulated(task, chosen, "mpc") == expected
    models_found = [bytes(4 * task.dim), *(state.parameters.tobytes() for state in committed)]
    has_moved = [before != after for before, after in itertools.pairwise(models_found)]
    accepted = [state.record.accepted for state in committed]
    has_sum = [task.noise_std_on_grid > 0 or (clients != () and task.may_release(len(clients))) for clients in accepted]
    goes_on = task.server_optimizer != "sgd"  # moments move the model after a round of nobody, too
    assert has_moved == [now or (goes_on and any(has_sum[:t])) for t, now in enumerate(has_sum)]
    assert [last.epsilon_one_server, last.epsilon_clients_only] == simulated_epsilons(task, chosen)


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


@pytest.mark.parametrize(
    "algorithm",
    [name if name == "precad" else pytest.param(name, marks=pytest.mark.slow) for name in OF_EVERYBODY],
)
def test_a_simulation_gives_the_bytes_of_server_processes(algorithm: str, pki: Pki, tmp_path: Path) -> None:
    """A dealer's and two aggregators' processes; the clients' sessions run the real client code over mutual TLS."""
    task = training_task(algorithm)
    found, rejected = trained_by_processes(task, pki, tmp_path, {client: Client(client, task) for client in CLIENTS})
    expected = simulated(task, dict.fromkeys(range(task.rounds), CLIENTS), "cleartext")
    assert expected[1] == [sorted(ATTACKERS) if task.checks_norms else []] * task.rounds
    assert (found, rejected) == expected


@pytest.mark.parametrize(
    "algorithm",
    [
        "precad",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("user-dp-fedavg", "user-dp-fedavg, private-quantile", "precad, unchecked", "fedavg", "krum")
        ),
    ],
)
def test_attacks_with_parameters_give_the_simulated_bytes(algorithm: str, pki: Pki, tmp_path: Path) -> None:
    """A backdoor, and a colluder who reads its update from their folder. Nobody is rejected, and the model is another
    than without the attacks."""
    task = training_task(algorithm)
    attacking = {"attacks": CRAFTING, "colluders": str(tmp_path / "colluders")}
    config = ClientConfig.model_validate({"certificates": ".", "authority": "ca.pem", **attacking})
    conducts = conducts_of(CLIENTS, config, task)
    clients = {client: Client(client, task, conducts[client]) for client in CLIENTS}
    found = trained_by_processes(task, pki, tmp_path, clients, conducts)
    everybody = dict.fromkeys(range(task.rounds), CLIENTS)
    assert found == simulated(task, everybody, "cleartext", attacks_of(config))
    assert found[1] == [[]] * task.rounds
    assert found[0] != simulated(task, everybody, "cleartext", {"mallory": NoAttack()})[0]
    rounds = list((tmp_path / "colluders").iterdir())
    assert [len(list(one.glob("*.update"))) for one in rounds] == [len(CRAFTING)] * min(2, task.rounds)


BINNED = {"record_rate": 0.5, "record_bins": 2}
"""An epoch has two rounds, of three: two epochs begin."""


def keys_in(folder: Path) -> dict[str, BinKey]:
    """Read from what clients keep: they drew their keys from the operating system."""
    kept = {client: (folder / f"{client}.bins").read_text().split() for client in CLIENTS}
    return {client: BinKey(bytes.fromhex(words[1]), words[3]) for client, words in kept.items()}


def test_bins_give_the_simulated_bytes_from_the_keys_of_clients(pki: Pki, tmp_path: Path) -> None:
    """A simulation is given the keys afterwards. The ledger counts two epochs, as the simulation does."""
    task = training_task("precad", **BINNED)
    draws = draws_of(task, tmp_path / "bins", CLIENTS, {})
    clients = {client: Client(client, task, draws=draws) for client in CLIENTS}
    found = trained_by_processes(task, pki, tmp_path, clients)
    keys, everybody = keys_in(tmp_path / "bins"), dict.fromkeys(range(task.rounds), CLIENTS)
    for servers_of in ("cleartext", "mpc"):
        assert simulated(task, everybody, servers_of, keys=keys) == found
    others = {client: BinKey(bytes(32), key.task_id) for client, key in keys.items()}
    assert simulated(task, everybody, "cleartext", keys=others)[0] != found[0]
    last = read_rounds(tmp_path / AGGREGATORS[0])[-1]
    stated = [last["epsilon_one_server"], last["epsilon_clients_only"]]
    events = [event for event in task_privacy(task).events.values() if event is not None]
    expected = [BallsInBins(bins=2, noise_multiplier=event.noise_multiplier).epsilon(4, task.delta) for event in events]
    assert stated == expected == simulated_epsilons(task, everybody)


@pytest.mark.slow
@asynchronous
async def test_bins_give_the_simulated_bytes_in_mode_proved(pki: Pki, tmp_path: Path) -> None:
    task = training_task("precad", **BINNED, **PROVED)
    draws = draws_of(task, tmp_path / "bins", CLIENTS, {})
    clients = {client: Client(client, task, draws=draws) for client in CLIENTS}
    found = await trained_over_sockets(task, pki, tmp_path, clients)
    everybody = dict.fromkeys(range(task.rounds), CLIENTS)
    expected = simulated(task, everybody, "cleartext", keys=keys_in(tmp_path / "bins"))
    assert found == [expected] * 2


def trained_by_processes(
    task: Task, pki: Pki, tmp_path: Path, clients: Mapping[str, Client], conducts: Mapping[str, Conduct] | None = None
) -> tuple[bytes, list[list[str]]]:
    """Return the final model and whom each round rejected, on which both servers agree."""
    addresses = dict(zip((*AGGREGATORS, Role.DEALER), free_addresses(3), strict=True))
    deployment = {"task": task.model_dump(), "pki": str(pki.directory), "addresses": addresses, "seed": SEED}
    (tmp_path / "deployment.json").write_text(json.dumps(deployment))
    np.save(tmp_path / "initial.npy", np.zeros(task.dim, dtype=np.float32))
    np.save(tmp_path / "noise.npy", noise_of_both(task))

    @asynchronous
    async def everybody_takes_part() -> None:
        sessions = [
            ClientSession(
                client=client,
                task=task,
                addresses=(addresses[Role.AGGREGATOR_A], addresses[Role.AGGREGATOR_B]),
                tls=pki.tls(client),
                train=clients[client].train_next,
                enter=clients[client].enter,
                conduct=conducts[client] if conducts else Honest(),
            )
            for client in clients
        ]
        await asyncio.gather(*(session.run() for session in sessions))

    with servers(tmp_path, server_main.main) as processes:
        everybody_takes_part()
        codes = exit_codes(processes)
    assert codes == dict.fromkeys(processes, 0), {r: (tmp_path / f"{r}.log").read_text() for r in codes if codes[r]}
    found = [
        (
            np.load(tmp_path / role / "model.npy").tobytes(),
            [sorted(record["rejected"]) for record in read_rounds(tmp_path / role)],
        )
        for role in AGGREGATORS
    ]
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(
    "algorithm",
    [
        name if name in ("precad", "distributed-dp") else pytest.param(name, marks=pytest.mark.slow)
        for name in OF_EVERYBODY
        if not ALGORITHMS[name].keys() & {"validation", "layer_clips"}
        and not name.startswith(("krum", "multi", "tsgd"))
    ],
)
@asynchronous
async def test_mode_proved_gives_the_bytes_of_the_other_modes(algorithm: str, pki: Pki, tmp_path: Path) -> None:
    """Take equal seeds and noise, over real sockets: the final model is that of its own simulations and the masked."""
    task = proved_task(algorithm)
    found = await trained_over_sockets(task, pki, tmp_path, {client: Client(client, task) for client in CLIENTS})
    everybody = dict.fromkeys(range(task.rounds), CLIENTS)
    expected = simulated(task, everybody, "cleartext")
    assert expected[1] == [sorted(ATTACKERS)] * task.rounds
    assert simulated(task, everybody, "mpc") == expected
    assert simulated(training_task(algorithm), everybody, "cleartext") == expected
    assert found == [expected] * 2


async def trained_over_sockets(
    task: Task, pki: Pki, folder: Path, clients: Mapping[str, Client]
) -> list[tuple[bytes, list[list[str]]]]:
    """Return the final model and whom each round rejected, as each server has them: servers of this process."""
    noise = noise_of_both(task)
    drawn = tuple(functools.partial(_next, iter(noise[party])) for party in (0, 1))
    async with running(task, pki, folder, noises=(drawn[0], drawn[1])) as deployment:
        sessions = [
            ClientSession(
                client=client,
                task=task,
                addresses=deployment.addresses,
                tls=pki.tls(client),
                train=own.train_next,
                enter=own.enter,
                conduct=ATTACKS[ATTACKERS[client]]() if client in ATTACKERS else Honest(),
            )
            for client, own in clients.items()
        ]
        await asyncio.gather(*(session.run() for session in sessions))
        await deployment.finish()
    return [
        (np.load(folder / role / "model.npy").tobytes(), [record["rejected"] for record in deployment.rounds(party)])
        for party, role in enumerate(AGGREGATORS)
    ]


def _next(drawn: Iterator[NDArray[np.int64]], std: float, dim: int) -> NDArray[np.int64]:
    return next(drawn)


def test_one_pass_over_all_clients_is_one_after_the_other_but_for_rounding() -> None:
    """Bound what one process per client and a simulation in one batch differ by: float32, then truncation."""
    task = training_task(rounds=1)
    models_found = []
    for batching in ("round", "client"):
        simulation = Simulation(
            task=task,
            settings=SimulationSettings(batching=batching),
            records=records(),
            test=digits().test,
            randomness=DRAWS,
            device="cpu",
        )
        list(simulation.run())
        models_found.append(simulation.progress.parameters)
    step = len(CLIENTS) * 2.0**-task.frac_bits * task.learning_rate / task.divisor
    assert_array_equal(np.abs(models_found[0] - models_found[1]) <= step + 1e-7, True)
