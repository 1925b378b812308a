"""Whole tasks on a simulated clock and network: generated deaths, broken connections, lost and repeated messages.

The servers', the dealer's and the honest clients' code is production's (`tests.faults.simulation.world`); one client is
malicious. Failure means anything that `tests.faults.simulation.oracle` names, a task that does not go on, or a process
that ends in error. It also means, on disk in the end, what `tests.faults.deployment` names. The same plan gives the
same run. Faults that are planted in the servers show that the oracle sees what it is there for.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precad.dp.accountants.pld import View
from precad.dp.ledgers.ledger import Ledger
from precad.dp.ledgers.sealed_file import SealedFile
from precad.mpc.channel import Channel
from precad.mpc.joint_coin import CoinShare
from precad.mpc.tuples.dealt import deal
from precad.protos.tls.identity import Role
from precad.servers import dealer as dealer_module
from precad.servers.rounds.dealt_form import DealtForm
from precad.servers.rounds.form import Ground
from precad.servers.rounds.round import RoundRunner
from precad.servers.rounds.states import Validated
from precad.servers.store import state as task_state_module
from precad.servers.store.burnt_tuples import TupleLedger
from precad.servers.store.rounds import TaskStore
from tests.faults.deployment import assert_ledgers, assert_tuples_used_once
from tests.faults.simulation import playing
from tests.faults.simulation.network import Mishap
from tests.faults.simulation.oracle import ViolationError
from tests.faults.simulation.world import SERVERS, Accident, Death, Plan, World
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS, Pki

CLIENTS = ("alice", "bob", "mallory")
TASK = small_task(CLIENTS, rounds=3, client_rate=0.8, gate="native", dim=6, lost_rounds=1000)
A, B = AGGREGATORS
MOST_TRANSITIONS = 60
"""More than a server goes through in a task that is interrupted twice."""


@pytest.fixture(scope="module")
def pki(place: Path) -> Pki:
    return Pki.create(place / "pki", TASK.clients)


def played(place: Path, pki: Pki, plan: Plan) -> World:
    """A world whose task is over; its folder is gone again. Raises what was found wrong."""
    return playing.played(place, lambda folder: World(folder, TASK, pki, plan), assert_sound)


def assert_sound(world: World) -> None:
    """Assert that both servers have on disk in the end what the oracle saw leave them."""
    assert_ledgers(world, playing.assert_as_seen(world))
    assert_tuples_used_once(world)


# -- generated programs ------------------------------------------------------------------------------------------------

NAMES = st.sampled_from([*SERVERS, *CLIENTS])
DEATHS = st.builds(
    Death, st.sampled_from(SERVERS), transition=st.integers(0, MOST_TRANSITIONS - 1), after=st.booleans()
)
ACCIDENTS = st.builds(Accident, at_s=st.floats(0.0, 6.0), name=NAMES, other=st.just("") | NAMES)
MISHAPS = st.tuples(st.integers(0, 40), st.sampled_from(Mishap))
PLANS = st.builds(
    Plan,
    seed=st.integers(0, 2**32 - 1),
    deaths=st.lists(DEATHS, max_size=4).map(tuple),
    accidents=st.lists(ACCIDENTS, max_size=4).map(tuple),
    mishaps=st.lists(MISHAPS, max_size=6).map(tuple),
)
UNHURRIED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]


@settings(max_examples=4, derandomize=True, suppress_health_check=UNHURRIED)
@given(plan=PLANS)
def test_a_few_generated_programs(place: Path, pki: Pki, plan: Plan) -> None:
    """Play a few programs as below, in the default suite: the same programs each time."""
    played(place, pki, plan)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@settings(max_examples=int(os.environ.get("PRECAD_SIMULATED_PROGRAMS", "600")), suppress_health_check=UNHURRIED)
@given(plan=PLANS)
def test_hundreds_of_generated_programs(place: Path, pki: Pki, plan: Plan) -> None:
    """Whatever happens, in whatever order."""
    played(place, pki, plan)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("role", SERVERS)
def test_a_death_at_every_transition(place: Path, pki: Pki, role: Role, after: bool) -> None:
    """Kill once at each transition of an uninterrupted task, one run for each: none is forgotten."""
    n_transitions = played(place, pki, Plan()).transitions[role]
    assert n_transitions >= 2 * TASK.rounds
    for transition in range(n_transitions):
        world = played(place, pki, Plan(deaths=(Death(role, transition, after),)))
        assert world.lives[role] == 1


def test_the_same_plan_gives_the_same_run(place: Path, pki: Pki) -> None:
    """Transition by transition, at the same times; so a failure can be looked at again."""
    plan = Plan(
        seed=7, deaths=(Death(B, 9, after=True),), accidents=(Accident(0.6, A, B),), mishaps=((3, Mishap.TWICE),)
    )
    first, second = (played(place, pki, plan) for _ in range(2))
    assert first.trace == second.trace
    assert first.lives[B] == 1


def test_an_a_that_dies_between_link_and_lane_is_not_waited_for(place: Path, pki: Pki) -> None:
    """B has greeted it and waits for its lane; the next A comes on another link, within B's patience."""
    for moment in range(10):
        world = played(place, pki, Plan(seed=487, accidents=(Accident(0.02 + 0.002 * moment, A),)))
        assert world.lives[A] == 1


# -- planted faults ----------------------------------------------------------------------------------------------------


def no_burn(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TupleLedger, "burn", lambda *_: None)


