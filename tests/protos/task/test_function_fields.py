"""A task whose servers evaluate a function of the sum: what it refuses, and what its noise and figures are."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from precad.deploy.localhost.summary import conditions_of
from precad.deploy.localhost.watch import warning_of
from precad.dp.accountants.pld import View
from precad.dp.task_privacy import task_privacy
from precad.protos.task.algorithms import RULES
from precad.protos.task.function_fields import FUNCTION_FIELDS, function_claim
from precad.protos.task.task import Task
from precad.servers.errors import TaskRefusedError
from precad.servers.store.state import require_possible_sum
from tests.harness.harness import small_task
from tests.protos.task.test_task_algorithms import task_of

CLIP: dict[str, Any] = {"sum_function": "precad.mpc.crypten.examples:clip", "sum_function_sha256": "ab" * 32}
WITH_FACTOR = {**CLIP, "sum_function_factor": 2.0, "sum_function_arguments": {"bound": 0.5}}


def test_tasks_of_before_keep_their_text() -> None:
    assert not set(json.loads(small_task().canonical())) & set(FUNCTION_FIELDS)
    text = json.loads(small_task(**WITH_FACTOR).canonical())
    assert {name: text[name] for name in FUNCTION_FIELDS} == WITH_FACTOR
    digests = {small_task(**WITH_FACTOR | change).digest() for change in ({}, *OTHER_VALUES)}
    assert len(digests) == 1 + len(OTHER_VALUES)


OTHER_VALUES: list[dict[str, Any]] = [
    {"sum_function": "precad.mpc.crypten.examples:other"},
    {"sum_function_sha256": "cd" * 32},
    {"sum_function_factor": 3.0},
    {"sum_function_arguments": {"bound": 0.25}},
]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sum_function_factor": 1.0}, "sum_function_factor needs sum_function, found none"),
        ({"sum_function_sha256": "ab" * 32}, "sum_function_sha256 needs sum_function, found none"),
        ({"sum_function_arguments": {"bound": 1.0}}, "sum_function_arguments needs sum_function, found none"),
        (WITH_FACTOR | {"sum_function_sha256": None}, "sum_function_sha256: expected the digest"),
        (WITH_FACTOR | {"sum_function": "clip"}, "should match pattern"),
        (WITH_FACTOR | {"sum_function_factor": 0.5}, "greater than or equal to 1"),
        (WITH_FACTOR | {"sum_function_factor": math.inf}, "finite number"),
        (WITH_FACTOR | {"mode": "proved", "gate": "crypten"}, "expected none in mode 'proved'"),
        (WITH_FACTOR | {"frac_bits": 20}, "frac_bits: expected 16 with sum_function"),
        (WITH_FACTOR | {"validation": "none"}, "validation: expected 'norm' with sum_function"),
        (CLIP, "sum_function_factor: expected a number with algorithm 'precad', whose epsilon it bounds"),
    ],
)
def test_fields_that_do_not_fit_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        small_task(**changes)


@pytest.mark.parametrize("algorithm", RULES)
def test_each_algorithm_has_a_function_with_a_claim_or_without(algorithm: str) -> None:
    """Servers' noise needs a factor; no noise has none; a client's noise, trims and Krum have no function."""
    rules = RULES[algorithm]  # type: ignore[index]
    is_plain = not rules.keeps_some
    takes = {"with": rules.servers_add_noise and is_plain, "without": is_plain and not rules.is_private}
    for fields, is_taken in ((WITH_FACTOR, takes["with"]), (CLIP, takes["without"])):
        if is_taken:
            task_of(algorithm, **fields)
        else:
            with pytest.raises(ValidationError, match="sum_function"):
                task_of(algorithm, **fields)


@pytest.mark.parametrize("field", ["update_clipping", "audit_clients", "noise_bands"])
def test_a_sum_that_is_taken_for_what_it_is_has_no_function(field: str) -> None:
    others: dict[str, dict[str, Any]] = {
        "update_clipping": {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile"},
        "audit_clients": {"audit_clients": ["mallory"], "client_clip": 8.0, "dim": 1000},
        "noise_bands": {"algorithm": "user-dp-fedavg", "min_separation": 2, "noise_bands": 2},
    }
    small_task(**others[field])
    with pytest.raises(ValidationError, match=f"{field}: expected"):
        small_task(**others[field], **WITH_FACTOR)


@pytest.mark.parametrize("algorithm", ["precad", "user-dp-fedavg"])
def test_a_factor_scales_the_noise_and_no_figure(algorithm: str) -> None:
    """Sigma is noise over sensitivity: L times the noise of each server, equal events, and a condition in words."""
    plain, with_factor = task_of(algorithm), task_of(algorithm, **WITH_FACTOR)
    assert with_factor.noise_std_on_grid == 2 * plain.noise_std_on_grid
    assert with_factor.sum_noise_std == pytest.approx(2 * plain.sum_noise_std, rel=1e-9)
    of_plain, found = task_privacy(plain), task_privacy(with_factor)
    assert (found.events, found.every_round) == (of_plain.events, of_plain.every_round)
    for view in View:
        assert found.rests_on[view].startswith(f"{of_plain.rests_on[view]}; if precad.mpc.crypten.examples:clip moves")
    assert found.rests_on[View.ONE_SERVER].endswith("; if both servers and the dealer follow the protocol in its steps")
    assert "2 times as far as the sum" in function_claim(with_factor)
    assert conditions_of(with_factor) == list(found.rests_on.values())


def test_evaluations_by_clients_have_no_function() -> None:
    task = small_task(**WITH_FACTOR, evaluation="clients", evaluation_every=1, evaluation_noise=8.0)
    one = task.evaluation_round
    assert one is not None
    assert one.sum_function is None
    assert one.sum_factor == 1


def no_bound_task(**changes: Any) -> Task:
    return small_task(algorithm="non-private", noise_multiplier=0.0, **CLIP, **changes)


def test_without_a_factor_every_label_says_no_bound_and_budgets_are_refused() -> None:
    task = no_bound_task()
    privacy = task_privacy(task)
    assert all(privacy.epsilon(view, 1, 1e-5) == math.inf for view in View)
    assert all("no bound" in text for text in (*privacy.rests_on.values(), function_claim(task)))
    assert "no bound" in str(warning_of(task))
    for budget in ("epsilon_budget_one_server", "epsilon_budget_clients_only", "epsilon_budget_client"):
        with pytest.raises(ValidationError, match=f"{budget}: non-private proves nothing"):
            no_bound_task(**{budget: 1.0})
    with pytest.raises(ValidationError, match="sum_function_factor: non-private proves nothing"):
        no_bound_task(sum_function_factor=1.0)


def test_a_sum_is_at_most_the_factor_as_long_as_before() -> None:
    """Twice of three updates of length C and twice the noise; without a factor nothing is too long."""
    plain, with_factor = small_task(), small_task(**WITH_FACTOR)
    assert with_factor.sum_bound(3) == pytest.approx(2 * plain.sum_bound(3), rel=1e-4)
    long = np.full(plain.dim, 2**60, dtype=np.int64)
    with pytest.raises(TaskRefusedError, match="opened sum"):
        require_possible_sum(long, with_factor, 3)
    require_possible_sum(long, no_bound_task(), 3)
