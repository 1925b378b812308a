"""`precad query`: what is refused at once, and an answer of real processes."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from precad.deploy.cli.main import app
from precad.deploy.cli.query import costs_of
from precad.deploy.configuration.local import resolve
from precad.deploy.configuration.query import Question, resolve_query
from precad.deploy.configuration.sections import read_local
from precad.deploy.errors import ConfigError
from precad.deploy.localhost.observing import Observation
from precad.deploy.localhost.query import QueryRun
from precad.deploy.localhost.watch import LiveTable
from precad.deploy.run_files.answers import answer_of
from precad.deploy.run_files.folder import RunFolder
from precad.dp.ledgers.earlier import earlier_tasks
from precad.protos.precad.v1.control_pb2 import RoundRecord
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.rounds.sum_function import require_function
from precad.servers.store.counted import mark_counted
from precad.servers.store.folder import ledger_path, open_ledger, open_task_store
from tests.harness.command_line import CliRunner, in_a_process
from tests.harness.hospital import hospital
from tests.protos.task.test_query_task import query_task

AGREED = """
[client.queries]
columns = {age = {low = 0, high = 130}, pressure = {low = 50, high = 250}}
limit_epsilon = 3.0
"""
MEAN: dict[str, Any] = {"kind": "mean", "column": "age", "low": 0.0, "high": 120.0}


def folder_of(tmp_path: Path) -> Path:
    """Return the configuration of a training that agrees to queries."""
    config = hospital(tmp_path, "some_model")
    config.write_text(config.read_text() + AGREED)
    return config


def ended(run: RunFolder, task: Task, *, rounds: int | None, log: bool = True) -> None:
    """Leave what a run that is over leaves of its servers. rounds: how many were charged; None: no ledger."""
    for letter in "ab":
        state_dir = run.state_dir(letter)
        state_dir.mkdir(mode=0o700)
        if log:
            with contextlib.closing(open_task_store(state_dir, task, b"")) as store:
                store.begin("0" * 32, Role(f"aggregator-{letter}"))
        if rounds is not None:
            with open_ledger(state_dir, task) as ledger:
                for number in range(rounds):
                    ledger.charge(number, sorted(task.clients))
    run.write_summary({})


def resolved(tmp_path: Path, **question: Any) -> Any:
    """Return the task of a query in that folder."""
    asked = {"query": MEAN, "epsilon": 1.0, **question}
    return resolve_query(read_local(folder_of(tmp_path)), Question(**asked), RunFolder(tmp_path / "out"))[1].task


def test_a_query_keeps_the_clients_of_the_training_and_nothing_of_its_model(tmp_path: Path) -> None:
    """400 rows over four clients; C is the largest number of records of one, and the grid the finest that C allows."""
    task = resolved(tmp_path)

    assert task.clients == dict.fromkeys("abcd", 100)
    assert (task.client_clip, task.rounds, task.record_clip, task.dim) == (100.0, 1, 1.0, 2)
    assert (task.columns, task.model, task.learning_rate) == ([], "mlp", 1.0)
    assert task.norm_bound.encoded_clip * 2 > 9.4e7
    again = tmp_path / "again"
    again.mkdir()
    assert resolved(again, most_records=7.5).client_clip == 7.5


def test_a_number_of_clients_is_enough(tmp_path: Path) -> None:
    """As `precad run` takes it, from the same file."""
    config = folder_of(tmp_path)
    config.write_text(config.read_text().replace('clients = ["a", "b", "c", "d"]', "clients = 4"))
    _, deployment = resolve_query(read_local(config), Question(query=MEAN, epsilon=1.0), RunFolder(tmp_path / "out"))
    assert deployment.task.clients == {f"client-{i}": 100 for i in range(4)}


@pytest.mark.parametrize(
    ("of_task", "of_servers"),
    [
        ("layer_clips = [0.5]\nlayer_sizes = [3]\naccept_weak_wire_form = true", ""),
        ('sum_function = "own:halve"\nsum_function_factor = 1.0', 'sum_function = "own:halve"'),
        ('evaluation = "public"', 'evaluation_records = "csv:rows.csv"\nevaluation_label = "sex"'),
        ('audit_clients = ["a"]', "keep_canary_noise = true"),
    ],
    ids=["bounds of layers", "a function of the sum", "public records", "canaries"],
)
def test_a_query_leaves_out_what_is_said_for_the_training(tmp_path: Path, of_task: str, of_servers: str) -> None:
    """Whoever trains so asks from the same file; servers refuse consent to what their task has not."""
    config = folder_of(tmp_path)
    servers = "".join(f"\n[aggregator.{letter}]\n{of_servers}\n" for letter in "ab")
    config.write_text(config.read_text().replace("[task]\n", f"[task]\n{of_task}\n") + servers)
    _, deployment = resolve_query(read_local(config), Question(query=MEAN, epsilon=1.0), RunFolder(tmp_path / "out"))

    assert not deployment.task.accept_weak_wire_form
    for server in (deployment.aggregator.a, deployment.aggregator.b):
        assert server is not None
        assert (server.sum_function, server.evaluation_records, server.keep_canary_noise) == (None, None, False)
        require_function(deployment.task, server)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ({"query": {**MEAN, "column": "sex"}}, "client.queries.columns: expected column 'sex'"),
        ({"query": {**MEAN, "high": 500.0}}, r"task.query: low, high: expected within \[0, 130\]"),
        ({"query": {**MEAN, "low": 120.0}}, "query: low, high: expected low < high"),
        ({"query": {**MEAN, "kind": "histogram"}}, "query: bins: expected at least 2 of a histogram"),
        ({"epsilon": 0.0}, "target_epsilon: expected a number above 0"),
        ({"epsilon": None, "noise_multiplier": 0.0}, "task.noise_multiplier: expected greater than 0"),
        ({"most_records": 1e9}, "--most-records: "),
        (
            {"most_records": 0.0},
            "--most-records: C: expected a finite number above 0|task.client_clip: expected greater than 0",
        ),
    ],
)
def test_a_question_that_cannot_be_asked_is_refused(tmp_path: Path, question: dict[str, Any], message: str) -> None:
    """By field or flag, before any process starts."""
    with pytest.raises(ConfigError, match=message):
        resolved(tmp_path, **question)


def test_a_query_goes_on_after_a_run_that_is_over(tmp_path: Path) -> None:
    """With the ledgers of the same server, the most rounds of that run, and its clients' record of answers."""
    first = resolve_query(
        read_local(folder_of(tmp_path)), Question(query=MEAN, epsilon=1.0), RunFolder(tmp_path / "out")
    )
    (tmp_path / "out").mkdir()
    RunFolder(tmp_path / "out").write_config(first[0])
    asked = Question(query={**MEAN, "column": "pressure", "low": 50.0}, epsilon=1.0, after=tmp_path / "out")
    with pytest.raises(
        ConfigError, match=r"--after: expected the folder of a run that is over, found no summary\.json"
    ):
        resolve_query(read_local(tmp_path / "task.toml"), asked, RunFolder(tmp_path / "more"))
    ended(RunFolder(tmp_path / "out"), first[1].task, rounds=1)
    _, deployment = resolve_query(read_local(tmp_path / "task.toml"), asked, RunFolder(tmp_path / "more"))

    assert deployment.client is not None
    assert deployment.client.state_dir == tmp_path / "out" / "clients"
    for letter, server in (("a", deployment.aggregator.a), ("b", deployment.aggregator.b)):
        assert server is not None
        (earlier,) = server.earlier_ledgers
        assert (earlier.path, earlier.most_rounds) == (tmp_path / "out" / letter / "ledger.jsonl", 2)