def no_charge(patch: pytest.MonkeyPatch) -> None:
    """In memory, and not on disk."""
    append = SealedFile.append
    patch.setattr(SealedFile, "append", lambda self, fields: None if "round" in fields else append(self, fields))


def a_late_charge(patch: pytest.MonkeyPatch) -> None:
    """After the check, as it was before precad/v1.1."""
    pay, write, locked = RoundRunner._pay, RoundRunner._write_verdicts, dict[int, Any]()

    def later(self: RoundRunner, state: Any) -> Any:
        locked[id(self)] = state
        self._state.store.checking(state.round, chosen=state.chosen, active=state.lock.active)
        return dict.fromkeys(View, 0.0)

    def verdicts(self: RoundRunner, state: Any) -> None:
        pay(self, locked[id(self)])
        write(self, state)

    patch.setattr(RoundRunner, "_pay", later)
    patch.setattr(RoundRunner, "_write_verdicts", verdicts)


def a_free_client(patch: pytest.MonkeyPatch) -> None:
    charge = Ledger.charge
    patch.setattr(Ledger, "charge", lambda self, t, clients, **kind: charge(self, t, sorted(clients)[1:], **kind))


def no_reservation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TaskStore, "reserve", lambda self, number: None)


def the_same_number_again(patch: pytest.MonkeyPatch) -> None:
    """After a crash a server goes on with the round that it was in."""

    def reserve(self: TaskStore, number: int) -> None:
        with self.transaction() as run:
            run("INSERT OR IGNORE INTO round (number, state) VALUES (?, 'reserved')", (number,))

    next_round: Any = TaskStore.next_round
    patch.setattr(TaskStore, "reserve", reserve)
    patch.setattr(TaskStore, "next_round", property(lambda self: max(0, next_round.fget(self) - 1)))


def a_number_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A server that meets the other takes a draw that went no further for none."""
    settle = TaskStore.settle

    def forgets(self: TaskStore, charged: Any) -> None:
        settle(self, charged)
        with self.transaction() as run:
            run("DELETE FROM round WHERE state = 'reserved'", ())

    patch.setattr(TaskStore, "settle", forgets)


def every_update_twice(patch: pytest.MonkeyPatch) -> None:
    _releasing(patch, times=2)


def an_update_lost(patch: pytest.MonkeyPatch) -> None:
    """Accepted, and not in the sum."""
    _releasing(patch, times=0)


def _releasing(patch: pytest.MonkeyPatch, times: int) -> None:
    """Have both servers release a multiple of their shares' sum."""
    release = DealtForm.release

    def released(self: DealtForm, state: Validated) -> Any:
        return release(self, replace(state, share_sum=times * state.share_sum))

    patch.setattr(DealtForm, "release", released)


def the_same_noise_again(patch: pytest.MonkeyPatch) -> None:
    """A server keeps its first draw."""
    first: dict[int, Any] = {}

    def noise(self: World, process: Any, party: int, std: float, dim: int) -> Any:
        if party not in first:
            first[party] = draw(self, process, party, std, dim)
        return first[party].copy()

    draw = World.noise
    patch.setattr(World, "noise", noise)


def two_models(patch: pytest.MonkeyPatch) -> None:
    """One server computes another one, and neither looks at the other's digest."""
    channel, updated = Ground.channel, task_state_module.updated

    class Unseeing:
        """Every step as it is, but that the peer's model is taken for ours."""

        def __init__(self, inner: Channel) -> None:
            self._inner = inner

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def exchange(self, label: str, payload: bytes, *limits: Any) -> bytes:
            received = self._inner.exchange(label, payload, *limits)
            return payload if label == "model" else received

    calls: list[None] = []

    def differs(*given: Any) -> Any:
        calls.append(None)
        parameters, past = updated(*given)
        return parameters + np.float32(len(calls) % 2), past

    patch.setattr(Ground, "channel", lambda ground, t: Unseeing(channel(ground, t)))
    patch.setattr(task_state_module, "updated", differs)


def the_same_batch_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(dealer_module, "deal", lambda shape, random_bytes: deal(shape, bytes))


def the_same_coin_again(patch: pytest.MonkeyPatch) -> None:
    draw = CoinShare.draw
    patch.setattr(CoinShare, "draw", lambda party, context, random_bytes: draw(party, "coin", bytes))


CRASH = Plan(seed=3, deaths=(Death(A, 9, after=True),))


@pytest.mark.parametrize(
    ("plant", "plan", "words"),
    [
        (no_burn, Plan(), "its tuple is not burnt"),
        (no_charge, Plan(), "which its ledger does not hold"),
        (a_late_charge, Plan(), "sends coin/reveal of round 0, which its ledger does not hold"),
        (a_free_client, Plan(), "without a charge for"),
        (no_reservation, Plan(), "which it has not reserved"),
        (the_same_number_again, CRASH, "commits to a coin of round 1, which is used up"),
        (a_number_forgotten, CRASH, "on two lanes"),
        (every_update_twice, Plan(), "holds 2000 of|holds 2001 of"),
        (an_update_lost, Plan(), "its sum holds set"),
        (the_same_noise_again, Plan(), "'noise'|other noise"),
        (two_models, Plan(), "has another model"),
        (the_same_batch_again, Plan(), r"twice: \('key'"),
        (the_same_coin_again, Plan(), r"twice: \('coin'"),
    ],
)
def test_a_planted_fault_is_found(
    place: Path,
    pki: Pki,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    plan: Plan,
    words: str,
) -> None:
    """By the oracle, not by a server that stumbles over it."""
    plant(monkeypatch)
    with pytest.raises(ViolationError, match=words):
        played(place, pki, plan)
