"""Tasks whose clients evaluate the model, on the simulated clock and network of `tests.faults.test_simulated_faults`.

Failure means anything that the oracle names. It also means that a lost evaluation ends the task, is tried again at
once, or costs nothing though its check began. Or the servers charge differently.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings

from precad.dp.ledgers.lines import read_lines
from precad.protos.task.evaluation import is_due
from precad.protos.tls.identity import Role
from precad.servers.store import audit_log
from precad.servers.store.folder import ledger_path, store_path
from tests.faults.deployment import committed
from tests.faults.simulation import playing
from tests.faults.simulation.world import SERVERS, Death, Plan, World
from tests.faults.test_simulated_faults import CLIENTS, PLANS, UNHURRIED
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS, Pki

TASK = small_task(
    CLIENTS,
    rounds=4,
    client_rate=0.8,
    gate="native",
    dim=6,
    lost_rounds=1000,
    batches_ahead=2,
    evaluation="clients",
    evaluation_every=2,
    evaluation_noise=5.0,
)
A, B = AGGREGATORS


@pytest.fixture(scope="module")
def pki(place: Path) -> Pki:
    return Pki.create(place / "pki", TASK.clients)


def played(place: Path, pki: Pki, plan: Plan) -> World:
    """A world whose task is over, found sound; its folder is gone again."""
    return playing.played(place, lambda folder: World(folder, TASK, pki, plan), assert_sound)


def assert_sound(world: World) -> None:
    """Assert that both servers hold the same models and charges, and evaluations only where one was due."""
    a, b = (committed(world.folder, world.task, role) for role in AGGREGATORS)
    assert [(r.number, r.accepted, r.model_digest) for r in a] == [(r.number, r.accepted, r.model_digest) for r in b]
    assert len(a) == TASK.rounds
    due = {r.number + 1 for n, r in enumerate(a, start=1) if is_due(TASK.evaluation_every, n)}
    assert len(due) == TASK.most_evaluations
    charges = [read_lines(ledger_path(world.folder / role))[1] for role in AGGREGATORS]
    assert charges[0] == charges[1]
    for role, of_role in zip(AGGREGATORS, charges, strict=True):
        evaluated = world.oracle.evaluations[role].keys()
        assert evaluated <= {number for number, charge in of_role.items() if charge.is_evaluation} <= due
    logs = [audit_log.read(store_path(world.folder / role)) for role in AGGREGATORS]
    both = world.oracle.evaluations[A].keys() & world.oracle.evaluations[B].keys()
    assert audit_log.compare(*logs) == TASK.rounds + len(both)


def test_an_uninterrupted_task_has_every_evaluation(place: Path, pki: Pki) -> None:
    """Right after the second and the fourth commit; the models are those of a task without."""
    world = played(place, pki, Plan(seed=5))
    assert list(world.oracle.commits[A]) == [0, 1, 3, 4]
    for role in AGGREGATORS:
        assert list(world.oracle.evaluations[role]) == [2, 5]


@settings(max_examples=4, derandomize=True, suppress_health_check=UNHURRIED)
@given(plan=PLANS)
def test_a_few_generated_programs_with_evaluations(place: Path, pki: Pki, plan: Plan) -> None:
    played(place, pki, plan)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=int(os.environ.get("PRECAD_SIMULATED_PROGRAMS", "300")), suppress_health_check=UNHURRIED)
@given(plan=PLANS)
def test_hundreds_of_generated_programs_with_evaluations(place: Path, pki: Pki, plan: Plan) -> None:
    played(place, pki, plan)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("role", SERVERS)
def test_a_death_at_every_transition_with_evaluations(place: Path, pki: Pki, role: Role, after: bool) -> None:
    """One run for each transition: those of evaluations too."""
    n_transitions = played(place, pki, Plan()).transitions[role]
    for transition in range(n_transitions):
        assert played(place, pki, Plan(deaths=(Death(role, transition, after),))).lives[role] == 1
