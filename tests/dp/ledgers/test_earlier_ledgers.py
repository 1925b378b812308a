"""A ledger that counts finished tasks: its composition by a second method, its budgets, and its file."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting import pld as library

from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.gaussian_dp import delta_from_mu
from precad.dp.accountants.pld import Conduct, SampledGaussian, TwoStageSampledGaussian, Unit, View
from precad.dp.accountants.renyi import rdp_gaussian, rdp_sgm_poisson
from precad.dp.accountants.renyi_accounting import eps_from_rdp
from precad.dp.accountants.task_cost import TaskCost
from precad.dp.conditions import beside_earlier
from precad.dp.errors import BudgetExceededError, LedgerCorruptedError, MostRoundsError
from precad.dp.ledgers.earlier import counted_in, described, earlier_tasks
from precad.dp.ledgers.events import ledger_events
from precad.dp.ledgers.ledger import Ledger, Level
from precad.dp.ledgers.lines import FIRST_CHAIN, seal
from tests.harness.dp_events import from_json

DELTA = 1e-5
TRAINING, QUERY, SECOND = SampledGaussian(0.1, 1.5), SampledGaussian(1.0, 5.0), SampledGaussian(1.0, 3.0)


def ledger(path: Path, event: SampledGaussian, **changes: Any) -> Ledger:
    """Open one of a task whose clients meet that event, in both views."""
    level = TwoStageSampledGaussian(0.5, event.sampling_rate, event.noise_multiplier)
    settings: dict[str, Any] = {"delta": DELTA, "every_round": {Level.DRAWN_RECORD: level}, "most_rounds": 40}
    return Ledger(path, events=dict.fromkeys(View, event), **{**settings, **changes})


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A finished training: alice in 30 rounds, bob in 10."""
    path = tmp_path / "training.jsonl"
    with ledger(path, TRAINING) as spent:
        for n in range(30):
            spent.charge(n, ["alice", "bob"] if n % 3 == 0 else ["alice"])
    return path


def test_a_training_and_queries_are_what_renyi_divergences_bound(trained: Path, tmp_path: Path) -> None:
    """By the second method: divergences of 30 sampled rounds and both queries add up."""
    with ledger(tmp_path / "one.jsonl", QUERY, earlier=earlier_tasks([(trained, 40)])) as first:
        first.charge(0, ["alice", "bob"])
        alone = first.statement(View.ONE_SERVER).epsilon
    earlier = earlier_tasks([(tmp_path / "one.jsonl", 2)])
    with ledger(tmp_path / "two.jsonl", SECOND, earlier=earlier) as second:
        second.charge(0, ["alice"])
        found = second.statement(View.ONE_SERVER).epsilon

    def divergence(alpha: float) -> float:
        queries = rdp_gaussian(alpha, QUERY.noise_multiplier) + rdp_gaussian(alpha, SECOND.noise_multiplier)
        return 30 * rdp_sgm_poisson(alpha, TRAINING.sampling_rate, TRAINING.noise_multiplier) + queries

    by_renyi = eps_from_rdp(divergence, DELTA)
    assert len(earlier) == 2  # the training, by way of the first query
    assert alone < found
    assert by_renyi * 0.85 <= found <= by_renyi


def test_queries_after_queries_are_one_gaussian(tmp_path: Path) -> None:
    """By the exact delta, with the rounds of the client that was in most."""
    with ledger(tmp_path / "one.jsonl", QUERY) as first:
        first.charge(0, ["alice"])
        first.charge(1, ["alice", "bob"])
    with ledger(tmp_path / "two.jsonl", SECOND, earlier=earlier_tasks([(tmp_path / "one.jsonl", 2)])) as second:
        before = second.statement(View.CLIENTS_ONLY, "bob").epsilon
        second.charge(0, ["bob"])
        after = second.statement(View.CLIENTS_ONLY, "bob").epsilon

    assert delta_from_mu(before, math.sqrt(2) / 5) == pytest.approx(DELTA, rel=1e-4)
    assert delta_from_mu(after, math.sqrt(2 / 25 + 1 / 9)) == pytest.approx(DELTA, rel=1e-4)


