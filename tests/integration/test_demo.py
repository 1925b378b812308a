"""`precad demo` as a user runs it: one command, a process for every role, and what the run leaves behind.

What counts as failure:
- standard output is anything but one JSON object with every figure that the manual promises;
- the run folder, the summary and the servers' own records tell different stories;
- an upload of a malicious client is accepted once, or one of an honest client rejected once;
- the privacy that is stated is not what an accountant computes from the realised participation;
- a process is left;
- a module of the folder that the command is run in is executed.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from dp_accounting.pld import privacy_loss_distribution
from google.protobuf import json_format

from precad.clients import records
from precad.clients.models import networks
from precad.clients.training import evaluation
from precad.deploy.cli.main import app
from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.demo import demo_config
from precad.deploy.guarantees.run_evidence import read_runs
from precad.deploy.shown.figures import three_digits
from precad.dp.accountants.pld import PldAccountant, SampledGaussian, TwoStageSampledGaussian, View, round_event
from precad.dp.certificates.monte_carlo import hoeffding_class_bounds
from precad.dp.certificates.prediction import Training
from precad.dp.ledgers.ledger import Ledger, Level
from precad.protos.precad.v1 import control_pb2
from precad.protos.task.task import Task
from tests.harness.command_line import CliRunner
from tests.harness.hostile_folder import executed, hostile_folder
from tests.integration.conftest import DEMO, RecordedDemo

PRECAD = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]
"""As the installed command: only `python -m` without -P puts the current folder first."""
PROMISED = {
    "rounds": int,
    "clients": int,
    "processes": int,
    "model_is_finite": bool,
    "accuracy": float,
    "epsilon_one_server": float,
    "epsilon_clients_only": float,
    "epsilon_client": float,
    "realised_epsilon_one_server": float,
    "realised_epsilon_clients_only": float,
    "realised_epsilon_client": float,
    "most_rounds_of_a_client": int,
    "rounds_of_a_client": int,
    "discarded_draws": int,
    "delta": float,
    "accepted": int,
    "rejected": int,
    "rejected_clients": list,
    "seconds_total": float,
    "seconds_per_round": float,
    "bytes_client_up": int,
    "bytes_server_link": int,
    "gate": str,
    "mode": str,
}
N_CLIENTS, N_ROUNDS, SEED = (int(value) for value in DEMO[1::2])
"""With q = 0.9, a client is in none of 6 rounds with probability 1e-6."""
HONEST, MALICIOUS = {"client-0", "client-1"}, {"client-2", "client-3"}


@dataclass(frozen=True, slots=True)
class Finished:
    """A run that is over."""

    folder: Path
    exit_code: int
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        summary: dict[str, Any] = json.loads(self.stdout)
        return summary

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def deployment(self) -> configuration.Deployment:
        return configuration.load(self.folder / "config.toml")


def precad(folder: Path, *arguments: str, cwd: Path | None = None) -> Finished:
    """Runs `precad ARGUMENTS --output FOLDER --json` to its end, which must be a good one."""
    command = [*PRECAD, *arguments, "--output", str(folder), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return Finished(folder, done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def demo(recorded_demo: RecordedDemo) -> Finished:
    """One small demo for all tests below, run in a folder that is full of modules with precad's names."""
    return Finished(recorded_demo.folder, 0, recorded_demo.stdout, recorded_demo.stderr)


# -- what it says ------------------------------------------------------------------------------------------------------


def test_standard_output_is_one_json_object_with_every_promised_figure(demo: Finished) -> None:
    """One line, nothing around it, and each value of its type."""
    assert demo.stdout.count("\n") == 1
    assert demo.stdout.endswith("}\n")
    wrong = {key: demo.summary.get(key) for key, kind in PROMISED.items() if type(demo.summary.get(key)) is not kind}
    assert not wrong


def test_the_figures_are_those_of_this_run(demo: Finished) -> None:
    """Every number that is known beforehand, and bounds on the others."""
    summary = demo.summary
    assert (summary["rounds"], summary["clients"], summary["processes"]) == (N_ROUNDS, N_CLIENTS, N_CLIENTS + 3)
    assert (summary["gate"], summary["mode"], summary["delta"]) == ("crypten", "masked", 1e-5)
    assert summary["certificate"].startswith("VACUOUS: no prediction is proved")  # of one training
    assert 0 < summary["epsilon_clients_only"] < summary["epsilon_one_server"] < math.inf
    assert 0 < summary["seconds_per_round"] * N_ROUNDS <= summary["seconds_total"]


