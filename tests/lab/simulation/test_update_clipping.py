"""How a trusted server bounds updates: the bounds themselves, what they learn, and the epsilon that is stated of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from pydantic import ValidationError

from precad.clients.errors import ArgumentError
from precad.clients.gradients.engine import RecordEngine
from precad.clients.models import networks
from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.lab.simulation import Simulation, SimulationSettings
from precad.lab.simulation.update_clipping import (
    MedianClipping,
    PerLayerClipping,
    PerLayerMedianClipping,
    QuantileClipping,
    UpdateClipping,
)
from precad.protos.task.quantile import LEARNT
from tests.lab.simulation.test_training import IDS, MODEL, STEP, Recording, final, simulation, task

USER_DP = {"algorithm": "user-dp-fedavg", "local_steps": 2}
WAYS = ("flat", "per-layer", *LEARNT, "median-not-private", "median-per-layer-not-private")


@pytest.fixture(scope="module")
def engine() -> RecordEngine:
    return RecordEngine(MODEL, torch.zeros(1, 8, 8), device="cpu")


def updates_of(n: int, seed: int = 0, d: int = 12) -> list[np.ndarray]:
    """Return n vectors of lengths between a tenth and ten."""
    generator = np.random.default_rng(seed)
    return [10 ** generator.uniform(-1, 1) * v / np.linalg.norm(v) for v in generator.standard_normal((n, d))]


def test_per_layer_bounds_each_layer_and_so_the_whole() -> None:
    """Against a projection written out: a layer that is short stays as it is."""
    clipping = PerLayerClipping(3.0, 1.0, layer_sizes=(5, 4, 3))
    for update in updates_of(20):
        got = clipping.clipped(update, 3.0)
        for part in (slice(0, 5), slice(5, 9), slice(9, 12)):
            norm = np.linalg.norm(update[part])
            expected = update[part] * min(1.0, 3.0 / math.sqrt(3) / norm)
            assert np.abs(got[part] - expected).max() < 1e-11
        assert np.linalg.norm(got) <= 3.0


def test_the_layers_are_those_of_the_model(engine: RecordEngine) -> None:
    """64 x 64 + 64 and 64 x 10 + 10 parameters, in the flat order; L = 2."""
    clipping = simulation(engine, task(), update_clipping="per-layer", **USER_DP).algorithm.clipping
    update = np.concatenate([np.full(4160, 5.0), np.full(650, 0.001)])
    got = clipping.clipped(update, 50.0)
    assert np.linalg.norm(got[:4160]) == pytest.approx(50 / math.sqrt(2), rel=1e-9)
    assert_array_equal(got[4160:], update[4160:])


@pytest.mark.parametrize("quantile", [0.3, 0.5, 0.8])
def test_the_bound_finds_the_quantile(quantile: float) -> None:
    """Norms exp(0.5 Z), 100 of 200 clients expected in a round, sigma_b = 5, from a start that is 20 times too large.

    A round's estimate of the share has standard deviation at most 0.071 (drawing 0.05, noise 0.05). The logarithm's
    density at the quantile is at least 0.55, so that of its mean over 1000 rounds is at most 0.0041. 0.03 is seven of
    them, a false alarm in 10^11. A quantile that is 0.05 off is at least 0.06 off.
    """
    generator = np.random.default_rng(11)
    norms = np.exp(0.5 * generator.standard_normal(200))
    truth = float(np.quantile(norms, quantile))
    clipping = QuantileClipping(20 * truth, 1.0, expected_clients=100.0, quantile=quantile, count_noise=5.0)
    learnt = []
    for _ in range(1300):
        present = norms[generator.random(200) < 0.5]
        count = clipping.count([np.array([norm]) for norm in present])
        clipping.learn(count + round(clipping.count_noise_std * generator.standard_normal()))
        learnt.append(math.log(clipping.bound([])))
    assert abs(np.mean(learnt[300:]) - math.log(truth)) < 0.03


def test_the_split_of_the_noise_is_that_of_the_source() -> None:
    """z' = (z^-2 - (2 sigma_b)^-2)^(-1/2), by numbers: z = 1 and sigma_b = 1 leave 2 / sqrt(3)."""
    clipping = QuantileClipping(1.0, 1.0, expected_clients=10.0, count_noise=1.0)
    assert clipping.noise_multiplier == pytest.approx(2 / math.sqrt(3), rel=1e-15)
    default = QuantileClipping(1.0, 3.0, expected_clients=100.0)
    assert default.count_noise_std == 10.0
    assert QuantileClipping(1.0, 5.0, expected_clients=100.0).count_noise_std == 12.0
    with pytest.raises(ArgumentError, match="expected more than half"):
        QuantileClipping(1.0, 2.0, expected_clients=100.0, count_noise=1.0)


