"""Clipping at a private quantile with two servers that hold shares, beside one trusted server that sees every update.

Failure means one of these:
- clients share something longer than C, or say more of themselves than whether their update was within the bound;
- the two ways train different models or learn different bounds;
- epsilon is of other noise than is drawn.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from precad.clients.attacks.model_space import ModelSpace
from precad.clients.errors import ArgumentError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.models import networks
from precad.clients.process import Trainer
from precad.clients.training.conduct import Honest
from precad.clients.training.round_update import Participant, _counted, round_updates
from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.lab.simulation import AttackSettings, SeededRandomness
from precad.lab.simulation.two_servers import MpcServers
from precad.mpc import fixed_point
from precad.protos.task.quantile import LARGEST_LOG_RATIO, LEARNT, QuantileRule
from precad.protos.task.task import Task
from tests.lab.simulation.test_training import DIM, IDS, MODEL, RECORDS, STEP, Recording, Silent, simulation, task

LOCAL = {"local_steps": 3, "local_rate": 0.2}


@pytest.fixture(scope="module")
def engine() -> RecordEngine:
    return RecordEngine(MODEL, torch.zeros(1, 8, 8), device="cpu")


def learning_task(**changes: Any) -> Task:
    """On the module's records; some of the updates are longer than C at first, and some are not."""
    values = {"update_clipping": "private-quantile", "client_clip": 0.5, "dim": DIM + 1, **LOCAL}
    return task(algorithm="user-dp-fedavg", **{**values, **changes})


def rule_of(made: Task) -> QuantileRule:
    assert made.quantile_rule is not None
    return made.quantile_rule


def updates(made: Task, engine: RecordEngine, log_ratio: float = 0.0) -> list[np.ndarray]:
    """Return the updates of all clients, always of the same draws (n, d)."""
    vector = networks.initial_vector(made)
    if made.quantile_rule is not None:
        vector[-1] = log_ratio
    participants = [
        Participant(
            records=RECORDS[c],
            n_declared=30,
            random_bytes=SeededRandomness(5).records(0, c),
            record_rate=made.rate_of(c),
        )
        for c in IDS
    ]
    return round_updates(made, vector, participants, engine)


@pytest.mark.parametrize("ratio", [0.5, 1.0, 1.5])
def test_what_a_client_shares(engine: RecordEngine, ratio: float) -> None:
    """Expect ( r / S u min(1, S / ||u||), a or -a ), by hand from the same updates unclipped.

    S is the median norm times the ratio, so that there are clients on both sides of it.
    """
    made, whole = learning_task(), np.array(updates(task(algorithm="user-dp-fedavg", client_clip=1e3, **LOCAL), engine))
    rule, norms = rule_of(made), np.linalg.norm(whole, axis=1)
    log_ratio = float(np.float32(math.log(ratio * np.median(norms) / 0.5)))
    bound = 0.5 * math.exp(log_ratio)
    for got, u, norm in zip(updates(made, engine, log_ratio), whole, norms, strict=True):
        assert np.abs(got[:-1] - rule.room / bound * u * min(1.0, bound / norm)).max() <= 1e-10
        assert got[-1] == (rule.unit if norm <= bound else -rule.unit)
        encoded = fixed_point.encode(got, made.frac_bits)
        assert fixed_point.exact_squared_norm(encoded) <= made.norm_bound.threshold
        assert abs(encoded[-1]) * STEP == rule.unit


@given(
    norm=st.floats(0, 1e150),
    log_ratio=st.floats(-LARGEST_LOG_RATIO, LARGEST_LOG_RATIO),
    clip=st.floats(2.0**-8, 1000.0),
    multiplier=st.floats(0.51, 50.0),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=60, deadline=None)
