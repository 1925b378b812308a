"""A run that ended early is continued in its folder: what is refused, and what is taken up from servers' files.

tests/integration/test_resumed_runs.py has whole runs over real processes. Failure means:
- a folder of another task, of a run that goes on or is finished, or that is half written, is changed;
- a round that both servers committed is missing in the account of the run, or is in it twice;
- a summary or report of an earlier part is taken for the whole.
"""

from __future__ import annotations

import asyncio
import fcntl
import io
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from rich.console import Console

import precad
from precad.clients.models import networks
from precad.clients.upload_limit import UploadLimit
from precad.deploy.cli import main as cli
from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.client_ids import with_clients
from precad.deploy.errors import ConfigError, InterruptedRunError, RunFailedError
from precad.deploy.guarantees.run_evidence import read_runs
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.localhost.resuming import read_before
from precad.deploy.localhost.summary import print_summary
from precad.deploy.oversight.run_status import read_run
from precad.deploy.reporting.run_folder import read_deployed
from precad.deploy.reporting.write import Report
from precad.deploy.run_files import state
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.run_files.state import RunState, state_of
from precad.dp.accountants.pld import View
from precad.dp.task_privacy import task_cost
from precad.protos.tls.identity import Role
from precad.servers.errors import SetupError
from precad.servers.store.folder import ledger_path, open_ledger
from precad.servers.store.rounds import CommittedRound
from precad.servers.store.state import TaskState
from tests.harness.command_line import CliRunner