def test_epsilon_counts_both_releases(engine: RecordEngine) -> None:
    """Compose 2 T Gaussian releases, with everybody in every round.

    Their multipliers are those of the noise that was really drawn, and compose to sqrt(sum of their squared inverses)
    in closed form.
    """
    draws = Recording(5)
    made = task(client_rate=1.0, rounds=3, noise_multiplier=2.0, client_clip=0.7)
    changes = {"update_clipping": "private-quantile", "quantile_noise": 1.6}
    running = simulation(engine, made, randomness=draws, **changes, **USER_DP)
    bounds = []
    while running.progress.rounds < 3:
        bounds.append(running.algorithm.clipping.bound([]))
        running.run_round()
    of_updates = [std * STEP / bounds[t] for t, source, std in draws.drawn if source == "server"]
    of_counts = [std for _, source, std in draws.drawn if source == "count"]
    assert len(set(bounds)) == 3
    assert of_counts == [3.2] * 3
    mu = math.sqrt(sum(multiplier**-2 for multiplier in of_updates + of_counts))
    (guarantee,) = running.guarantees()
    assert guarantee.unit == "client"
    assert guarantee.epsilon == pytest.approx(eps_from_mu(made.delta, mu), rel=1e-6)


def test_the_median_says_that_it_is_not_private(engine: RecordEngine) -> None:
    """The bound is the round's median, within limits; no epsilon, and why."""
    clipping, updates = MedianClipping(1.0, 1.0), updates_of(7)
    assert clipping.bound(updates) == sorted(np.linalg.norm(update) for update in updates)[3]
    assert clipping.bound([]) == 1.0
    assert clipping.bound([np.zeros(3)] * 3) == 2.0**-10
    with np.errstate(over="ignore"):
        assert clipping.bound([np.full(3, 1e300)] * 3) == 2.0**10
    running = simulation(engine, task(), update_clipping="median-not-private", **USER_DP)
    list(running.run())
    (guarantee,) = running.guarantees()
    assert guarantee.epsilon is None
    assert str(guarantee).startswith("no guarantee for one client")
    assert "median" in guarantee.note
    assert "infinite" in guarantee.note


def test_each_layer_is_within_the_median_of_its_norms(engine: RecordEngine) -> None:
    """Against NumPy's median of norms that are computed here; S is the root of the medians' squares, and no epsilon."""
    clipping, updates = PerLayerMedianClipping(1.0, 1.0, layer_sizes=(5, 4, 3)), updates_of(7)
    parts = (slice(0, 5), slice(5, 9), slice(9, 12))
    medians = [sorted(np.linalg.norm(update[part]) for update in updates)[3] for part in parts]
    bound = clipping.bound(updates)
    assert bound == pytest.approx(math.sqrt(sum(m**2 for m in medians)), rel=1e-12)
    for update in updates:
        got = clipping.clipped(update, bound)
        for part, median in zip(parts, medians, strict=True):
            expected = update[part] * min(1.0, median / np.linalg.norm(update[part]))
            assert np.abs(got[part] - expected).max() < 1e-9
    assert clipping.bound([]) == pytest.approx(1.0)
    running = simulation(engine, task(), update_clipping="median-per-layer-not-private", **USER_DP)
    list(running.run())
    assert running.guarantees()[0].epsilon is None


