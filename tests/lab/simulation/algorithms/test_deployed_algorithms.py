"""The algorithms of a deployment, beside the same with one trusted server, which are tested against PyTorch twins.

Give both the same noise and a bound that nobody meets. Then two servers that hold shares and one that sees all updates
train the same model, but for the grid. Failure means that the two are different algorithms.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from precad.clients.errors import ArgumentError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.models import networks
from precad.clients.process import Trainer
from precad.clients.records import Records
from precad.clients.training.conduct import Honest
from precad.clients.training.round_update import Participant, round_updates
from precad.dp.accountants.pld import Conduct, PldAccountant, SampledGaussian, TwoStageSampledGaussian
from precad.dp.accountants.task_cost import Level
from precad.dp.ledgers.ledger import Ledger
from precad.dp.task_privacy import budgets_of, task_cost, task_privacy
from precad.lab.simulation import AttackSettings, SeededRandomness
from precad.lab.simulation.algorithms import ALGORITHMS
from precad.lab.simulation.rules import RULES as AGGREGATION_RULES
from precad.lab.simulation.two_servers import MpcServers
from precad.mpc import fixed_point
from precad.mpc.errors import TupleReusedError
from precad.mpc.ring import RingArray
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, ServerTuples
from precad.mpc.validation import accept_all
from precad.protos.task.algorithms import ALIASES, AS_DEPLOYED, ONLY_SIMULATED, RULES
from precad.protos.task.task import Task
from tests.harness.tied_layers import Tied
from tests.lab.simulation.test_training import DIM, IDS, MODEL, RECORDS, STEP, Recording, simulation, task

LARGE = 1000.0
"""A bound that no update meets, with its noise."""


@pytest.fixture(scope="module")
def engine() -> RecordEngine:
    return RecordEngine(MODEL, torch.zeros(1, 8, 8), device="cpu")


class OneServers(SeededRandomness):
    """Draw what two servers and their clients would draw, under the names by which one trusted server asks for it."""

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """The server's is the sum of two."""
        if source == "server":
            return sum(super(OneServers, self).noise(t, f"server-{i}", std_on_grid, dim) for i in (0, 1))
        return super().noise(t, source if "/" in source else f"{source}/0", std_on_grid, dim)


@pytest.mark.parametrize(
    ("algorithm", "of_task", "of_settings"),
    [
        ("user-dp-fedavg", {"local_steps": 3, "local_rate": 0.2, "local_momentum": 0.9, "client_clip": 0.3}, {}),
        ("user-dp-fedavg", {"local_steps": 5, "local_batch": 12, "local_weight_decay": 0.01, "client_clip": 2.0}, {}),
        (
            "user-dp-fedavg",
            {"local_steps": 3, "local_rate": 0.2, "client_clip": 0.3, "update_clipping": "per-layer"},
            {},
        ),
        ("ins-dp-fedavg", {"local_steps": 3, "local_rate": 0.3}, {}),
        (
            "ins-dp-fedavg",
            {"local_steps": 3, "local_rate": 0.3, "local_momentum": 0.9, "local_weight_decay": 0.05},
            {},
        ),
        ("local-dp", {}, {}),
        ("distributed-dp", {"non_colluding": 2}, {}),
        ("non-private", {"noise_multiplier": 0.0}, {"noise_multiplier": 1.0}),
        (
            "fedavg",
            {"noise_multiplier": 0.0, "local_steps": 4, "local_batch": 12, "local_momentum": 0.9},
            {"noise_multiplier": 1.0},
        ),
    ],
)
def test_two_servers_train_as_one_trusted_one_does(
    engine: RecordEngine, algorithm: str, of_task: dict[str, Any], of_settings: dict[str, Any]
) -> None:
    """Bound the difference: each client's update is cut to the grid in a round of either, or of both.

    That is 6 clients, 2 rounds and a step of 2^-16 each, divided by W >= 1. The model's rounding to float32 comes on
    top. Noise is 2^16 steps.
    """
    two = task(**{"algorithm": algorithm, "client_clip": LARGE, **of_task})
    local = {name: value for name, value in of_task.items() if name.startswith(("local", "non_", "update_"))}
    others = {name: value for name, value in of_task.items() if name not in local}
    one = task(**{"client_clip": LARGE, **others, **of_settings})
    deployed = simulation(engine, two, algorithm="deployed")
    trusted = simulation(engine, one, randomness=OneServers(5), algorithm=algorithm, **local)
    for run in (deployed, trusted):
        assert [metrics.rejected for metrics in run.run()] == [(), ()]
    got, expected = deployed.progress.parameters, trusted.progress.parameters
    assert np.abs(got - expected).max() < 6 * 2 * STEP + 1e-5
    assert np.abs(got - simulation(engine, two, algorithm="deployed").progress.parameters).max() > 0.01  # it has moved