RAW: dict[str, Any] = {
    "task": {
        "name": "going",
        "clients": ["anna", "boris"],
        "rounds": 4,
        "client_rate": 1.0,
        "record_rate": 0.5,
        "record_clip": 1.0,
        "client_clip": 16.0,
        "noise_multiplier": 4.6,
        "learning_rate": 3.0,
        "gate": "native",
    },
    "client": {"dataset": "digits"},
}
CLIENTS = ("anna", "boris")
ROLES = {"a": Role.AGGREGATOR_A, "b": Role.AGGREGATOR_B}
SILENT = Console(file=io.StringIO())


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was interrupted before its first round. Nobody changes it."""
    root = tmp_path_factory.mktemp("going") / "run"
    LocalRun(RAW, root, SILENT)
    (root / state.NAME).write_text(RunState.INTERRUPTED)
    return root


@pytest.fixture
def folder(prepared: Path, tmp_path: Path) -> RunFolder:
    """A copy, for whoever changes it."""
    shutil.copytree(prepared, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file with its content and its time."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def changed(**changes: Any) -> dict[str, Any]:
    raw = json.loads(json.dumps(RAW))
    for path, value in changes.items():
        section, _, name = path.partition("__")
        raw[section][name] = value
    return raw


# -- refused -----------------------------------------------------------------------------------------------------------


def finish(folder: RunFolder) -> None:
    (folder.root / state.NAME).write_text(RunState.FINISHED)


def finish_before_there_was_a_word(folder: RunFolder) -> None:
    (folder.root / state.NAME).unlink()
    folder.summary.write_text("{}")


def half_configured(folder: RunFolder) -> None:
    folder.config.write_bytes(folder.config.read_bytes()[:-200] + b"[x")


REFUSED: list[tuple[str, Callable[[RunFolder], object], dict[str, Any], str]] = [
    ("finished", finish, RAW, "--resume: expected a run that ended early, found a finished one in"),
    ("of before", finish_before_there_was_a_word, RAW, "--resume: expected a run that ended early, found a finished"),
    ("other task", lambda f: None, changed(task__rounds=5), "task.rounds: expected 4, as in"),
    ("other name", lambda f: None, changed(task__name="other"), 'task.name: expected "going", as in'),
    ("other client", lambda f: None, changed(client__partition_seed=7), "client.partition_seed: expected 0, as in"),
    ("no config", lambda f: f.config.unlink(), RAW, "--resume: expected the folder of a run, found no config.toml in"),
    ("half a config", half_configured, RAW, "config.toml: expected TOML, found"),
    (
        "half the keys",
        lambda f: (f.pki / "boris" / "key.pem").unlink(),
        RAW,
        "--resume: expected a run that began, found no pki/boris/key.pem in",
    ),
    ("no start", lambda f: f.initial_model.unlink(), RAW, "found no initial_model.npy in"),
]


@pytest.mark.parametrize(("spoil", "raw", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_folder_that_cannot_go_on_is_left_as_it_is(
    folder: RunFolder, tmp_path: Path, spoil: Callable[[RunFolder], object], raw: dict[str, Any], said: str
) -> None:
    """One line, and exit code 2."""
    spoil(folder)
    config, before = tmp_path / "run.toml", tree(folder.root)
    config.write_text(tomli_w.dumps(raw))
    done = CliRunner().invoke(cli.app, ["run", str(config), "--output", str(folder.root), "--resume"])
    assert done.exit_code == 2, done.output
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("precad: "))
    assert said in line
    assert tree(folder.root) == before


def test_a_run_in_progress_is_left_alone(folder: RunFolder) -> None:
    """Also by somebody who asked before it took the folder, and by one who asked before it finished."""
    late = LocalRun(RAW, folder.root, SILENT, resumes=True)
    with state.held(folder.root, resumes=True):
        before = tree(folder.root)
        for start in (lambda: LocalRun(RAW, folder.root, SILENT, resumes=True), lambda: asyncio.run(late.run())):
            with pytest.raises(ConfigError, match="in progress in"):
                start()
        assert tree(folder.root) == before
        assert state_of(folder.root) is RunState.RUNNING
    before = tree(folder.root)
    with pytest.raises(ConfigError, match="found a finished run"):
        asyncio.run(late.run())
    assert tree(folder.root) == before


def test_a_server_that_outlives_its_run_is_not_joined(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("precad.deploy.localhost.resuming.CLOSING_S", 0.2)
    folder.state_dir("b").mkdir()
    with ledger_path(folder.state_dir("b")).open("w") as ledger:
        fcntl.flock(ledger, fcntl.LOCK_EX)
        with pytest.raises(
            ConfigError, match=r"expected servers that have ended, found one that holds .*ledger\.jsonl"
        ):
            LocalRun(RAW, folder.root, SILENT, resumes=True)


def test_a_run_without_the_flag_says_that_there_is_one(folder: RunFolder, tmp_path: Path) -> None:
    before = tree(folder.root)
    for word, found in (("interrupted", "an interrupted run"), ("running", "a run that crashed"), ("failed", "failed")):
        (folder.root / state.NAME).write_text(word)
        with pytest.raises(precad.ConfigError, match=rf"^folder: expected a new .*{found}.*add --resume to continue"):
            precad.run(RAW, folder.root)
    (folder.root / state.NAME).write_text(RunState.INTERRUPTED)
    assert {path: content for path, (content, _) in tree(folder.root).items()} == {
        path: content for path, (content, _) in before.items()
    }
    with pytest.raises(precad.ConfigError, match=r"^resume: expected the folder of a run, found none"):
        precad.run(RAW, resume=True)


def test_a_number_of_clients_stands_for_their_names(folder: RunFolder, tmp_path: Path) -> None:
    """`--clients 2` makes a task of two clients, which is another one than that of anna and boris."""
    nameless = json.loads(json.dumps(RAW))
    del nameless["task"]["clients"]
    config, before = tmp_path / "run.toml", tree(folder.root)
    for raw, said in (
        (nameless, "task.clients.anna: expected 719, as in"),
        (RAW, "--clients: expected none beside task.clients = ['anna', 'boris'], found 2"),
    ):
        config.write_text(tomli_w.dumps(raw))
        flags = ["--clients", "2", "--output", str(folder.root), "--resume"]
        done = CliRunner().invoke(cli.app, ["run", str(config), *flags])
        assert (done.exit_code, said in done.stderr) == (2, True), done.stderr
    task = LocalRun(with_clients(nameless, 11), tmp_path / "eleven", SILENT).deployment.task
    assert list(task.clients) == [f"client-{number:02}" for number in range(11)]
    numbered = {**RAW, "task": {**RAW["task"], "clients": 11}}
    assert LocalRun(numbered, tmp_path / "numbered", SILENT).deployment.task == task
    config.write_text(tomli_w.dumps(numbered))
    done = CliRunner().invoke(cli.app, ["check", str(config)])
    assert (done.exit_code, "11 clients; gate" in done.output) == (0, True), done.output
    for wrong in (1, True, "11"):
        with pytest.raises(precad.ConfigError, match=r"^task.clients: expected .*, found "):
            LocalRun({"task": {**RAW["task"], "clients": wrong}}, tmp_path / "wrong", SILENT)
    assert tree(folder.root) == before


# -- taken up ----------------------------------------------------------------------------------------------------------


def commit(folder: RunFolder, letter: str, numbers: Sequence[int], *, lost: Sequence[int] = ()) -> None:
    """Let a server commit rounds, each of a sum of its own, and lose others after their charge."""
    task = configuration.load(folder.config).task
    with ExitStack() as stack:
        state = TaskState.open(stack, folder.state_dir(letter), task, np.load(folder.initial_model))
        if not state.store.task_id:
            state.store.begin("going-0123456789abcdef", ROLES[letter])
        for number in sorted((*numbers, *lost)):
            state.store.reserve(number)
            state.store.checking(number, chosen=CLIENTS, active=CLIENTS)
            state.charge(number, CLIENTS)
            if number in lost:
                continue
            state.store.validated(number, accepted=CLIENTS, rejected=())
            noisy_sum = np.full(task.dim, number + 1, dtype=np.int64)
            model, spent = state.model_after(noisy_sum, len(CLIENTS)), state.spent
            epsilons = (spent[View.ONE_SERVER], spent[View.CLIENTS_ONLY])
            state.commit(CommittedRound(number, CLIENTS, CLIENTS, (), model.digest, *epsilons), model, noisy_sum)
        if state.n_committed == task.rounds:
            state.store.finished(f"{task.rounds} rounds done")


def resumed(folder: RunFolder) -> LocalRun:
    return LocalRun(RAW, folder.root, SILENT, resumes=True)


def test_rounds_that_only_the_servers_know_are_taken_up(folder: RunFolder) -> None:
    """Killed after round 3, of which B heard, and half way through a line; round 1 was lost."""
    commit(folder, "a", [0, 2, 3], lost=[1])
    commit(folder, "b", [0, 2], lost=[1])
    before = read_before(folder, configuration.load(folder.config))
    assert [(a.number, b.number) for a, b in before.further] == [(0, 0), (2, 2)]
    assert (before.lines, before.ended) == ([], "")
    run = resumed(folder)
    folder.metrics.write_bytes(b'{"round": 0, "half')
    folder.summary.write_text('{"seconds_total": 100.0}')
    folder.report.write_text("of before")
    (folder.logs / "dealer.log").write_text("of before")
    run._take_up()
    lines = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 2]
    assert [line["accuracy"] is None for line in lines] == [True, False]  # of the last alone there is a model
    assert not folder.summary.exists()
    assert not folder.report.exists()
    assert (folder.root / "logs-1" / "dealer.log").read_text() == "of before"
    assert list(folder.logs.iterdir()) == []
    folder.logs.rmdir()  # as a kill in between leaves it
    folder.keep_logs()
    assert folder.logs.is_dir()
    assert folder.times_resumed == 1


@pytest.mark.parametrize("rounds", [[0, 2], [0, 2, 3, 4]])
def test_folders_of_servers_that_changed_places_are_refused(folder: RunFolder, rounds: list[int]) -> None:
    """In the midst of the task, and where it is over: each would go on with the other's charges and burnt tuples."""
    for letter in ROLES:
        commit(folder, letter, rounds, lost=[1])
    shutil.move(folder.state_dir("a"), folder.root / "aside")
    shutil.move(folder.state_dir("b"), folder.state_dir("a"))
    shutil.move(folder.root / "aside", folder.state_dir("b"))
    before = tree(folder.root)
    said = "state_dir: expected the folder of aggregator-a, found that of aggregator-b"
    with pytest.raises(SetupError, match=said):
        asyncio.run(resumed(folder).run())
    assert {path for path in tree(folder.root) if path.endswith(".sqlite")} <= {*before}
    assert not folder.summary.exists()


