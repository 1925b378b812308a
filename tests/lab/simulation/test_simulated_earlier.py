"""A simulation of a file whose servers count earlier ledgers: the figures, and the end, of a ledger that counts them.

Failure means that a simulation promises less epsilon, or more rounds, than a run of the same file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

import precad
from precad.deploy.cli.main import app
from precad.deploy.configuration.sections import read_toml
from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.run_evidence import training_of
from precad.deploy.reporting.certificates import _evidence
from precad.dp.accountants.pld import Conduct, View
from precad.dp.ledgers.earlier import earlier_tasks
from precad.dp.ledgers.ledger import Level
from precad.dp.task_privacy import task_cost
from precad.lab.simulation import SeededRandomness
from precad.lab.simulation.apps import resolve_apps
from precad.lab.simulation.reported import read_simulated
from precad.lab.simulation.simulate import resolve
from precad.protos.task.task import Task
from precad.servers.store.folder import ledger_path, open_ledger
from tests.harness.command_line import CliRunner
from tests.harness.harness import small_task

TASK = """
[task]
name = "digits"
clients = 4
rounds = 12
model = "mlp"
delta = 1e-5
client_rate = 0.5
record_rate = 0.1
record_clip = 1.0
client_clip = 8.0
noise_multiplier = 2.0
learning_rate = 1.0
CHANGES

[client]
dataset = "digits"

[aggregator.a]
earlier_ledgers = [{ path = "A", most_rounds = 9 }]

[aggregator.b]
earlier_ledgers = [{ path = "B", most_rounds = 9 }]
"""


def ledger_of(folder: Path, rounds: int, **changes: Any) -> Path:
    """Return the ledger of a finished task in which one client was in so many rounds."""
    task = small_task(**{"rounds": 9, "noise_multiplier": 5.0, **changes})
    with open_ledger(folder, task) as ledger:
        for number in range(rounds):
            ledger.charge(number, ["alice"])
    return ledger_path(folder)


def written(folder: Path, changes: str, a: Path, b: Path) -> Path:
    (folder / "task.toml").write_text(
        TASK.replace("CHANGES", changes).replace('"A"', json.dumps(str(a))).replace('"B"', json.dumps(str(b)))
    )
    return folder / "task.toml"


def simulated(config: Path, *flags: str) -> dict[str, Any]:
    arguments = ["simulate", str(config), "--output", str(config.parent / "out"), "--threads", "1", "--json", *flags]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    return dict(json.loads(done.stdout)["seeds"][0])


def replayed(folder: Path, task: Task, ledgers: Sequence[Path]) -> list[Any]:
    """Return the ledgers of two servers after the draws of seed 0, to the round that either of them refuses."""
    names, draws = sorted(task.clients), SeededRandomness(0)
    each = [open_ledger(folder / f"replayed-{i}", task, earlier_tasks([(path, 9)])) for i, path in enumerate(ledgers)]
    for t in range(task.rounds):
        if any(ledger.would_exceed(names, t) for ledger in each):
            break
        for ledger in each:
            ledger.charge(t, draws.chosen(t, names, task.client_rate))
    return each


@pytest.mark.parametrize(
    "changes",
    [
        "",
        "epsilon_budget_one_server = 1.1",
        "epsilon_budget_client = 30.0",
        "records_per_person = 2\nepsilon_budget_one_server = 2.38",
    ],
)
def test_figures_and_end_are_those_of_the_servers_ledgers(tmp_path: Path, changes: str) -> None:
    """Compare each with the larger, as B's earlier ledger has more rounds. A run folder's file repeats them."""
    ledgers = ledger_of(tmp_path / "a", 3), ledger_of(tmp_path / "b", 6)
    config = written(tmp_path, changes, *ledgers)
    found = simulated(config)
    task = resolve(read_toml(config)).task
    each = replayed(tmp_path, task, ledgers)
    assert found["rounds"] == len(each[0].rounds)
    if "budget" in changes:
        assert 0 < found["rounds"] < 12
    for said in found["guarantees"]:
        if "client" in said["unit"]:
            pairs = [[one.task_statement(Level.CLIENT, conduct) for conduct in Conduct] for one in each]
        else:
            view = View.ONE_SERVER if said["against"].startswith("one aggregation server") else View.CLIENTS_ONLY
            pairs = [[one.statement(view, conduct=conduct) for conduct in Conduct] for one in each]
        stated = {conduct: max(pair[i].epsilon for pair in pairs) for i, conduct in enumerate(Conduct)}
        assert said["epsilon"] == stated[Conduct.WATCHES]
        assert said["epsilon_if_discarded"] == stated[Conduct.MAY_DISCARD]
        assert "counts 1 earlier task of the servers' ledgers" in said["note"]
    again = CliRunner().invoke(
        app, ["simulate", str(tmp_path / "out" / "config.toml"), "--output", str(tmp_path / "2")]
    )
    assert again.exit_code == 0, again.stderr
    assert json.loads((tmp_path / "2" / "summary.json").read_text())["seeds"][0]["guarantees"] == found["guarantees"]
    made = ["report", str(tmp_path / "out"), "--output", str(tmp_path / "page.html")]
    assert CliRunner().invoke(app, made).exit_code == 0


def test_a_folder_is_not_continued_under_other_ledgers(tmp_path: Path) -> None:
    """Its rounds may be more than a budget allows beside them. Under the same ledgers it is done."""
    few, many = ((ledger_of(tmp_path / f"{n}a", n), ledger_of(tmp_path / f"{n}b", n)) for n in (1, 9))
    changes = "epsilon_budget_one_server = 1.1"
    found = simulated(written(tmp_path, changes, *few))["guarantees"]
    output = ["--output", str(tmp_path / "out")]
    refused = CliRunner().invoke(app, ["simulate", str(written(tmp_path, changes, *many)), *output])
    assert refused.exit_code == 2
    assert "--output: expected the same earlier ledgers, found others in" in refused.stderr
    for of_few, of_many in zip(few, many, strict=True):  # at the same path, as when a server went on
        of_few.with_suffix(".kept").write_bytes(of_few.read_bytes())
        of_few.write_bytes(of_many.read_bytes())
    refused = CliRunner().invoke(app, ["simulate", str(written(tmp_path, changes, *few)), *output])
    assert refused.exit_code == 2
    assert "--output: expected at most 0 rounds, which budgets allow beside the earlier ledgers" in refused.stderr
    for of_few in few:
        of_few.write_bytes(of_few.with_suffix(".kept").read_bytes())
    assert simulated(written(tmp_path, changes, *few))["guarantees"] == found


def tiny() -> nn.Module:
    """A table's model."""
    return nn.Linear(3, 2)


