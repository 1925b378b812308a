"""The servers' step: rates by round, momentum and Adam as others compute them, the same bits after a restart.

Failure means that two servers part, that a restart changes a training, or that an optimiser is not the one it is named
after.
"""

from __future__ import annotations

import math
from decimal import Decimal, getcontext
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from precad.dp.task_privacy import task_privacy
from precad.mpc import fixed_point
from precad.protos.task.model_update import Past, moved_along, updated
from precad.protos.task.server_step import half_cosine, power
from precad.protos.task.task import Task
from tests.harness.harness import small_task

DIM, ROUNDS = 24, 7
ADAM: dict[str, Any] = {"server_optimizer": "adam", "server_momentum": 0.8, "server_beta2": 0.9}
MOMENTUM: dict[str, Any] = {"server_optimizer": "momentum", "server_momentum": 0.8}
COSINE: dict[str, Any] = {"learning_rate_schedule": "cosine", "decay_rounds": 5, "warmup_rounds": 2}


def sums(task: Task) -> list[NDArray[np.int64]]:
    """A noisy sum for each round."""
    draws = np.random.default_rng(4)
    return [fixed_point.encode(draws.normal(size=task.dim), task.frac_bits) for _ in range(ROUNDS)]


def trained(task: Task, *, restarts: bool = False) -> NDArray[np.float32]:
    """The model after all rounds. Restarts keep what a checkpoint does."""
    theta, past = np.zeros(task.dim, dtype=np.float32), Past.first(task)
    for t, noisy_sum in enumerate(sums(task)):
        theta, past = updated(theta, noisy_sum, task, past)
        if restarts:
            past = Past(t + 1, np.frombuffer(past.moments.tobytes(), dtype=np.float32).reshape(past.moments.shape))
    return theta


@pytest.mark.parametrize("fields", [MOMENTUM, ADAM, {**ADAM, **COSINE}])
def test_the_optimisers_are_pytorchs(fields: dict[str, Any]) -> None:
    """In float64; what is kept between rounds is rounded to float32."""
    task = small_task(server_adaptivity=1e-2, **fields) if "adam" in fields.values() else small_task(**fields)
    theirs = torch.nn.Parameter(torch.zeros(DIM, dtype=torch.float64))
    betas = (0.8, 0.9)
    if task.server_optimizer == "momentum":
        solver: torch.optim.Optimizer = torch.optim.SGD([theirs], lr=1.0, momentum=0.8)
    else:
        solver = torch.optim.Adam([theirs], lr=1.0, betas=betas, eps=1e-2)
    for t, noisy_sum in enumerate(sums(task)):
        solver.param_groups[0]["lr"] = task.rate(task.learning_rate, t)
        theirs.grad = torch.from_numpy(-fixed_point.decode(noisy_sum, task.frac_bits) / task.divisor)
        solver.step()
    np.testing.assert_allclose(trained(task), theirs.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fields", [{}, COSINE, MOMENTUM, ADAM, {**ADAM, **COSINE}])
def test_a_restart_changes_no_bit(fields: dict[str, Any]) -> None:
    task = small_task(**fields)
    assert trained(task, restarts=True).tobytes() == trained(task).tobytes()


def test_without_any_of_it_the_step_is_the_papers() -> None:
    """eta / W times the sum, rounded once."""
    task = small_task()
    theta = np.linspace(-1, 1, DIM).astype(np.float32)
    total = sums(task)[0]
    got, past = updated(theta, total, task, Past(5, Past.first(task).moments))
    expected = theta.astype(np.float64) + fixed_point.decode(total, 16) * (task.learning_rate / task.divisor)
    assert got.tobytes() == expected.astype(np.float32).tobytes()
    assert (past.n_steps, past.moments.size) == (6, 0)
    one, _ = moved_along(theta, fixed_point.decode(total, 16), task, past, task.divisor)
    assert one.tobytes() == got.tobytes()


def test_a_learnt_bound_is_moved_by_its_own_rule_alone() -> None:
    """The optimiser has no moment of the last number, which is no parameter."""
    fields = {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile"}
    plain, adam = (small_task(**fields, **more) for more in ({}, ADAM))
    assert trained(plain)[-1] == trained(adam)[-1] != 0
    assert Past.first(adam).moments.shape == (2, DIM - 1)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        ({"warmup_rounds": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        ({"learning_rate_schedule": "step", "decay_rounds": 2, "decay_factor": 0.5}, [1, 1, 0.5, 0.5, 0.25, 0.25]),
        (
            {"learning_rate_schedule": "linear", "decay_rounds": 4, "decay_factor": 0.0, "warmup_rounds": 1},
            [1, 1, 0.75, 0.5, 0.25, 0],
        ),
        ({"learning_rate_schedule": "linear", "decay_rounds": 2, "decay_factor": 0.5}, [1, 0.75, 0.5, 0.5, 0.5, 0.5]),
        ({"learning_rate_schedule": "cosine", "decay_rounds": 2, "decay_factor": 0.0}, [1, 0.5, 0, 0, 0, 0]),
    ],
)
def test_rates_by_round(fields: dict[str, Any], expected: list[float]) -> None:
    """As shares of eta, in closed form; the number of rounds in all plays no part."""
    for rounds in (6, 60):
        task = small_task(rounds=rounds, **fields)
        assert [task.rate(1.0, t) for t in range(6)] == expected


def test_cosines_are_the_nearest_numbers() -> None:
    """Where a closed form has them to sixty digits, and near the library's anywhere."""
    getcontext().prec = 60
    assert half_cosine(1, 4) == float((2 + Decimal(2).sqrt()) / 4)
    assert half_cosine(5, 6) == float((2 - Decimal(3).sqrt()) / 4)
    assert half_cosine(1, 5) == float((5 + Decimal(5).sqrt()) / 8)
    assert [half_cosine(k, 6) for k in (0, 2, 3, 4, 6)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    for k in range(0, 1000, 7):
        assert half_cosine(k, 1000) == pytest.approx((1 + math.cos(math.pi * k / 1000)) / 2, abs=1e-15)
    assert half_cosine(999_999, 1_000_000) == pytest.approx((math.pi / 2e6) ** 2, rel=1e-9)


def test_powers_are_products() -> None:
    assert [power(0.5, n) for n in (0, 1, 2, 3, 10)] == [1.0, 0.5, 0.25, 0.125, 2.0**-10]
    assert power(0.999, 12_345) == pytest.approx(0.999**12_345, rel=1e-11)
    assert power(0.9, 10**6) == 0.0


def test_the_servers_step_costs_no_privacy() -> None:
    """The accountant is told the same of a round."""
    assert task_privacy(small_task(**ADAM, **COSINE)) == task_privacy(small_task())
