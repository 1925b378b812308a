"""Audits of the running system: a sound one is not accused, and each planted fault is found where it shows."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from numpy.typing import NDArray
from rich.console import Console
from torch.nn import functional

from precad.clients.auditing.kinks import SETS, Kinks, audit_kinks
from precad.clients.errors import AdapterError
from precad.clients.gradients import engine as gradient_engine
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.models import networks
from precad.clients.records import Records
from precad.deploy.errors import ConfigError
from precad.dp.accountants.pld import SampledGaussian, View
from precad.dp.auditing import per_round
from precad.dp.auditing.shares import Shares
from precad.dp.task_privacy import task_privacy
from precad.lab.auditing import audit as auditing
from precad.lab.auditing.deployment_round import Seen
from precad.lab.auditing.members import AuditedTask, with_canaries
from precad.lab.auditing.report import faults_of, print_audit
from precad.lab.auditing.seats import Seat
from precad.lab.simulation import SeededRandomness
from precad.lab.simulation.randomness import Sources
from precad.lab.simulation.simulate import Plan, resolve
from precad.servers.store.folder import ledger_path, open_ledger
from tests.harness.command_line import precad
from tests.harness.harness import small_task
from tests.lab.auditing import planted
from tests.lab.auditing.faulty import CONFIG, faulty_clients
from tests.lab.auditing.faulty_noise import NOISES, FaultyServer

NOISE, FRESH = "noise: expected a multiplier", "noise: expected fresh draws"
FAULTS = {
    "noise": (Seat.SERVER_A, NOISE),
    "silent": (Seat.SERVER_A, NOISE),
    "repeated": (Seat.CLIENTS, FRESH),
    "clip": (Seat.CLIENTS, "clip: expected at most R"),
    "late-clip": (Seat.CLIENTS, "clip: expected at most R"),
    "sampling": (Seat.CLIENTS, "sampling: expected a rate"),
    "restarted": (Seat.CLIENTS, FRESH),
    "silent-once": (Seat.CLIENTS, NOISE),
    "truncated": (Seat.SERVER_A, "noise: expected Gaussian tails"),
    "tiled": (Seat.CLIENTS, FRESH),
    "copied": (Seat.SERVER_A, FRESH),
    "coarse": (Seat.SERVER_A, "noise: expected draws of every step"),
    "of-the-other": (Seat.SERVER_A, FRESH),
    "doubled": (Seat.CLIENTS, "sampling: expected a rate"),
    "same-sample": (Seat.CLIENTS, "sampling: expected fresh draws"),
    "together": (Seat.CLIENTS, "sampling: expected draws of their own"),
    "of-another-round": (Seat.SERVER_A, NOISE),
    "every-other": (Seat.SERVER_A, NOISE),
    "logistic": (Seat.SERVER_A, "noise: expected at most"),
    "shifted": (Seat.CLIENTS, FRESH),
    "going-on": (Seat.SERVER_A, FRESH),
    "fixed-half": (Seat.CLIENTS, "sampling: expected fresh draws"),
    "fixed-size": (Seat.CLIENTS, "sampling: expected draws of their own"),
    "largest-size": (Seat.CLIENTS, "sampling: expected draws of their own"),
    "one-always": (Seat.CLIENTS, "sampling: expected draws of their own"),
    "two-by-two": (Seat.CLIENTS, "sampling: expected draws of their own"),
    "contiguous": (Seat.CLIENTS, "sampling: expected draws of their own"),
    "twice": (Seat.SERVER_A, "arrival: expected a factor of 1 on uploads"),
}
"""By fault: the seat whose alarm names it."""
COMMON, AGAIN = "noise: expected nothing in common", "noise: expected fresh draws, found"
FURTHER = {
    "laplace": (Seat.CLIENTS, "noise: expected at most"),
    "uniform": (Seat.CLIENTS, "noise: expected Gaussian tails"),
    "four-uniforms": (Seat.SERVER_A, "noise: expected Gaussian tails"),
    "common": (Seat.CLIENTS, COMMON),
    "pattern": (Seat.SERVER_A, COMMON),
    "with-the-other": (Seat.SERVER_A, COMMON),
    "no-sum": (Seat.SERVER_A, COMMON),
    "cancelling": (Seat.SERVER_A, NOISE),
    "absent-block": (Seat.SERVER_A, NOISE),
    "some-rounds": (Seat.SERVER_A, NOISE),
    "reordered": (Seat.SERVER_A, AGAIN),
    "table": (Seat.SERVER_A, AGAIN),
    "half-precision": (Seat.SERVER_A, AGAIN),
    "unequal": (Seat.SERVER_A, "noise: expected at most"),
    "small-at-few": (Seat.SERVER_A, "noise: expected at most"),
    "a-tenth-more": (Seat.CLIENTS, "sampling: expected a rate"),
    "record-twice": (Seat.CLIENTS, "clip: expected at most R"),
    "fixed-order": (Seat.CLIENTS, "sampling: expected draws of their own"),
    "seed-again": (Seat.CLIENTS, "sampling: expected fresh draws"),
    "block-in-an-order": (Seat.CLIENTS, "sampling: expected fresh draws"),
    "divided-first": (Seat.CLIENTS, "arrival: expected a factor of 1 on uploads"),
    "of-batches": (Seat.CLIENTS, "clip: expected R of each drawn canary"),
}
"""Likewise, of faults whose tests in the clear are in `tests/dp/auditing`, or that are found for certain."""
IN_MANY = (
    "noise",
    "silent-once",
    "truncated",
    "of-another-round",
    "logistic",
    "going-on",
    "two-by-two",
    "twice",
    "largest-size",
)
"""Faults that few observations do not show."""


@functools.cache
def plan() -> Plan:
    """The task of few records beside the canaries."""
    resolved = resolve(CONFIG)
    return replace(resolved, records={client: own.take(np.arange(20)) for client, own in resolved.records.items()})


def seen_of(audited: AuditedTask, source: Sources) -> Seen:
    """Run all rounds of a training, and return what was seen."""
    simulation, seen = auditing.simulation_of(audited, source)
    assert list(simulation.run())
    return seen


def alarms(
    fault: str, seed: int, *, canaries: int = 1000, seats: Sequence[Seat] = tuple(Seat)
) -> dict[Seat, list[str]]:
    """20 000 observations of a running system with that fault, by seat: at its share of a whole audit's 5 %.

    Real records, which take three quarters of a round, are left to `test_real_records`.
    """
    draws = FaultyServer(seed, fault) if fault in NOISES else SeededRandomness(seed)
    audited = with_canaries(plan(), canaries, draws.records(0, "coins"))
    audited = replace(audited, real=None)
    with faulty_clients(fault):
        seen = seen_of(audited, draws)
    events = task_privacy(audited.plan.task).events
    shares = Shares.of(0.95, len(Seat), has_real=True)

    def of_seat(seat: Seat) -> list[str]:
        event = _sampled(events[seat.view])
        observed = seen.observed(seat, audited.coins)
        found = per_round.limits(observed, event, 1 - shares.canaries, shares.seats)
        return per_round.alarms(found, event, rounding=1e-4, least=1 - 1e-4)

    return {seat: of_seat(seat) for seat in seats}


def _sampled(event: object) -> SampledGaussian:
    assert isinstance(event, SampledGaussian)
    return event


def test_a_sound_system_is_not_accused() -> None:
    assert not any(alarms("none", 1).values())


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_where_it_shows(fault: str) -> None:
    """One server's noise is the other seat's to judge: of B's, A subtracts its own."""
    seat, named = FAULTS[fault]

    canaries = 1000 if fault in IN_MANY else 128
    assert any(line.startswith(named) for line in alarms(fault, 2, canaries=canaries, seats=[seat])[seat])


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("fault", FAULTS | FURTHER)
def test_a_planted_fault_is_found_in_38_of_40_runs(fault: str) -> None:
    """One upload that counts twice in one round of 20 is found by one server or the other, in 36 runs of 40."""
    seat, named = (FAULTS | FURTHER)[fault]
    seats = [Seat.SERVER_A, Seat.SERVER_B] if fault == "twice" else [seat]

    found = [alarms(fault, seed, seats=seats) for seed in range(40)]
    lines = [[line for seat in seats for line in one[seat]] for one in found]
    assert sum(any(line.startswith(named) for line in one) for one in lines) >= (36 if fault == "twice" else 38)


