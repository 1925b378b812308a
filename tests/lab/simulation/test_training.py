"""Simulated trainings: each algorithm against a twin written from its definition, its guarantee, and repeatability.

The twins use plain PyTorch: a loop over records for clipped gradients, `torch.optim.SGD` for local training.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from torch.func import functional_call

from precad.clients.attacks import Attack, Knowledge, PixelBackdoor
from precad.clients.errors import ArgumentError, ExtensionError, UnknownNameError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.models import networks
from precad.clients.records import Records, digits
from precad.clients.training.local_update import sample_records
from precad.dp.accountants.pld import PldAccountant, SampledGaussian, View, round_event
from precad.lab.simulation import AttackSettings, SeededRandomness, Simulation, SimulationSettings
from precad.lab.simulation.algorithms import ALGORITHMS
from precad.lab.simulation.guarantee import Guarantee
from precad.lab.simulation.rules import RULES, AggregationRule, CoordinateMedian
from precad.lab.simulation.two_servers import CleartextServers, MpcServers, ProvedServers
from precad.mpc import fixed_point
from precad.mpc.joint_coin import select_poisson
from precad.mpc.prg import Label, Seed
from precad.mpc.proved.field import P
from precad.mpc.ring import RingArray
from precad.protos.task.proved_fields import OF_A_DEALER
from precad.protos.task.task import Task
from tests.harness.models import dimension_of

DIM = dimension_of("mlp")
IDS = [f"client-{i}" for i in range(6)]
SPLIT = digits()
RECORDS = {client: SPLIT.train.take(np.arange(i * 30, (i + 1) * 30)) for i, client in enumerate(IDS)}
MODEL = networks.build("mlp")
STEP = 2.0**-16


@pytest.fixture(scope="module")
def engine() -> RecordEngine:
    return RecordEngine(MODEL, torch.zeros(1, 8, 8), device="cpu")


def task(**changes: Any) -> Task:
    """Small, and quick; the bound C is above what an honest update has unless a test says less."""
    values = {
        "clients": dict.fromkeys(IDS, 30),
        "rounds": 2,
        "client_rate": 0.8,
        "record_rate": 0.5,
        "record_clip": 1.0,
        "client_clip": 50.0,
        "noise_multiplier": 1.0,
        "learning_rate": 1.0,
        "model": "mlp",
        "dim": DIM,
        "gate": "native",
    }
    return Task(**{**values, **changes})


def proved_task(**changes: Any) -> Task:
    """Return the same in mode `proved`."""
    values = {"mode": "proved", "frac_bits": 16, **changes}
    return Task(**{name: value for name, value in task().model_dump().items() if name not in OF_A_DEALER} | values)


class Silent(SeededRandomness):
    """Without any noise: what is left is the algorithm."""

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """Zero."""
        return np.zeros(dim, dtype=np.int64)


class Recording(SeededRandomness):
    """Tells who drew how much noise."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.drawn: list[tuple[int, str, float]] = []

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """The seed's."""
        self.drawn.append((t, source, std_on_grid))
        return super().noise(t, source, std_on_grid, dim)


def simulation(
    engine: RecordEngine, task: Task, *, randomness: SeededRandomness | None = None, **changes: Any
) -> Simulation:
    """With the module's records."""
    return Simulation(
        task=task,
        settings=SimulationSettings(**changes),
        records=RECORDS,
        test=SPLIT.test,
        randomness=randomness or SeededRandomness(5),
        engine=engine,
    )


# -- twins -------------------------------------------------------------------------------------------------------------


def sample_of(client: str, t: int, rate: float = 0.5) -> Records:
    """Whom the seed draws in round t."""
    return RECORDS[client].take(sample_records(30, rate, SeededRandomness(5).records(t, client)))


def gradient(parameters: NDArray[np.floating], records: Records) -> NDArray[np.float64]:
    """Return the gradient of the summed loss, in float32 as the engine has it."""
    weights = networks.unflatten(torch.tensor(parameters, dtype=torch.float32), MODEL)
    weights = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    logits = functional_call(MODEL, weights, (torch.tensor(records.features),))
    loss = torch.nn.functional.cross_entropy(logits, torch.tensor(records.labels), reduction="sum")
    parts = torch.autograd.grad(loss, list(weights.values()))
    return torch.cat([part.reshape(-1) for part in parts]).double().numpy()


def clipped_sum(parameters: NDArray[np.floating], records: Records, bound: float) -> NDArray[np.float64]:
    """Record by record."""
    total = np.zeros(DIM)
    for i in range(len(records)):
        g = gradient(parameters, records.take(np.array([i])))
        total += g * min(1.0, bound / np.linalg.norm(g))
    return total


def chosen_in(t: int, rate: float = 0.8) -> list[str]:
    """Whom the seed draws."""
    return SeededRandomness(5).chosen(t, IDS, rate)


def two_rounds(one: Any) -> NDArray[np.float64]:
    """The model after two rounds of theta <- theta + one(theta, t), in float32 between rounds."""
    parameters = networks.initial_parameters("mlp", seed=0)
    for t in (0, 1):
        parameters = (parameters.astype(np.float64) + one(parameters, t)).astype(np.float32)
    return parameters