def test_people_read_a_line_per_round_and_every_epsilon_on_standard_error(demo: Finished) -> None:
    """Nothing of it is cut off or broken in two in a pipe."""
    lines = demo.stderr.splitlines()
    rounds = [line for line in lines if line.startswith("round ")]
    assert len(rounds) == N_ROUNDS
    for number, line in enumerate(rounds):
        assert line.startswith(f"round {number} ")
        for column in ("accepted", "rejected", "accuracy", "ε server", "ε clients", "seconds", "all"):
            assert column in line
    text = " ".join(demo.stderr.split())
    assert "epsilon at delta = 1e-05 (proved bounds, add/remove one)" in text
    assert "of one against may discard draws only watches" in text
    for name in ("one_server", "clients_only", "client"):
        for key in (f"epsilon_{name}", f"realised_epsilon_{name}"):
            assert three_digits(demo.summary[key]) in text
    assert str(demo.folder) in "".join(demo.stderr.split())
    assert "Traceback" not in text


def test_no_module_of_the_current_folder_is_run(demo: Finished) -> None:
    """Neither by the command, nor by a server or client that it starts: `demo` calls `precad serve` and `client`."""
    assert executed(demo.folder.parent / "here") == []


# -- what it leaves behind ---------------------------------------------------------------------------------------------


def test_the_run_folder_holds_what_the_manual_lists(demo: Finished) -> None:
    """Exactly these, and one log for each process."""
    assert {path.name for path in demo.folder.iterdir()} == {
        *("config.toml", "metrics.jsonl", "model.pt", "summary.json", "initial_model.npy", "report.html", "run-state"),
        *("logs", "a", "b", "dealer", "pki", "clients"),
    }
    processes = {"dealer", "aggregator-a", "aggregator-b", *HONEST, *MALICIOUS}
    assert {path.name for path in (demo.folder / "logs").iterdir()} == {f"{name}.log" for name in processes}
    kept = {"ledger.jsonl", "task.sqlite", "tuples.sqlite", "rounds.jsonl", "model.npy", "checkpoints"}
    for letter in "ab":
        assert {path.name for path in (demo.folder / letter).iterdir()} == kept
    assert {path.name for path in (demo.folder / "dealer").iterdir()} == {"dealt.sqlite"}
    uploads = {path.name: path.read_text().count("\n") for path in (demo.folder / "clients").iterdir()}
    chosen = Counter(client for m in demo.metrics for client in m["participants"])
    assert uploads == {f"{name}.uploads": chosen[name] for name in (*HONEST, *MALICIOUS)}


def test_the_summary_file_is_what_was_printed(demo: Finished) -> None:
    assert json.loads((demo.folder / "summary.json").read_text()) == demo.summary


def test_the_report_is_about_this_run(demo: Finished) -> None:
    """Written by the run itself, with its final figures to the last digit; the console names the file."""
    page = (demo.folder / "report.html").read_text()
    for name in ("accuracy", "epsilon_one_server", "epsilon_clients_only", "epsilon_client", "bytes_server_link"):
        assert f'<data value="{demo.summary[name]}">' in page
    assert "report.html" in "".join(demo.stderr.split())


def test_the_written_configuration_is_the_one_that_ran(demo: Finished) -> None:
    """It holds every choice of the demo, and parses to the digest that all parties compared."""
    wanted = demo_config(n_clients=N_CLIENTS, rounds=N_ROUNDS, seed=SEED)
    written = tomllib.loads((demo.folder / "config.toml").read_text())
    task = demo.deployment.task
    assert {key: written["task"][key] for key in wanted["task"] if key != "clients"} == {
        key: value for key, value in wanted["task"].items() if key != "clients"
    }
    assert written["client"]["attacks"] == wanted["client"]["attacks"]
    assert list(task.clients) == wanted["task"]["clients"]
    assert sum(task.clients.values()) == len(records.digits().train)
    assert configuration.parse(written, base=Path("/elsewhere")).task.digest() == task.digest()


