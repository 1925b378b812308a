"""Ledgers of records in bins: whole epochs by the numbers of rounds, at their first charge.

Expected figures are `BallsInBins` itself, of a number of epochs that the test counts. Failure means an epoch that is
charged twice, in part, or not at all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping
from pathlib import Path

import dp_accounting
import numpy as np
import pytest

from precad.deploy.oversight.state_dirs import charged_in
from precad.dp.accountants.balls_in_bins import BallsInBins
from precad.dp.accountants.bins_event import BinnedGaussian, bins_of
from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.dp_events import dp_event
from precad.dp.accountants.gaussian import gaussian_epsilon as gaussian
from precad.dp.accountants.pld import Conduct, PldAccountant, SampledGaussian, View, event_fields, event_of
from precad.dp.accountants.side_by_side import RdpAccountant
from precad.dp.accountants.slack import least_with_slack
from precad.dp.accountants.task_cost import Charged
from precad.dp.errors import BudgetExceededError, LedgerCorruptedError, UnsupportedEventError
from precad.dp.ledgers.earlier import earlier_tasks
from precad.dp.ledgers.events import ledger_events
from precad.dp.ledgers.ledger import Ledger, Level
from precad.dp.task_privacy import task_cost, task_privacy, upload_events
from precad.protos.task.task import Task
from precad.servers.store.folder import ledger_path, open_ledger
from tests.harness.dp_events import from_json
from tests.harness.harness import small_task

T, DELTA = 4, 1e-5
EVERYBODY = ["alice", "bob", "mallory"]


def task_of(**changes: object) -> Task:
    return small_task(**{"rounds": 10, "record_rate": 1 / T, "record_bins": T, "noise_multiplier": 1.2, **changes})


def sigma_of(task: Task, view: View = View.ONE_SERVER) -> float:
    """By hand: what rounding takes of the noise, and both servers' noise against clients."""
    left = task.record_clip / (task.record_clip + math.sqrt(task.dim) * 2.0**-task.frac_bits)
    return task.noise_multiplier * left * (1 if view is View.ONE_SERVER else math.sqrt(2))


def of_epochs(task: Task, n: int, view: View = View.ONE_SERVER) -> float:
    return BallsInBins(bins=T, noise_multiplier=sigma_of(task, view)).epsilon(n * T, DELTA)


@pytest.mark.parametrize(
    ("numbers", "epochs"),
    [
        ([0], 1),
        ([3], 1),
        (range(4), 1),
        (range(5), 2),
        ([0, 1, 6, 7], 2),
        ([0, 4, 8, 12], 4),
        ([9], 1),
        ([2, 3, 11], 2),
        ([], 0),
    ],
)
def test_a_ledger_charges_the_epochs_that_have_a_charged_round(
    tmp_path: Path, numbers: Collection[int], epochs: int
) -> None:
    """Lost rounds, without a charge, are the gaps. Reopened, it says the same; so do those who read its file."""
    task = task_of()
    for _ in range(2):
        with open_ledger(tmp_path, task) as ledger:
            for number in set(numbers) - ledger.rounds:
                ledger.charge(number, EVERYBODY)
            for view in View:
                assert ledger.statement(view).epsilon == pytest.approx(of_epochs(task, epochs, view), rel=1e-12)
            assert set(ledger.participation.values()) <= {epochs * T}
    assert charged_in(ledger_path(tmp_path)).most_of_a_client == epochs * T
    assert set(ledger_events(ledger_path(tmp_path))["clients"].values()) <= {epochs * T}


def test_a_client_pays_for_the_epochs_that_it_was_charged_in(tmp_path: Path) -> None:
    task = task_of()
    with open_ledger(tmp_path, task) as ledger:
        for number, clients in enumerate([["alice"], ["alice", "bob"], [], ["bob"], ["mallory"], [], [], [], ["bob"]]):
            ledger.charge(number, clients)
        epochs = {"alice": 1, "bob": 2, "mallory": 1, "nobody": 0}
        for client, n in epochs.items():
            found = ledger.statement(View.ONE_SERVER, client).epsilon
            assert found == pytest.approx(of_epochs(task, n), rel=1e-12)


def test_the_figure_if_draws_are_discarded_counts_every_epoch_that_can_begin(tmp_path: Path) -> None:
    """10 rounds, 3 lost and none drawn ahead are numbers 0 to 12: four epochs, the last of them begun."""
    task = task_of(lost_rounds=3, batches_ahead=0)
    assert task.most_draws == 13
    with open_ledger(tmp_path, task) as ledger:
        assert ledger.most_rounds_of_a_client == 16
        found = ledger.statement(View.ONE_SERVER, conduct=Conduct.MAY_DISCARD).epsilon
    assert found == pytest.approx(of_epochs(task, 4), rel=1e-12)