@pytest.mark.parametrize(("algorithm", "fields"), [("krum", {}), ("multi-krum", {}), ("multi-krum", {"krum_keep": 2})])
def test_two_servers_choose_as_one_that_sees_every_update(
    engine: RecordEngine, algorithm: str, fields: dict[str, int]
) -> None:
    """Krum's rule of a server that sees all, on fedavg's updates, within the grid's steps; nobody is rejected."""
    of_task = {"client_clip": LARGE, "noise_multiplier": 0.0, "local_steps": 3, "client_rate": 1.0}
    two = task(algorithm=algorithm, **of_task, **fields)
    rule = {"f": 1} | ({"keep": fields["krum_keep"]} if fields else {})
    one = task(**{name: value for name, value in of_task.items() if "noise" not in name and "local" not in name})
    deployed = simulation(engine, two, algorithm="deployed")
    trusted = simulation(
        engine, one, algorithm="fedavg", local_steps=3, aggregation=algorithm, aggregation_parameters=rule
    )
    for run in (deployed, trusted):
        assert [metrics.rejected for metrics in run.run()] == [(), ()]
    got, expected = deployed.progress.parameters, trusted.progress.parameters
    assert np.abs(got - expected).max() < 6 * 2 * STEP + 1e-5
    everybody = simulation(engine, task(algorithm="fedavg", **of_task), algorithm="deployed")
    list(everybody.run())
    assert np.abs(got - everybody.progress.parameters).max() > 0.001


@pytest.mark.parametrize(
    ("algorithm", "changes", "sources", "std"),
    [
        ("user-dp-fedavg", {"local_steps": 2}, {"server-0", "server-1"}, 50.0),
        ("ins-dp-fedavg", {"local_steps": 2}, {f"{c}/{v}" for c in IDS for v in (0, 1)}, 2.0),
        ("local-dp", {}, {f"{c}/0" for c in IDS}, 2.0),
        ("distributed-dp", {"non_colluding": 4, "client_clip": 200.0}, {f"{c}/0" for c in IDS}, 1.0),
        ("non-private", {"noise_multiplier": 0.0}, set(), 0.0),
        ("fedavg", {"noise_multiplier": 0.0, "local_steps": 2}, set(), 0.0),
    ],
)
def test_who_adds_how_much_noise(
    engine: RecordEngine, algorithm: str, changes: dict[str, Any], sources: set[str], std: float
) -> None:
    """sigma C at each server, sigma R or sigma R / sqrt(tau) at each client, by step; R = 2, sigma = 1, C = 50."""
    draws = Recording(5)
    made = task(**{"algorithm": algorithm, "rounds": 1, "record_clip": 2.0, "client_rate": 1.0, **changes})
    list(simulation(engine, made, randomness=draws, algorithm="deployed").run())
    assert {source for _, source, _ in draws.drawn} == sources
    assert {found for _, _, found in draws.drawn} <= {std / STEP}
    assert len(draws.drawn) == len(sources)