@pytest.mark.parametrize("changes", ["", "epsilon_budget_one_server = 1.1"])
def test_apps_count_what_a_file_counts(tmp_path: Path, changes: str) -> None:
    """Train records given as objects under the servers of a file: their ledgers hold earlier tasks all the same."""
    ledgers = ledger_of(tmp_path / "a", 3), ledger_of(tmp_path / "b", 6)
    raw = read_toml(written(tmp_path, changes, *ledgers))
    raw["task"].pop("model")
    records = np.eye(3, dtype=np.float32)[np.arange(40) % 3], np.arange(40) % 2
    apps = [precad.App(model=tiny, records=records, test=records)] * 4
    (found,) = precad.simulate(raw, clients=apps, folder=tmp_path / "apps").seeds
    each = replayed(tmp_path, resolve_apps(raw, apps).task, ledgers)
    assert found.rounds == len(each[0].rounds)
    assert 0 < found.rounds < 12 if changes else found.rounds == 12
    for view, said in zip(View, found.summary["guarantees"], strict=True):
        for conduct, name in ((Conduct.WATCHES, "epsilon"), (Conduct.MAY_DISCARD, "epsilon_if_discarded")):
            assert said[name] == max(one.statement(view, conduct=conduct).epsilon for one in each)
        assert "counts 1 earlier task of the servers' ledgers" in said["note"]


HIDDEN = 'mode = "proved"\nround_period_s = 600.0\n'


