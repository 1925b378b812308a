"""Evaluations in a ledger: their composition by a second method, their budget, their number, and the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import pld as library

from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.group_mixture import Direction, loss_distribution
from precad.dp.accountants.pld import Conduct, PldAccountant, SampledGaussian, TwoStageSampledGaussian, View
from precad.dp.accountants.renyi import rdp_gaussian, rdp_sgm_poisson
from precad.dp.accountants.renyi_accounting import eps_from_rdp
from precad.dp.accountants.task_cost import Evaluations, Level
from precad.dp.errors import BudgetExceededError, LedgerCorruptedError
from precad.dp.ledgers.earlier import earlier_tasks
from precad.dp.ledgers.events import ledger_events
from precad.dp.ledgers.ledger import Ledger
from tests.harness.dp_events import from_json

DELTA = 1e-5
TRAINING, EVALUATION = SampledGaussian(0.1, 1.5), SampledGaussian(1.0, 4.0)
LEVELS = {Level.DRAWN_RECORD: TwoStageSampledGaussian(0.5, 0.1, 1.5)}
EVALUATIONS = Evaluations(
    events=dict.fromkeys(View, EVALUATION), levels={Level.DRAWN_RECORD: TwoStageSampledGaussian(0.5, 1.0, 4.0)}, most=5
)


def ledger(path: Path | None, **changes: Any) -> Ledger:
    """Open one of 40 rounds and 5 evaluations at most."""
    settings: dict[str, Any] = {"delta": DELTA, "every_round": LEVELS, "most_rounds": 40, "evaluations": EVALUATIONS}
    return Ledger(path, events=dict.fromkeys(View, TRAINING), **{**settings, **changes})


def trained(path: Path | None = None, **changes: Any) -> Ledger:
    """Charge 12 rounds of alice, of which bob is in 6, with an evaluation of both after every fourth."""
    spent, number = ledger(path, **changes), 0
    for n in range(12):
        spent.charge(number, ["alice", "bob"] if n % 2 else ["alice"])
        number += 1
        if n % 4 == 3:
            spent.charge(number, ["alice", "bob"], is_evaluation=True)
            number += 1
    return spent


def test_rounds_and_evaluations_compose_as_the_library_composes_them() -> None:
    """By dp_accounting's loss distributions on a finer grid, and below what Renyi divergences bound."""
    found = trained().statement(View.ONE_SERVER, "alice").epsilon
    step = 2e-4
    one = library.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=TRAINING.noise_multiplier, sampling_prob=0.1, value_discretization_interval=step
    )
    other = library.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=EVALUATION.noise_multiplier, value_discretization_interval=step
    )
    exact = one.self_compose(12).compose(other.self_compose(3)).get_epsilon_for_delta(DELTA)
    assert found == pytest.approx(exact, rel=5e-3)

    def divergence(alpha: float) -> float:
        return 12 * rdp_sgm_poisson(alpha, 0.1, TRAINING.noise_multiplier) + 3 * rdp_gaussian(alpha, 4.0)

    assert exact < found < eps_from_rdp(divergence, DELTA)


def test_a_client_pays_for_its_own_rounds_and_evaluations() -> None:
    spent = trained()
    alice, bob = (spent.statement(View.ONE_SERVER, client).epsilon for client in ("alice", "bob"))
    assert spent.participation == {"alice": 12, "bob": 6}
    assert spent.evaluations_of == {"alice": 3, "bob": 3}
    assert spent.evaluations == {4, 9, 14}
    assert bob == pytest.approx(composed_epsilon([(TRAINING, 6), (EVALUATION, 3)], DELTA))
    assert spent.statement(View.ONE_SERVER).epsilon == alice > bob
    assert spent.charged == (12, 12, 12, 3, 3)


def test_whoever_discards_draws_meets_every_evaluation() -> None:
    """All 40 rounds and 5 evaluations count, from the first charge on."""
    with ledger(None) as spent:
        spent.charge(0, ["alice"])
        found = spent.statement(View.ONE_SERVER, conduct=Conduct.MAY_DISCARD).epsilon
    assert found == pytest.approx(composed_epsilon([(TRAINING, 40), (EVALUATION, 5)], DELTA))


def test_a_level_composes_visible_draws_of_both_kinds() -> None:
    """Beside our own loss distributions, where both kinds are the same round; and below everybody drawn."""
    same = TwoStageSampledGaussian(0.3, 1.0, 2.0)
    two_kinds = [(same, 20), (TwoStageSampledGaussian(0.3, 1.0, 2.0 + 1e-9), 10)]
    alone = max(loss_distribution(1, 1.0, 2.0, 30, way, visible=0.3).epsilon(DELTA) for way in Direction)
    assert composed_epsilon(two_kinds, DELTA) == pytest.approx(alone, rel=5e-3)
    assert alone == pytest.approx(PldAccountant().epsilon(same, 30, DELTA), rel=1e-9)
    with trained() as spent:
        found = spent.task_statement(Level.DRAWN_RECORD).epsilon
    drawn = [(SampledGaussian(0.1, 1.5), 12), (SampledGaussian(1.0, 4.0), 3)]
    assert PldAccountant().epsilon(LEVELS[Level.DRAWN_RECORD], 12, DELTA) < found < composed_epsilon(drawn, DELTA)