@pytest.mark.parametrize(
    ("algorithm", "fields"),
    [("precad", {}), ("ins-dp-fedavg", {"local_steps": 2}), ("user-dp-fedavg", {"local_steps": 2})],
)
def test_rates_of_single_clients_are_the_rates_that_they_draw_with(
    engine: RecordEngine, algorithm: str, fields: dict[str, Any]
) -> None:
    """All clients at a half of p train as a task whose p is that half, to the bit. One of them alone does not."""
    common = {"algorithm": algorithm, "client_clip": LARGE, **fields}
    rates = ({}, dict.fromkeys(IDS, 0.25), {IDS[0]: 0.25})
    tasks = [
        task(**common, record_rate=0.25),
        *(task(**common, record_rate=0.5, record_rates=own) for own in rates[1:]),
    ]
    models = []
    for made in tasks:
        run = simulation(engine, made, algorithm="deployed")
        list(run.run())
        models.append(run.progress.parameters.tobytes())
    assert models[0] == models[1] != models[2]


def test_malicious_clients_add_no_noise_of_their_own(engine: RecordEngine) -> None:
    draws = Recording(5)
    made = task(algorithm="local-dp", rounds=1, client_rate=1.0)
    attack = AttackSettings(kind="label-flip", clients=2)
    list(simulation(engine, made, randomness=draws, algorithm="deployed", attack=attack).run())
    assert {source for _, source, _ in draws.drawn} == {f"{c}/0" for c in IDS[:4]}


def test_the_noise_of_distributed_dp_is_uploaded_as_it_was_drawn(engine: RecordEngine) -> None:
    """On the grid the upload is the encoded update, clipped to what the noise leaves of C, plus the draw; to the
    integer. Anything that shortened it would change the law of the sum."""
    made = task(algorithm="distributed-dp", non_colluding=2, client_clip=100.0)
    draw = SeededRandomness(5)
    theta = simulation(engine, made, algorithm="deployed").progress.parameters

    def update(algorithm: str, bound: float) -> np.ndarray:
        how = task(algorithm=algorithm, client_clip=bound, non_colluding=2 if algorithm == "distributed-dp" else 1)
        who = Participant(
            records=RECORDS[IDS[0]],
            n_declared=30,
            random_bytes=draw.records(0, IDS[0]),
            record_rate=how.record_rate,
            noise=lambda step, std, dim: draw.noise(0, "some", std, dim),
        )
        (found,) = round_updates(how, theta, [who], engine)
        return fixed_point.encode(found, how.frac_bits)

    noise = draw.noise(0, "some", made.client_noise_std_on_grid, DIM)
    noisy = update("distributed-dp", 100.0)
    assert_array_equal(noisy - noise, update("precad", made.update_bound))
    assert fixed_point.exact_squared_norm(noisy) <= made.norm_bound.threshold


LAYERS = (slice(0, 4160), slice(4160, 4810))
"""Layers of the model: 64 x 64 + 64 and 64 x 10 + 10 parameters, in the order of the flat vector."""


def trained_by(made: Task, engine: RecordEngine) -> np.ndarray:
    """The update of one client, always of the same draws (d,)."""
    who = Participant(
        records=RECORDS[IDS[0]],
        n_declared=30,
        random_bytes=SeededRandomness(5).records(0, IDS[0]),
        record_rate=made.record_rate,
    )
    (found,) = round_updates(made, networks.initial_parameters("mlp", seed=0), [who], engine)
    return found


def test_a_client_clips_each_layer_as_the_task_says(engine: RecordEngine) -> None:
    """By hand: u_l min(1, C / (sqrt(2) ||u_l||)), with a C that one of the two layers exceeds, or both, or none."""
    how = {"algorithm": "user-dp-fedavg", "local_steps": 4, "local_rate": 0.2}
    whole = trained_by(task(client_clip=LARGE, **how), engine)
    norms = sorted(np.linalg.norm(whole[layer]) for layer in LAYERS)
    for bound in (0.5 * norms[0], 0.7 * (norms[0] + norms[1]), 2.0 * norms[1]):
        made = task(client_clip=bound, update_clipping="per-layer", **how)
        got = trained_by(made, engine)
        for layer in LAYERS:
            expected = whole[layer] * min(1.0, bound / math.sqrt(2) / np.linalg.norm(whole[layer]))
            assert np.abs(got[layer] - expected).max() <= 1e-11
        assert fixed_point.exact_squared_norm(fixed_point.encode(got, 16)) <= made.norm_bound.threshold
        is_cut = [np.linalg.norm(whole[layer]) > bound / math.sqrt(2) for layer in LAYERS]
        assert bool(np.abs(got - whole).max() > 1e-9) == any(is_cut)