def test_each_round_has_one_line_of_consistent_counts(demo: Finished) -> None:
    """Participants are the accepted, the rejected and the missing, each once; the summary adds them up."""
    metrics, summary = demo.metrics, demo.summary
    assert [m["round"] for m in metrics] == list(range(N_ROUNDS))
    for m in metrics:
        assert sorted([*m["accepted"], *m["rejected"], *m["missing"]]) == sorted(m["participants"])
        assert set(m["participants"]) <= HONEST | MALICIOUS
        assert set(m["seconds"]) == {"select", "collect", "lock", "validate", "noise", "charge", "open", "commit"}
        assert m["seconds_total"] >= 0.99 * sum(m["seconds"].values())
        assert m["bytes"]["clients_to_a"] >= 8 * demo.deployment.task.dim * len(m["accepted"] + m["rejected"])
    for name in ("accepted", "rejected", "missing"):
        assert summary[name] == sum(len(m[name]) for m in metrics)
    assert summary["rejected_clients"] == sorted({client for m in metrics for client in m["rejected"]})
    for total, parts in (
        ("bytes_client_up", ("clients_to_a", "clients_to_b")),
        ("bytes_server_link", ("a_to_b", "b_to_a")),
    ):
        assert summary[total] == sum(m["bytes"][part] for m in metrics for part in parts) > 0


def test_every_malicious_upload_was_rejected_and_no_honest_one(demo: Finished) -> None:
    """Both kinds were there, or the demo shows nothing."""
    participants = Counter(client for m in demo.metrics for client in m["participants"])
    rejected = Counter(client for m in demo.metrics for client in m["rejected"])
    accepted = Counter(client for m in demo.metrics for client in m["accepted"])
    assert rejected == {client: participants[client] for client in MALICIOUS}
    assert accepted == {client: participants[client] for client in HONEST}
    assert set(demo.summary["rejected_clients"]) == MALICIOUS


def test_the_model_file_loads_safely_and_has_the_stated_accuracy(demo: Finished) -> None:
    """A plain state_dict of the task's architecture, and the bytes that both servers ended with."""
    state_dict = torch.load(demo.folder / "model.pt", weights_only=True)
    model = networks.build(demo.deployment.task.model)
    model.load_state_dict(state_dict, strict=True)
    parameters = networks.flatten(model)
    accuracy = evaluation.accuracy(parameters, demo.deployment.task.model, records.digits().test)
    assert demo.summary["accuracy"] == accuracy
    assert demo.metrics[-1]["accuracy"] == accuracy
    for letter in "ab":
        np.testing.assert_array_equal(np.load(demo.folder / letter / "model.npy"), parameters)
    assert not np.array_equal(np.load(demo.folder / "initial_model.npy"), parameters)
    assert (demo.folder / "a" / "model.npy").read_bytes() == (demo.folder / "b" / "model.npy").read_bytes()


def pld_epsilon(view: View, task: Task, rounds: int) -> float:
    """Epsilon of `rounds` rounds by dp-accounting alone, with sigma and the sensitivity written out."""
    sensitivity = task.record_clip + math.sqrt(task.dim) / 2**task.frac_bits
    n_noises = {View.ONE_SERVER: 1, View.CLIENTS_ONLY: 2}[view]
    one_round = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=math.sqrt(n_noises) * task.noise_multiplier * task.record_clip,
        sensitivity=sensitivity,
        sampling_prob=task.record_rate,
        value_discretization_interval=1e-4,
        neighboring_relation=privacy_loss_distribution.NeighborRel.ADD_OR_REMOVE_ONE,
    )
    return float(one_round.self_compose(rounds).get_epsilon_for_delta(task.delta))


@pytest.mark.parametrize("letter", ["a", "b"])
def test_the_ledgers_replay_to_the_stated_privacy(demo: Finished, letter: str) -> None:
    """Each server's ledger charges the participants of the metrics, round by round, and nobody else.

    Tolerance: two pessimistic discretisations, at 1e-4 and at the ledger's own step, differ by less than 1e-3.
    """
    task, metrics = demo.deployment.task, demo.metrics
    path = demo.folder / letter / "ledger.jsonl"
    charges = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    assert [(c["round"], c["clients"]) for c in charges] == [(m["round"], sorted(m["participants"])) for m in metrics]
    events = {
        view: round_event(
            view,
            record_sampling_rate=task.record_rate,
            noise_multiplier=task.noise_multiplier,
            record_clip=task.record_clip,
            dim=task.dim,
            frac_bits=task.frac_bits,
        )
        for view in View
    }
    client_multiplier = math.sqrt(2) * task.noise_multiplier * task.record_clip / task.client_clip
    every_round = {
        Level.CLIENT: TwoStageSampledGaussian(task.client_rate, 1.0, client_multiplier),
        Level.DRAWN_RECORD: TwoStageSampledGaussian(
            task.client_rate, task.record_rate, events[View.CLIENTS_ONLY].noise_multiplier
        ),
    }
    with Ledger(path, events=events, delta=task.delta, every_round=every_round) as ledger:
        assert ledger.participation == Counter(client for m in metrics for client in m["participants"])
        for view in View:
            stated = demo.summary[f"epsilon_{view}"]
            assert stated == pytest.approx(pld_epsilon(view, task, N_ROUNDS + task.most_lost_rounds), abs=1e-3)
            realised = demo.summary[f"realised_epsilon_{view}"]
            assert realised == ledger.statement(view).epsilon == metrics[-1][f"epsilon_{view}"] < stated
            most_rounds = max(ledger.participation.values())
            assert realised == pytest.approx(pld_epsilon(view, task, most_rounds), abs=1e-3)
        whole_client = ledger.task_statement(Level.CLIENT).epsilon
        assert whole_client == PldAccountant().epsilon(every_round[Level.CLIENT], len(metrics), task.delta)
        assert demo.summary["epsilon_client"] > demo.summary["realised_epsilon_client"] == whole_client
        assert whole_client > ledger.task_statement(Level.DRAWN_RECORD).epsilon > 0