def final(running: Simulation) -> NDArray[np.float32]:
    """After all rounds."""
    list(running.run())
    return running.progress.parameters


def test_precad_without_noise_is_clipped_federated_sgd(engine: RecordEngine) -> None:
    """Each coordinate of an upload is truncated by less than a step of the grid."""
    made, divisor = task(), 0.8 * 0.5 * 180
    expected = two_rounds(
        lambda theta, t: -sum(clipped_sum(theta, sample_of(c, t), 1.0) for c in chosen_in(t)) / divisor
    )
    for changes in ({}, {"validation": False}, {"validation": False, "client_clipping": False}):
        got = final(simulation(engine, made, randomness=Silent(5), **changes))
        assert np.abs(got - expected).max() < 2 * 6 * STEP / divisor + 2e-6


def test_client_clipping_projects_and_turning_it_off_does_not(engine: RecordEngine) -> None:
    """With C = 1, far below every honest update, both forms differ, and nobody honest is rejected."""
    short = task(client_clip=1.0, rounds=1)
    clipped = simulation(engine, short, randomness=Silent(5))
    free = simulation(engine, short, randomness=Silent(5), validation=False, client_clipping=False)
    (metrics,) = list(clipped.run())
    list(free.run())
    start = networks.initial_parameters("mlp", seed=0)
    reach = len(chosen_in(0)) * 1.0 / short.divisor
    assert metrics.rejected == ()
    assert (
        np.linalg.norm(clipped.progress.parameters - start) <= reach < np.linalg.norm(free.progress.parameters - start)
    )


def test_non_private_is_federated_sgd(engine: RecordEngine) -> None:
    divisor = 0.8 * 0.5 * 180
    expected = two_rounds(lambda theta, t: -sum(gradient(theta, sample_of(c, t)) for c in chosen_in(t)) / divisor)
    assert_allclose(final(simulation(engine, task(), algorithm="non-private")), expected, atol=2e-6)


def test_a_rule_estimates_the_mean_that_stands_for_the_sum(engine: RecordEngine) -> None:
    """The coordinate-wise median of the clients' gradients, times q n / W."""
    factor = 0.8 * 6 / (0.8 * 0.5 * 180)
    expected = two_rounds(
        lambda theta, t: factor * np.median([-gradient(theta, sample_of(c, t)) for c in chosen_in(t)], axis=0)
    )
    got = final(simulation(engine, task(), algorithm="non-private", aggregation="median"))
    assert_allclose(got, expected, atol=2e-6)


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    [("local-dp", {}), ("distributed-dp", {"non_colluding": 2}), ("central-record-dp", {})],
)
def test_without_noise_local_distributed_and_central_dp_are_precad(
    engine: RecordEngine, algorithm: str, settings: dict[str, Any]
) -> None:
    precad = final(simulation(engine, task(), randomness=Silent(5), validation=False, client_clipping=False))
    other = final(
        simulation(engine, task(), randomness=Silent(5), algorithm=algorithm, client_clipping=False, **settings)
    )
    assert_allclose(other, precad, atol=1e-7)


def local_sgd(parameters: NDArray[np.float32], client: str, t: int, steps: int, rate: float) -> NDArray[np.float64]:
    """torch.optim.SGD on the batches that the seed draws, their losses summed over p N_i records."""
    model = networks.build("mlp")
    model.load_state_dict(networks.unflatten(torch.tensor(parameters), model))
    optimiser, draw = torch.optim.SGD(model.parameters(), lr=rate), SeededRandomness(5).records(t, client)
    for _ in range(steps):
        batch = RECORDS[client].take(sample_records(30, 0.5, draw))
        optimiser.zero_grad()
        logits = model(torch.tensor(batch.features))
        (torch.nn.functional.cross_entropy(logits, torch.tensor(batch.labels), reduction="sum") / 15).backward()
        optimiser.step()
    return networks.flatten(model).astype(np.float64) - parameters


@pytest.mark.parametrize("clip", [50.0, 0.5])
def test_user_dp_fedavg_averages_clipped_local_trainings(engine: RecordEngine, clip: float) -> None:
    """Divided by q n, however many came."""

    def round_of(theta: NDArray[np.float32], t: int) -> NDArray[np.float64]:
        deltas = [local_sgd(theta, c, t, 4, 0.3) for c in chosen_in(t)]
        return sum(delta * min(1.0, clip / np.linalg.norm(delta)) for delta in deltas) / (0.8 * 6)

    got = final(
        simulation(
            engine,
            task(client_clip=clip),
            randomness=Silent(5),
            algorithm="user-dp-fedavg",
            local_steps=4,
            local_rate=0.3,
        )
    )
    assert np.abs(got - two_rounds(round_of)).max() < 4 * STEP + 1e-5