def test_the_servers_verify_the_whole_and_no_layer(engine: RecordEngine) -> None:
    """Accept a client that clips flat, in a task that says per layer, since it is within C.

    Its first layer is longer than C / sqrt(2). One step of the grid more than C is not accepted. The servers run their
    real check.
    """
    made = task(algorithm="user-dp-fedavg", client_clip=1.0, update_clipping="per-layer")
    flat, beyond = np.zeros((2, DIM), dtype=np.int64)
    flat[0], beyond[0] = 2**16, 2**16 + 1
    by_layer = fixed_point.encode(trained_by(made, engine), made.frac_bits)
    checked = MpcServers(made).check_and_sum(0, {IDS[0]: flat, IDS[1]: beyond, IDS[2]: by_layer})
    assert (checked.accepted, checked.rejected) == ((IDS[0], IDS[2]), (IDS[1],))
    assert_array_equal(checked.total, flat + by_layer)


@pytest.mark.parametrize("form", [{}, {"mode": "shares", "accept_weak_wire_form": True}], ids=["masked", "shares"])
def test_servers_that_check_nothing_add_up_whatever_they_get(form: dict[str, Any]) -> None:
    """Every upload is far beyond C, and they wrap: the sum is that of Python's integers, modulo 2^64."""
    made = task(validation="none", client_clip=1.0, **form)
    draw = np.random.default_rng(3)
    uploads = {client: draw.integers(-(2**63), 2**63 - 1, size=DIM, dtype=np.int64) for client in IDS[:3]}
    checked = MpcServers(made).check_and_sum(0, uploads)
    assert (checked.accepted, checked.rejected) == (tuple(IDS[:3]), ())
    for i in range(0, DIM, 97):
        assert (sum(int(upload[i]) for upload in uploads.values()) - int(checked.total[i])) % 2**64 == 0
    assert MpcServers(task(client_clip=1.0, **form)).check_and_sum(0, uploads).accepted == ()


def test_a_mask_serves_one_sum_without_a_check_as_well() -> None:
    """Used twice, it would show a difference of updates."""
    shape = BatchShape("task", 0, ("a", "b"), 4, ())
    tuples = ServerTuples(0, shape, deal(shape)[0])
    uploads = dict.fromkeys(shape.clients, np.zeros(4, dtype=np.int64))
    accept_all(("a",), uploads, tuples)
    with pytest.raises(TupleReusedError):
        accept_all(("a", "b"), uploads, tuples)


def test_privacy_alone_is_precad_whose_clients_do_not_clip(engine: RecordEngine) -> None:
    """Where C is more than R times the records of each, honest clients clip nothing, as in the simulated form."""
    unclipped = {"validation": False, "client_clipping": False}
    deployed = simulation(engine, task(validation="none", client_clip=60.0, record_clip=2.0), algorithm="deployed")
    paper = simulation(engine, task(client_clip=60.0, record_clip=2.0), algorithm="precad", **unclipped)
    for run in (deployed, paper):
        list(run.run())
    assert deployed.progress.parameters.tobytes() == paper.progress.parameters.tobytes()
    assert [str(found) for found in deployed.guarantees()] == [str(found) for found in paper.guarantees()]