def test_a_finished_task_whose_run_was_killed_gets_its_summary_without_a_process(folder: RunFolder) -> None:
    """The account has every round and every charge, and agrees with the report's and the certificate's reading."""
    for letter in ROLES:
        commit(folder, letter, [0, 2, 3, 4], lost=[1])
    (folder.root / state.NAME).write_text(RunState.RUNNING)
    summary = asyncio.run(resumed(folder).run())
    assert (summary["rounds"], summary["processes"], summary["resumed"]) == (4, 0, 1)
    assert (summary["accepted"], summary["discarded_draws"], summary["rounds_of_a_client"]) == (8, 0, 5)
    assert summary["ended"] == "4 rounds done"
    assert state_of(folder.root) is RunState.FINISHED
    task = configuration.load(folder.config).task
    with open_ledger(folder.state_dir("a"), task) as ledger:
        assert ledger.rounds == {0, 1, 2, 3, 4}
        assert summary["realised_epsilon_one_server"] == ledger.statement(View.ONE_SERVER).epsilon
    model = networks.build(task.model)
    model.load_state_dict(torch.load(folder.model, weights_only=True))
    np.testing.assert_array_equal(networks.flatten(model), np.load(folder.state_dir("b") / "model.npy"))
    run = read_deployed(folder.root)
    assert [one.n_done for one in run.trainings[0].rounds] == [1, 2, 3, 4]
    assert run.statements[0].by_round[-1][0] == 4
    assert read_runs([folder.root]).n_runs == 1
    with pytest.raises(ConfigError, match="found a finished one"):
        resumed(folder)