def test_a_query_after_a_run_that_a_query_counts_already_is_refused(tmp_path: Path) -> None:
    """Each of ten queries after one training would show its own part beside the training's, and none what all did."""
    out, more = (RunFolder(tmp_path / name) for name in ("out", "more"))
    asked = Question(query=MEAN, epsilon=1.0)
    raw, first = resolve_query(read_local(folder_of(tmp_path)), asked, out)
    for run in (out, more):
        run.root.mkdir()
        run.write_config(raw)
        ended(run, first.task, rounds=1)
    mark_counted(earlier_tasks([(ledger_path(out.state_dir("b")), 2)]), ledger_path(more.state_dir("b")))
    expected = f"--after: expected the run that spent last, found {out.root}, which {more.root}/b/ledger.jsonl counts"
    with pytest.raises(ConfigError, match=expected):
        resolve_query(read_local(tmp_path / "task.toml"), replace(asked, after=out.root), RunFolder(tmp_path / "third"))
    after_both = replace(asked, after=more.root)
    _, deployment = resolve_query(read_local(tmp_path / "task.toml"), after_both, RunFolder(tmp_path / "third"))
    assert deployment.aggregator.b is not None


@pytest.mark.parametrize(
    ("log", "ran", "rounds", "message"),
    [
        (True, 3, 3, "--after: expected the task {ran} in {config}, found {found}"),
        (False, 3, 3, "--after: expected most_rounds of at least 3, as {ledger} charged a client for so many, found 2"),
        (False, 1, None, "--after: expected the run's ledger at {ledger}, found: No such file or directory"),
    ],
    ids=["another task", "fewer rounds than charged", "no ledger"],
)
def test_a_configuration_that_the_servers_did_not_run_is_refused(
    tmp_path: Path, log: bool, ran: int, rounds: int | None, message: str
) -> None:
    """Whoever cuts rounds of a run's configuration would let the next query count less than it can have spent.

    ran: how many rounds the servers' task could lose; the configuration says one.
    """
    config, out = folder_of(tmp_path), RunFolder(tmp_path / "out")
    raw, deployment = resolve_query(read_local(config), Question(query=MEAN, epsilon=1.0), out)
    out.root.mkdir()
    out.write_config(raw)
    task = deployment.task.model_copy(update={"lost_rounds": ran})
    ended(out, task, rounds=rounds, log=log)
    flags = ("--column", "age", "--low", "0", "--high", "120", "--epsilon", "1", "--after", str(out.root))
    done = CliRunner().invoke(app, ["query", str(config), "mean", *flags, "--output", str(tmp_path / "more")])

    digests = {"ran": task.digest().hex()[:16], "found": deployment.task.digest().hex()[:16]}
    assert message.format(**digests, config=out.config, ledger=out.state_dir("a") / "ledger.jsonl") in done.stderr
    assert done.exit_code == 2