@pytest.mark.parametrize("bound", [None, 0.5])
def test_fedavg_averages_local_trainings_and_norm_bounding_clipped_ones(
    engine: RecordEngine, bound: float | None
) -> None:
    """Divided by q n; the rule's mean is over those who came."""

    def round_of(theta: NDArray[np.float32], t: int) -> NDArray[np.float64]:
        deltas = [local_sgd(theta, c, t, 4, 0.3) for c in chosen_in(t)]
        if bound is None:
            return sum(deltas) / (0.8 * 6)
        return np.mean([delta * min(1.0, bound / np.linalg.norm(delta)) for delta in deltas], axis=0)

    rule = {} if bound is None else {"aggregation": "norm-bounding", "aggregation_parameters": {"bound": bound}}
    got = final(simulation(engine, task(), algorithm="fedavg", local_steps=4, local_rate=0.3, **rule))
    assert_allclose(got, two_rounds(round_of), atol=1e-5)


def test_user_dp_fedavg_trains_in_batches_as_pytorch_does(engine: RecordEngine) -> None:
    """Two passes of batches of 12, 12 and 6 of 30 records, and one step of a third; momentum and weight decay."""

    def trained(theta: NDArray[np.float32], client: str, t: int) -> NDArray[np.float64]:
        model, draw = networks.build("mlp"), SeededRandomness(5).records(t, client)
        model.load_state_dict(networks.unflatten(torch.tensor(theta), model))
        optimiser = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=0.01)
        orders = [np.argsort(np.frombuffer(draw(30 * 8), dtype="<u8")) for _ in range(3)]
        assert not np.array_equal(orders[0], orders[1])
        for part in [part for order in orders for part in np.split(order, [12, 24])][:7]:
            batch = RECORDS[client].take(part)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(
                model(torch.tensor(batch.features)), torch.tensor(batch.labels)
            ).backward()
            optimiser.step()
        return networks.flatten(model).astype(np.float64) - theta

    expected = two_rounds(lambda theta, t: sum(trained(theta, c, t) for c in chosen_in(t)) / (0.8 * 6))
    changes = {"local_steps": 7, "local_rate": 0.2, "local_batch": 12}
    solver = {"local_momentum": 0.9, "local_weight_decay": 0.01}
    twin = simulation(engine, task(), randomness=Silent(5), algorithm="user-dp-fedavg", **changes, **solver)
    assert np.abs(final(twin) - expected).max() < 6 * STEP + 1e-5


@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.9, 0.01)])
def test_ins_dp_fedavg_averages_local_dp_sgd(engine: RecordEngine, momentum: float, decay: float) -> None:
    """The solver is PyTorch's, in float64, on clipped sums record by record."""

    def trained(theta: NDArray[np.float32], client: str, t: int) -> NDArray[np.float64]:
        at, draw = torch.tensor(theta, dtype=torch.float64, requires_grad=True), SeededRandomness(5).records(t, client)
        solver = torch.optim.SGD([at], lr=0.3, momentum=momentum, weight_decay=decay)
        for _ in range(3):
            batch = RECORDS[client].take(sample_records(30, 0.5, draw))
            at.grad = torch.tensor(clipped_sum(at.detach().numpy(), batch, 1.0) / 15)
            solver.step()
        return at.detach().numpy() - theta

    expected = two_rounds(lambda theta, t: sum(trained(theta, c, t) for c in chosen_in(t)) / (0.8 * 6))
    changes = {"local_steps": 3, "local_rate": 0.3, "local_momentum": momentum, "local_weight_decay": decay}
    got = final(simulation(engine, task(), randomness=Silent(5), algorithm="ins-dp-fedavg", **changes))
    assert np.abs(got - expected).max() < 3 * 6 * STEP + 1e-5


@pytest.mark.parametrize(
    ("algorithm", "changes", "sources", "std"),
    [
        ("precad", {}, {"server-0", "server-1"}, 2.0),
        ("local-dp", {}, set(chosen_in(0)), 2.0),
        ("distributed-dp", {"non_colluding": 4}, set(chosen_in(0)), 1.0),
        ("central-record-dp", {}, {"server"}, 2.0),
        ("user-dp-fedavg", {}, {"server"}, 50.0),
        ("ins-dp-fedavg", {"local_steps": 2}, {f"{c}/{v}" for c in chosen_in(0) for v in (0, 1)}, 2.0),
        ("non-private", {}, set(), 0.0),
        ("fedavg", {}, set(), 0.0),
    ],
)
def test_who_adds_how_much_noise(
    engine: RecordEngine, algorithm: str, changes: dict[str, Any], sources: set[str], std: float
) -> None:
    """sigma R each, sigma R / sqrt(tau) each, z S once; in steps of the grid. R = 2, sigma = 1, C = S = 50."""
    draws = Recording(5)
    made = task(rounds=1, record_clip=2.0)
    list(simulation(engine, made, randomness=draws, algorithm=algorithm, **changes).run())
    assert {source for _, source, _ in draws.drawn} == sources
    assert {found for _, _, found in draws.drawn} <= {std / STEP}