@pytest.mark.parametrize("budget", ["", "epsilon_budget_client = 5.0", "epsilon_budget_one_server = 9.0"])
def test_a_task_that_hides_draws_has_the_guarantee_of_its_ledger(tmp_path: Path, budget: str) -> None:
    """Find a whole client whose draw nobody else learns, beside the other figures, with the condition in words."""
    text = TASK.partition("[aggregator.a]")[0].replace("CHANGES", HIDDEN + budget)
    text = text.replace("client_clip = 8.0", "client_clip = 1.0")
    (tmp_path / "task.toml").write_text(text)
    found = simulated(tmp_path / "task.toml", "--rounds", "3")
    plan = resolve(read_toml(tmp_path / "out" / "config.toml"))
    (said,) = (one for one in found["guarantees"] if one["against"].endswith("whose draw nobody else learns"))
    with open_ledger(tmp_path / "ledger", plan.task) as ledger:
        for t in range(found["rounds"]):
            ledger.charge(t, SeededRandomness(0).chosen(t, sorted(plan.task.clients), plan.task.client_rate))
        stated = {conduct: ledger.task_statement(Level.HIDDEN_CLIENT, conduct).epsilon for conduct in Conduct}
    assert (said["epsilon"], said["epsilon_if_discarded"]) == (stated[Conduct.WATCHES], stated[Conduct.MAY_DISCARD])
    assert said["unit"] == "client"
    assert "if they learn no draw but their own, by times or otherwise" in said["note"]
    made = ["report", str(tmp_path / "out"), "--output", str(tmp_path / "page.html")]
    assert CliRunner().invoke(app, made).exit_code == 0


def test_a_ledger_that_cannot_count_is_refused(tmp_path: Path) -> None:
    good = ledger_of(tmp_path / "a", 3)
    with pytest.raises(ConfigError, match=r"aggregator\.b\.earlier_ledgers: expected ledgers to read, found"):
        resolve(read_toml(written(tmp_path, "", good, tmp_path / "none")))
    short = written(tmp_path, "", good, ledger_of(tmp_path / "long", 12))
    with pytest.raises(
        ConfigError, match=r"^aggregator\.b\.earlier_ledgers\.0\.most_rounds: expected at least 12, .* 9$"
    ):
        resolve(read_toml(short))
    foreign = ledger_of(tmp_path / "b", 3, algorithm="user-dp-fedavg")
    with pytest.raises(ConfigError, match=r"aggregator\.b\.earlier_ledgers: expected tasks about a record, found one"):
        resolve(read_toml(written(tmp_path, "", good, foreign)))


def test_a_report_claims_no_draw_that_a_budget_with_earlier_tasks_may_tell(tmp_path: Path) -> None:
    """Alone, no client could spend this budget. With the earlier task one may, and its end would tell who was drawn."""
    ledgers = ledger_of(tmp_path / "a", 3), ledger_of(tmp_path / "b", 6)
    config = written(tmp_path, "", *ledgers)
    task = resolve(read_toml(config)).task
    counted = earlier_tasks([(ledgers[1], 9)])
    alone, beside = (task_cost(task, one).of_view(View.ONE_SERVER, task.most_draws) for one in ((), counted))
    assert alone < beside
    config = written(tmp_path, f"epsilon_budget_one_server = {0.02 * alone + 0.98 * beside}", *ledgers)
    simulated(config)
    run = read_simulated(tmp_path / "out")
    assert training_of(run.task).event.sampling_rate == 0.5
    assert _evidence(run)[2] == training_of(run.task, [task_cost(run.task, counted)])
    assert _evidence(run)[2].event.sampling_rate == 1.0


@pytest.mark.parametrize("algorithm", ["local-dp", "distributed-dp", "central-record-dp"])
def test_an_algorithm_that_counts_no_earlier_tasks_refuses_them(tmp_path: Path, algorithm: str) -> None:
    """It would state the figure of its own rounds as if there were no others."""
    config = written(tmp_path, "", ledger_of(tmp_path / "a", 3), ledger_of(tmp_path / "b", 6))
    config.write_text(config.read_text() + f'\n[simulation]\nalgorithm = "{algorithm}"\n')
    done = CliRunner().invoke(app, ["simulate", str(config), "--output", str(tmp_path / "out")])
    assert done.exit_code == 2
    assert "expected 'precad' or 'deployed' beside aggregator.a.earlier_ledgers" in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()