def test_a_query_after_a_task_of_whole_clients_is_refused_at_once(tmp_path: Path) -> None:
    """Name the algorithm, before any process starts: no server adds figures of clients to those of records."""
    config, out = folder_of(tmp_path), RunFolder(tmp_path / "out")
    of_clients: dict[str, Any] = {"name": "digits", "clients": 2, "rounds": 3, "client_rate": 1.0}
    of_clients |= {"record_rate": 1.0, "learning_rate": 1.0}
    of_clients |= {"algorithm": "user-dp-fedavg", "record_clip": 1.0, "client_clip": 2.0, "noise_multiplier": 4.0}
    out.root.mkdir()
    raw, deployment, _ = resolve({"task": of_clients, "client": {}}, out)
    out.write_config(raw)
    ended(out, deployment.task, rounds=1)
    out.write_summary({})
    flags = ("--column", "age", "--low", "0", "--high", "120", "--epsilon", "1", "--after", str(out.root))
    done = CliRunner().invoke(app, ["query", str(config), "mean", *flags, "--output", str(tmp_path / "more")])

    expected = "--after: expected a run whose figures are of a record, as a query's are, found user-dp-fedavg"
    assert (done.exit_code, expected in done.stderr) == (2, True)
    assert not (tmp_path / "more").exists()


def test_a_query_of_processes_looks_for_no_model(tmp_path: Path) -> None:
    """After its only round, as after each of a training. The slow twin below has the processes."""
    console = Console(quiet=True)
    asked = Question(query=MEAN, epsilon=1.0)
    query = QueryRun(read_local(folder_of(tmp_path)), asked, tmp_path / "out", console, level=0.95)
    round_of = RoundRecord(round=0, chosen=list("abcd"), accepted=list("abcd"))
    seen = Observation(record=round_of, parameters=np.ones(2, dtype=np.float32))
    with LiveTable(console, title="", rounds=1) as table:
        asyncio.run(query._take_in(seen, seen, table))
    query.close()
    assert [line["accepted"] for line in query._progress.metrics] == [list("abcd")]


