"""Updates of records in bins, by the clipped gradients themselves: an audit in small.

Failure means an epoch whose updates are not the records' gradients, each once. It also means a record whose removal
moves more than one round's update, or none, or an update by more than R.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from precad.clients.errors import ArgumentError, HolderLimitReachedError
from precad.clients.holder_limit import HolderLimit
from precad.clients.models import networks
from precad.clients.payments import payments_of
from precad.clients.process import Trainer
from precad.clients.records import Records, digits
from precad.clients.training.conduct import Honest
from precad.clients.training.record_draws import draws_of
from precad.dp.accountants.balls_in_bins import BallsInBins
from precad.dp.accountants.pld import SampledGaussian
from precad.dp.ledgers.holder import read
from precad.protos.task.task import Task
from tests.harness.gradient_sums import clipped_gradient_sum
from tests.harness.harness import small_task
from tests.harness.models import dimension_of

T, R = 3, 0.5
START = networks.initial_parameters("mlp", seed=1)


def task_of(**changes: object) -> Task:
    """C never shrinks anything here."""
    values = {"record_rate": 1 / T, "record_bins": T, "record_clip": R, "client_clip": 30.0, "rounds": 4 * T}
    values |= {"model": "mlp", "dim": dimension_of("mlp"), **changes}
    return small_task({"alice": 30, "bob": 30}, **values)


def records(n: int = 30) -> Records:
    """Digits, two of them alike."""
    train = digits().train
    return train.take(np.array([*range(n - 1), 0]))


def epoch(folder: Path, own: Records, first: int = 0) -> NDArray[np.float64]:
    """Return the updates of an epoch at one model, (T, d), of a client's process with this folder."""
    task = task_of()
    draws = draws_of(task, folder, ["alice"], {})
    trainer = Trainer(task=task, records={"alice": own}, conducts={"alice": Honest()}, device="cpu", draws=draws)
    found = []
    for number in range(first, first + T):
        draws.enter("alice", "small-1", number)
        found.append(trainer.update("alice", START))
    return np.array(found)


def test_an_epochs_updates_add_up_to_every_record_once(tmp_path: Path) -> None:
    """In two epochs, which put them otherwise: by the sum of all clipped gradients in one pass."""
    own = records()
    whole = clipped_gradient_sum(START, own, model=networks.build("mlp"), record_clip_norm=R, device="cpu")
    both = [epoch(tmp_path, own, first) for first in (0, T)]
    for updates in both:
        assert_allclose(-updates.sum(axis=0), whole, rtol=0, atol=1e-5)
        assert all(np.linalg.norm(one) > 1e-3 for one in updates)
    assert not np.allclose(both[0], both[1])


@pytest.mark.parametrize("place", [5, 29])
def test_a_record_less_moves_one_round_of_an_epoch_by_its_gradient(tmp_path: Path, place: int) -> None:
    """The key is the same. One record is there alone, another is one of two that are alike."""
    own = records()
    epoch(tmp_path, own)
    key = (tmp_path / "alice.bins").read_bytes().split(b"\n")[0] + b"\n"
    (tmp_path / "alice.bins").write_bytes(key)
    with_it = epoch(tmp_path, own)
    (tmp_path / "alice.bins").write_bytes(key)
    without = epoch(tmp_path, own.take(np.delete(np.arange(30), place)))
    moved = [t for t in range(T) if not np.array_equal(with_it[t], without[t])]
    assert len(moved) == 1
    alone = own.take(np.array([place]))
    gradient = clipped_gradient_sum(START, alone, model=networks.build("mlp"), record_clip_norm=R, device="cpu")
    assert_allclose(without[moved[0]] - with_it[moved[0]], gradient, rtol=0, atol=1e-6)
    assert np.linalg.norm(gradient) <= R * (1 + 1e-6)
    for t in set(range(T)) - set(moved):
        assert_array_equal(with_it[t], without[t])


def test_records_that_changed_move_nothing_until_the_next_epoch(tmp_path: Path) -> None:
    """The client uploads zeros, as one whose round drew nobody: a server sees no client that stays away."""
    own, changed = records(), records(20)
    task = task_of()
    for number in range(T + 1):
        draws = draws_of(task, tmp_path, ["alice"], {})
        held = {"alice": changed if number else own}
        trainer = Trainer(task=task, records=held, conducts={"alice": Honest()}, device="cpu", draws=draws)
        draws.enter("alice", "small-1", number)
        assert trainer.update("alice", START).any() == (number in (0, T))


def test_nobody_trains_on_bins_without_a_number(tmp_path: Path) -> None:
    task = task_of()
    with pytest.raises(ArgumentError, match=r"task\.record_bins: expected none where each round draws"):
        Trainer(task=task, records={"alice": records()}, conducts={"alice": Honest()}, device="cpu")
    draws = draws_of(task, tmp_path, ["alice"], {})
    trainer = Trainer(task=task, records={"alice": records()}, conducts={"alice": Honest()}, device="cpu", draws=draws)
    with pytest.raises(ArgumentError, match="alice: expected a round to draw records for, found none"):
        trainer.update("alice", START)


@pytest.mark.parametrize("mode", ["masked", "proved"])
def test_a_holders_ledger_pays_an_epoch_at_its_first_round_and_ends_before_one(tmp_path: Path, mode: str) -> None:
    """Each payment is of a known round, which costs at least an epoch, and in mode `proved` of all its uploads."""
    task = task_of(noise_multiplier=4.0, mode=mode, **({"frac_bits": 16} if mode == "proved" else {}))
    limit = HolderLimit(ledger=tmp_path / "paid", limit_epsilon=2.0, delta=1e-5)
    payments = payments_of(task, ["alice"], limit)
    room = payments["alice"].uploads_left()
    assert 2 <= room < 20
    own = records()

    def draw(number: int) -> None:
        draws = draws_of(task, tmp_path, ["alice"], payments)
        draws.enter("alice", "small-1", number)
        draws.drawn("alice", own)

    for number in range(room * T):
        draw(number)
    with pytest.raises(HolderLimitReachedError):
        draw(room * T)
    account, _ = read(tmp_path / "paid")
    sigma = 4.0 * R / (R + float(np.sqrt(task.dim)) * 2.0**-16)
    assert {line.payment.event for line in account.lines} == {SampledGaussian(1.0, sigma)}
    assert {line.payment.slack for line in account.lines} == {T * task.upload_slack}
    assert len(account.lines) == room
    assert BallsInBins(bins=T, noise_multiplier=sigma).epsilon(room * T, 1e-5) <= account.epsilon <= 2.0