@pytest.mark.slow
def test_a_sound_system_is_accused_in_at_most_6_of_40_runs_by_any_of_three_seats() -> None:
    """All seats share 4 %: at most 1.6 of 40 are expected."""
    assert sum(any(alarms("none", 100 + seed, canaries=256).values()) for seed in range(40)) <= 6


def kinks_of_cnn(seed: int = 0, sets: int = SETS) -> Kinks:
    """The audit at kinks of the CNN, whose last ReLU reads a linear layer."""
    model, shape = networks.build("cnn"), networks.ARCHITECTURES["cnn"].shape
    engine, theta = RecordEngine(model, torch.zeros(shape)), networks.flatten(model)

    def clipped_sum(records: Records) -> NDArray[np.float64]:
        return np.asarray(engine.clipped_sums(theta, [records], RecordClip(1.0))[0])

    return audit_kinks(engine.model_copy(), theta, shape, 1.0, clipped_sum, sets=sets, seed=seed)


def _planted(patch: pytest.MonkeyPatch, source: str) -> None:
    """Replace what it replaces in this process, until the test is over."""
    for owner, name in ((gradient_engine, "_padded"), (functional, "linear")):
        patch.setattr(owner, name, getattr(owner, name))
    exec(source, {})


def test_padding_that_is_off_is_found_at_kinks_and_nothing_where_it_is_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine: kernels whose last bits follow from the length of a pass are put in place of its own."""
    _planted(monkeypatch, planted.KERNELS)
    sound = kinks_of_cnn(sets=1)
    assert (sound.pairs, sound.alarms) == (12, [])

    _planted(monkeypatch, planted.FAULTS["padding"])
    (alarm,) = kinks_of_cnn(sets=1).alarms
    assert alarm.startswith("clip: expected one record more to move a client's sum by at most R, found 3.")


@pytest.mark.slow
def test_padding_that_is_off_is_found_in_each_of_40_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with crafted records of its own, and none where it is on: that rounds nothing by chance."""
    _planted(monkeypatch, planted.KERNELS)
    assert not any(kinks_of_cnn(seed, sets=1).alarms for seed in range(20))
    _planted(monkeypatch, planted.FAULTS["padding"])
    assert all(kinks_of_cnn(seed, sets=1).alarms for seed in range(40))