def test_a_price_is_named_once(tmp_path: Path) -> None:
    """By epsilon or by noise; code 2 and one line otherwise."""
    flags = ("--column", "age", "--low", "0", "--high", "120")
    done = in_a_process(tmp_path, "query", str(folder_of(tmp_path)), "mean", *flags)

    assert done.returncode == 2
    assert done.stderr.strip() == "precad: --epsilon, --noise: expected one of both, found none"


@pytest.mark.parametrize(("frac_bits", "n_bins", "is_said"), [(16, 64, False), (7, 64, True), (4, 1024, True)])
def test_a_coarse_grid_is_said(frac_bits: int, n_bins: int, is_said: bool) -> None:
    """Beyond 1.05, the ratio to a trusted curator's error that the protocol promises."""
    query = {**MEAN, "kind": "histogram", "bins": n_bins}
    task = query_task(query=query, dim=n_bins, frac_bits=frac_bits)
    found = answer_of(np.zeros(n_bins, dtype=np.float32), task, 0.95)
    assert found["grid_factor"] == pytest.approx(1 + n_bins**0.5 / 2**frac_bits)
    said = costs_of({**found, "epsilon_one_server": 1.0, "epsilon_clients_only": 0.7, "delta": 1e-5})
    assert any(line.startswith("the grid") for line in said) is is_said


def test_a_bound_is_printed_rounded_up_or_as_none() -> None:
    """0.74154 printed as 0.7415 would be below what was spent."""
    found = {"grid_factor": 1.0, "most_of_a_client": 3.0, "delta": 1e-5, "epsilon_clients_only": "inf"}
    (_, record) = costs_of({**found, "epsilon_one_server": 0.74154})
    assert record.startswith("a record          epsilon <= 0.7416 against one server, no bound against clients")
    (_, group) = costs_of({**found, "epsilon_one_server": 0.74154, "records_per_person": 2})
    assert group.startswith("2 records of one person epsilon <= 0.7416 against one server")


@pytest.mark.slow
def test_an_answer_of_real_processes(tmp_path: Path) -> None:
    """The mean of a column over two servers, a dealer and four clients; no record is in a log or a figure."""
    config = folder_of(tmp_path)
    flags = ("--column", "age", "--low", "0", "--high", "120", "--epsilon", "1", "--output", "out", "--json")
    done = in_a_process(tmp_path, "query", str(config), "mean", *flags)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = (tmp_path / "patients.csv").read_text().splitlines()[1:]
    truth = np.mean([float(row.split(",")[0]) for row in rows])
    spread = found["estimate"]["high"] - found["estimate"]["low"]

    assert (found["accepted"], found["rejected"], found["missing"]) == (4, 0, 0)
    assert abs(found["estimate"]["value"] - truth) <= 3 * spread  # fails in 1 of 10^8 answers at 95 %
    assert found["realised_epsilon_one_server"] <= 1
    logs = "".join(log.read_text() for log in sorted((tmp_path / "out" / "logs").glob("*.log")))
    assert "client.answers" in logs
    assert [row for row in rows if row in logs] == []
    assert in_a_process(tmp_path, "audit", "log", "out/a", "--against", "out/b").returncode == 0
    at_a = json.loads(in_a_process(tmp_path, "answer", "out/config.toml", "--role", "a", "--json").stdout)
    assert {name: found[name] for name in at_a} == at_a

    config.write_text(config.read_text().replace("[task]", "[task]\nepsilon_budget_one_server = 1.2"))
    after = in_a_process(tmp_path, "query", str(config), "mean", *flags[:-3], "--after", "out", "--output", "more")
    assert after.returncode == 3
    assert "the privacy budget is spent after 0 rounds" in after.stderr
    assert (tmp_path / "more" / "pki" / "ca.pem").read_bytes() == (tmp_path / "out" / "pki" / "ca.pem").read_bytes()
