"""Ledgers beside the rounds that an audit saw: charges that are missing, or of cheaper rounds, fail the audit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from precad.dp.accountants.pld import SampledGaussian, Unit, View
from precad.dp.accountants.task_cost import Evaluations
from precad.dp.ledgers.ledger import Ledger, verified_charges
from precad.dp.task_privacy import task_cost, task_privacy
from precad.lab.auditing.charges import charge_alarms
from precad.lab.auditing.report import faults_of
from precad.servers.errors import SetupError
from precad.servers.store import audit_log
from precad.servers.store.folder import ledger_path
from tests.harness.harness import small_task
from tests.lab.auditing import planted
from tests.lab.auditing.planted import ROUNDS
from tests.lab.auditing.test_deployment_audit import audited, task_of

Charges = dict[int, list[str]]


def rewritten(folder: Path, charges: Charges, *, delta: float = 1e-5, noise: float = 1.0) -> None:
    """Write A's ledger anew, as a server would that charges something else: every line is sealed."""
    privacy, path = task_privacy(task_of(folder)), ledger_path(folder / "a")
    events: Mapping[View, Any] = {
        view: SampledGaussian(event.sampling_rate, noise * event.noise_multiplier)
        for view, event in privacy.events.items()
        if isinstance(event, SampledGaussian)
    }
    path.unlink()
    with Ledger(path, events=events, delta=delta, every_round=privacy.every_round) as ledger:
        for number, clients in charges.items():
            ledger.charge(number, clients)


def without_the_last(charges: Charges) -> Charges:
    return {number: clients for number, clients in charges.items() if number < ROUNDS - 1}


def without_a_client(charges: Charges) -> Charges:
    return charges | {1: [client for client in charges[1] if client != "watch"]}


@pytest.mark.parametrize(
    ("change", "flags", "said"),
    [
        (without_the_last, {}, f"charging: expected round {ROUNDS - 1} charged to one, own, watch, witness in "),
        (without_a_client, {}, "charging: expected round 1 charged to watch in "),
        (dict, {"noise": 1.1}, "charging: expected events {'one_server': "),
        (dict, {"delta": 1e-3}, "charging: expected delta 1e-05 in "),
    ],
)
def test_a_ledger_that_charges_less_fails_the_audit(
    copied: Path, change: Callable[[Charges], Charges], flags: dict[str, float], said: str
) -> None:
    charges = verified_charges(ledger_path(copied / "a"))
    rewritten(copied, change(charges), **flags)
    found = audited(copied)
    assert not found["passed"]
    (line,) = found["charging"]["alarms"]
    assert line.startswith(said)
    assert faults_of(found) == [line]


def test_a_ledger_of_all_rounds_is_no_fault_and_none_is_refused(copied: Path) -> None:
    rewritten(copied, verified_charges(ledger_path(copied / "a")))
    found = audited(copied)
    assert (found["charging"], found["passed"]) == ({"ledgers": 2, "alarms": []}, True)
    ledger_path(copied / "a").unlink()
    with pytest.raises(SetupError, match="expected the privacy ledger, found none"):
        audited(copied)


