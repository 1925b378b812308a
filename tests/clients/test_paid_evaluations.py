"""An answer to an evaluation is paid from its holder's ledger, as what an evaluation costs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.config import ClientConfig
from precad.clients.errors import HolderLimitReachedError
from precad.clients.holder_limit import HolderLimit
from precad.clients.payments import payments_of, payments_of_answers
from precad.clients.training.held_out import answer_of_counts
from precad.clients.upload_limit import UploadLimit
from precad.deploy.configuration.check_holder import room_of
from precad.deploy.errors import ConfigError
from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.pld import SampledGaussian, View
from precad.dp.errors import BudgetExceededError
from precad.dp.ledgers.holder import read
from precad.dp.task_privacy import task_privacy
from precad.lab.simulation import SimulationSettings
from precad.lab.simulation.holder_charge import HolderCharge, owed_at_most
from precad.protos.task.task import Task
from precad.servers.store.folder import open_ledger
from tests.harness.harness import small_task

MODEL = b"\x01" * 32
EVALUATED: dict[str, Any] = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 5.0}


def evaluated(**changes: Any) -> Task:
    return small_task(**{"rounds": 5, "noise_multiplier": 4.0, **EVALUATED, **changes})


@pytest.mark.parametrize("algorithm", ["precad", "user-dp-fedavg"])
def test_answers_and_updates_are_paid_from_one_ledger(tmp_path: Path, algorithm: str) -> None:
    """Each at its own multiplier; an answer to an evaluation moves by the record, whoever the task protects."""
    task = evaluated(algorithm=algorithm)
    assert task.evaluation_round is not None
    limit = HolderLimit(ledger=tmp_path / "of-{client}", limit_epsilon=20.0)
    answers = payments_of(task.evaluation_round, ["alice"], limit)["alice"]
    uploads = payments_of(task, ["alice"], limit)["alice"]
    counted = UploadLimit("alice", task.digest(), most=1, file=tmp_path / "alice.evaluations", payer=answers)
    uploads.pay()
    counted.count(MODEL, 1)
    account, _ = read(tmp_path / "of-alice")
    assert len(account.lines) == 2
    update, answer = (line.payment for line in account.lines)
    assert (update.task, answer.task) == (task.digest().hex(), task.evaluation_round.digest().hex())
    assert answer.event is not None
    assert (answer.event.sampling_rate, answer.times) == (1.0, 1)
    assert answer.event.noise_multiplier == pytest.approx(5.0, rel=1e-6)


def test_an_answer_that_cannot_be_paid_does_not_leave(tmp_path: Path) -> None:
    """The holder's filter has room for no more of them than the closed form."""
    task = evaluated()
    assert task.evaluation_round is not None
    limit = HolderLimit(ledger=tmp_path / "ledger", limit_epsilon=1.5)
    answers, one = payments_of(task.evaluation_round, ["alice"], limit)["alice"], SampledGaussian(1.0, 5.0)
    room = max(n for n in range(100) if composed_epsilon([(one, n)], limit.delta) <= 1.5)
    assert 1 < answers.uploads_left() <= room
    for _ in range(answers.uploads_left()):
        answers.pay()
    counted = UploadLimit("alice", task.digest(), most=1, file=tmp_path / "alice.evaluations", payer=answers)
    with pytest.raises(HolderLimitReachedError):
        counted.require_room(MODEL, 1)


TURNS = {"algorithm": "user-dp-fedavg", "min_separation": 3, "lost_rounds": 7, "noise_multiplier": 12.0}


@pytest.mark.parametrize(
    "changes",
    [{}, {"lost_rounds": 9}, TURNS, {"epsilon_budget_one_server": 2.0}],
    ids=["as many as by default", "more", "in turns", "with a budget"],
)
def test_the_room_that_is_said_is_compared_with_lost_rounds_too(tmp_path: Path, changes: dict[str, Any]) -> None:
    """With the rounds that a ledger of the task takes of a client that is in all of them, until it takes no more."""
    task = small_task(**{"rounds": 12, "noise_multiplier": 4.0, **changes})
    with open_ledger(tmp_path, task) as ledger, suppress(BudgetExceededError):
        for number in range(0, task.most_draws, task.min_separation):
            ledger.charge(number, ["alice"])
    most = ledger.participation["alice"]
    limit = HolderLimit(ledger=tmp_path / "of-{client}", limit_epsilon=9.0)
    config = ClientConfig(certificates=tmp_path, authority=tmp_path / "ca.pem", holder=limit)
    uploads = payments_of(task, ["alice"], limit)["alice"]
    uploads.for_rounds(uploads.uploads_left() - most, "tuning").pay()
    assert uploads.uploads_left() == most
    assert ", fewer" not in room_of(task, config, ["alice"])["alice"]
    uploads.pay()
    said = room_of(task, config, ["alice"])["alice"]
    lost = f"fewer than the {most} that it can come to with lost rounds"
    expected = lost if task.rounds_of_a_client < most else f"fewer than the task's {most} rounds"
    assert f"room for {most - 1} more uploads of this task, {expected}" in said


