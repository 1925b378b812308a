"""Several trainings of one configuration: their folders, their mean and spread, and the certificate that takes them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tomli_w
from rich.console import Console

from precad.deploy.configuration.demo import demo_config
from precad.deploy.errors import ConfigError, InterruptedRunError
from precad.deploy.localhost import several
from precad.deploy.run_files.folder import TRAININGS, each_training
from precad.deploy.run_files.state import RunState
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.dp.accountants.pld import Conduct, View
from precad.dp.ledgers.earlier import earlier_tasks
from precad.dp.task_privacy import task_cost, task_privacy
from precad.servers.store.folder import ledger_path, open_ledger
from tests.harness.harness import small_task

PRECAD = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]


def summary(name: str, accuracy: float, **changes: Any) -> dict[str, Any]:
    """Return what a run's summary says, as far as it is read."""
    counts = {"accepted": 3, "rejected": 1, "missing": 0, "model_is_finite": True, "seconds_total": 2.0}
    return {"output": f"/runs/{name}", "accuracy": accuracy, **counts, **changes}


def test_the_spread_is_the_samples() -> None:
    values = [0.5, 0.75, 0.7, 0.81]
    found = several.spread(values)
    assert found["mean"] == pytest.approx(np.mean(values))
    assert found["standard_deviation"] == pytest.approx(np.std(values, ddof=1))
    assert found["standard_error"] == pytest.approx(np.std(values, ddof=1) / 2)
    assert (found["least"], found["most"], found["each"]) == (0.5, 0.81, values)
    assert several.spread([0.5])["standard_deviation"] is None


def test_a_metric_that_some_models_have_no_figure_of_is_that_of_the_others() -> None:
    """A precision of nothing: the class is never predicted."""
    each = [summary("seed-0", 0.5, metrics={}), *(summary("seed-1", 0.5, metrics={"precision": x}) for x in (0.2, 0.4))]
    assert several.together(each, small_task())["precision"]["each"] == [0.2, 0.4]


def test_all_models_together_cost_the_rounds_of_all_trainings() -> None:
    """Each round of `user-dp-fedavg` is a Gaussian release: three trainings are one of three times the rounds."""
    task = small_task(algorithm="user-dp-fedavg", noise_multiplier=8.0, rounds=4, lost_rounds=2, batches_ahead=0)
    found = several.together([summary(f"seed-{i}", 0.5 + i / 10, attack_success=0.25) for i in range(3)], task)
    assert found["trainings"] == ["seed-0", "seed-1", "seed-2"]
    assert found["accuracy"]["mean"] == pytest.approx(0.6)
    assert found["attack_success"]["each"] == [0.25] * 3
    assert (found["accepted"], found["rejected"]) == (9, 3)
    exact = eps_from_mu(task.delta, np.sqrt(3 * task.most_draws) / 8.0)
    assert found["epsilon_of_all_models"]["one_server"] == pytest.approx(exact, rel=1e-6)
    assert several.together([summary("seed-0", 0.5, model_is_finite=False)], task)["model_is_finite"] is False


@pytest.mark.parametrize(
    ("changes", "whose"),
    [
        ({}, "one record"),
        ({"records_per_person": 2}, "2 records of one person"),
        ({"algorithm": "user-dp-fedavg"}, "one client"),
    ],
)
def test_what_all_models_cost_is_said_of_whom(changes: dict[str, Any], whose: str) -> None:
    """Two records of one person cost more than one; a figure without its unit would be read as a record's."""
    task, screen = small_task(**changes), io.StringIO()
    found = several.together([summary(f"seed-{i}", 0.5) for i in range(2)], task)
    cost = task_privacy(task).epsilon(View.ONE_SERVER, 2 * (task_cost(task).most_of_a_client or 0), task.delta, 2)
    assert found["epsilon_of_all_models"]["one_server"] == cost
    several.print_together(Console(file=screen, width=400), {**found, "output": "/of ward 7"})
    assert "precad certify --run '/of ward 7'" in screen.getvalue()
    assert f"all models together, for {whose} at delta = {task.delta:g}: one server epsilon" in screen.getvalue()


@pytest.mark.parametrize("names", [[], ["../other"], ["seed-0/../x"], ["seed-0\n"], "seed-0", None, [3]])
def test_a_folder_names_its_own_trainings_alone(tmp_path: Path, names: object) -> None:
    (tmp_path / TRAININGS).write_text(json.dumps({"trainings": names}))
    with pytest.raises(ConfigError, match=TRAININGS):
        each_training(tmp_path)


def test_a_run_by_itself_is_its_only_training(tmp_path: Path) -> None:
    assert each_training(tmp_path) == [tmp_path]
    (tmp_path / TRAININGS).write_text(json.dumps({"trainings": ["seed-0", "seed-12"]}))
    assert each_training(tmp_path) == [tmp_path / "seed-0", tmp_path / "seed-12"]


