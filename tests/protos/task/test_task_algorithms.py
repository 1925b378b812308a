"""Tasks of algorithms other than PRECAD: what is refused, the constants that all take from a task, and the ledger.

Every epsilon of a ledger is compared with a second way to it. That is an accountant called with parameters that are
written down here from docs/explanation/privacy.md, or a closed form. Failure means that a server would report another
epsilon than is proved.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.stats import binom

from precad.dp.accountants.gaussian_dp import delta_from_mu, eps_from_mu
from precad.dp.accountants.pld import PldAccountant, SampledGaussian, TwoStageSampledGaussian, Unit, View
from precad.dp.accountants.side_by_side import ACCOUNTANTS
from precad.dp.errors import BudgetExceededError, LedgerCorruptedError
from precad.dp.ledgers.ledger import Level
from precad.dp.task_privacy import task_privacy
from precad.mpc.tuples.held import BatchShape
from precad.protos.task.algorithms import ONLY_SIMULATED, TRUSTED
from precad.protos.task.task import Task
from precad.servers.store.folder import open_ledger
from tests.harness.harness import small_task

ROUNDS = 5
PRIVATE = ("user-dp-fedavg", "ins-dp-fedavg", "local-dp", "distributed-dp")


KRUM = {
    "noise_multiplier": 0.0, "local_steps": 3, "client_rate": 1.0,
    "clients": dict.fromkeys(("alice", "bob", "c", "d", "e"), 10),
}  # fmt: skip


def task_of(algorithm: str, **changes: Any) -> Task:
    """A small one that is valid."""
    special = {
        "user-dp-fedavg": {"local_steps": 3},
        "ins-dp-fedavg": {"local_steps": 3},
        "distributed-dp": {"non_colluding": 2, "client_clip": 50.0},
        "non-private": {"noise_multiplier": 0.0},
        "fedavg": {"noise_multiplier": 0.0, "local_steps": 3},
        "krum": KRUM,
        "multi-krum": KRUM,
    }
    values = {"algorithm": algorithm, "client_clip": 2.0, "client_rate": 0.5, **special.get(algorithm, {})}
    return small_task(**{**values, **changes})


def charged(task: Task, folder: Path) -> Any:
    """A ledger in which alice was in every round, bob in two."""
    ledger = open_ledger(folder, task)
    for t in range(ROUNDS):
        ledger.charge(t, ["alice", "bob"] if t < 2 else ["alice"])
    return ledger


# Configuration


@pytest.mark.parametrize("name", [name for name in ONLY_SIMULATED if name != TRUSTED])
def test_what_needs_updates_in_the_clear_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ValidationError, match=f"{name} needs one server that sees every update.*precad simulate"):
        small_task(algorithm=name)


def test_what_trusts_one_server_is_refused_beside_what_adds_the_same_noise() -> None:
    """Two draws of sigma / sqrt(2) are one of sigma, and clients meet the sampled Gaussian of sigma."""
    with pytest.raises(ValidationError, match=rf"{TRUSTED} trusts one server.* 'precad' with noise_multiplier / sqrt"):
        small_task(algorithm=TRUSTED)
    sigma = 4.0
    privacy = task_privacy(small_task(noise_multiplier=sigma / math.sqrt(2)))
    for rounds in (1, 100):
        ours = privacy.epsilon(View.CLIENTS_ONLY, rounds, 1e-5)
        trusted = PldAccountant().epsilon(SampledGaussian(0.5, sigma), rounds, 1e-5)
        assert ours == pytest.approx(trusted, rel=1e-3)


def test_norm_bounding_is_another_name_of_fedavg() -> None:
    bounding, own = (small_task(algorithm=name, noise_multiplier=0.0) for name in ("norm-bounding", "fedavg"))
    assert (bounding.algorithm, bounding.digest()) == ("fedavg", own.digest())


def test_central_dp_is_another_name_of_user_dp_fedavg() -> None:
    """The canonical text, and so the digest that operators compare, is that of the algorithm's own name."""
    central, own = (task_of(name, local_steps=3) for name in ("central-dp", "user-dp-fedavg"))
    assert (central.algorithm, central, central.digest()) == ("user-dp-fedavg", own, own.digest())