def test_events_of_rounds_of_several_steps_compose_to_the_ledgers_epsilon(tmp_path: Path) -> None:
    """By the library alone, from what the file says; with the task that it counts, whose rounds have steps as well."""
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    with ledger(first, TRAINING, steps_per_round=3) as spent:
        spent.charge(0, ["alice"])
        spent.charge(1, ["alice"])
    with ledger(second, QUERY, steps_per_round=2, earlier=earlier_tasks([(first, 2)])) as spent:
        spent.charge(0, ["alice"])
        found = spent.statement(View.ONE_SERVER, "alice").epsilon
    by_hand, accountant = library.PLDAccountant(), library.PLDAccountant()
    by_hand.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.5)), 6)
    by_hand.compose(GaussianDpEvent(5.0), 2)
    assert by_hand.get_epsilon(DELTA) == pytest.approx(found, rel=2e-3)
    exported = ledger_events(second)
    for events in (exported["views"]["one_server"]["1"], exported["earlier"][0]["one_server"]):
        accountant.compose(from_json(events))
    assert accountant.get_epsilon(DELTA) == pytest.approx(found, rel=2e-3)
    assert set(exported["views"]["one_server"]) == {"1"}


def test_a_task_that_protects_nothing_leaves_no_bound_to_later_ones(tmp_path: Path) -> None:
    """Through another task's header, and from the file opened again; also to a client that was in no round of it."""
    nothing, after, last = (tmp_path / name for name in ("nothing.jsonl", "after.jsonl", "last.jsonl"))
    for number in range(2):
        with Ledger(nothing, events=dict.fromkeys(View), delta=DELTA) as spent:
            assert spent.statement(View.ONE_SERVER).epsilon == (math.inf if number else 0)
            spent.charge(number, ["alice"])
    for _ in range(2):
        with ledger(after, QUERY, earlier=earlier_tasks([(nothing, 2)])) as query:
            assert query.statement(View.CLIENTS_ONLY, "bob").epsilon == math.inf
    with ledger(last, SECOND, earlier=counted_in(after)) as query:
        assert query.statement(View.CLIENTS_ONLY).epsilon == math.inf


def test_a_budget_counts_what_was_spent_before(trained: Path, tmp_path: Path) -> None:
    """The query alone would fit, and does not behind the training: nothing is charged, in no restart either."""
    path, budget = tmp_path / "query.jsonl", {View.ONE_SERVER: 2.0}
    with ledger(tmp_path / "alone.jsonl", QUERY, budgets=budget) as alone:
        alone.charge(0, ["alice"])
    for _ in range(2):
        with ledger(path, QUERY, budgets=budget, earlier=earlier_tasks([(trained, 40)])) as after:
            assert after.would_exceed(["alice"])
            with pytest.raises(BudgetExceededError, match=r"must stay <= 2.0"):
                after.charge(0, ["alice"])
            assert after.most_rounds_of_a_client == 0


def test_figures_against_discarded_draws_count_the_most_rounds_of_earlier_tasks(trained: Path, tmp_path: Path) -> None:
    """At least those that there were; nothing is proved where the number is not known."""
    found = []
    for n, most in enumerate((30, 40, None)):
        with ledger(tmp_path / f"{n}.jsonl", QUERY, most_rounds=1, earlier=earlier_tasks([(trained, most)])) as after:
            after.charge(0, ["alice"])
            found.append(after.statement(View.ONE_SERVER, conduct=Conduct.MAY_DISCARD).epsilon)
            assert after.statement(View.ONE_SERVER).epsilon <= found[-1]
            assert after.task_statement(Level.DRAWN_RECORD).epsilon <= found[-1]
    assert found[0] < found[1] < found[2] == math.inf
    with pytest.raises(MostRoundsError, match=r"^most_rounds: expected at least 30, as .*, found 29$"):
        earlier_tasks([(trained, 29)])