# -- kept on an interrupt ----------------------------------------------------------------------------------------------


def interrupted(root: Path) -> tuple[LocalRun, str]:
    """Interrupt a new run before a process of it starts. Return it with what it says."""
    local = LocalRun(RAW, root, SILENT)
    local.interrupt()
    with pytest.raises(InterruptedRunError) as caught:
        asyncio.run(local.run())
    return local, str(caught.value)


def loaded(folder: RunFolder) -> np.ndarray[Any, np.dtype[np.float32]]:
    model = networks.build(configuration.load(folder.config).task.model)
    model.load_state_dict(torch.load(folder.model, weights_only=True))
    return networks.flatten(model)


def test_a_run_that_is_interrupted_before_a_round_keeps_the_initial_model(tmp_path: Path) -> None:
    """And says so. Summary, report and status are of no round; nothing was spent, and the run can be continued."""
    local, said = interrupted(tmp_path / "run")
    folder = local.folder
    assert f"; no round was done: {folder.root} holds the initial model; `precad run " in said
    np.testing.assert_array_equal(loaded(folder), np.load(folder.initial_model))
    summary = json.loads(folder.summary.read_text())
    assert (summary["rounds"], summary["ended"]) == (0, "interrupted after 0 of 4 rounds")
    for view in View:
        assert summary[f"realised_epsilon_{view}"] == 0
        assert summary[f"epsilon_{view}"] == task_cost(local.deployment.task).view_if_discarded(view) > 0
    measured = local._quality(np.load(folder.initial_model))["accuracy"]
    assert summary["accuracy"] == measured != round(measured, 4)  # rounded once, where it is shown
    assert [one.rounds for one in read_deployed(folder.root).trainings] == [()]
    shown = Report.of([folder.root]).html()
    assert "interrupted after 0 of 4 rounds" in shown
    status = read_run(folder.root)
    assert (status.state, status.ended) == (
        RunState.INTERRUPTED,
        "interrupted; 0 of 4 rounds done; precad run RUN/config.toml --output RUN --resume continues",
    )
    print_summary(SILENT, summary, local.deployment.task)
    assert not folder.state_dir("a").exists()
    for letter in ROLES:
        commit(folder, letter, [0, 1, 2, 3])
    assert asyncio.run(resumed(folder).run())["rounds"] == 4
    assert not np.array_equal(loaded(folder), np.load(folder.initial_model))