@functools.cache
def report() -> dict[str, Any]:
    return auditing.audit(plan(), canaries=256, seed=4)


def test_every_lower_figure_is_below_the_printed_one_and_labelled() -> None:
    """The printed one is the ledger's for the rounds that audit clients were in."""
    found = report()
    privacy = task_privacy(plan().task)
    assert found["label"] == "audit (95 %)"
    assert found["passed"]
    assert faults_of(found) == []
    for seat in found["seats"]:
        assert seat["printed"] == pytest.approx(privacy.epsilon(View(seat["view"]), 20, 1e-5), rel=1e-3)
        assert 0.75 * seat["printed"] < seat["figures"]["per_round"] < seat["printed"]
        assert all(0 <= figure < seat["printed"] for figure in seat["figures"].values())


@pytest.mark.parametrize(("size", "said"), [(1, "proved; 256"), (2, "proved, of 2 records of one person; 256")])
def test_a_printed_audit_says_whose_epsilon_it_is(size: int, said: str) -> None:
    shown = io.StringIO()
    print_audit(Console(file=shown, width=300), report() | {"records_per_person": size})
    assert report()["records_per_person"] == 1
    assert f"audit (95 %) <= true <= {said} canaries" in shown.getvalue()


def test_seats_agree_on_what_the_servers_opened() -> None:
    """Server A's score and own noise add up to B's, and both to the models' difference; so twice for one seed."""
    draws = SeededRandomness(3)
    audited = with_canaries(plan(), 300, draws.records(0, "coins"))
    seen, again = (seen_of(audited, draws) for _ in range(2))
    opened = np.array(seen.scores[Seat.SERVER_A]) + np.array(seen.own_noise[Seat.SERVER_A])

    np.testing.assert_allclose(opened, np.array(seen.scores[Seat.SERVER_B]) + np.array(seen.own_noise[Seat.SERVER_B]))
    np.testing.assert_allclose(opened, seen.scores[Seat.CLIENTS], atol=2e-3)
    np.testing.assert_array_equal(seen.scores[Seat.CLIENTS], again.scores[Seat.CLIENTS])
    assert [len(held.places) for held in audited.conducts.values()] == [256, 44]
    assert not np.array(seen.contributions)[:, ~audited.coins].any()