def test_the_file_says_what_it_counts(trained: Path, tmp_path: Path) -> None:
    """A reader needs no other file; another list of earlier tasks is refused, as is an edit of theirs."""
    path, earlier = tmp_path / "query.jsonl", earlier_tasks([(trained, 40)])
    assert counted_in(path) == ()
    with ledger(path, QUERY, earlier=earlier) as written:
        written.charge(0, ["alice"])
    assert counted_in(path) == earlier
    with ledger(path, QUERY, earlier=counted_in(path)) as again:
        assert again.participation == {"alice": 1}
    with pytest.raises(LedgerCorruptedError, match="the file was started with earlier"):
        ledger(path, QUERY)
    with pytest.raises(ValueError, match="earlier: expected tasks about a client, found one about a record"):
        ledger(tmp_path / "other.jsonl", QUERY, unit=Unit.CLIENT, every_round={}, earlier=earlier)
    path.write_bytes(path.read_bytes().replace(b'"rounds":30', b'"rounds":3', 1))
    with pytest.raises(LedgerCorruptedError, match="line 1"):
        counted_in(path)


@pytest.mark.parametrize("fields", [{"every_round": None}, {"evaluations": {"most": 1, "levels": None}}])
def test_a_sealed_header_of_other_types_is_a_damaged_ledger(trained: Path, fields: dict[str, Any]) -> None:
    """Whoever owns the file seals what they like: it is refused by its line, as everything else in it."""
    header = json.loads(trained.read_bytes().splitlines()[0])
    if "evaluations" in fields:
        fields = {"evaluations": {"events": header["events"], **fields["evaluations"]}}
    line, _ = seal({name: value for name, value in header.items() if name != "chain"} | fields, FIRST_CHAIN)
    trained.write_bytes(line)
    with pytest.raises(LedgerCorruptedError, match="line 1: expected a ledger's parameters"):
        earlier_tasks([(trained, 40)])


def test_two_tasks_alike_count_twice(tmp_path: Path) -> None:
    """Their ledgers hold the same lines. Naming one file twice counts it once."""
    paths = [tmp_path / name for name in ("one.jsonl", "two.jsonl")]
    for path in paths:
        with ledger(path, QUERY) as spent:
            spent.charge(0, ["alice"])
    assert paths[0].read_bytes() == paths[1].read_bytes()
    named = [(paths[0], 1), (paths[1], 1), (tmp_path / "." / "one.jsonl", 1)]
    with ledger(tmp_path / "third.jsonl", SECOND, earlier=earlier_tasks(named)) as third:
        mu = math.sqrt(2) / QUERY.noise_multiplier
        assert delta_from_mu(third.statement(View.ONE_SERVER).epsilon, mu) == pytest.approx(DELTA, rel=1e-4)


def test_the_events_of_a_ledger_compose_to_its_epsilon_by_the_library(trained: Path, tmp_path: Path) -> None:
    """By dp-accounting alone, from the JSON that `precad audit events` prints: earlier tasks are among it."""
    path = tmp_path / "query.jsonl"
    with ledger(path, QUERY, earlier=earlier_tasks([(trained, 40)])) as spent:
        spent.charge(0, ["alice"])
        ours = spent.statement(View.ONE_SERVER, "alice").epsilon
    found = json.loads(json.dumps(ledger_events(path)))
    accountant = library.PLDAccountant()
    accountant.compose(from_json(found["views"]["one_server"]["1"]))
    for task in found["earlier"]:
        accountant.compose(from_json(task["one_server"]))

    assert ours == pytest.approx(accountant.get_epsilon(found["delta"]), rel=2e-3)


def test_what_protocols_take_from_delta_adds_up_over_tasks() -> None:
    """Two tasks of mode `proved`: the closed form at the delta that both leave; alone, each has less."""
    slack, event = 1e-7, SampledGaussian(1.0, 8.0)
    before = EarlierTask(
        unit=Unit.RECORD, events=dict.fromkeys(View, event), rounds=5, levels={}, slack=slack, chain="0" * 64
    )
    events = dict.fromkeys(View, SampledGaussian(1.0, 6.0))
    cost = TaskCost(events=events, delta=1e-5, slack=3 * slack, earlier=(before,))
    epsilon = cost.of_view(View.ONE_SERVER, 4)
    left = 1e-5 - (1 + math.exp(epsilon)) * 4 * slack
    assert delta_from_mu(epsilon, math.sqrt(4 / 36 + 5 / 64)) == pytest.approx(left, rel=1e-5)
    assert epsilon > TaskCost(events=events, delta=1e-5, earlier=(before,)).of_view(View.ONE_SERVER, 4)


UNPRINTABLE = [{"one_server": "if \ud800"}, {"clients_only": "if so\x1b[2J"}]
WORDS = {View.ONE_SERVER: "if operators say so", View.CLIENTS_ONLY: "if the dealer follows"}