@pytest.mark.parametrize(("kind", "parameters"), [("poisoned-records", {"records": 1}), ("label-flip", {})])
def test_a_client_whose_records_are_poisoned_adds_its_noise(
    engine: RecordEngine, kind: str, parameters: dict[str, int]
) -> None:
    """It follows the protocol; one that poisons its records itself does not."""
    victim, *others = chosen_in(0)
    draws, attack = Recording(5), AttackSettings(kind=kind, clients=[victim], parameters=parameters)
    list(simulation(engine, task(rounds=1), randomness=draws, algorithm="ins-dp-fedavg", attack=attack).run())
    assert {source for _, source, _ in draws.drawn} == {
        f"{client}/0" for client in (others if kind == "label-flip" else [victim, *others])
    }


# -- guarantees --------------------------------------------------------------------------------------------------------


def epsilon_of(view: View, rounds: int, sigma: float = 1.0) -> float:
    """Straight from the accountant."""
    event = round_event(view, record_sampling_rate=0.5, noise_multiplier=sigma, record_clip=1.0, dim=DIM, frac_bits=16)
    return PldAccountant().epsilon(event, rounds, 1e-5)


def test_what_each_algorithm_guarantees(engine: RecordEngine) -> None:
    """Participation counts per client; the one in most rounds decides at record level, rounds at client level."""
    participation = Counter({"client-0": 3, "client-1": 5})
    rounds = 7
    expected = {
        "precad": [epsilon_of(View.ONE_SERVER, 5), epsilon_of(View.CLIENTS_ONLY, 5)],
        "deployed": [epsilon_of(View.ONE_SERVER, 5), epsilon_of(View.CLIENTS_ONLY, 5)],
        "fedavg": [None],
        "non-private": [None],  # of the record; a rule's own would follow
        "local-dp": [epsilon_of(View.ONE_SERVER, 5)],
        "distributed-dp": [epsilon_of(View.ONE_SERVER, 5)],
        "central-record-dp": [epsilon_of(View.ONE_SERVER, 5)],
        "user-dp-fedavg": [PldAccountant().epsilon(SampledGaussian(0.8, 1.0), 7, 1e-5)],
        "central-dp": [PldAccountant().epsilon(SampledGaussian(0.8, 1.0), 7, 1e-5)],
        "ins-dp-fedavg": [epsilon_of(View.ONE_SERVER, 5 * 2)],
    }
    assert set(expected) == set(ALGORITHMS)
    for name, epsilons in expected.items():
        made = task(epsilon_budget_clients_only=100.0) if name == "central-dp" else task()
        steps = {} if name == "deployed" else {"local_steps": 2}  # there the task says it
        algorithm = simulation(engine, made, algorithm=name, **steps).algorithm
        found = algorithm.guarantees(rounds, participation)
        assert [guarantee.epsilon for guarantee in found] == epsilons, name
        assert {g.unit for g in found} == (
            {"client"} if name in ("user-dp-fedavg", "central-dp", "fedavg") else {"record"}
        )


@pytest.mark.parametrize("algorithm", ["distributed-dp", "central-record-dp", "precad"])
def test_what_has_no_encoding_is_not_accepted(engine: RecordEngine, algorithm: str) -> None:
    """An update beyond the ring is in no sum, and counted in none."""
    attack = AttackSettings(kind="scaled", clients=1, parameters={"gamma": 1e18})
    done = simulation(engine, task(client_rate=1.0), algorithm=algorithm, attack=attack).run_round()
    assert (done.n_chosen, done.n_accepted) == (6, 5)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("budget", ["one_server", "clients_only", "client"])
def test_a_budget_that_nothing_keeps_is_refused(engine: RecordEngine, name: str, budget: str) -> None:
    """Read over, it would be passed without a word."""
    kept = {"precad": ("one_server", "clients_only", "client"), "central-dp": ("clients_only",)}
    kept["deployed"] = kept["precad"]
    budgets = {f"epsilon_budget_{budget}": 1.0} | ({"epsilon_budget_clients_only": 1.0} if name == "central-dp" else {})
    made = task(**budgets)
    if budget in kept.get(name, ()):
        assert simulation(engine, made, algorithm=name).algorithm.name == name
        return
    with pytest.raises(ArgumentError, match=rf"task\.epsilon_budget_{budget}: expected none with {name}"):
        simulation(engine, made, algorithm=name)


def test_a_guarantee_reads_as_what_it_is() -> None:
    some = Guarantee(unit="record", against="the server", epsilon=1.2301, delta=1e-5)
    none = Guarantee(unit="client", against="anybody", epsilon=None, delta=1e-5, note="nothing is noised")
    assert str(some) == "epsilon <= 1.24 at delta = 1e-05 for one record (proved bound, add/remove) against the server"
    assert str(none) == "no guarantee for one client against anybody; nothing is noised"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("epsilon", value) for value in (-1.0, float("nan"), np.float64("nan"), True, "1")),
        ("epsilon_if_discarded", -0.5),
        *(("delta", value) for value in (1.0, -1e-5, float("nan"), None)),
        ("unit", "user"),
        ("group_size", 0),
    ],
)
def test_what_no_guarantee_says_is_never_shown_as_proved(field: str, value: Any) -> None:
    """An algorithm or a rule of one's own made it."""
    fields = {"unit": "record", "against": "the server", "epsilon": 1.0, "delta": 1e-5, field: value}
    with pytest.raises(ArgumentError, match=f"^guarantees: {field}: expected .*, found "):
        Guarantee(**fields)
    found = Guarantee(unit="record", against="the server", epsilon=np.float32(1.25), delta=0.0)
    assert type(found.epsilon) is float
    assert "epsilon <= 1.25 at delta = 0.0" in str(found)


