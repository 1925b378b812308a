"""Whole tasks of mode `proved` on the simulated clock and network of `tests.faults.test_simulated_faults`.

Servers die at every pair of their persisted transitions. Failure means anything that
`tests.faults.simulation.proved_world` names, a task that does not go on, or servers that disagree on disk in the end.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precad.dp.accountants.pld import View
from precad.dp.ledgers.lines import read_lines
from precad.mpc.prg import Seed
from precad.servers.rounds import proved_form
from precad.servers.rounds.proved_form import ProvedForm
from precad.servers.rounds.round import RoundRunner
from precad.servers.store.folder import ledger_path
from tests.faults.simulation import playing
from tests.faults.simulation.oracle import ViolationError
from tests.faults.simulation.proved_world import ProvedWorld
from tests.faults.simulation.world import Accident, Death, Plan
from tests.faults.test_simulated_faults import CLIENTS, MISHAPS, UNHURRIED
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS, Pki

TASK = small_task(CLIENTS, rounds=2, client_rate=0.9, mode="proved", frac_bits=16, dim=6, lost_rounds=1000)
MOST_TRANSITIONS = 40
NAMES = st.sampled_from([*AGGREGATORS, *CLIENTS])
PLANS = st.builds(
    Plan,
    seed=st.integers(0, 2**32 - 1),
    deaths=st.lists(
        st.builds(
            Death,
            st.sampled_from(AGGREGATORS),
            transition=st.integers(0, MOST_TRANSITIONS - 1),
            after=st.booleans(),
        ),
        max_size=4,
    ).map(tuple),
    accidents=st.lists(
        st.builds(Accident, at_s=st.floats(0.0, 4.0), name=NAMES, other=st.just("") | NAMES), max_size=4
    ).map(tuple),
    mishaps=st.lists(MISHAPS, max_size=4).map(tuple),
)


@pytest.fixture(scope="module")
def pki(place: Path) -> Pki:
    return Pki.create(place / "pki", TASK.clients)


def played(place: Path, pki: Pki, plan: Plan) -> ProvedWorld:
    """A world whose task is over, found sound; its folder is gone again."""
    return playing.played(place, lambda folder: ProvedWorld(folder, TASK, pki, plan), assert_sound)


def assert_sound(world: ProvedWorld) -> None:
    """Assert that both servers have on disk in the end what the oracle saw leave them, and the same charges."""
    playing.assert_as_seen(world)
    charges = [read_lines(ledger_path(world.folder / role))[1] for role in AGGREGATORS]
    assert charges[0] == charges[1]


@settings(max_examples=4, derandomize=True, suppress_health_check=UNHURRIED)
@given(plan=PLANS)
def test_a_few_generated_programs_of_mode_proved(place: Path, pki: Pki, plan: Plan) -> None:
    """Play a few programs as below, in the default suite."""
    played(place, pki, plan)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=int(os.environ.get("PRECAD_SIMULATED_PROGRAMS", "600")), suppress_health_check=UNHURRIED)
@given(plan=PLANS)
def test_hundreds_of_generated_programs_of_mode_proved(place: Path, pki: Pki, plan: Plan) -> None:
    """Whatever happens, in whatever order."""
    played(place, pki, plan)


def pairs_of_deaths(place: Path, pki: Pki) -> list[tuple[Death, Death]]:
    """Return each server's death before or after each transition of an undisturbed task, with each of the other's."""
    transitions = played(place, pki, Plan(seed=1)).transitions
    of_each = [
        [Death(role, number, is_after) for number in range(transitions[role]) for is_after in (False, True)]
        for role in AGGREGATORS
    ]
    assert all(len(deaths) > 2 * 8 * TASK.rounds - 4 for deaths in of_each)
    return list(itertools.product(*of_each))


def test_both_servers_die_wherever_they_are_at_a_few_places(place: Path, pki: Pki) -> None:
    """Play four of the pairs below, in the default suite."""
    for deaths in random.Random(0).sample(pairs_of_deaths(place, pki), 4):
        assert played(place, pki, Plan(seed=1, deaths=deaths)).lives.total() >= 1


def test_a_server_that_dies_again_and_again_before_it_uses_a_number_up_is_not_left_behind(
    place: Path, pki: Pki
) -> None:
    """The other one has used it up each time. So they would be further apart than one draw, and meet no more."""
    role, deaths = AGGREGATORS[1], tuple[Death, ...]()
    for n_deaths in range(4):
        world = played(place, pki, Plan(seed=1, deaths=deaths))
        assert world.lives[role] == n_deaths
        found = [name for _, of, name in world.trace if of == role]
        deaths += (Death(role, found.index("reserve", deaths[-1].transition + 1 if deaths else 0), after=False),)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_both_servers_die_wherever_they_are(place: Path, pki: Pki) -> None:
    """Each at any of its persisted transitions, the other one at any of its own."""
    for deaths in pairs_of_deaths(place, pki):
        played(place, pki, Plan(seed=1, deaths=deaths))


# Planted faults


def a_charge_after_the_check(patch: pytest.MonkeyPatch) -> None:
    pay, write, locked = RoundRunner._pay, RoundRunner._write_verdicts, dict[int, Any]()

    def later(self: RoundRunner, state: Any) -> Any:
        locked[id(self)] = state
        return dict.fromkeys(View, 0.0)

    def verdicts(self: RoundRunner, state: Any) -> None:
        pay(self, locked[id(self)])
        write(self, state)

    patch.setattr(RoundRunner, "_pay", later)
    patch.setattr(RoundRunner, "_write_verdicts", verdicts)


def a_seed_from_the_holder(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(proved_form, "seeded_of", lambda slot: slot % 2)
    patch.setattr("precad.mpc.proved.submission.seeded_of", lambda slot: slot % 2)


def a_challenge_before_the_lock(patch: pytest.MonkeyPatch) -> None:
    """Clients hear a challenge of the server's own while uploads come in."""
    lock = ProvedForm.lock

    async def early(self: ProvedForm, state: Any) -> Any:
        self._send_challenge(state.round, Seed(bytes(16)), state.chosen)
        return await lock(self, state)

    patch.setattr(ProvedForm, "lock", early)


def the_verdicts_in_memory_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RoundRunner, "_write_verdicts", lambda self, state: None)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (a_charge_after_the_check, "sends validation/proofs of round 0, which its ledger does not hold"),
        (a_seed_from_the_holder, "gives 16 bytes for slot|gives 0 bytes for slot"),
        (a_challenge_before_the_lock, "tells the challenge of round 0 before its lock"),
        (the_verdicts_in_memory_alone, "releases round 0, which is"),
    ],
)
def test_a_fault_that_is_planted_in_mode_proved_is_found(
    place: Path,
    pki: Pki,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    words: str,
) -> None:
    """By the oracle, not by a server that stumbles over it."""
    plant(monkeypatch)
    with pytest.raises(ViolationError, match=words):
        played(place, pki, Plan(seed=1))
