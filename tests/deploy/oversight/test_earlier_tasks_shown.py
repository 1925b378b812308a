"""Epsilons that a server and a run show, attacked by an operator who leaves something out.

That is a finished task of the same clients, or the parameters that the rounds were charged with. Failure means a figure
below what was spent.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.check import check_file
from precad.deploy.configuration.local import resolve
from precad.deploy.errors import ConfigError
from precad.deploy.oversight.run_status import read_run
from precad.deploy.run_files.folder import RunFolder
from precad.dp.accountants.pld import Conduct, View
from precad.dp.ledgers.earlier import earlier_tasks
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.operations.snapshot import AggregatorSnapshots
from precad.servers.rounds.sessions import Sessions
from precad.servers.rounds.uploads import Spool
from precad.servers.store.folder import ledger_path, open_ledger, open_task_store
from precad.servers.telemetry.events import Telemetry
from precad.servers.telemetry.status import epsilons_of
from tests.harness.harness import small_task
from tests.harness.run_folders import deployed

TASK = small_task(rounds=9, epsilon_budget_client=60.0, epsilon_budget_one_server=10.0)


def charged(folder: Path, task: Task, n_rounds: int, before: Path | None = None) -> None:
    """Charge rounds of one client without a record. before: the folder of a finished task that counts as well."""
    folder.mkdir(parents=True, exist_ok=True)
    earlier = None if before is None else earlier_tasks([(ledger_path(before), 12)])
    with open_ledger(folder, task, earlier) as ledger:
        for number in range(n_rounds):
            ledger.charge(number, [min(task.clients)])


def stated(folder: Path, task: Task) -> dict[Conduct, dict[View, float]]:
    """Return what the ledger itself states."""
    with open_ledger(folder, task) as ledger:
        return {c: {view: ledger.statement(view, conduct=c).epsilon for view in View} for c in Conduct}


@pytest.mark.parametrize("n_rounds", [0, 4])
def test_a_server_shows_what_its_ledger_states_of_all_tasks_together(n_rounds: int, tmp_path: Path) -> None:
    """Spent, the most that can be spent, and what a budget leaves: with five rounds before."""
    charged(tmp_path / "before", TASK, 5)
    charged(tmp_path / "after", TASK, n_rounds, tmp_path / "before")
    expected = stated(tmp_path / "after", TASK)
    nothing = dict.fromkeys(View, 0.0)
    with open_ledger(tmp_path / "after", TASK) as ledger:
        counted = ledger.charged
        whole, *views = epsilons_of(TASK, nothing, counted, ledger.cost)
    assert {one.view: one.spent for one in views} == expected[Conduct.WATCHES]
    assert {one.view: one.if_discarded for one in views} == expected[Conduct.MAY_DISCARD]
    alone, *of_one_task = epsilons_of(TASK, nothing, counted)
    assert whole.spent > alone.spent
    assert views[0].rounds_left is not None
    assert of_one_task[0].rounds_left is not None
    assert views[0].rounds_left < of_one_task[0].rounds_left


@pytest.mark.parametrize("n_rounds", [0, 1])
def test_a_state_dir_counts_earlier_tasks_before_its_first_record(n_rounds: int, tmp_path: Path) -> None:
    """Before the first round too; a round that was lost after its charge has no record that would state them."""
    charged(tmp_path / "before", TASK, 5)
    folder = tmp_path / "after"
    charged(folder, TASK, n_rounds, tmp_path / "before")
    with open_task_store(folder, TASK, b"model"):
        pass
    found = {one.view: one.spent for one in read_run(folder).epsilons}
    assert found == stated(folder, TASK)[Conduct.WATCHES]


@pytest.mark.parametrize("hides", [True, False])
def test_figures_that_count_hidden_draws_are_known_to_tell_them(hides: bool, tmp_path: Path) -> None:
    """By a server's status, live and from its folder, and by a run's: so trackers do not get them unasked."""
    fields = {"mode": "proved", "submit_timeout_s": 2.0, "proof_timeout_s": 1.0, "round_period_s": 4.0}
    charged(tmp_path / "before", small_task(rounds=9, **fields) if hides else TASK, 5)
    charged(tmp_path / "after", TASK, 1, tmp_path / "before")
    with open_task_store(tmp_path / "after", TASK, b"model"):
        pass
    assert read_run(tmp_path / "after").hides_draws is hides
    telemetry = Telemetry(Role.AGGREGATOR_A)
    with open_ledger(tmp_path / "after", TASK) as ledger:
        telemetry.cost = ledger.cost
    spool = Spool(tmp_path / "spool", most_bytes=1, memory_bytes=1, max_memory_upload=1)
    live = AggregatorSnapshots(TASK, telemetry, Sessions(TASK.clients), spool, tmp_path / "after")
    assert live.take().hides_draws is hides
    root = deployed(tmp_path / "run")
    assert not read_run(root).hides_draws
    ledger_path(root / "a").unlink()
    charged(root / "a", configuration.load(root / "config.toml").task, 3, tmp_path / "before")
    assert read_run(root).hides_draws is hides


def test_what_a_server_will_state_is_said_before_it_starts(tmp_path: Path) -> None:
    """By `precad check` of a local run, to a cent: what the ledger has before its first round, and in the end."""
    task = {"name": "t", "clients": 3, "rounds": 3, "model": "mlp", "client_rate": 1.0, "record_rate": 0.1}
    task |= {"record_clip": 1.0, "client_clip": 4.0, "noise_multiplier": 3.0, "learning_rate": 1.0}
    raw: dict[str, Any] = {"task": task, "client": {"dataset": "digits"}}
    _, deployment, _ = resolve(raw, RunFolder(tmp_path / "run"))
    charged(tmp_path / "before", deployment.task, 5)
    counted = {"path": str(ledger_path(tmp_path / "before")), "most_rounds": 12}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(raw | {"aggregator": {"b": {"earlier_ledgers": [counted]}}}))
    found = check_file(tmp_path / "run.toml")
    charged(tmp_path / "after", deployment.task, 0, tmp_path / "before")
    expected = stated(tmp_path / "after", deployment.task)
    shown = re.findall(r"<= ([0-9.]+)", found["aggregator_b_privacy_with_earlier_tasks"])
    for said, conduct in zip(shown, (Conduct.WATCHES, Conduct.MAY_DISCARD), strict=True):
        assert 0 <= float(said) - expected[conduct][View.ONE_SERVER] < 0.01
    assert not [name for name in found if name.startswith("aggregator_a")]


def test_a_run_counts_the_earlier_tasks_of_its_servers(tmp_path: Path) -> None:
    run = RunFolder(deployed(tmp_path / "run"))
    task = configuration.load(run.config).task
    charged(tmp_path / "before", task, 5)
    charged(run.state_dir("b"), task, 3, tmp_path / "before")
    found = {one.view: one for one in read_run(run.root).epsilons if not one.is_level}
    expected = stated(run.state_dir("b"), task)
    for view, one in found.items():
        assert one.spent >= expected[Conduct.WATCHES][view]
        assert one.if_discarded is not None
        assert one.if_discarded >= expected[Conduct.MAY_DISCARD][view]


@pytest.mark.parametrize("letter", ["a", "b"])
def test_a_run_shows_the_larger_figures_where_servers_count_other_earlier_tasks(letter: str, tmp_path: Path) -> None:
    """One counts one task of six rounds, the other two of one: more of them, which cost less."""
    run = RunFolder(deployed(tmp_path / "run"))
    task = configuration.load(run.config).task
    charged(tmp_path / "long", task, 6)
    charged(tmp_path / "one", task, 1)
    charged(tmp_path / "two", task, 1, tmp_path / "one")
    for server in ("a", "b"):
        ledger_path(run.state_dir(server)).unlink(missing_ok=True)
        charged(run.state_dir(server), task, 3, tmp_path / ("long" if server == letter else "two"))
    found = {one.view: one for one in read_run(run.root).epsilons if not one.is_level}
    expected = stated(run.state_dir(letter), task)
    for view, one in found.items():
        assert one.spent >= expected[Conduct.WATCHES][view]


@pytest.mark.parametrize(
    ("name", "value"), [("noise_multiplier", 50.0), ("record_rate", 0.01), ("records_per_person", 2), ("delta", 0.01)]
)
def test_a_run_of_a_configuration_that_was_changed_shows_no_figure(name: str, value: float, tmp_path: Path) -> None:
    """Else the rounds that were charged would be shown at another price."""
    run = RunFolder(deployed(tmp_path / "run"))
    charged(run.state_dir("b"), configuration.load(run.config).task, 3)
    assert read_run(run.root).epsilons
    config = tomllib.loads(run.config.read_text())
    config["task"][name] = value
    run.config.write_text(tomli_w.dumps(config))
    with pytest.raises(ConfigError, match="not the rounds of the configuration's task"):
        read_run(run.root)