def test_a_rule_is_no_privacy_mechanism(engine: RecordEngine) -> None:
    of_noise, of_rule = simulation(engine, task(), algorithm="local-dp", aggregation="krum").guarantees()
    assert of_noise.unit == "record"
    assert "'krum' is no privacy mechanism" in str(of_rule)


class NoisyMean(AggregationRule):
    """A rule that proves something: it releases noise, whoever came. Remembers how many did."""

    name = "noisy-mean"

    def __init__(self) -> None:
        self.seen: list[tuple[int, bytes]] = []

    def aggregate(self, updates: NDArray[np.float64], random_bytes: Any = os.urandom) -> NDArray[np.float64]:
        """Nothing but a byte count."""
        self.seen.append((len(updates), random_bytes(4)))
        return np.zeros(updates.shape[1])

    def epsilon(self, rounds: int, delta: float) -> float:
        """Made up."""
        return 0.5 * rounds


def test_a_private_rule_is_asked_in_empty_rounds_too_and_draws_from_the_seed(engine: RecordEngine) -> None:
    name = f"{__name__}:NoisyMean"
    runs = [
        simulation(engine, task(rounds=12, client_rate=0.1), algorithm="non-private", aggregation=name)
        for _ in range(2)
    ]
    for running in runs:
        list(running.run())
    rules = [running.federation.rule for running in runs]
    assert rules[0].seen == rules[1].seen
    assert [m for m, _ in rules[0].seen] == [len(chosen_in(t, 0.1)) for t in range(12)]
    assert 0 in [m for m, _ in rules[0].seen]
    assert runs[0].guarantees()[1].epsilon == 6.0
    assert "the server is trusted" in str(runs[0].guarantees()[1])


@pytest.mark.parametrize("algorithm", ["central-dp", "precad"])
def test_a_budget_ends_the_training_before_it_would_be_passed(engine: RecordEngine, algorithm: str) -> None:
    """Three rounds' worth, everybody in every round."""
    made = task(rounds=10, client_rate=1.0, noise_multiplier=4.0)
    free = simulation(engine, made.model_copy(update={"epsilon_budget_clients_only": 1e9}), algorithm=algorithm)
    by_rounds = [free.algorithm.guarantees(t, dict.fromkeys(IDS, t))[-1].epsilon for t in range(5)]
    budget = (by_rounds[3] + by_rounds[4]) / 2
    running = simulation(engine, made.model_copy(update={"epsilon_budget_clients_only": budget}), algorithm=algorithm)
    assert len(list(running.run())) == 3
    assert running.guarantees()[-1].epsilon == by_rounds[3]


class OneServersNoise(SeededRandomness):
    """The first of two servers adds what the trusted one would, the second nothing."""

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """The seed's for the trusted server."""
        return super().noise(t, "server", std_on_grid, dim) * (source != "server-1")


def test_central_dp_is_user_dp_fedavg_with_a_budget(engine: RecordEngine) -> None:
    """Simulated until its budget, and as the task of a deployment: the same bytes, where the noise is one server's."""
    values: dict[str, Any] = {"rounds": 3, "client_clip": 0.05, "noise_multiplier": 0.5}
    steps = {"local_steps": 2, "local_rate": 0.5}
    bound = task(**values, epsilon_budget_clients_only=1e9)
    central = final(simulation(engine, bound, algorithm="central-dp", **steps))
    plain = final(simulation(engine, task(**values), algorithm="user-dp-fedavg", **steps))
    deployed = simulation(
        engine, task(**values, **steps, algorithm="central-dp"), algorithm="deployed", randomness=OneServersNoise(5)
    )
    assert deployed.task.algorithm == "user-dp-fedavg"
    assert central.tobytes() == plain.tobytes() == final(deployed).tobytes()


# -- both ways through the servers -------------------------------------------------------------------------------------


WORDS = st.one_of(st.integers(-50_000, 50_000), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**32, -(2**63)]))


@settings(max_examples=25)
@given(
    vectors=st.lists(st.lists(WORDS, min_size=4, max_size=4), max_size=4), mode=st.sampled_from(["masked", "shares"])
)
def test_the_clear_round_is_the_mpc(vectors: list[list[int]], mode: str) -> None:
    """Same verdicts, same integers, for any words; a vector that wraps passes the MPC with probability 2^-64."""
    small = task(dim=4, client_clip=1.0, mode=mode, accept_weak_wire_form=mode == "shares")
    uploads = {IDS[i]: np.array(vector, dtype=np.int64) for i, vector in enumerate(vectors)}
    clear, secure = CleartextServers(small).check_and_sum(0, uploads), MpcServers(small).check_and_sum(0, uploads)
    assert (clear.accepted, clear.rejected) == (secure.accepted, secure.rejected)
    assert_array_equal(clear.total, secure.total)
    for upload in uploads.values():
        assert fixed_point.exact_squared_norm(upload) == sum(int(word) ** 2 for word in upload)