def test_conditions_of_an_earlier_task_are_counted_with_it(tmp_path: Path) -> None:
    """By way of a task between, too; each once, though its evaluations are a task of their own there."""
    paths = [tmp_path / f"{n}.jsonl" for n in range(3)]
    with ledger(paths[0], TRAINING, rests_on=WORDS) as first:
        first.charge(0, ["alice"])
    with ledger(paths[1], QUERY, earlier=earlier_tasks([(paths[0], 40)])) as second:
        second.charge(0, ["alice"])
    tasks = earlier_tasks([(paths[1], 40)])
    assert sorted(tuple(task.rests_on.items()) for task in tasks) == [(), tuple(WORDS.items())]
    with ledger(paths[2], QUERY, earlier=tasks):
        pass
    assert counted_in(paths[2]) == tasks
    assert described(tasks).count("rests on: if operators say so, rests on: if the dealer follows)") == 1
    assert (
        beside_earlier("its own", [*tasks, *tasks], View.ONE_SERVER)
        == "its own; of an earlier task: if operators say so"
    )
    assert beside_earlier("", tasks[:0], View.ONE_SERVER) == ""


def test_conditions_read_alike_in_whatever_order_a_ledger_has_its_tasks(tmp_path: Path) -> None:
    """By chain values, which a round that one server alone charged changes. Both export the same statement."""
    with ledger(tmp_path / "0.jsonl", TRAINING, rests_on=WORDS) as first:
        first.charge(0, ["alice"])
    (task,) = earlier_tasks([(tmp_path / "0.jsonl", 40)])
    tasks = [task, replace(task, rests_on={View.ONE_SERVER: "if another function moves so far"})]
    said = {beside_earlier("its own", order, View.ONE_SERVER) for order in (tasks, tasks[::-1])}
    assert said == {
        "its own; of an earlier task: if another function moves so far; of an earlier task: if operators say so"
    }


@pytest.mark.parametrize("before", [{}, WORDS, {View.ONE_SERVER: "as another version says it"}])
@pytest.mark.parametrize("after", [{}, WORDS])
def test_a_ledger_of_another_version_goes_on_whatever_words_it_has(
    tmp_path: Path, before: dict[View, str], after: dict[View, str]
) -> None:
    path = tmp_path / "ledger.jsonl"
    with ledger(path, TRAINING, rests_on=before) as one:
        one.charge(0, ["alice"])
    with ledger(path, TRAINING, rests_on=after) as other:
        other.charge(1, ["alice"])
    assert earlier_tasks([(path, 40)])[0].rests_on == before
    assert ("rests_on" in json.loads(path.read_text().splitlines()[0])) is bool(before)


def test_a_ledger_goes_on_whatever_words_another_version_read_of_an_earlier_task(tmp_path: Path) -> None:
    """One that knows none had counted it alike. Another price is refused as before."""
    before, after = tmp_path / "before.jsonl", tmp_path / "after.jsonl"
    with ledger(before, TRAINING, rests_on=WORDS) as first:
        first.charge(0, ["alice"])
    tasks = earlier_tasks([(before, 40)])
    with ledger(after, QUERY, earlier=[replace(task, rests_on={}) for task in tasks]):
        pass
    with ledger(after, QUERY, earlier=tasks) as second:
        second.charge(0, ["alice"])
    with pytest.raises(LedgerCorruptedError, match="started with earlier"):
        ledger(after, QUERY, earlier=[replace(task, rounds=2) for task in tasks])


@pytest.mark.parametrize("words", ["none", [], {"one_server": 3}, {"everybody": "nothing"}, *UNPRINTABLE])
def test_conditions_that_are_no_words_are_refused(tmp_path: Path, words: object) -> None:
    """Those that no page could hold, or that a terminal obeys, are none: the folder may be somebody else's."""
    path = tmp_path / "ledger.jsonl"
    with ledger(path, TRAINING):
        pass
    header = json.loads(path.read_text())
    header.pop("chain")
    path.write_bytes(seal({**header, "rests_on": words}, FIRST_CHAIN)[0])
    with pytest.raises(LedgerCorruptedError, match="parameters"):
        earlier_tasks([(path, 40)])
