"""The rows of `protos/task/algorithms.py`, against a table by hand, the page written from them and `precad.dp`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from precad.dp.accountants.pld import Unit, View
from precad.dp.ledgers.ledger import Level
from precad.dp.task_privacy import task_privacy
from precad.protos.task.algorithms import (
    ALIASES,
    BUDGETS,
    DEFAULT,
    OF_AN_ALGORITHM,
    RULES,
    AlgorithmName,
    AlgorithmRules,
    names_default,
)
from precad.protos.task.task import Task
from tests.harness.harness import small_task
from tests.protos.task.test_task_algorithms import task_of

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "algorithms.md"
BY_HAND: dict[str, tuple[str, str, str, str]] = {
    "precad": ("servers", "R", "q p sum N_i", "record"),
    "user-dp-fedavg": ("servers", "C", "q n", "whole client"),
    "tsgd-ptr": ("servers", "C", "q n", "whole client"),
    "tsgd-gaussian": ("servers", "C", "q n", "whole client"),
    "ins-dp-fedavg": ("clients", "R", "q n", "record"),
    "local-dp": ("clients", "R", "q p sum N_i", "record"),
    "distributed-dp": ("clients", "R", "q p sum N_i", "record"),
    "non-private": ("nobody", "-", "q p sum N_i", "-"),
    "fedavg": ("nobody", "-", "q n", "-"),
    "krum": ("nobody", "-", "1", "-"),
    "multi-krum": ("nobody", "-", "how many count", "-"),
}
"""From the papers: who adds noise, of which clip it is a multiple, the divisor, and for whom something is proved."""
EACH = pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
DIFFERENT: dict[str, Any] = {
    "local_steps": 2,
    "local_rate": 0.2,
    "local_batch": 5,
    "local_momentum": 0.5,
    "local_weight_decay": 0.25,
    "update_clipping": "per-layer",
    "quantile": 0.75,
    "quantile_rate": 0.25,
    "quantile_noise": 0.75,
    "trim_tau": 0.75,
    "trim_noise": 2.0,
    "trim_failure": 1e-9,
    "trim_count": 1,
    "trim_step": 2,
    "non_colluding": 3,
    "krum_attackers": 0,
    "krum_keep": 2,
}
"""Values that are no default."""


def tables() -> list[dict[str, dict[str, str]]]:
    """Return the two tables of deployed algorithms: by algorithm, cells by heading."""
    found: list[dict[str, dict[str, str]]] = []
    for block in re.findall(r"(?:^\|.*\n)+", PAGE.read_text(), flags=re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        if head[0] == "`task.algorithm`":
            found.append({row[0].strip("`"): dict(zip(head, row, strict=True)) for row in rows})
    return found[:2]


def test_a_task_takes_the_names_of_the_rows() -> None:
    """The type that a configuration is validated against is written out; it has the same names in the same order."""
    assert tuple(RULES) == get_args(AlgorithmName)
    assert [rules.name for rules in RULES.values()] == list(RULES)
    assert Task.model_fields["algorithm"].default == DEFAULT
    assert [name for name, rules in RULES.items() if rules.is_default] == [DEFAULT]
    assert not ALIASES.keys() & RULES.keys()
    assert tuple(name for name in Task.model_fields if name.startswith("epsilon_budget_")) == BUDGETS
    assert OF_AN_ALGORITHM.keys() == DIFFERENT.keys() < Task.model_fields.keys()


@EACH
def test_the_rows_are_what_the_documentation_says(rules: AlgorithmRules) -> None:
    """Compare rows, page and papers: who adds noise, of which clip, what is uploaded, the divisor, whom it protects."""
    computed, proved = tables()
    assert [*computed] == [*proved] == [*RULES] == [*BY_HAND]
    row, statement = computed[rules.name], proved[rules.name]
    noise, protects = row["noise, as a standard deviation"], statement["for one"]
    adds, clip, divisor, unit = BY_HAND[rules.name]
    assert (rules.servers_add_noise, rules.clients_add_noise) == (adds == "servers", adds == "clients")
    assert (adds == "servers") == ("server" in noise)
    assert (adds == "clients") == ("client" in noise)
    assert rules.clients_share_noise == ("sqrt(tau)" in noise)
    assert (adds == "nobody") == ("none" in noise) == (statement["against other clients"] == "nothing")
    assert adds == "nobody" or noise.split()[1] == clip
    assert adds == "nobody" or rules.noise_clip == {"R": "record_clip", "C": "client_clip"}[clip]
    assert row["W"] == divisor
    assert rules.trains_locally == ("theta_i - theta" in row["a client uploads"]) == (divisor != "q p sum N_i")
    assert rules.selects == (divisor in ("1", "how many count"))
    assert protects == unit
    assert (rules.protects_records, rules.protects_clients) == (unit == "record", unit == "whole client")


@EACH
def test_accounts_are_of_what_the_row_protects(rules: AlgorithmRules) -> None:
    """`precad.dp` states the row's unit, nothing without noise, and a whole client where the servers add the noise."""
    privacy = task_privacy(task_of(rules.name))
    assert (privacy.unit is Unit.CLIENT) == rules.protects_clients
    assert [privacy.events[view] is not None for view in View] == [rules.is_private] * len(View)
    assert (Level.CLIENT in privacy.every_round) == (rules.servers_add_noise and not rules.trims)
    assert privacy.is_local == (rules.clients_add_noise and not rules.clients_share_noise)
    stronger = privacy.events[View.ONE_SERVER] != privacy.events[View.CLIENTS_ONLY]
    assert stronger == rules.servers_add_noise