ELEMENTS = st.one_of(st.integers(-50_000, 50_000), st.integers(-(P // 2), P // 2), st.sampled_from([2**40, P // 2]))


@settings(max_examples=15)
@given(vectors=st.lists(st.lists(ELEMENTS, min_size=4, max_size=4), max_size=4))
def test_the_clear_round_is_that_of_mode_proved(vectors: list[list[int]]) -> None:
    """Same verdicts, same integers, for whatever elements stand for; both servers hold some of the slots."""
    small = proved_task(dim=4, client_clip=1.0)
    uploads = {IDS[i]: np.array(vector, dtype=np.int64) for i, vector in enumerate(vectors)}
    clear, proved = CleartextServers(small).check_and_sum(0, uploads), ProvedServers(small).check_and_sum(0, uploads)
    assert (clear.accepted, clear.rejected) == (proved.accepted, proved.rejected)
    assert_array_equal(clear.total, proved.total)


@pytest.mark.parametrize("attack", ["scaled", "wrap", "nan"])
def test_simulated_mpc_gives_the_same_model(engine: RecordEngine, attack: str) -> None:
    """In the clear or over shares, with a dealer or with proofs."""
    attackers = AttackSettings(kind=attack, clients=1)
    found = [
        [metrics.rejected for metrics in run.run()] + [run.progress.parameters.tobytes()]
        for run in (
            simulation(engine, made, servers=servers, attack=attackers)
            for made in (task(), proved_task())
            for servers in ("cleartext", "mpc")
        )
    ]
    assert found[1:] == found[:1] * 3
    assert ("client-5",) in found[0]


# -- seeds, attacks, errors --------------------------------------------------------------------------------------------


def test_a_seed_repeats_and_another_does_not(engine: RecordEngine) -> None:
    found = [final(simulation(engine, task(), randomness=SeededRandomness(seed))).tobytes() for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]


def test_clients_are_drawn_by_the_servers_function() -> None:
    """Poisson with rate q: 2000 rounds of 6 clients, 0.8 each, within 5 standard deviations."""
    draws = SeededRandomness(3)
    counts = Counter(client for t in range(2000) for client in draws.chosen(t, IDS, 0.8))
    assert all(abs(counts[c] - 1600) < 5 * math.sqrt(2000 * 0.8 * 0.2) for c in IDS)
    seed = Seed(bytes(16))
    assert select_poisson(seed, Label("t", 0), IDS, 0.0) == []


def test_a_scaled_update_is_refused_and_without_validation_it_is_not(engine: RecordEngine) -> None:
    attack = AttackSettings(kind="scaled", clients=["client-2"], parameters={"gamma": 1000.0})
    made = task(client_rate=1.0, rounds=1)
    (checked,) = simulation(engine, made, attack=attack).run()
    (unchecked,) = simulation(engine, made, attack=attack, validation=False).run()
    assert (checked.rejected, checked.n_accepted) == (("client-2",), 5)
    assert (unchecked.rejected, unchecked.n_accepted) == ((), 6)


def test_local_dp_refuses_what_is_longer_than_the_bound(engine: RecordEngine) -> None:
    attack = AttackSettings(kind="scaled", clients=1, parameters={"gamma": 1000.0})
    (metrics,) = simulation(engine, task(client_rate=1.0, rounds=1), algorithm="local-dp", attack=attack).run()
    assert metrics.rejected == ("client-5",)


def test_local_dp_that_checks_nothing_takes_what_attackers_send(engine: RecordEngine) -> None:
    """C = 0.5 bounds the five honest ones, whose sum is then far shorter than what the attacker alone adds."""
    attack = AttackSettings(kind="scaled", clients=1, parameters={"gamma": 1000.0})
    made = task(client_rate=1.0, rounds=1, client_clip=0.5)
    running = simulation(engine, made, randomness=Silent(5), algorithm="local-dp", attack=attack, validation=False)
    (metrics,) = running.run()
    assert (metrics.rejected, metrics.n_accepted) == ((), 6)
    start = networks.initial_parameters("mlp", seed=0)
    sent = -1000.0 * clipped_sum(start, sample_of("client-5", 0), 1.0) / made.divisor
    assert np.linalg.norm(running.progress.parameters - start - sent) < 1.01 * 5 * 0.5 / made.divisor
    assert np.linalg.norm(sent) > 100 * 5 * 0.5 / made.divisor


@pytest.mark.parametrize(
    ("algorithm", "changes"), [("ins-dp-fedavg", {"local_steps": 1}), ("local-dp", {"client_clipping": False})]
)
def test_attackers_who_follow_the_protocol_add_their_noise(
    engine: RecordEngine, algorithm: str, changes: dict[str, Any]
) -> None:
    """Train as honest clients do who have the attackers' poisoned records in place of their own.

    Attackers who replace the model add no noise.
    """
    chosen, malicious = chosen_in(0), IDS[4:]
    assert set(chosen) & set(malicious)
    final_models = []
    for replaces in (False, True):
        draws = Recording(5)
        attack = AttackSettings(kind="pixel-backdoor", clients=2, parameters={"replaces": replaces})
        running = simulation(engine, task(rounds=1), randomness=draws, algorithm=algorithm, attack=attack, **changes)
        final_models.append(final(running))
        noisy = {source.partition("/")[0] for _, source, _ in draws.drawn}
        assert noisy == set(chosen) - (set(malicious) if replaces else set())
    poisoned = {c: PixelBackdoor().on_records(own) if c in malicious else own for c, own in RECORDS.items()}
    twin = Simulation(
        task=task(rounds=1),
        settings=SimulationSettings(algorithm=algorithm, **changes),
        records=poisoned,
        test=SPLIT.test,
        randomness=SeededRandomness(5),
        engine=engine,
    )
    assert_array_equal(final_models[0], final(twin))


class NotANumber(Attack):
    """Uploads NaN."""

    name = "nan"
    is_simulated_only = True

    def craft(self, known: Knowledge) -> NDArray[np.float64]:
        """NaN everywhere."""
        return np.full_like(known.update, np.nan)


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"central-dp"}))
def test_what_is_not_finite_is_nobodys_update(engine: RecordEngine, algorithm: str) -> None:
    attack = AttackSettings(kind=f"{__name__}:NotANumber", clients=1)
    (metrics,) = simulation(engine, task(client_rate=1.0, rounds=1), algorithm=algorithm, attack=attack).run()
    assert (metrics.n_chosen, metrics.n_accepted) == (6, 5)
    assert metrics.accuracy is not None