def test_check_says_where_a_smaller_limit_has_room_for_more_uploads(tmp_path: Path) -> None:
    """Errors of mode `proved` weigh e^limit: at 14 they end what 6 has room for."""
    task = small_task(rounds=3000, noise_multiplier=40.0, mode="proved", frac_bits=16, record_rate=0.5)
    said, room = dict[float, str](), dict[float, int]()
    for epsilon in (6.0, 14.0):
        limit = HolderLimit(ledger=tmp_path / f"{epsilon}", limit_epsilon=epsilon)
        config = ClientConfig(certificates=tmp_path, authority=tmp_path / "ca.pem", holder=limit)
        said[epsilon] = room_of(task, config, ["alice"])["alice"]
        room[epsilon] = payments_of(task, ["alice"], limit)["alice"].uploads_left()
    assert room[14.0] < room[6.0]
    assert said[14.0].endswith("; delta ends it, so a new ledger of a smaller limit_epsilon has room for more")
    assert "delta ends it" not in said[6.0]


@pytest.mark.parametrize("every", [1, 3])
def test_the_room_that_is_said_is_what_a_client_can_pay(tmp_path: Path, every: int) -> None:
    """By `precad check`, and by a simulation that is refused: rounds with their evaluations until a payment is."""
    task = evaluated(rounds=60, evaluation_every=every, evaluation_noise=3.0)
    limit = HolderLimit(ledger=tmp_path / "of-{client}", limit_epsilon=4.0)
    config = ClientConfig(certificates=tmp_path, authority=tmp_path / "ca.pem", holder=limit)
    (said,) = room_of(task, config, ["alice"]).values()
    with pytest.raises(ConfigError) as refused:
        HolderCharge(task, SimulationSettings(), config, [owed_at_most(task)]).require_room()
    uploads = payments_of(task, ["alice"], limit)["alice"]
    answers = payments_of_answers(task, ["alice"], config)["alice"]
    alone, paid = uploads.uploads_left(), 0
    with suppress(HolderLimitReachedError):
        for round_number in range(1, 61):
            uploads.pay()
            if round_number % every == 0:
                answers.pay()
            paid = round_number
    assert said.startswith(f"room for {paid} more uploads of this task with its evaluations, fewer than the task's 60")
    assert f"found room for {paid} with their evaluations" in str(refused.value)
    assert 1 < paid < min(alone, 60)


def test_the_servers_charge_what_the_holder_pays() -> None:
    """Both count a record, and what rounding adds to it."""
    task = evaluated()
    evaluations = task_privacy(task).evaluations
    assert evaluations is not None
    assert task.evaluation_round is not None
    assert evaluations.events[View.ONE_SERVER] == task_privacy(task.evaluation_round).events[View.ONE_SERVER]


def test_an_answer_by_code_that_nothing_is_known_of_is_paid_as_a_change_of_all_of_it(tmp_path: Path) -> None:
    """Counts of neighbours lie up to 2 C apart; what is paid covers each pair, by the closed form of one Gaussian."""
    task = evaluated(algorithm="user-dp-fedavg", evaluation_clip=100.0, evaluation_noise=50.0)
    limit = HolderLimit(ledger=tmp_path / "of-{client}", limit_epsilon=1000.0)
    for trainer in (None, "ward:train"):
        config = ClientConfig(certificates=tmp_path, authority=tmp_path / "ca.pem", holder=limit, trainer=trainer)
        payments_of_answers(task, ["alice"], config)["alice"].pay()
    account, _ = read(tmp_path / "of-alice")
    own, foreign = (line.payment.event for line in account.lines)
    assert own is not None
    assert foreign is not None
    assert own.noise_multiplier == pytest.approx(50.0, rel=1e-4)
    assert foreign.noise_multiplier == 50.0 / 200.0
    pairs = [
        ((90.0, 100.0, 1.0), (90.0, 101.0, 1e6)),
        ((100.0, 100.0, 0.0), (0.0, 100.0, 1e6)),
        ((0.0, 0.0, 0.0), (50.0, 100.0, 9.0)),
    ]
    std = 50.0  # of the noise, in units of a record
    for one, other in pairs:
        moved = float(np.linalg.norm(answer_of_counts(task, *one) - answer_of_counts(task, *other)))
        assert moved > 1, "no record of one's own does so"
        assert moved / std <= 1 / foreign.noise_multiplier