def test_an_audit_moves_nothing_but_the_canaries_own_parameters() -> None:
    """The honest clients' updates of a round are bit for bit those of a task without audit clients."""
    draws = SeededRandomness(3)
    simulation, _ = auditing.simulation_of(with_canaries(plan(), 64, bytes), draws)
    plain = plan().simulation(3)
    theta = plain.progress.parameters
    ids = sorted(plan().task.clients)
    clip = plain.federation.record_clip()
    headed = simulation.federation.gradients(0, np.pad(theta, (0, 64)), ids, clip=clip, bound=16.0)
    alone = plain.federation.gradients(0, theta, ids, clip=clip, bound=16.0)

    for client in ids:
        np.testing.assert_array_equal(headed[client][:-64], alone[client])
        assert not headed[client][-64:].any()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"client_clip": 0.5}, r"task.client_clip: expected at least task.record_clip, 1: .* found 0.5"),
        ({"server_optimizer": "momentum"}, "task.server_optimizer: expected 'sgd' in an audit, found 'momentum'"),
        ({"record_rate": 0.5, "record_bins": 2}, "task.record_bins: expected None in an audit, found 2"),
        ({"algorithm": "user-dp-fedavg"}, "task.algorithm: expected 'precad' in an audit, found 'user-dp-fedavg'"),
        (
            {"layer_clips": [1.0, 2.0], "accept_weak_wire_form": True},
            r"^task.layer_clips: expected \[\] in an audit, found \[1.0, 2.0\]$",
        ),
        (
            {"sum_function": "own.module:halved", "sum_function_sha256": "0" * 64, "sum_function_factor": 1.0},
            "^task.sum_function: expected None in an audit, found 'own.module:halved'$",
        ),
    ],
)
def test_a_setting_that_an_audit_cannot_judge_is_refused(change: dict[str, Any], said: str) -> None:
    task = CONFIG["task"] | change
    with pytest.raises(ConfigError, match=said):
        with_canaries(resolve(CONFIG | {"task": task}), 64, bytes)


def test_an_audit_trains_only_the_columns_that_the_clients_train() -> None:
    """So it refuses what `precad simulate` refuses."""
    of_client = resolve(CONFIG | {"client": {**CONFIG["client"], "adapter_rank": 1}})
    for run in (lambda: of_client.simulation(0), lambda: auditing.audit(of_client, canaries=64, seed=0)):
        with pytest.raises(AdapterError, match=r"client.adapter_rank: expected a model with adapters"):
            run()


def test_earlier_ledgers_end_an_audited_training_as_a_simulated_one(tmp_path: Path) -> None:
    config = CONFIG | {"task": CONFIG["task"] | {"epsilon_budget_one_server": 8.0}}
    earlier = small_task(rounds=9, noise_multiplier=2.0, client_rate=1.0)
    with open_ledger(tmp_path, earlier) as ledger:
        for number in range(9):
            ledger.charge(number, ["alice"])
    counted = config | {"aggregator": {"a": {"earlier_ledgers": [{"path": str(ledger_path(tmp_path))}]}}}
    rounds = [len(list(resolve(each).simulation(0).run())) for each in (config, counted)]
    assert 0 < rounds[1] < rounds[0] < 20
    assert auditing.audit(resolve(counted), canaries=64, seed=0)["rounds"] == rounds[1]


def test_the_help_has_the_range_that_is_refused_beyond() -> None:
    assert f"{auditing.FEWEST} to {auditing.MOST}" in " ".join(precad("audit", "privacy", "--help").stdout.split())


def test_the_command_prints_lower_figures_and_ends_with_1_where_one_is_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sound system: 0, and a file of what standard output has. Without B's noise: 1, and lines that name it."""
    config, written = tmp_path / "audited.toml", tmp_path / "audit.json"
    config.write_text(tomli_w.dumps(CONFIG | {"task": CONFIG["task"] | {"record_rate": 1.0}}))
    flags = ("--canaries", 128, "--rounds", 4, "--seed", 1, "--json", "--output", written)
    sound = precad("audit", "privacy", config, *flags)
    assert sound.exit_code == 0, sound.stderr
    assert "audit (95 %) <= true <= proved" in sound.stderr
    assert json.loads(sound.stdout) == json.loads(written.read_text())

    monkeypatch.setattr(auditing, "SeededRandomness", functools.partial(FaultyServer, noise="silent"))
    silent = precad("audit", "privacy", config, *flags)
    assert silent.exit_code == 1
    assert "precad: server A corrupted: noise: expected a multiplier of" in silent.stderr
    assert "expected an epsilon of at most" in silent.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--canaries", 3), "--canaries: expected 64 to 20000, found 3"),
        (("--canaries", 0), "--canaries: expected 64 to 20000, found 0"),
        (("--confidence", 1.0), "--confidence: expected a number in [0.5, 1), found 1.0"),
    ],
)
def test_bad_flags_end_with_2(flags: tuple[object, ...], said: str) -> None:
    found = precad("audit", "privacy", *flags)
    assert (found.exit_code, said in found.stderr) == (2, True)


@pytest.mark.parametrize("output", ["no-folder/audit.json", "."])
def test_a_file_that_cannot_be_written_is_refused_before_the_training(
    output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report that was an hour's work must not be lost at its end."""
    begun = list[object]()
    monkeypatch.setattr(auditing, "simulation_of", lambda *parts: begun.append(parts))
    found = precad("audit", "privacy", "--output", tmp_path / output)
    assert (found.exit_code, begun) == (2, [])
    assert "--output: expected a file in an existing folder, found" in found.stderr