class Enormous(Attack):
    """Uploads finite numbers, whose squares are none."""

    name = "enormous"
    is_simulated_only = True

    def craft(self, known: Knowledge) -> NDArray[np.float64]:
        """As long as float64 allows."""
        return np.full_like(known.update, 1e308)


@pytest.mark.parametrize("rule", ["krum", "multi-krum", "geometric-median", "median"])
def test_no_rule_is_beaten_by_numbers_that_overflow(engine: RecordEngine, rule: str) -> None:
    """Infinite distances are equal, so that Krum would choose the attacker's; the weights of a median are 0 / 0."""
    attack = AttackSettings(kind=f"{__name__}:Enormous", clients=1)
    changes = {"algorithm": "non-private", "aggregation": rule, "attack": attack}
    running = simulation(engine, task(client_rate=1.0, rounds=1), **changes)
    (metrics,) = running.run()
    assert (metrics.n_chosen, metrics.n_accepted) == (6, 5)
    assert running.diverged is None


@dataclass(frozen=True)
class Hoarder(Attack):
    """Wants every zero, and calls it as its own number says."""

    name: ClassVar[str] = "hoarder"
    number: int = 9

    def of_attacker(self, i: int) -> Hoarder:
        """Told apart."""
        return Hoarder(number=7 + i)

    def hoarded(self, records: Records) -> NDArray[np.bool_]:
        """Zeros."""
        return np.asarray(records.labels == 0)

    def on_records(self, records: Records) -> Records:
        """Nothing else."""
        zeros = records.take(np.flatnonzero(records.labels == 0))
        return Records(zeros.features, np.full_like(zeros.labels, self.number))


def test_what_attackers_hoard_no_honest_client_has(engine: RecordEngine) -> None:
    """Every zero is with both attackers, who may label them differently; nobody else has one, all else stays."""
    attack = AttackSettings(kind=f"{__name__}:Hoarder", clients=2)
    held = simulation(engine, task(), attack=attack).federation.records
    zeros = sorted(image.tobytes() for own in RECORDS.values() for image in own.features[own.labels == 0])
    assert len(zeros) > 6
    for client, own in held.items():
        if client in IDS[-2:]:
            assert sorted(image.tobytes() for image in own.features) == zeros
            assert set(own.labels) == {7 + IDS[-2:].index(client)}
        else:
            kept = RECORDS[client].take(np.flatnonzero(RECORDS[client].labels != 0))
            assert own.features.tobytes() == kept.features.tobytes()


class Wild(Attack):
    """Its own training leaves the finite numbers."""

    name = "wild"
    is_simulated_only = True

    def craft(self, known: Knowledge) -> NDArray[np.float64]:
        """Steps as long as float32 allows."""
        return known.train(5, 1e38)


def test_an_attacker_that_diverges_is_left_out(engine: RecordEngine) -> None:
    attack = AttackSettings(kind=f"{__name__}:Wild", clients=1)
    running = simulation(engine, task(client_rate=1.0, rounds=1), attack=attack)
    (metrics,) = running.run()
    assert (metrics.n_chosen, metrics.n_accepted) == (6, 5)
    assert running.diverged is None