def test_whatever_is_shared_is_within_c(
    norm: float, log_ratio: float, clip: float, multiplier: float, seed: int
) -> None:
    """Else the servers would reject honest clients, and so say what they hold. On integers, for updates, bounds and
    splits of any size, also those that leave the update hardly any room."""
    made = task(
        algorithm="user-dp-fedavg",
        update_clipping="private-quantile",
        client_clip=clip,
        noise_multiplier=1.0,
        quantile_noise=multiplier,
        dim=9,
    )
    direction = np.random.default_rng(seed).standard_normal(8)
    update = norm * (direction / np.linalg.norm(direction))
    shared = _counted(rule_of(made), update, log_ratio, is_finite=True)
    encoded = fixed_point.encode(shared, made.frac_bits)
    assert fixed_point.exact_squared_norm(encoded) <= made.norm_bound.threshold
    assert encoded[-1] != 0


LAYERS = (4160, 650)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 3.0])
def test_layers_are_clipped_to_their_part_of_the_learnt_bound(engine: RecordEngine, ratio: float) -> None:
    """By hand: u_l min(1, S / (sqrt(2) ||u_l||)) times r / S, and counted as within if no layer was cut."""
    made, plain = learning_task(update_clipping="private-quantile-per-layer"), learning_task(client_clip=50.0)
    rule, S = rule_of(made), made.client_clip * ratio
    whole = [shared[:-1] * 50.0 / rule_of(plain).room for shared in updates(plain, engine)]
    within = []
    for shared, update in zip(updates(made, engine, math.log(ratio)), whole, strict=True):
        parts = np.split(update, [LAYERS[0]])
        cut = [part * min(1.0, S / math.sqrt(2) / np.linalg.norm(part)) for part in parts]
        assert np.abs(shared[:-1] - np.concatenate(cut) * rule.room / S).max() < 1e-6
        within.append(all(np.linalg.norm(part) <= S / math.sqrt(2) for part in parts))
        assert shared[-1] == (rule.unit if within[-1] else -rule.unit)
        assert fixed_point.exact_squared_norm(fixed_point.encode(shared, 16)) <= made.norm_bound.threshold
    assert any(within) or ratio < 3.0
    assert not all(within) or ratio > 0.3


@pytest.mark.parametrize("noise", [0.6, 5.0])
@pytest.mark.parametrize("way", LEARNT)
def test_two_servers_learn_what_one_trusted_one_does(engine: RecordEngine, noise: float, way: str) -> None:
    """Without noise the models and the bounds of both are equal but for the grid, over four rounds that move the bound.

    At two servers a client's update is cut to 2^-16 in units of C, which is r / S of its own.
    """
    how = {"update_clipping": way, "quantile": 0.3, "quantile_rate": 0.4, "quantile_noise": noise}
    two = learning_task(rounds=4, **how)
    one = task(rounds=4, client_clip=0.5)
    deployed = simulation(engine, two, randomness=Silent(5), algorithm="deployed")
    trusted = simulation(engine, one, randomness=Silent(5), algorithm="user-dp-fedavg", **LOCAL, **how)
    bounds = []
    for _ in zip(deployed.run(), trusted.run(), strict=True):
        bounds.append(rule_of(two).bound(float(deployed.progress.parameters[-1])))
        assert bounds[-1] == pytest.approx(trusted.algorithm.state()[0], rel=1e-6)
        coarsest = 0.5 * max(bounds) / rule_of(two).room
        got, expected = deployed.progress.parameters[:-1], trusted.progress.parameters
        assert np.abs(got - expected).max() < 6 * 4 * STEP * (1 + coarsest) + 1e-5
        assert deployed.accuracy() == trusted.accuracy()
    assert len(set(bounds)) > 2