def test_the_run_can_be_certified_from_its_folder(demo: Finished) -> None:
    """The task's client level, the final model's confidences; one run proves nothing, and the malicious are named."""
    task = demo.deployment.task
    evidence = read_runs([demo.folder])
    multiplier = math.sqrt(2) * task.noise_multiplier * task.record_clip / task.client_clip
    assert evidence.training == Training(SampledGaussian(task.client_rate, multiplier), task.most_draws)
    right = np.argmax(evidence.confidences, axis=1) == np.asarray(evidence.labels)
    assert float(np.mean(right)) == pytest.approx(demo.summary["accuracy"], rel=1e-12)
    assert set(evidence.provenance["attacks_in_the_training"]) == MALICIOUS
    low = hoeffding_class_bounds(evidence.confidences[0], evidence.n_runs, 0.01)[1]
    assert low == 0.0


def test_the_run_can_be_exported_and_verified(demo: Finished, tmp_path: Path) -> None:
    """The model that the runner wrote, with the epsilons of its summary rounded up, signed by both servers."""
    for command in (
        ["export", str(demo.folder), "--out", str(tmp_path / "exported")],
        ["verify-export", str(tmp_path / "exported"), "--authority", str(demo.folder / "pki" / "ca.pem")],
    ):
        done = CliRunner().invoke(app, [*command, "--json"])
        assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    assert report["files"] == {"model.pt": ["aggregator-a", "aggregator-b"]}
    stated = {row["view"]: row["epsilon"] for row in report["statement"]["privacy"] if row["counts"].startswith("most")}
    for view in View:
        assert demo.summary[f"epsilon_{view}"] <= stated[view] < demo.summary[f"epsilon_{view}"] + 2e-6
    ours, theirs = (
        torch.load(p, weights_only=True) for p in (tmp_path / "exported/model.pt", demo.folder / "model.pt")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_epsilon_grows_with_the_rounds_of_the_busiest_client(demo: Finished) -> None:
    """Each line states the privacy after its round, for the client that took part most."""
    seen: Counter[str] = Counter()
    for m in demo.metrics:
        seen.update(m["participants"])
        for view in View:
            expected = pld_epsilon(view, demo.deployment.task, max(seen.values()))
            assert m[f"epsilon_{view}"] == pytest.approx(expected, abs=1e-3)


def test_the_servers_wrote_the_same_records_as_the_runner(demo: Finished) -> None:
    """rounds.jsonl of A and of B agree with metrics.jsonl on everything that both hold."""
    for letter in "ab":
        lines = (demo.folder / letter / "rounds.jsonl").read_text().splitlines()
        for line, m in zip(lines, demo.metrics, strict=True):
            record = json_format.Parse(line, control_pb2.RoundRecord())
            assert (record.round, record.chosen) == (m["round"], m["participants"])
            assert record.model_digest.hex() == m["model_digest"]
            for name in ("accepted", "rejected", "missing"):
                assert getattr(record, name) == m[name]


def test_logs_end_without_a_traceback_and_nothing_runs_any_more(demo: Finished) -> None:
    """A good run looks like one in every log."""
    for path in (demo.folder / "logs").iterdir():
        text = path.read_text()
        assert "Traceback" not in text, text
        assert "never retrieved" not in text, text
    commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    assert not [command for command in commands if str(demo.folder).encode() in command]


# -- longer runs -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_default_demo_trains_a_good_model_under_a_proved_bound(tmp_path: Path) -> None:
    """30 rounds, 8 clients: accuracy at least 0.85, and the epsilon that an accountant of our own call computes.

    The ledger's grid is used here, so the tolerance is that of float64 alone.
    """
    demo = precad(tmp_path / "run", "demo")
    summary, metrics, task = demo.summary, demo.metrics, demo.deployment.task
    assert (summary["rounds"], summary["clients"], summary["processes"]) == (30, 8, 11)
    assert summary["accuracy"] >= 0.85
    participants = Counter(client for m in metrics for client in m["participants"])
    rejected = Counter(client for m in metrics for client in m["rejected"])
    assert rejected == {client: participants[client] for client in ("client-6", "client-7")}
    assert summary["missing"] == 0
    sigma = task.noise_multiplier / (1 + math.sqrt(task.dim) / 2**task.frac_bits)
    step = min(0.03 * task.record_rate * math.sqrt(math.expm1(sigma**-2)), 1e-3)
    one_round = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=task.record_rate, value_discretization_interval=step
    )
    expected = one_round.self_compose(max(participants.values())).get_epsilon_for_delta(task.delta)
    assert summary["realised_epsilon_one_server"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.slow
def test_virtual_clients_share_a_process_and_keep_their_own_identities(tmp_path: Path) -> None:
    """Seven clients in processes of three: three client processes, seven certificates, the same protocol.

    The two attackers share no process with honest clients.
    """
    raw = demo_config(n_clients=7, rounds=2)
    raw["task"]["client_rate"] = 1.0
    raw["localhost"] = {"clients_per_process": 3}
    config = tmp_path / "deployment.toml"
    config.write_text(tomli_w.dumps(raw))
    run = precad(tmp_path / "run", "run", str(config))
    ids = raw["task"]["clients"]
    assert (run.summary["clients"], run.summary["processes"]) == (7, 3 + 3)
    names = {path.name for path in (run.folder / "logs").iterdir()}
    assert names >= {"client-0-to-client-2.log", "client-3-to-client-4.log", "client-5-to-client-6.log"}
    assert len({(run.folder / "pki" / client / "cert.pem").read_bytes() for client in ids}) == 7
    for m in run.metrics:
        assert m["participants"] == ids
        assert m["accepted"] == ids[:5]
        assert m["rejected"] == ids[5:]


OWN_MODEL = """
from torch import nn

class Tiny(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.mark.slow
def test_a_model_of_the_users_own_is_found_among_modules_that_are_not_run(tmp_path: Path) -> None:
    """Clients and evaluation find it in the current folder; nothing else of that folder is imported by anybody."""
    here = hostile_folder(tmp_path / "here")
    (here / "my_model.py").write_text(OWN_MODEL)
    raw = demo_config(n_clients=3, rounds=2)
    raw["task"] |= {"client_rate": 1.0, "model": "my_model:Tiny"}
    raw["localhost"] = {"clients_per_process": 3}
    (here / "deployment.toml").write_text(tomli_w.dumps(raw))
    run = precad(tmp_path / "run", "run", "deployment.toml", cwd=here)
    assert (run.summary["rounds"], run.deployment.task.dim) == (2, 650)
    assert executed(here) == []


@pytest.mark.slow
def test_the_written_configuration_repeats_the_experiment(demo: Finished, tmp_path: Path) -> None:
    """`precad run` on a run's config.toml: the same task, the same start, other coins and other noise."""
    again = precad(tmp_path / "again", "run", str(demo.folder / "config.toml"))
    assert again.deployment.task == demo.deployment.task
    assert again.summary["task"] != demo.summary["task"]
    initial = [np.load(run.folder / "initial_model.npy") for run in (demo, again)]
    np.testing.assert_array_equal(*initial)
    assert again.metrics[-1]["model_digest"] != demo.metrics[-1]["model_digest"]


@pytest.mark.slow
def test_the_shares_form_runs_through_as_well(tmp_path: Path) -> None:
    """The paper's own wire form: a seed to A, a vector to B."""
    raw = demo_config(n_clients=4, rounds=2)
    raw["task"] |= {"client_rate": 1.0, "mode": "shares", "accept_weak_wire_form": True}
    config = tmp_path / "deployment.toml"
    config.write_text(tomli_w.dumps(raw))
    run = precad(tmp_path / "run", "run", str(config))
    assert run.summary["mode"] == "shares"
    for m in run.metrics:
        assert m["accepted"] == ["client-0", "client-1"]
        assert m["rejected"] == ["client-2", "client-3"]
        assert m["bytes"]["clients_to_b"] > 8 * run.deployment.task.dim * 4 > m["bytes"]["clients_to_a"]