@pytest.mark.parametrize("way", WAYS)
def test_the_order_of_clients_changes_nothing(engine: RecordEngine, way: str) -> None:
    """Give equal bits, and an equal state, whoever comes first."""
    found = []
    for order in (1, -1):
        running = simulation(engine, task(client_clip=0.5), update_clipping=way, batching="client", **USER_DP)
        start = networks.initial_parameters("mlp", seed=0)
        outcome = running.algorithm.run_round(0, start, IDS[::order])
        found.append((outcome.parameters.tobytes(), running.algorithm.state()))
    assert found[0] == found[1]


@pytest.mark.parametrize("way", WAYS)
def test_a_training_that_is_resumed_goes_on_with_its_bound(engine: RecordEngine, way: str) -> None:
    whole = simulation(engine, task(rounds=4), update_clipping=way, **USER_DP)
    half = simulation(engine, task(rounds=4), update_clipping=way, **USER_DP)
    for _ in range(2):
        half.run_round()
    rest = simulation(engine, task(rounds=4), update_clipping=way, **USER_DP)
    rest.progress = half.progress
    rest.algorithm.restore(half.algorithm.state())
    assert final(rest).tobytes() == final(whole).tobytes()
    assert rest.algorithm.state() == whole.algorithm.state()
    assert len(whole.algorithm.state()) == (way in LEARNT)


@pytest.mark.parametrize(
    ("clipping", "state"),
    [
        (UpdateClipping(1.0, 1.0), (1.0,)),
        (QuantileClipping(1.0, 1.0, expected_clients=10.0), ()),
        (QuantileClipping(1.0, 1.0, expected_clients=10.0), (math.nan,)),
        (QuantileClipping(1.0, 1.0, expected_clients=10.0), (1e9,)),
    ],
)
def test_a_state_of_another_way_is_refused(clipping: UpdateClipping, state: tuple[float, ...]) -> None:
    with pytest.raises(ArgumentError, match="state"):
        clipping.restore(state)


def test_a_learnt_bound_stays_within_its_range() -> None:
    clipping = QuantileClipping(1.0, 1.0, expected_clients=10.0, rate=5.0)
    for count, limit in ((-1000, 2.0**10), (1000, 2.0**-10)):
        clipping.learn(count)
        assert clipping.bound([]) == pytest.approx(limit)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "precad", "update_clipping": "per-layer"}, "simulation.update_clipping: expected 'flat'"),
        ({"algorithm": "central-dp", "update_clipping": "median-not-private"}, "expected a private one"),
        (
            {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile", "quantile_noise": 0.5},
            "simulation.quantile_noise",
        ),
    ],
)
def test_clipping_without_meaning_is_refused(engine: RecordEngine, changes: dict[str, Any], message: str) -> None:
    budget = 5.0 if changes["algorithm"] == "central-dp" else None
    with pytest.raises(ArgumentError, match=message):
        simulation(engine, task(epsilon_budget_clients_only=budget), **changes)


def test_a_quantile_without_its_way_is_refused() -> None:
    with pytest.raises(ValidationError, match="quantile_rate needs update_clipping"):
        SimulationSettings(quantile_rate=0.1)


def test_a_bound_whose_noise_leaves_the_grid_is_refused(engine: RecordEngine) -> None:
    """Refuse the bound, since what is learnt might be 2^10 times as large as the start."""
    made = task(client_clip=30.0, noise_multiplier=1000.0)
    assert isinstance(simulation(engine, made, **USER_DP), Simulation)
    with pytest.raises(ArgumentError, match="at most 2\\^40 steps"):
        simulation(engine, made, update_clipping="private-quantile", **USER_DP)
