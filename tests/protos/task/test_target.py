"""A target in place of the noise: the noise meets it, by other accountants too, and the digest has what it came to.

Failure means that a task spends more than its file asked for, or wastes noise. Or two parties with one file refuse each
other.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from pydantic import ValidationError

from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.group_mixture import Direction, loss_distribution
from precad.dp.accountants.pld import View, effective_noise_multiplier
from precad.dp.task_privacy import task_cost, task_privacy
from precad.protos.task.target import keep_resolved, said
from precad.protos.task.task import Task
from tests.harness.harness import small_task

ROUNDS = 30


def section(**changed: Any) -> dict[str, Any]:
    """A small task's fields without noise, and with a target."""
    fields = small_task().model_dump(exclude_none=True) | {"rounds": ROUNDS, "target_epsilon": 3.0} | changed
    del fields["noise_multiplier"]
    return fields


@pytest.mark.parametrize("target", [0.3, 3.0, 12.0])
def test_the_noise_meets_the_target_and_wastes_little(target: float) -> None:
    """By the project's own accountant, and by dp_accounting's with a grid of its own."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    task = Task.model_validate(section(target_epsilon=target, record_rate=0.2))
    assert target * 0.99 < task_privacy(task).epsilon(View.ONE_SERVER, ROUNDS, task.delta) <= target
    sigma = effective_noise_multiplier(task.noise_multiplier, task.record_clip, task.dim, task.frac_bits)
    library = PLDAccountant(value_discretization_interval=1e-3)
    library.compose(SelfComposedDpEvent(PoissonSampledDpEvent(0.2, GaussianDpEvent(sigma)), ROUNDS))
    assert library.get_epsilon(task.delta) == pytest.approx(target, rel=1e-2)
    ours = max(loss_distribution(1, 0.2, sigma, ROUNDS, way).epsilon(task.delta) for way in Direction)
    assert ours == pytest.approx(target, rel=1e-2)


def test_a_client_is_the_unit_where_clients_are_protected() -> None:
    """In closed form: T Gaussian releases are sqrt(T)/sigma-GDP."""
    task = Task.model_validate(section(algorithm="user-dp-fedavg"))
    assert delta_from_mu(3.0, math.sqrt(ROUNDS) / task.noise_multiplier) <= task.delta
    assert delta_from_mu(3.0 * 0.99, math.sqrt(ROUNDS) / task.noise_multiplier) > task.delta
    assert "holds for a client" in said(3.0, task)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"algorithm": "ins-dp-fedavg", "local_steps": 3},
        {"algorithm": "distributed-dp", "non_colluding": 2, "client_clip": 1000.0},
        {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile", "dim": 9},
    ],
)
def test_every_step_of_every_algorithm_is_counted(algorithm: dict[str, Any]) -> None:
    task = Task.model_validate(section(**algorithm))
    assert 3 * 0.99 < task_privacy(task).epsilon(View.ONE_SERVER, ROUNDS, task.delta) <= 3


def test_the_text_has_what_the_target_came_to_and_not_the_target() -> None:
    """So whoever writes the noise itself is in the same task, and has no accountant's last digits to fear."""
    task = Task.model_validate(section())
    assert "target" not in task.canonical()
    assert len(f"{task.noise_multiplier:.12g}".replace(".", "").strip("0")) <= 4
    fields = section() | {"noise_multiplier": task.noise_multiplier}
    del fields["target_epsilon"]
    assert Task.model_validate(fields).digest() == task.digest()
    assert Task.model_validate(keep_resolved(section(), task)).digest() == task.digest()
    assert Task.model_validate(task.model_dump()) == task


def test_a_budget_of_the_same_number_holds_the_target_when_rounds_are_lost_too() -> None:
    """It allows all T rounds, and none beyond."""
    task = Task.model_validate(section())
    assert task.most_draws > ROUNDS
    assert task_cost(task).view_if_discarded(View.ONE_SERVER, 0) > 3
    within = Task.model_validate(section(epsilon_budget_one_server=3.0))
    assert within.noise_multiplier == task.noise_multiplier
    assert 3 * 0.99 < task_cost(within).view_if_discarded(View.ONE_SERVER, 0) <= 3


def test_the_least_noise_of_the_grid_is_enough_for_a_large_target() -> None:
    task = Task.model_validate(section(target_epsilon=1e9, frac_bits=8))
    assert task.noise_multiplier == 0.03125  # 8 / 2^8, which has four digits


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"noise_multiplier": 1.0}, "target_epsilon: expected it or noise_multiplier, found both"),
        ({"target_epsilon": 0}, "target_epsilon: expected a number above 0, found 0"),
        ({"target_epsilon": True}, "target_epsilon: expected a number above 0, found True"),
        ({"target_epsilon": "3"}, "target_epsilon: expected a number above 0, found '3'"),
        ({"target_epsilon": math.inf}, "target_epsilon: expected a number above 0, found inf"),
        ({"algorithm": "non-private"}, "target_epsilon: expected an algorithm that adds noise, found 'non-private'"),
        ({"min_clients": 9}, "min_clients: expected at most the 3 enrolled"),
        ({"record_rate": 2.0}, "record_rate\n"),
        (
            {"target_epsilon": 1e-12},
            "target_epsilon: expected one that a noise multiplier of at most 1e6 reaches|expected a number in \\[8",
        ),
        ({"record_clip": 1e308}, "noise_multiplier"),
    ],
)
def test_a_section_that_cannot_be_resolved_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Task.model_validate(section() | changed)


def test_a_trimmed_sum_meets_a_target_that_its_tests_leave_room_for() -> None:
    """The Laplace noise of the margins is given, so a target below what they cost is out of reach."""
    trimmed: dict[str, Any] = {"algorithm": "tsgd-ptr", "record_rate": 1.0, "rounds": 2, "trim_noise": 10.0}
    task = Task.model_validate(section(target_epsilon=4.0, **trimmed))
    assert 4.0 * 0.99 < task_privacy(task).epsilon(View.ONE_SERVER, 2, task.delta) <= 4.0
    with pytest.raises(
        ValidationError, match="target_epsilon: expected one that a noise multiplier of at most 1e6 reaches"
    ):
        Task.model_validate(section(target_epsilon=1.0, **{**trimmed, "trim_noise": 0.5}))


def test_a_field_at_fault_is_reported_where_it_is() -> None:
    with pytest.raises(ValidationError) as refused:
        Task.model_validate(section(record_rate="much", colour="red"))
    assert {fault["loc"] for fault in refused.value.errors()} == {("record_rate",), ("colour",)}