def test_a_budget_counts_evaluations() -> None:
    """It stops the round that would exceed it, of either kind, and names the figure."""
    budget = composed_epsilon([(TRAINING, 4), (EVALUATION, 1)], DELTA)
    with ledger(None, budgets={View.ONE_SERVER: budget}) as spent:
        for number in range(4):
            spent.charge(number, ["alice"])
        assert not spent.would_exceed(["alice"], 4, is_evaluation=True)
        spent.charge(4, ["alice"], is_evaluation=True)
        assert spent.would_exceed(["alice"], 5)
        assert spent.would_exceed(["alice"], 5, is_evaluation=True)
        assert not spent.would_exceed(["bob"], 5)
        with pytest.raises(BudgetExceededError):
            spent.charge(5, ["alice"])


def test_a_levels_budget_counts_no_evaluation_as_a_round() -> None:
    """Numbers count draws of both kinds; each is charged as what it is. Two of 17 numbers were lost."""
    after = composed_epsilon([(LEVELS[Level.DRAWN_RECORD], 15), (EVALUATIONS.levels[Level.DRAWN_RECORD], 3)], DELTA)
    with trained(budgets={Level.DRAWN_RECORD: after}) as spent:
        assert not spent.would_exceed(["bob"], 17)
        assert spent.would_exceed(["bob"], 18)


def test_a_levels_budget_counts_evaluations_that_were_due_and_given_up() -> None:
    """Count 17 numbers: 12 charged rounds, 3 charged evaluations, and two lost ones, of which one was an evaluation."""
    round_, evaluation = LEVELS[Level.DRAWN_RECORD], EVALUATIONS.levels[Level.DRAWN_RECORD]
    after = composed_epsilon([(round_, 14), (evaluation, 4)], DELTA)
    with trained(budgets={Level.DRAWN_RECORD: after}) as spent:
        assert not spent.would_exceed(["bob"], 17, evaluations_due=4)
        assert spent.would_exceed(["bob"], 17, evaluations_due=5)
        assert spent.would_exceed(["bob"], 17, is_evaluation=True, evaluations_due=4)
        assert spent.would_exceed(["bob"], 18, evaluations_due=4)
        assert not spent.would_exceed(["bob"], 17, evaluations_due=2)  # charged are more than were due


def test_there_are_no_more_evaluations_than_were_fixed() -> None:
    with ledger(None) as spent:
        for number in range(5):
            spent.charge(number, ["alice"], is_evaluation=True)
        with pytest.raises(ValueError, match="expected at most 5 evaluations"):
            spent.charge(5, ["alice"], is_evaluation=True)
    with ledger(None, evaluations=None) as spent, pytest.raises(ValueError, match="at most 0 evaluations"):
        spent.charge(0, ["alice"], is_evaluation=True)


def test_the_file_says_which_charges_are_evaluations(tmp_path: Path) -> None:
    """And is read back to the same figures; another task's evaluations are refused."""
    path = tmp_path / "ledger.jsonl"
    with trained(path) as spent:
        before = spent.statement(View.ONE_SERVER).epsilon
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["round"] for line in lines[1:] if line.get("kind") == "evaluation"] == [4, 9, 14]
    with ledger(path) as again:
        assert again.statement(View.ONE_SERVER).epsilon == before
        assert again.charged == (12, 12, 12, 3, 3)
    with pytest.raises(LedgerCorruptedError, match="evaluations"):
        ledger(path, evaluations=None)


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    from precad.dp.ledgers.lines import seal

    path = tmp_path / "ledger.jsonl"
    with ledger(path) as spent:
        chain = spent.chain
    line, _ = seal({"round": 0, "clients": ["alice"], "kind": "gift"}, chain)
    with path.open("ab") as file:
        file.write(line)
    with pytest.raises(LedgerCorruptedError, match="charge: expected a round and a list of clients"):
        ledger(path)


def test_a_later_task_counts_rounds_and_evaluations(tmp_path: Path) -> None:
    """As those of two kinds of earlier rounds."""
    path = tmp_path / "ledger.jsonl"
    trained(path).close()
    earlier = earlier_tasks([(path, 40)])
    later = SampledGaussian(1.0, 6.0)
    with Ledger(None, events=dict.fromkeys(View, later), delta=DELTA, most_rounds=1, earlier=earlier) as spent:
        spent.charge(0, ["alice"])
        found = spent.statement(View.ONE_SERVER).epsilon
        most = spent.statement(View.ONE_SERVER, conduct=Conduct.MAY_DISCARD).epsilon
    assert found == pytest.approx(composed_epsilon([(TRAINING, 12), (EVALUATION, 3), (later, 1)], DELTA))
    assert most == pytest.approx(composed_epsilon([(TRAINING, 40), (EVALUATION, 5), (later, 1)], DELTA))


def test_the_events_of_a_ledger_compose_to_its_epsilon(tmp_path: Path) -> None:
    """By dp_accounting's own accountant, from the exported events of both kinds."""
    path = tmp_path / "ledger.jsonl"
    with trained(path) as spent:
        ours = spent.statement(View.ONE_SERVER, "bob").epsilon
    found = ledger_events(path)
    accountant = library.PLDAccountant()
    for part in (found, found["evaluations"]):
        n = part["clients"]["bob"]
        accountant.compose(from_json(part["views"]["one_server"][str(n)]))
    assert accountant.get_epsilon(DELTA) == pytest.approx(ours, rel=5e-3)