MANY = {f"client-{i}": 1 for i in range(1025)}
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (
        "precad",
        {"local_steps": 2},
        "local_steps is of user-dp-fedavg and tsgd-ptr and tsgd-gaussian and ins-dp-fedavg and fedavg and krum",
    ),
    (
        "ins-dp-fedavg",
        {"local_batch": 5},
        "local_batch is of user-dp-fedavg and tsgd-ptr and tsgd-gaussian and fedavg and krum and multi-krum only",
    ),
    (
        "precad",
        {"update_clipping": "per-layer"},
        "update_clipping is of user-dp-fedavg and tsgd-ptr and tsgd-gaussian and fedavg and krum and multi-krum only",
    ),
    (
        "ins-dp-fedavg",
        {"update_clipping": "per-layer"},
        "update_clipping is of user-dp-fedavg and tsgd-ptr and tsgd-gaussian and fedavg and krum and multi-krum only",
    ),
    ("local-dp", {"non_colluding": 2}, "non_colluding is of distributed-dp only"),
    ("distributed-dp", {"non_colluding": 4}, "non_colluding: expected at most the 3 enrolled, found 4"),
    (
        "distributed-dp",
        {"client_clip": 5.0},
        "client_clip: expected more than .*, which leaves room for a client's own noise",
    ),
    ("non-private", {"noise_multiplier": 1.0}, "expected 0 where nobody adds noise, found 1"),
    ("non-private", {"epsilon_budget_one_server": 1.0}, "epsilon_budget_one_server: non-private proves nothing"),
    ("local-dp", {"epsilon_budget_client": 1.0}, "epsilon_budget_client: local-dp proves nothing"),
    ("user-dp-fedavg", {"noise_multiplier": 0.0}, "greater than 0"),
    ("user-dp-fedavg", {"noise_multiplier": 3.9 / 2**16}, r"noise_multiplier \* client_clip \* 2\^frac_bits: expected"),
    ("local-dp", {"noise_multiplier": 7.9 / 2**16}, r"noise_multiplier \* record_clip \* 2\^frac_bits: expected"),
    (
        "distributed-dp",
        {"noise_multiplier": 11.3 / 2**16},
        r"record_clip / sqrt\(non_colluding\) \* 2\^frac_bits: expected",
    ),
    ("tsgd-ptr", {"mode": "proved"}, "mode: expected one with a dealer with algorithm 'tsgd-ptr', whose norms"),
    ("tsgd-gaussian", {"mode": "proved"}, "mode: expected one with a dealer with algorithm 'tsgd-gaussian'"),
    (
        "krum",
        {"mode": "proved", "servers_follow_protocol": True},
        "mode: expected one with a dealer with algorithm 'krum', whose distances",
    ),
    ("tsgd-gaussian", {"clients": MANY}, "client_rate: expected at most 512 clients of a round .*, found 512.5"),
    ("tsgd-ptr", {"dim": 2**28 * 2 // 3}, r"dim: expected at most 2\^28 dealt words of a round with .* 'tsgd-ptr'"),
    ("tsgd-ptr", {"noise_multiplier": 15.9 / 2**17}, r"trim_tau \* noise_multiplier \* client_clip \* 2\^frac_bits"),
    ("tsgd-ptr", {"trim_tau": 1e-5, "noise_multiplier": 99.0}, "trim_tau: expected at least two steps of the grid"),
]


@pytest.mark.parametrize(("algorithm", "changes", "message"), REFUSED)
def test_what_an_algorithm_cannot_keep_is_refused(algorithm: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        task_of(algorithm, **changes)


def test_who_adds_which_noise() -> None:
    """Standard deviations in steps of 2^-16: sigma = 1, R = 1, C = 2 (50 for distributed-dp)."""
    one = float(2**16)
    servers = {name: task_of(name).noise_std_on_grid for name in ("precad", *PRIVATE, "non-private")}
    clients = {name: task_of(name).client_noise_std_on_grid for name in servers}
    nobody = dict.fromkeys(servers, 0.0)
    assert servers == nobody | {"precad": one, "user-dp-fedavg": 2 * one}
    assert clients == nobody | {"ins-dp-fedavg": one, "local-dp": one, "distributed-dp": one / math.sqrt(2)}


def test_differences_of_models_are_averaged_over_the_expected_number_of_clients() -> None:
    assert {task_of(name).divisor for name in ("user-dp-fedavg", "ins-dp-fedavg")} == {0.5 * 3}
    assert {task_of(name).divisor for name in ("precad", "local-dp", "distributed-dp")} == {0.5 * 0.5 * 33}


def test_a_round_of_too_few_uploads_releases_nothing_where_noise_is_shared() -> None:
    assert [task_of("distributed-dp").may_release(n) for n in (0, 1, 2, 3)] == [False, False, True, True]
    assert all(task_of(name).may_release(0) for name in ("precad", "user-dp-fedavg", "local-dp", "non-private"))


def test_a_noisy_update_of_distributed_dp_stays_within_the_checked_bound() -> None:
    """Compare 2000 draws with the room that is left.

    With the bound at its 2^-64 none is above. The room is no larger than the concentration inequality asks for, so it
    is not just slack. False alarm: probability below 2^-53.
    """
    task = task_of("distributed-dp")
    std = task.client_noise_std_on_grid / 2**16
    noise = np.rint(np.random.default_rng(5).normal(0, std * 2**16, (2000, task.dim))) / 2**16
    norms = np.linalg.norm(noise, axis=1)
    room = task.client_clip - task.update_bound
    assert norms.max() < room < std * (math.sqrt(task.dim) + 9.42) + math.sqrt(task.dim) / 2**16


# Accounts


def test_user_dp_fedavg_is_accounted_as_unsampled_gaussians_of_a_whole_client(tmp_path: Path) -> None:
    """Closed form: T_i releases with multiplier m are sqrt(T_i)/m-GDP. No factor q in either view."""
    task = task_of("user-dp-fedavg", noise_multiplier=3.0)
    with charged(task, tmp_path) as ledger:
        for view, multiplier in ((View.ONE_SERVER, 3.0), (View.CLIENTS_ONLY, 3.0 * math.sqrt(2))):
            for client, rounds in (("alice", ROUNDS), ("bob", 2), ("mallory", 0)):
                expected = eps_from_mu(task.delta, math.sqrt(rounds) / multiplier)
                found = ledger.statement(view, client)
                assert found.unit is Unit.CLIENT
                assert found.epsilon == pytest.approx(expected, rel=1e-7, abs=1e-8)
                assert found.epsilon >= expected
        assert "add/remove one client" in str(ledger.statement(View.ONE_SERVER))


def test_the_draw_of_clients_amplifies_nothing_that_other_clients_can_see(tmp_path: Path) -> None:
    """Compute the level of a whole client in closed form.

    delta is the mean over the binomial number of the client's rounds of what that many Gaussians have. Sampling that
    nobody saw would give less than half.
    """
    task = task_of("user-dp-fedavg", noise_multiplier=3.0, client_rate=0.1)
    with charged(task, tmp_path) as ledger:
        epsilon = ledger.task_statement(Level.CLIENT).epsilon
        assert ledger.levels == {Level.CLIENT}

    def delta(eps: float) -> float:
        terms = (delta_from_mu(eps, math.sqrt(k) / (3 * math.sqrt(2))) for k in range(ROUNDS + 1))
        return sum(float(binom.pmf(k, ROUNDS, 0.1)) * term for k, term in enumerate(terms))

    assert delta(epsilon) <= task.delta < delta(epsilon * 0.995)
    unseen = PldAccountant().epsilon(SampledGaussian(0.1, 3 * math.sqrt(2)), ROUNDS, task.delta)
    assert epsilon > 2 * unseen


def test_colluding_clients_see_who_was_drawn_between_them() -> None:
    """Why the draw amplifies nothing for a whole client: slots, which invitations name, count the drawn in order."""
    with_bob = BatchShape("task", 0, ("alice", "bob", "carol"), 24, ())
    without = BatchShape("task", 0, ("alice", "carol"), 24, ())
    assert [shape.slot_of("carol") - shape.slot_of("alice") for shape in (with_bob, without)] == [2, 1]


def test_a_whole_client_of_precad_hides_in_no_draw_either(tmp_path: Path) -> None:
    """With one round in the mixture q times a Gaussian's delta, in closed form; hidden sampling would give less."""
    task = small_task(client_rate=0.1, noise_multiplier=3.0, client_clip=2.0)
    sigma = math.sqrt(2) * 3.0 / 2.0
    with open_ledger(tmp_path, task) as ledger:
        ledger.charge(0, [])
        epsilon = ledger.task_statement(Level.CLIENT).epsilon
    assert 0.1 * delta_from_mu(epsilon, 1 / sigma) <= task.delta < 0.1 * delta_from_mu(epsilon * 0.995, 1 / sigma)
    assert epsilon > PldAccountant().epsilon(SampledGaussian(0.1, sigma), 1, task.delta)


@pytest.mark.parametrize("algorithm", ["ins-dp-fedavg", "local-dp", "distributed-dp"])
def test_noise_of_clients_is_accounted_alike_in_both_views(algorithm: str, tmp_path: Path) -> None:
    """Account for Poisson(p) Gaussians of multiplier sigma R / (R + sqrt(d) 2^-f), V of them a round.

    The default accountant gives the epsilon, within 15 % below Renyi divergences, computed another way. Nothing is
    gained by a second server's noise.
    """
    task = task_of(algorithm, noise_multiplier=2.0)
    steps = {"ins-dp-fedavg": 3}.get(algorithm, 1)
    event = SampledGaussian(0.5, 2.0 / (1.0 + math.sqrt(24) / 2**16))
    with charged(task, tmp_path) as ledger:
        for view in View:
            for client, rounds in (("alice", ROUNDS), ("bob", 2)):
                found = ledger.statement(view, client)
                assert found.unit is Unit.RECORD
                assert found.epsilon == PldAccountant().epsilon(event, steps * rounds, task.delta)
                renyi = ACCOUNTANTS["rdp"].epsilon(event, steps * rounds, task.delta)
                assert 0.85 * renyi < found.epsilon < renyi
        assert Level.CLIENT not in ledger.levels  # nothing is claimed for a whole client
        if steps == 1:
            drawn = PldAccountant().epsilon(
                TwoStageSampledGaussian(0.5, 0.5, event.noise_multiplier), ROUNDS, task.delta
            )
            assert ledger.task_statement(Level.DRAWN_RECORD).epsilon == drawn


def test_non_private_has_no_epsilon(tmp_path: Path) -> None:
    """Infinite from the first round on, also after the ledger is opened again; zero for who took part in nothing."""
    task = task_of("non-private")
    charged(task, tmp_path).close()
    with open_ledger(tmp_path, task) as ledger:
        assert [ledger.statement(view).epsilon for view in View] == [math.inf, math.inf]
        assert ledger.statement(View.ONE_SERVER, "mallory").epsilon == 0
        assert ledger.levels == frozenset()


@pytest.mark.parametrize("algorithm", [*PRIVATE, "non-private", "precad"])
def test_the_ledger_says_what_every_caller_of_task_privacy_gets(algorithm: str, tmp_path: Path) -> None:
    """Simulations, certificates and reports ask `task_privacy`, servers the ledger."""
    task = task_of(algorithm)
    with charged(task, tmp_path) as ledger:
        for view in View:
            assert ledger.statement(view).epsilon == task_privacy(task).epsilon(view, ROUNDS, task.delta)


@pytest.mark.parametrize("algorithm", [*PRIVATE, "non-private"])
def test_a_ledger_of_another_algorithm_is_refused(algorithm: str, tmp_path: Path) -> None:
    """The header holds what the rounds were, so a folder cannot go on under another account."""
    charged(task_of(algorithm), tmp_path).close()
    with pytest.raises(LedgerCorruptedError, match="the file was started with"):
        open_ledger(tmp_path, small_task(client_clip=2.0, client_rate=0.5))


def test_a_budget_of_local_steps_counts_every_step(tmp_path: Path) -> None:
    """V = 3: the budget that fits two rounds fits no third."""
    event = SampledGaussian(0.5, 2.0 / (1.0 + math.sqrt(24) / 2**16))
    budget = PldAccountant().epsilon(event, 3 * 2, 1e-5)
    task = task_of("ins-dp-fedavg", noise_multiplier=2.0, epsilon_budget_one_server=budget)
    with open_ledger(tmp_path, task) as ledger:
        ledger.charge(0, ["alice"])
        ledger.charge(1, ["alice"])
        with pytest.raises(BudgetExceededError, match="one_server"):
            ledger.charge(2, ["alice"])


def test_a_whole_client_of_user_dp_fedavg_may_have_a_budget(tmp_path: Path) -> None:
    """It is tested on every round of the task, whoever is drawn."""
    event = TwoStageSampledGaussian(0.5, 1.0, 3 * math.sqrt(2))
    budget = PldAccountant().epsilon(event, 2, 1e-5)
    task = task_of("user-dp-fedavg", noise_multiplier=3.0, epsilon_budget_client=budget)
    with open_ledger(tmp_path, task) as ledger:
        ledger.charge(0, [])
        ledger.charge(1, [])
        with pytest.raises(BudgetExceededError, match="epsilon of a client"):
            ledger.charge(2, [])


@pytest.mark.parametrize(("rate", "most"), [(0.25, 1), (0.55, 4), (0.95, 8), (1.0, 8)])
def test_krums_attackers_and_choice_are_compared_with_the_clients_of_a_round(rate: float, most: int) -> None:
    """Fewer than the 20 enrolled ones are expected, and Krum's guarantee needs 2f + 3 of those."""
    clients = {f"c{i}": 10 for i in range(20)}
    fields: dict[str, Any] = {"noise_multiplier": 0.0, "clients": clients, "client_rate": rate}
    assert small_task(algorithm="krum", krum_attackers=most, **fields).krum_attackers == most
    with pytest.raises(ValidationError, match=rf"krum_attackers: expected 2 f \+ 3 <= {rate * 20:g}, the clients that"):
        small_task(algorithm="krum", krum_attackers=most + 1, **fields)
    keep = math.floor(rate * 20 + 1e-9)
    small_task(algorithm="multi-krum", krum_keep=keep, **fields)
    with pytest.raises(ValidationError, match=rf"krum_keep: expected at most the {rate * 20:g} clients that"):
        small_task(algorithm="multi-krum", krum_keep=keep + 1, **fields)