@EACH
@pytest.mark.parametrize("field", DIFFERENT)
def test_a_task_takes_the_fields_of_its_algorithm_alone(rules: AlgorithmRules, field: str) -> None:
    """With another value, and at the default that says nothing."""
    given = {field: DIFFERENT[field]}
    task_of(rules.name, **{field: Task.model_fields[field].default})
    if field in rules.own_fields:
        beside = {"update_clipping": "private-quantile"} if field.startswith("quantile") else {}
        assert getattr(task_of(rules.name, **beside | given), field) == DIFFERENT[field]
    else:
        with pytest.raises(ValidationError, match=f"{field} is of .* only, found algorithm '{rules.name}'"):
            task_of(rules.name, **given)


@EACH
def test_budgets_limit_what_is_proved(rules: AlgorithmRules) -> None:
    privacy = task_privacy(task_of(rules.name))
    proved = {f"epsilon_budget_{view}" for view in View if privacy.events[view] is not None}
    if Level.CLIENT in privacy.every_round:
        proved.add("epsilon_budget_client")
    assert set(BUDGETS) - set(rules.idle_budgets) == proved
    for budget in BUDGETS:
        if budget in proved:
            assert getattr(task_of(rules.name, **{budget: 8.0}), budget) == 8.0
        else:
            with pytest.raises(ValidationError, match=f"{budget}: {rules.name} proves nothing"):
                task_of(rules.name, **{budget: 8.0})


def test_a_section_that_is_not_validated_may_leave_the_algorithm_at_precad() -> None:
    assert all(names_default(section) for section in ({}, {"algorithm": "precad"}, {"algorithm": "deployed"}))
    others: list[object] = [name for name in (*RULES, *ALIASES, "krum", "", ["precad"], None) if name != "precad"]
    assert not any(names_default({"algorithm": name}) for name in others)


def test_an_error_of_the_algorithm_stands_alone() -> None:
    """A name that does not exist is one fault, also beside noise that only `non-private` may have."""
    with pytest.raises(ValidationError) as caught:
        small_task(algorithm="none-private", noise_multiplier=1.0)
    assert [error["loc"] for error in caught.value.errors()] == [("algorithm",)]