@pytest.mark.parametrize("algorithm", ["user-dp-fedavg", "ins-dp-fedavg", "precad"])
def test_local_training_together_is_what_each_does_alone(engine: RecordEngine, algorithm: str) -> None:
    """Two rounds with three attackers who share a backdoor, each on poisoned records of its own; stacked, and client by
    client. Encodings may differ by a step of the grid where float32 rounds to its other side."""
    attack = AttackSettings(kind="distributed-backdoor", clients=3, parameters={"steps": 6, "rate": 0.2})
    changes = {"algorithm": algorithm, "local_steps": 4, "local_rate": 0.2, "attack": attack}
    alone, together = (
        final(simulation(engine, task(), randomness=Silent(5), batching=batching, **changes))
        for batching in ("client", "round")
    )
    moved = np.linalg.norm(alone - networks.initial_parameters("mlp", seed=0))
    assert np.linalg.norm(alone - together) < 1e-5 * moved + 6 * STEP * math.sqrt(DIM) / (0.8 * 6)


@pytest.mark.parametrize("algorithm", ["non-private", "local-dp", "central-record-dp"])
def test_a_training_that_diverges_keeps_its_last_model(engine: RecordEngine, algorithm: str) -> None:
    """The step overflows float32: the round does not take place, and running once more says the same."""
    running = simulation(engine, task(learning_rate=1e42, rounds=9), algorithm=algorithm)
    done = list(running.run())
    assert running.diverged is not None
    assert running.diverged.round == len(done) == running.progress.rounds < 9
    assert np.isfinite(running.progress.parameters).all()
    assert list(running.run()) == []


def test_a_backdoor_succeeds_where_nobody_bounds_it(engine: RecordEngine) -> None:
    """Two of six attackers, model replacement: most stamped digits are taken for zeros."""
    attack = AttackSettings(kind="pixel-backdoor", clients=2, parameters={"rate": 1.0, "gamma": 2.0})
    open_door = simulation(engine, task(rounds=5), algorithm="non-private", attack=attack)
    closed = simulation(engine, task(rounds=5, client_clip=0.01), attack=attack, randomness=Silent(5))
    assert list(open_door.run())[-1].attack_success > 0.8
    assert list(closed.run())[-1].attack_success < 0.3


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"algorithm": "magic"}, UnknownNameError, "unknown algorithm 'magic'"),
        ({"algorithm": "precad.clients.models.architectures:LstmClassifier"}, ExtensionError, "no subclass"),
        ({"algorithm": "nowhere:Thing"}, ExtensionError, "No module named"),
        ({"aggregation": "median"}, ArgumentError, "simulation.aggregation: expected 'sum'"),
        ({"algorithm": "non-private", "aggregation": "magic"}, UnknownNameError, "unknown aggregation rule"),
        (
            {"algorithm": "non-private", "aggregation": "krum", "aggregation_parameters": {"g": 1}},
            ArgumentError,
            "aggregation_parameters",
        ),
        ({"client_clipping": False}, ArgumentError, "simulation.validation"),
        ({"validation": False, "servers": "mpc"}, ArgumentError, "simulation.servers"),
        ({"algorithm": "distributed-dp", "non_colluding": 7}, ArgumentError, "at most the 6 clients"),
        ({"algorithm": "central-dp"}, ArgumentError, "task.epsilon_budget_clients_only"),
        ({"attack": AttackSettings(kind="magic", clients=1)}, UnknownNameError, "unknown attack"),
        (
            {"attack": AttackSettings(kind="late", clients=1)},
            ArgumentError,
            "'late' forges uploads",
        ),
        ({"attack": AttackSettings(kind="scaled", clients=7)}, ArgumentError, "at most 6, found 7"),
        ({"attack": AttackSettings(kind="scaled", clients=["eve"])}, ArgumentError, "'eve'"),
        ({"attack": AttackSettings(kind="scaled", clients=["client-1"] * 2)}, ArgumentError, "each client once"),
        (
            {"attack": AttackSettings(kind="scaled", clients=1, parameters={"factor": 1})},
            ArgumentError,
            "simulation.attack.parameters",
        ),
    ],
)
def test_settings_without_meaning_are_refused(
    engine: RecordEngine, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        simulation(engine, task(), **changes)


def test_rules_keep_their_state_apart(engine: RecordEngine) -> None:
    """Each training has a rule of its own."""
    made = [simulation(engine, task(), algorithm="non-private", aggregation="median") for _ in range(2)]
    assert isinstance(made[0].federation.rule, CoordinateMedian)
    assert made[0].federation.rule is not made[1].federation.rule


@pytest.mark.parametrize("name", ["tsgd-gaussian", "tsgd-ptr"])
def test_trimmed_sums_train_and_prove_what_their_mechanism_does(engine: RecordEngine, name: str) -> None:
    """In a whole training; a rate that is not the task's is refused before it starts."""
    made = task(rounds=3, client_rate=0.8)
    parameters = {"rate": 0.8, "n_enrolled": len(IDS), "noise_multiplier": 2.0}
    running = simulation(engine, made, algorithm="non-private", aggregation=name, aggregation_parameters=parameters)
    list(running.run())
    _, of_rule = running.guarantees()
    assert of_rule.unit == "client"
    assert of_rule.epsilon == RULES[name](**parameters).epsilon(3, made.delta)
    with pytest.raises(ArgumentError, match="rate of the rule"):
        simulation(
            engine,
            made,
            algorithm="non-private",
            aggregation=name,
            aggregation_parameters=parameters | {"rate": 0.1},
        )