def test_epsilon_counts_both_releases(engine: RecordEngine) -> None:
    """Compose the noise that one server really draws, with everybody in every round.

    Its units are what one client adds to the sum of updates (S) and to the count (1). The 2 T Gaussian releases have
    multipliers that compose in closed form to what is stated against one server. With both servers' noise, they compose
    to what is stated against clients.
    """
    made = learning_task(client_rate=1.0, rounds=3, noise_multiplier=2.0, quantile_noise=1.6)
    draws, rule = Recording(5), rule_of(made)
    running = simulation(engine, made, randomness=draws, algorithm="deployed")
    list(running.run())
    assert len(draws.drawn) == 2 * 3
    for sources, against in ((("server-0",), 0), (("server-0", "server-1"), 1)):
        inverse_squares = 0.0
        for t in range(3):
            std = STEP * math.hypot(*(std for at, source, std in draws.drawn if at == t and source in sources))
            inverse_squares += (std / rule.room) ** -2 + (std / rule.unit) ** -2
        stated = running.guarantees()[against]
        assert stated.unit == "client"
        assert stated.epsilon == pytest.approx(eps_from_mu(made.delta, math.sqrt(inverse_squares)), rel=1e-6)


def test_who_counts_for_more_than_c_allows_is_rejected(engine: RecordEngine) -> None:
    """By the servers' real check: all of C in the count is accepted, and moves it by C / a clients; a step more is not.
    An honest upload is accepted beside them."""
    made = learning_task()
    honest = fixed_point.encode(updates(made, engine)[0], made.frac_bits)
    most, more = np.zeros((2, DIM + 1), dtype=np.int64)
    most[-1], more[-1] = 2**15, 2**15 + 1
    checked = MpcServers(made).check_and_sum(0, {IDS[0]: honest, IDS[1]: most, IDS[2]: more})
    assert (checked.accepted, checked.rejected) == ((IDS[0], IDS[1]), (IDS[2],))
    assert_array_equal(checked.total, honest + most)


def test_training_that_is_not_finite_counts_as_too_long(engine: RecordEngine) -> None:
    """It stays away from nothing: it shares no update, and that it was not within the bound."""
    made = learning_task(local_rate=1e300)
    with np.errstate(over="ignore", invalid="ignore"):
        for shared in updates(made, engine):
            assert not shared[:-1].any()
            assert shared[-1] == -rule_of(made).unit


@pytest.mark.parametrize("log_ratio", [7.0, -7.0])
def test_a_bound_out_of_its_range_is_refused_before_any_training(engine: RecordEngine, log_ratio: float) -> None:
    with pytest.raises(ArgumentError, match=r"model: learnt bound: expected .*, found -?7"):
        updates(learning_task(), engine, log_ratio)


def test_a_client_process_uploads_the_whole_vector(engine: RecordEngine) -> None:
    made = learning_task()
    trainer = Trainer(task=made, records=RECORDS, conducts=dict.fromkeys(IDS, Honest()), device="cpu")
    encoded = trainer.train(IDS[0], networks.initial_vector(made))
    assert encoded.shape == (DIM + 1,)
    assert abs(encoded[-1]) * STEP == rule_of(made).unit


@pytest.mark.parametrize("kind", ["alie", "stat-opt", "pixel-backdoor", "sign-flip"])
def test_attackers_craft_updates_of_the_model(engine: RecordEngine, kind: str) -> None:
    """Put the count behind what they craft: those that keep to the bound are accepted."""
    running = simulation(
        engine, learning_task(), algorithm="deployed", attack=AttackSettings(kind=kind, clients=2), servers="mpc"
    )
    assert [metrics.rejected for metrics in running.run()] == [(), ()]


def test_a_crafted_update_is_uploaded_as_an_honest_one_of_its_length(engine: RecordEngine) -> None:
    """There and back again is the honest upload, within the bound and beyond it."""
    made = learning_task()
    vector = networks.initial_vector(made)
    space = ModelSpace.of(made, vector, made.client_clip)
    assert space.bound == made.client_clip
    short = np.full(DIM, 0.5 * space.bound / math.sqrt(DIM))
    for update, count in ((short, 1), (3 * short, -1)):
        upload = space.upload(update)
        assert_allclose(space.updates(upload), update, rtol=1e-12)
        assert upload[-1] == count * rule_of(made).unit
    honest = _counted(rule_of(made), short, 0.0, is_finite=True)
    assert_allclose(space.upload(short), honest, rtol=1e-12)
    plain = ModelSpace.of(task(), vector[:-1], 3.0)
    assert plain.upload(short) is short
    assert plain.updates(short) is short