class Runs:
    """Stand for real runs: the second of them is interrupted when it is first run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.prepared: list[tuple[str, bool]] = []
        self.earlier: tuple[EarlierTask, ...] = ()
        self._is_interrupted = False
        monkeypatch.setattr(several, "prepare", self._prepare)
        monkeypatch.setattr(several, "complete", self._complete)
        monkeypatch.setattr(several, "state_of", self._state_of)
        monkeypatch.setattr(several, "resolve", lambda raw, folder: ({}, SimpleNamespace(task=small_task()), None))
        monkeypatch.setattr("precad.deploy.localhost.resuming.require_same", lambda ours, folder: None)

    def is_never_interrupted(self) -> None:
        """Let the second run go on to its end."""
        self._is_interrupted = True

    def _prepare(self, raw: Any, folder: Path, console: Console, *, resumes: bool, **_: Any) -> Any:
        self.prepared.append((folder.name, resumes))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.toml").touch()
        deployment = SimpleNamespace(task=small_task())
        return SimpleNamespace(folder=SimpleNamespace(root=folder), deployment=deployment, close=lambda: None)

    def _complete(self, local: Any) -> dict[str, Any]:
        folder = local.folder.root
        if folder.name == "seed-1" and not self._is_interrupted:
            self._is_interrupted = True
            raise InterruptedRunError("interrupted")
        with open_ledger(folder / "b", small_task(), self.earlier) as ledger:
            ledger.charge(0, sorted(small_task().clients))
        found = summary(folder.name, 0.5, output=str(folder))
        (folder / "summary.json").write_text(json.dumps(found))
        return found

    def _state_of(self, folder: Path) -> RunState:
        return RunState.FINISHED if (folder / "summary.json").exists() else RunState.INTERRUPTED


def test_all_models_together_count_an_earlier_task_of_the_servers_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two trainings cost what one of twice the draws does, by a ledger that counts the earlier task as well."""
    task, runs = small_task(), Runs(monkeypatch)
    with open_ledger(tmp_path / "before", task) as ledger:
        ledger.charge(0, sorted(task.clients))
    runs.earlier = earlier_tasks([(ledger_path(tmp_path / "before"), 9)])
    runs.is_never_interrupted()
    found = several.train_several({}, tmp_path / "all", Console(quiet=True), 2, shown=lambda *_: None)
    twice = small_task(rounds=2 * task.rounds, lost_rounds=2 * task.most_draws - 2 * task.rounds)
    assert twice.most_draws == 2 * task.most_draws
    with open_ledger(tmp_path / "twice", twice, runs.earlier) as ledger:
        stated = {view: ledger.statement(view, conduct=Conduct.MAY_DISCARD).epsilon for view in View}
    assert found["epsilon_of_all_models"] == pytest.approx({view.value: stated[view] for view in View}, rel=1e-9)
    with open_ledger(tmp_path / "all/seed-0/b", task) as ledger:
        assert stated[View.ONE_SERVER] > ledger.statement(View.ONE_SERVER, conduct=Conduct.MAY_DISCARD).epsilon


def test_trainings_go_on_where_they_were_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A finished training stays as it is, and the interrupted one is continued. More trainings may be asked for."""
    runs, told = Runs(monkeypatch), list[str]()
    console, root = Console(quiet=True), tmp_path / "all"

    def train(number: int, *, resumes: bool) -> dict[str, Any]:
        return several.train_several(
            {}, root, console, number, shown=lambda found, folder, task: told.append(found["output"]), resumes=resumes
        )

    with pytest.raises(InterruptedRunError):
        train(2, resumes=False)
    assert json.loads((root / TRAININGS).read_text())["trainings"] == ["seed-0"]
    with pytest.raises(ConfigError, match=r"--seeds: expected at least the 2 trainings that .* has, found 1"):
        train(1, resumes=True)
    with pytest.raises(ConfigError, match="--output: expected a new or empty folder"):
        train(2, resumes=False)
    found = train(3, resumes=True)
    assert runs.prepared == [("seed-0", False), ("seed-1", False), ("seed-1", True), ("seed-2", False)]
    assert [Path(one).name for one in told] == ["seed-0", "seed-1", "seed-2"]
    assert found["trainings"] == ["seed-0", "seed-1", "seed-2"]
    assert json.loads((root / TRAININGS).read_text()) == found
    with pytest.raises(ConfigError, match=r"--seeds: expected at least the 3 trainings that .* has, found 2"):
        train(2, resumes=True)
    assert json.loads((root / TRAININGS).read_text()) == train(3, resumes=True) == found
    with pytest.raises(ConfigError, match="--resume: expected the folder of the trainings"):
        several.train_several({}, tmp_path / "not there", console, 2, shown=lambda *_: None, resumes=True)


@pytest.mark.slow
def test_a_certificate_takes_all_trainings_of_a_folder(tmp_path: Path) -> None:
    """Over processes: two trainings whose models differ, their mean, and a certificate from both."""
    raw = demo_config(n_clients=4, rounds=2)
    raw["client"].pop("attacks", None)
    (tmp_path / "task.toml").write_text(tomli_w.dumps(raw | {"localhost": {"clients_per_process": 4}}))
    folder = tmp_path / "all"
    told = _precad("run", tmp_path / "task.toml", "--seeds", "2", "--output", folder, "--json")
    each = [json.loads((folder / f"seed-{i}" / "summary.json").read_text()) for i in range(2)]
    assert told["accuracy"]["each"] == [one["accuracy"] for one in each]
    digests = {json.loads(line)["model_digest"] for i in (0, 1) for line in (folder / f"seed-{i}/metrics.jsonl").open()}
    assert len(digests) == 4
    report = _precad("certify", "--run", folder, "--json")
    assert [Path(one).name for one in report["run"]["folders"]] == ["seed-0", "seed-1"]


def _precad(*arguments: object) -> Any:
    words = [*PRECAD, *map(str, arguments)]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout)