def test_an_interrupted_run_keeps_the_last_model_of_both_servers(tmp_path: Path) -> None:
    """Whatever of it the runner was told: here nothing, and then a model of an earlier round."""
    local, _ = interrupted(tmp_path / "run")
    commit(local.folder, "a", [0, 2, 3], lost=[1])
    commit(local.folder, "b", [0, 2], lost=[1])
    with ExitStack() as stack:
        state = TaskState.open(
            stack, local.folder.state_dir("b"), local.deployment.task, np.load(local.folder.initial_model)
        )
        last = state.model.parameters
    for known in (None, np.load(local.folder.initial_model)):
        local._progress.final = known
        assert "; 2 of 4 rounds are kept in " in local._keep_rounds()
        np.testing.assert_array_equal(loaded(local.folder), last)
        summary = json.loads(local.folder.summary.read_text())
        assert (summary["rounds"], summary["rounds_of_a_client"]) == (2, 4)  # A charged the lost one, and its last
    lines = [json.loads(line) for line in local.folder.metrics.read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 2]


@pytest.mark.parametrize("kind", ["uploads", "evaluations"])
@pytest.mark.parametrize("n_known", [0, 2])
def test_servers_that_were_both_given_back_an_old_state_are_refused(folder: RunFolder, n_known: int, kind: str) -> None:
    """Their ledgers have forgotten charges, and no server can tell. A client that uploaded after more rounds can."""
    for letter in ROLES if n_known else ():
        commit(folder, letter, range(n_known))
    deployment = configuration.load(folder.config)
    assert deployment.client is not None
    file = deployment.client.state_dir / f"boris.{kind}"
    assert file.is_relative_to(folder.root)
    UploadLimit("boris", bytes(32), most=3, file=file).count(bytes(32), 9)  # in another task
    limit = UploadLimit("boris", deployment.task.digest(), most=3, file=file)
    limit.count(bytes([n_known]) * 32, n_known)
    assert read_before(folder, deployment).lines == []
    limit.count(bytes([9]) * 32, n_known + 1)
    with pytest.raises(RunFailedError, match=rf"hold the {n_known + 1} rounds that client 'boris'.* found {n_known}"):
        read_before(folder, deployment)


def test_lines_that_are_not_the_servers_rounds_are_refused(folder: RunFolder) -> None:
    """A folder was given back an old state: nothing is made of it."""
    for letter in ROLES:
        commit(folder, letter, [0])
    deployment = configuration.load(folder.config)
    ((a, _),) = read_before(folder, deployment).further
    line = {"round": 0, "model_digest": a.model_digest.hex(), "seconds_total": 2.5}
    folder.metrics.write_text(json.dumps(line) + "\n")
    assert read_before(folder, deployment).further == []
    assert read_before(folder, deployment).seconds == 2.5
    for wrong in ([line, {**line, "round": 1}], [{**line, "model_digest": bytes(32).hex()}]):
        folder.metrics.write_text("".join(json.dumps(one) + "\n" for one in wrong))
        with pytest.raises(RunFailedError, match=f"found another in line {len(wrong)}: was a server given back"):
            read_before(folder, deployment)
    folder.metrics.write_text('{"round": "x"}\n')
    with pytest.raises(ConfigError, match="expected a round per line"):
        read_before(folder, deployment)


def test_a_dashboard_s_token_is_kept(folder: RunFolder) -> None:
    """Whoever has it opens the pages of the run that goes on."""
    folder.write_operations_token("kept")
    raw = changed()
    raw["aggregator"] = {"a": {"operations_listen": "127.0.0.1:1"}}
    LocalRun(raw, folder.root, SILENT, resumes=True)
    assert folder.operations_token.read_text() == "kept\n"
    assert os.stat(folder.operations_token).st_mode & 0o777 == 0o600