@pytest.mark.parametrize("epochs", [1, 2])
def test_a_budget_ends_a_task_between_two_epochs(tmp_path: Path, epochs: int) -> None:
    """All rounds of an epoch that is paid may run; the first of the next may not, whether or not rounds were lost."""
    task = task_of(rounds=40)
    task = task.model_copy(update={"epsilon_budget_one_server": of_epochs(task, epochs) * (1 + 1e-9)})
    for name, numbers in {"all": range(epochs * T), "lost": range(1, epochs * T, 2)}.items():
        with open_ledger(tmp_path / name, task) as ledger:
            for number in numbers:
                assert not ledger.would_exceed(EVERYBODY, number)
                ledger.foresee(EVERYBODY, number)
                ledger.charge(number, EVERYBODY)
            assert ledger.would_exceed(EVERYBODY, epochs * T)
            assert ledger.would_exceed(EVERYBODY)
            with pytest.raises(BudgetExceededError):
                ledger.charge(epochs * T, EVERYBODY)
            assert task_cost(task).rounds_left(View.ONE_SERVER, ledger.charged) == 0
        assert task_cost(task).most_of_a_client == epochs * T
    after_one = Charged(n_drawn=1, n_charged=1, most_of_a_client=T)
    assert task_cost(task).rounds_left(View.ONE_SERVER, after_one) == epochs * T - 1


def test_levels_count_rounds_as_they_did(tmp_path: Path) -> None:
    """A whole client is in every round, whatever its records' bins are: rate 1, a charge for each round."""
    task = task_of(client_clip=0.5)
    plain = small_task(rounds=10, noise_multiplier=1.2, client_clip=0.5)
    with open_ledger(tmp_path / "a", task) as ledger, open_ledger(tmp_path / "b", plain) as other:
        assert ledger.levels == {Level.CLIENT}
        for number in (0, 1, 5):
            ledger.charge(number, EVERYBODY)
            other.charge(number, EVERYBODY)
        for conduct in Conduct:
            assert ledger.task_statement(Level.CLIENT, conduct) == other.task_statement(Level.CLIENT, conduct)