@pytest.mark.parametrize("where", ["simulation", "client process"])
def test_layers_that_share_parameters_are_refused_before_the_first_round(where: str) -> None:
    """They could not be clipped apart. Flat clipping takes the same model."""

    def start(update_clipping: str) -> None:
        how = {"algorithm": "user-dp-fedavg", "update_clipping": update_clipping}
        made = task(model=f"{Tied.__module__}:Tied", dim=Tied.DIM, **how)
        if where == "simulation":
            example = torch.zeros(1, 8, 8)
            simulation(RecordEngine(Tied(), example, device="cpu"), made, algorithm="deployed")
        else:
            Trainer(task=made, records=RECORDS, conducts=dict.fromkeys(IDS, Honest()), device="cpu")

    start("flat")
    expected = r"task\.update_clipping: expected 'flat' for a model whose layers share parameters"
    with pytest.raises(ArgumentError, match=expected):
        start("per-layer")


@pytest.mark.parametrize(
    ("algorithm", "changes"),
    [
        ("precad", {}),
        ("user-dp-fedavg", {"local_steps": 3}),
        ("user-dp-fedavg", {"local_steps": 3, "local_rate": 1e300}),
        ("user-dp-fedavg", {"local_steps": 3, "update_clipping": "per-layer"}),
        ("ins-dp-fedavg", {"local_steps": 2}),
        ("local-dp", {}),
        ("distributed-dp", {"client_clip": 200.0}),
    ],
)
def test_no_record_keeps_a_client_away(engine: RecordEngine, algorithm: str, changes: dict[str, Any]) -> None:
    """Whether a client uploads is seen by all, and hidden by no noise. So it must not depend on a record, whatever that
    holds: here on two, one with pixels that are no numbers. Where records are protected, only these two are lost."""
    made = task(algorithm=algorithm, record_rate=1.0, record_clip=0.5, **changes)
    bad, theta = RECORDS[IDS[0]].take(np.arange(30)), simulation(engine, made, algorithm="deployed").progress.parameters
    bad.features[3], bad.features[7, 0, 0, 0] = np.nan, 3e38

    def update(records: Records) -> np.ndarray:
        draw = SeededRandomness(5)
        who = Participant(
            records=records,
            n_declared=30,
            random_bytes=draw.records(0, IDS[0]),
            record_rate=made.record_rate,
            noise=lambda step, std, dim: draw.noise(step, "some", std, dim),
        )
        with np.errstate(over="ignore", invalid="ignore"):
            (found,) = round_updates(made, theta, [who], engine)
        return found

    found = update(bad)
    assert fixed_point.exact_squared_norm(fixed_point.encode(found, made.frac_bits)) <= made.norm_bound.threshold
    if algorithm == "user-dp-fedavg":
        assert not found.any()
    else:
        expected = update(bad.take(np.delete(np.arange(30), [3, 7])))
        assert np.linalg.norm(found - expected) <= 1e-3
        assert np.linalg.norm(expected) > 0.1


def test_a_round_of_too_few_clients_leaves_the_model_where_it_is(engine: RecordEngine) -> None:
    made = task(algorithm="distributed-dp", non_colluding=6, client_rate=0.5, client_clip=200.0)
    run = simulation(engine, made, algorithm="deployed")
    before = run.progress.parameters.copy()
    accepted = [metrics.n_accepted for metrics in run.run()]
    assert len(accepted) == made.rounds == 2
    assert all(0 < n < 6 for n in accepted)
    assert_array_equal(run.progress.parameters, before)


@pytest.mark.parametrize("algorithm", ["precad", "local-dp", "user-dp-fedavg", "non-private"])
def test_a_task_of_another_algorithm_is_simulated_as_deployed_only(engine: RecordEngine, algorithm: str) -> None:
    """The trusted-server algorithms read a task's noise as PRECAD's."""
    with pytest.raises(
        ArgumentError, match=r"simulation\.algorithm: expected 'deployed' for a task of 'user-dp-fedavg'"
    ):
        simulation(engine, task(algorithm="user-dp-fedavg"), algorithm=algorithm)


