"""A task whose servers check no norm: what it is called, what it refuses, and what stays proved."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from pydantic import ValidationError

from precad.dp.accountants.pld import View
from precad.dp.task_privacy import task_privacy
from precad.protos.task.algorithms import RULES
from precad.servers.errors import TaskRefusedError
from precad.servers.store.state import require_possible_sum
from tests.harness.harness import small_task
from tests.protos.task.test_task_algorithms import task_of


def test_tasks_of_before_keep_their_text() -> None:
    assert "validation" not in json.loads(small_task().canonical())
    assert small_task(validation="norm").digest() == small_task().digest() != small_task(validation="none").digest()
    assert json.loads(small_task(validation="none").canonical())["validation"] == "none"


def test_mode_proved_is_its_check() -> None:
    with pytest.raises(ValidationError, match="validation: expected 'norm' in mode 'proved', whose proofs"):
        small_task(mode="proved", gate="crypten", validation="none")


@pytest.mark.parametrize("algorithm", [name for name, rules in RULES.items() if not rules.keeps_some])
def test_an_honest_clients_figures_need_no_check(algorithm: str) -> None:
    """The honest client clips by itself: the statements about it are those of the checked task."""
    checked, unchecked = task_of(algorithm), task_of(algorithm, validation="none")
    assert task_privacy(checked) == task_privacy(unchecked)
    assert (checked.enforced_bound, unchecked.enforced_bound) == (checked.client_clip, math.inf)
    assert checked.update_bound == unchecked.update_bound < math.inf
    assert all(task_privacy(unchecked).epsilon(view, 3, 1e-5) > 0 for view in View)


def test_any_sum_is_possible_where_nothing_is_enforced() -> None:
    long = np.full(small_task().dim, 2**60, dtype=np.int64)
    with pytest.raises(TaskRefusedError, match="opened sum"):
        require_possible_sum(long, small_task(), 3)
    require_possible_sum(long, small_task(validation="none"), 3)