@pytest.mark.parametrize("numbers", [[0, 1, 2, 3], [0, 9], [3, 4]])
def test_a_later_task_counts_the_epochs_of_an_earlier_one(tmp_path: Path, numbers: list[int]) -> None:
    """As releases that show each record's round: by the Gaussian's closed form, where both are without sampling."""
    task, epochs = task_of(), len({number // T for number in numbers})
    with open_ledger(tmp_path / "before", task) as ledger:
        for number in numbers:
            ledger.charge(number, EVERYBODY)
    earlier = earlier_tasks([(ledger_path(tmp_path / "before"), 13)])
    assert [(one.rounds, one.most_rounds) for one in earlier] == [(epochs * T, 16)]
    later = small_task(record_rate=1.0, rounds=10, noise_multiplier=2.0)
    with open_ledger(tmp_path / "after", later, earlier) as ledger:
        ledger.charge(0, EVERYBODY)
        mu2 = epochs / sigma_of(task) ** 2 + 1 / sigma_of(later) ** 2
        assert ledger.statement(View.ONE_SERVER).epsilon == pytest.approx(gaussian(mu2**-0.5, DELTA), rel=1e-6)
        mu2 = (epochs / sigma_of(task) ** 2 + 1 / sigma_of(later) ** 2) / 2
        found = ledger.task_statement(Level.DRAWN_RECORD).epsilon
        assert found == pytest.approx(gaussian(mu2**-0.5, DELTA), rel=1e-6)


def test_of_two_tasks_of_bins_each_begins_epochs_of_its_own(tmp_path: Path) -> None:
    """Two rounds of each are two epochs, not the half of one that four rounds in a row would be."""
    task = task_of()
    with open_ledger(tmp_path / "before", task) as ledger:
        ledger.charge(0, EVERYBODY)
    with open_ledger(tmp_path / "after", task, earlier_tasks([(ledger_path(tmp_path / "before"), None)])) as ledger:
        ledger.charge(0, EVERYBODY)
        assert ledger.statement(View.ONE_SERVER).epsilon == pytest.approx(of_epochs(task, 2), rel=1e-12)
    event = BinnedGaussian(T, 1.2)
    apart = composed_epsilon([(event, 1), (event, 1)], DELTA)
    assert apart == PldAccountant().epsilon(event, 2 * T, DELTA)
    assert task_privacy(task).epsilon(View.ONE_SERVER, 2 * task_cost(task).most_of_a_client, DELTA, 2) == pytest.approx(
        of_epochs(task, 2 * -(-task.most_draws // T)), rel=1e-12
    )


def test_a_group_costs_as_much_as_all_of_it_in_one_known_round() -> None:
    """More than its records would in rounds of their own: of three, by the shift of each way to put them into bins."""
    event = BinnedGaussian(T, 2.0, 3)
    found = event.epsilon(T, DELTA)
    assert found == gaussian(2.0 / 3, DELTA)
    for places in itertools.product(range(T), repeat=3):
        shift = float(np.linalg.norm(np.bincount(places, minlength=T)))
        assert gaussian(2.0 / shift, DELTA) <= found
    assert event.epsilon(1, DELTA) == found < event.epsilon(T + 1, DELTA)


def test_an_upload_pays_for_its_epoch_by_the_holders_own_count() -> None:
    task = task_of()
    event, times = upload_events(task, records_per_person=2)
    assert (event, times) == (SampledGaussian(1.0, sigma_of(task), 2), 1)
    assert PldAccountant().epsilon(SampledGaussian(1.0, sigma_of(task)), 1, DELTA) >= of_epochs(task, 1)


def test_mode_proved_takes_its_part_of_delta_from_epochs_too(tmp_path: Path) -> None:
    task = task_of(mode="proved", frac_bits=16, rounds=4, lost_rounds=1)
    with open_ledger(tmp_path, task) as ledger:
        ledger.charge(2, EVERYBODY)
        found = ledger.statement(View.ONE_SERVER).epsilon
    one = BallsInBins(bins=T, noise_multiplier=sigma_of(task))
    assert found == least_with_slack(lambda left: one.epsilon(T, left), DELTA, task.delta_slack)
    assert found > one.epsilon(T, DELTA)


def test_others_compose_no_less_from_the_events(tmp_path: Path) -> None:
    task = task_of()
    with open_ledger(tmp_path, task) as ledger:
        ledger.charge(0, EVERYBODY)
        ledger.charge(T, EVERYBODY)
        ours = ledger.statement(View.ONE_SERVER).epsilon
    found = ledger_events(ledger_path(tmp_path))["views"]["one_server"]
    assert list(found) == [str(2 * T)]
    accountant = dp_accounting.pld.PLDAccountant()
    accountant.compose(from_json(found[str(2 * T)]))
    assert accountant.get_epsilon(DELTA) >= ours
    assert dp_event(BinnedGaussian(T, 1.0), 0) == dp_accounting.NoOpDpEvent()


def test_an_event_is_read_as_it_was_written() -> None:
    for event in (BinnedGaussian(20, 1.5), BinnedGaussian(20, 1.5, 3)):
        assert event_of(event_fields(event)) == event
    assert event_fields(BinnedGaussian(20, 1.5)) == {"bins": 20, "noise_multiplier": 1.5}


@pytest.mark.parametrize("fields", [{"bins": 0}, {"bins": 10_001}, {"noise_multiplier": 0.0}, {"group_size": 0}])
def test_events_that_are_none_are_refused(fields: Mapping[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        event_of({"bins": 4, "noise_multiplier": 1.0, **fields})


def test_accountants_that_know_no_bins_say_so() -> None:
    with pytest.raises(UnsupportedEventError):
        RdpAccountant().epsilon(BinnedGaussian(4, 1.0), 4, DELTA)


def test_events_say_how_many_rounds_an_epoch_has() -> None:
    assert bins_of([None, BinnedGaussian(4, 1.0)]) == 4
    assert bins_of([SampledGaussian(0.5, 1.0), None]) == 1


def test_a_ledger_of_bins_and_one_without_refuse_each_other(tmp_path: Path) -> None:
    with open_ledger(tmp_path, task_of()):
        pass
    with pytest.raises(LedgerCorruptedError, match="the file was started with"):
        open_ledger(tmp_path, small_task(rounds=10, record_rate=1 / T, noise_multiplier=1.2))


def test_rounds_drawn_by_poissons_law_count_as_before() -> None:
    ledger = Ledger(None, events=dict.fromkeys(View, SampledGaussian(0.25, 1.2)), delta=DELTA)
    for number in (0, 9, 4):
        ledger.charge(number, ["alice"])
    assert ledger.participation == {"alice": 3}
    assert ledger.statement(View.ONE_SERVER).epsilon == PldAccountant().epsilon(SampledGaussian(0.25, 1.2), 3, DELTA)