@pytest.mark.parametrize(
    "changes",
    [
        {"local_steps": 2},
        {"non_colluding": 2},
        {"validation": False},
        {"client_clipping": False},
        {"update_clipping": "per-layer"},
    ],
)
def test_a_deployments_round_is_set_by_its_task(engine: RecordEngine, changes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"simulation.{next(iter(changes))}: expected"):
        simulation(engine, task(algorithm="user-dp-fedavg"), algorithm="deployed", **changes)


def test_budgets_end_a_simulated_deployment_as_they_end_the_ledgers(engine: RecordEngine) -> None:
    """Closed over the accountant, called with the event of each account."""
    accountant, sigma = PldAccountant(), 4.0
    by_view = accountant.epsilon(SampledGaussian(1.0, sigma), 2, 1e-5)
    whole = accountant.epsilon(TwoStageSampledGaussian(0.8, 1.0, math.sqrt(2) * sigma), 3, 1e-5)
    cases = (({"epsilon_budget_one_server": by_view}, 0, 1), ({"epsilon_budget_client": whole}, 2, 9))
    for budget, rounds, most in cases:
        made = task(algorithm="user-dp-fedavg", noise_multiplier=sigma, rounds=9, **budget)
        algorithm = simulation(engine, made, algorithm="deployed").algorithm
        assert algorithm.may_start(rounds, Counter({IDS[0]: most}))
        assert not algorithm.may_start(rounds + 1, Counter({IDS[0]: most + 1}))


@pytest.mark.parametrize("algorithm", ["precad", "user-dp-fedavg"])
def test_a_whole_clients_budget_has_its_figure_first_and_it_is_the_ledgers(
    engine: RecordEngine, algorithm: str
) -> None:
    """After the end that it sets, also where the task protects whole clients already."""
    free = task(algorithm=algorithm, noise_multiplier=8.0, client_clip=4.0, rounds=6)
    budget = task_cost(free).of_level(Level.CLIENT, 3)
    made = free.model_copy(update={"epsilon_budget_client": budget})
    running = simulation(engine, made, algorithm="deployed")
    done = list(running.run())
    privacy = task_privacy(made)
    with Ledger(
        None,
        events=privacy.events,
        delta=made.delta,
        budgets=budgets_of(made),
        every_round=privacy.every_round,
        unit=privacy.unit,
        most_rounds=made.most_draws,
    ) as ledger:
        for number in range(len(done)):
            ledger.charge(number, [])
        assert ledger.would_exceed([])
        discarded, realised = (ledger.task_statement(Level.CLIENT, conduct).epsilon for conduct in Conduct)
    whole, *views = running.guarantees()
    assert len(done) == 3
    assert (whole.unit, whole.epsilon, whole.epsilon_if_discarded) == ("client", realised, discarded)
    assert whole.against.startswith("any other clients")
    assert [view.against for view in views] == [
        one.against for one in simulation(engine, free, algorithm="deployed").guarantees()
    ]


def test_a_budget_of_a_whole_client_needs_a_bound_on_it(engine: RecordEngine) -> None:
    with pytest.raises(ArgumentError, match=r"task\.epsilon_budget_client: expected none where clients do not clip"):
        simulation(engine, task(epsilon_budget_client=1.0), validation=False, client_clipping=False)


def test_a_simulation_knows_every_name_of_a_task() -> None:
    """Deployed algorithms, their other names, and the names that a task refuses because only a simulation has them."""
    assert {*RULES, *ALIASES, AS_DEPLOYED} <= ALGORITHMS.keys() | AGGREGATION_RULES.keys()
    assert {AS_DEPLOYED, *(name for name, rules in RULES.items() if not rules.keeps_some)} <= ALGORITHMS.keys()
    assert set(ONLY_SIMULATED) <= ALGORITHMS.keys() | AGGREGATION_RULES.keys()
    assert {name for name, kind in ALGORITHMS.items() if kind.has_two_servers} == {"precad", "deployed"}
    assert {name for name, kind in ALGORITHMS.items() if kind.is_of_any_task} == {AS_DEPLOYED}