def test_an_evaluation_is_no_round_of_canaries_and_must_be_charged(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logs of both servers with one that no ledger holds. `test_a_task_with_evaluations_is_audited` runs some."""
    read = audit_log.read

    def with_an_evaluation(path: Path) -> list[audit_log.Entry]:
        log = list(read(path))
        fields = {"round": 99, "chosen": ["watch"], "accepted": ["watch"], "model": "ab" * 32}
        added = [
            audit_log.Entry(len(log) + i, kind, "", fields, "") for i, kind in enumerate(("validated", "evaluated"))
        ]
        return log + added

    monkeypatch.setattr(audit_log, "read", with_an_evaluation)
    found = audited(copied)
    assert found["rounds"] == ROUNDS
    assert [line.split(" in ")[0] for line in found["charging"]["alarms"]] == [
        "charging: expected round 99 charged to watch"
    ] * 2


TASK = small_task(
    clients={"alice": 40, "watch": 1},
    audit_clients=["watch"],
    rounds=20,
    dim=50 + 1,
    evaluation="clients",
    evaluation_every=1,
    evaluation_noise=20.0,
    evaluation_clip=40.0,
)
RELEASES = {number: {"round": number, "accepted": sorted(TASK.clients)} for number in range(2 * TASK.rounds)}
TRAINED = {number: release for number, release in RELEASES.items() if number % 2 == 0}
EVALUATED = {number: release for number, release in RELEASES.items() if number % 2 == 1}


def charged(folder: Path, evaluated: Collection[int], evaluations: Evaluations | None) -> float:
    """Charge all releases, some of them as evaluations. Return what the ledger then states against one server."""
    privacy = task_privacy(TASK)
    folder.mkdir()
    fixed: Any = {"events": privacy.events, "delta": TASK.delta, "every_round": privacy.every_round}
    with Ledger(ledger_path(folder), **fixed, most_rounds=TASK.most_draws, evaluations=evaluations) as ledger:
        for number in RELEASES:
            ledger.charge(number, sorted(TASK.clients), is_evaluation=number in evaluated)
        return ledger.statement(View.ONE_SERVER).epsilon


def test_rounds_of_the_training_that_are_charged_as_evaluations_fail_the_audit(tmp_path: Path) -> None:
    """They state less than the rounds cost. A sound ledger has no line."""
    evaluations, true = task_privacy(TASK).evaluations, task_cost(TASK).of_view(View.ONE_SERVER, 20, 20)
    assert evaluations is not None
    alarms = functools.partial(charge_alarms, TASK, committed=TRAINED, evaluated=EVALUATED)
    assert charged(tmp_path / "sound", EVALUATED, evaluations) == pytest.approx(true, rel=1e-9)
    assert alarms(tmp_path / "sound") == []

    more = replace(evaluations, most=2 * TASK.rounds)
    assert charged(tmp_path / "a", RELEASES, more) < true / 2
    said = [f"charging: expected round {number} charged as a round of the training in " for number in TRAINED]
    found = [line for line in alarms(tmp_path / "a") if "charged as" in line]
    assert [line.partition(str(tmp_path))[0] for line in found] == said

    assert charged(tmp_path / "swapped", TRAINED, evaluations) == pytest.approx(true, rel=1e-9)
    assert len(alarms(tmp_path / "swapped")) == 40


def test_evaluations_that_are_charged_as_cheaper_ones_fail_the_audit(tmp_path: Path) -> None:
    evaluations, true = task_privacy(TASK).evaluations, task_cost(TASK).of_view(View.ONE_SERVER, 20, 20)
    assert evaluations is not None
    events = {view: SampledGaussian(1.0, 1000 * one.noise_multiplier) for view, one in evaluations.events.items()}
    assert charged(tmp_path / "a", EVALUATED, replace(evaluations, events=events)) < true
    (line,) = charge_alarms(TASK, tmp_path / "a", TRAINED, EVALUATED)
    assert line.startswith("charging: expected evaluations {'events': ")


def test_a_ledger_of_other_steps_or_another_unit_fails_the_audit(tmp_path: Path) -> None:
    privacy = task_privacy(TASK)
    fixed: Any = {"events": privacy.events, "delta": TASK.delta, "every_round": privacy.every_round}
    with Ledger(ledger_path(tmp_path), **fixed, evaluations=privacy.evaluations, unit=Unit.CLIENT, steps_per_round=2):
        pass
    found = [line.partition(" in ")[0] for line in charge_alarms(TASK, tmp_path, {}, {})]
    assert found == ["charging: expected unit record", "charging: expected steps_per_round 1"]


@pytest.mark.slow  # the tests above are the quick ones
def test_a_task_with_evaluations_is_audited(tmp_path: Path) -> None:
    """One after two of three rounds. Chance accuses one run of twenty, so alarms of charges alone are looked at."""
    evaluated = {"evaluation": "clients", "evaluation_every": 2, "evaluation_noise": 5.0}
    planted.run(planted.CONFIG | {"task": planted.CONFIG["task"] | evaluated}, tmp_path / "run", {})
    found = audited(tmp_path / "run")
    assert (found["rounds"], found["charging"]["alarms"]) == (ROUNDS, [])
    assert len(verified_charges(ledger_path(tmp_path / "run" / "a"))) > ROUNDS
