"""Figures of a task with records in bins, as commands print them: those of its ledger, or a refusal by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import precad
from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError
from precad.clients.holder_limit import HolderLimit
from precad.deploy.configuration.check_holder import room_of
from precad.deploy.configuration.check_privacy import promised
from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.planning import task_of_run
from precad.deploy.oversight.run_status import read_rounds
from precad.deploy.reporting.audits import MECHANISM, read_audit
from precad.deploy.run_files.folder import RunFolder
from precad.dp.accountants.balls_in_bins import BallsInBins
from precad.dp.accountants.pld import Conduct, PldAccountant, SampledGaussian, View
from precad.dp.task_privacy import task_privacy
from precad.lab.simulation import SeededRandomness, Simulation, SimulationSettings
from precad.protos.task.task import Task
from precad.servers.store.folder import open_ledger
from tests.deploy.guarantees.test_task_account import precad as command
from tests.deploy.guarantees.test_task_account import written
from tests.harness.harness import small_task

T, ROUNDS = 4, 6


def task_of(**changes: Any) -> Task:
    return small_task(**{"rounds": ROUNDS, "record_rate": 1 / T, "record_bins": T, "noise_multiplier": 2.0, **changes})


def test_the_command_says_what_a_ledger_of_these_rounds_says(tmp_path: Path) -> None:
    task = task_of()
    found = json.loads(command("account", written(task, tmp_path), "--json").stdout)
    with open_ledger(tmp_path / "a", task) as ledger:
        for t in range(ROUNDS):
            ledger.charge(t, ["alice"])
        for view in View:
            assert found[view.value]["bound"] == ledger.statement(view, "alice").epsilon
            discarded = ledger.statement(view, "alice", Conduct.MAY_DISCARD).epsilon
            assert found[view.value]["if_discarded"]["epsilon"] == discarded
            one = BallsInBins(bins=T, noise_multiplier=task_privacy(task).events[view].noise_multiplier)  # type: ignore[union-attr]
            assert found[view.value]["bound"] == one.epsilon(2 * T, task.delta)
    assert found["record_bins"] == T
    said = " ".join(command("account", written(task, tmp_path)).stdout.split())
    assert f"each record in exactly one of {T} rounds, by the client's secret draw" in said
    assert "add/remove one record" in said


def test_one_epoch_costs_less_than_poissons_draws_of_the_same_noise(tmp_path: Path) -> None:
    """At T = 20, sigma = 1, in both views; the figures that the documents have."""
    common = {"rounds": 20, "noise_multiplier": 1.0, "dim": 100, "client_clip": 16.0}
    binned, drawn = task_of(record_rate=0.05, record_bins=20, **common), small_task(record_rate=0.05, **common)
    bins, poisson = (
        json.loads(command("account", written(task, tmp_path), "--json").stdout) for task in (binned, drawn)
    )
    found = {view: (bins[view]["bound"], poisson[view]["accountants"]["pld"]["epsilon"]) for view in map(str, View)}
    assert found["one_server"] == pytest.approx((1.610, 1.986), abs=1e-3)
    assert found["clients_only"] == pytest.approx((0.7275, 0.9325), abs=1e-3)


def test_rounds_of_a_client_that_may_be_of_two_epochs_are_refused(tmp_path: Path) -> None:
    """Charged in rounds 3 and 4 alone, a client has begun two epochs; their number, two, would say one."""
    task = task_of()
    with open_ledger(tmp_path / "a", task) as ledger:
        for t in (T - 1, T):
            ledger.charge(t, ["alice"])
        (counted, spent) = ledger.participation["alice"], ledger.statement(View.ONE_SERVER, "alice").epsilon
    path = written(task, tmp_path)
    for rounds in (1, 2, T + 1, 2 * T - 1):
        done = command("account", path, "--participation", rounds, exit_code=2)
        assert f"whole epochs with record_bins, as ledgers count: a multiple of {T}, found {rounds}" in " ".join(
            done.output.split()
        )
    found = json.loads(command("account", path, "--participation", counted, "--json").stdout)
    assert found["one_server"]["bound"] == spent
    done = command("account", path, "--participation", 3 * T, exit_code=2)
    assert f"participation: expected at most {2 * T}, the rounds that a client can be in" in done.output
    said = " ".join(command("account", path, "--participation", T).stdout.split())
    assert "lost ones too: 1 begun, or 3 if draws may be discarded" in said


def test_a_draft_needs_no_rate(tmp_path: Path) -> None:
    draft = tmp_path / "draft.toml"
    draft.write_text(
        f"[task]\nclient_rate = 1.0\nrecord_bins = {T}\nrecord_clip = 1.0\nclient_clip = 2.0\n"
        f"noise_multiplier = 2.0\nrounds = {ROUNDS}\n"
    )
    found = json.loads(command("account", draft, "--json").stdout)
    assert found["one_server"]["bound"] == pytest.approx(
        BallsInBins(bins=T, noise_multiplier=2.0).epsilon(8, 1e-5), rel=1e-4
    )
    assert "dim: without it" in command("account", draft).stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--balls-in-bins", 3), "--balls-in-bins: expected precad, whose records it is of, found record_bins"),
        (("-p", 0.5), "record_rate: expected none with record_bins = 4"),
        (("-q", 0.5), "client_rate: expected 1 with record_bins"),
        (("--records-per-person", 2), "records_per_person: expected none with record_bins"),
        (("--plot", "a.png"), "--plot: expected precad, whose rounds are drawn, found record_bins"),
    ],
)
def test_flags_that_do_not_go_with_bins_are_refused(tmp_path: Path, flags: tuple[Any, ...], said: str) -> None:
    done = command("account", written(task_of(), tmp_path), *flags, exit_code=2)
    assert said in " ".join(done.output.split())


def test_what_has_no_figure_of_bins_refuses_them_by_name(tmp_path: Path) -> None:
    task = task_of()
    with pytest.raises(ConfigError, match=r"task\.record_bins: expected none, found 4"):
        precad.account(written(task, tmp_path))
    with pytest.raises(ConfigError, match="--run: expected runs whose every round draws records, found record_bins 4"):
        task_of_run(task)
    figures = {"per_round": 0.0, "f_dp": 0.0, "strict": 0.0}
    seats = [{"view": "one_server", "printed": 1.0, "figures": figures}]
    audit = {"confidence": 0.95, "rounds": 1, "observations": 1, "passed": True, "seats": seats}
    audit["mechanism"] = {name: float(getattr(task, name)) for name in MECHANISM}
    (tmp_path / "audit.json").write_text(json.dumps(audit))
    with pytest.raises(ConfigError, match="expected no audit of a run with record_bins"):
        read_audit(tmp_path / "audit.json", task)


def test_a_task_promises_whole_epochs(tmp_path: Path) -> None:
    """Five rounds as much as eight: `precad check` and simulations say so before anything runs."""
    five, eight = (promised(task_of(rounds=rounds)) for rounds in (5, 8))
    assert five.split("epsilon")[1].split("at")[0] == eight.split("epsilon")[1].split("at")[0]


def test_a_holders_room_is_in_epochs(tmp_path: Path) -> None:
    limit = HolderLimit(ledger=tmp_path / "paid-{client}", limit_epsilon=4.0, delta=1e-5)
    config = ClientConfig(certificates=tmp_path, authority=tmp_path / "ca.pem", holder=limit)
    (said,) = room_of(task_of(rounds=400), config, ["alice"]).values()
    n, rest = int(said.split()[2]), said.split(maxsplit=3)[3]
    assert rest.startswith("more epochs of this task, fewer than the task's 100 epochs, within epsilon 4 at")
    assert 1 < n < 100
    one = PldAccountant().epsilon(SampledGaussian(1.0, 2.0), n, 1e-5)
    assert one <= 4.0


def test_a_runs_lines_count_epochs_by_the_numbers_of_rounds(tmp_path: Path) -> None:
    """Numbers 1 and 9, the others lost: two epochs of four, by the lines that a local run writes."""
    line = {"participants": ["alice"], "accepted": ["alice"], "rejected": [], "missing": [], "seconds": {}, "bytes": {}}
    line |= {"epsilon_one_server": 1.0, "epsilon_clients_only": 1.0, "model_digest": "ab"}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line | {"round": n}) + "\n" for n in (1, 9)))
    assert [read_rounds(RunFolder(tmp_path), bins)[1] for bins in (1, T)] == [2, 2 * T]


def test_a_simulation_of_another_algorithm_refuses_bins() -> None:
    from precad.clients.records import digits

    train = digits().train
    task = task_of(model="mlp", dim=4810, clients={"alice": 10, "bob": 10})
    records = {client: train.take(np.arange(10)) for client in task.clients}
    for name in ("local-dp", "central-dp", "non-private"):
        with pytest.raises(ArgumentError, match=r"algorithm: expected 'precad' or 'deployed' for a task with record_b"):
            Simulation(
                task=task,
                settings=SimulationSettings(algorithm=name),
                records=records,
                test=train.take(np.arange(10)),
                randomness=SeededRandomness(0),
                device="cpu",
            )
    assert SeededRandomness(1).bins("alice") == SeededRandomness(1).bins("alice")
    keys = {SeededRandomness(seed).bins(client).key for seed in (1, 2) for client in ("alice", "bob")}
    assert len(keys) == 4
