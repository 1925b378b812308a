"""`precad account` of a task of any algorithm: equal to the ledger of a server that charges those rounds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from precad.deploy.cli.main import app
from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.task_account import account_of_other, account_of_task
from precad.deploy.shown.figures import plain
from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.dp.accountants.pld import Conduct, View
from precad.dp.task_privacy import task_cost
from precad.protos.task.algorithms import RULES
from precad.protos.task.task import Task
from precad.servers.store.folder import open_ledger
from tests.harness.command_line import CliRunner
from tests.protos.task.test_task_algorithms import task_of

ROUNDS = 4
GROUP = {"records_per_person": 3}
TURNS: dict[str, Any] = {
    "local_steps": 1,
    "client_rate": 1.0,
    "min_separation": 2,
    "noise_bands": 2,
    "noise_multiplier": 2.0,
    "rounds": 8,
}
SETTINGS: list[tuple[str, dict[str, Any]]] = [(name, {}) for name in RULES]
SETTINGS += [("ins-dp-fedavg", GROUP), ("local-dp", GROUP), ("distributed-dp", GROUP), ("user-dp-fedavg", TURNS)]
IDS = [f"{name}-{i}" for i, (name, _) in enumerate(SETTINGS)]


def precad(*arguments: object, exit_code: int = 0) -> Any:
    done = CliRunner().invoke(app, [str(a) for a in arguments], terminal_width=200)
    assert done.exit_code == exit_code, done.output
    return done


def written(task: Task, folder: Path, **beside: Any) -> Path:
    """Write the task's fields, as a configuration has them."""
    fields = task.model_dump(mode="json", exclude_none=True, exclude_defaults=True) | {"delta": task.delta} | beside
    path = folder / "task.toml"
    path.write_text(tomli_w.dumps({"task": fields}))
    return path


@pytest.mark.parametrize(("algorithm", "changes"), SETTINGS, ids=IDS)
def test_the_command_says_what_a_ledger_of_these_rounds_says(
    algorithm: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    """Bit for bit: both views and every level, whether draws may be discarded or not."""
    task = task_of(algorithm, **{"rounds": ROUNDS, **changes})
    turns = task.rounds_of_a_client
    found = json.loads(precad("account", written(task, tmp_path), "--participation", turns, "--json").stdout)
    with open_ledger(tmp_path / "a", task) as ledger:
        for t in range(task.rounds):
            ledger.charge(t, ["alice"] if t % task.min_separation == 0 else ["bob"])
        for view in View:
            ours, statement = found[view.value], ledger.statement(view, "alice")
            assert ours["bound"] == plain(statement.epsilon)
            discarded = ledger.statement(view, "alice", Conduct.MAY_DISCARD).epsilon
            assert ours["if_discarded"] == {"epsilon": plain(discarded), "rounds": ledger.most_rounds_of_a_client}
        assert (statement.unit.value, statement.group_size) == (
            found.get("unit", "record"),
            found.get("records_per_person", 1),
        )
        if algorithm == "precad":  # which has its own form, of every accountant
            return
        assert found["levels"].keys() == {level.value for level in ledger.levels}
        cost = task_cost(task)
        for level in ledger.levels:
            ours = found["levels"][level.value]
            assert ours["if_discarded"] == ledger.task_statement(level, Conduct.MAY_DISCARD).epsilon
            assert ours["bound"] == cost.of_level(level, task.rounds)


TIGHT = [
    ("user-dp-fedavg", {"epsilon_budget_client": 3.0}),
    ("user-dp-fedavg", {"epsilon_budget_clients_only": 3.0}),
    ("precad", {"record_bins": 2, "record_rate": 0.5, "client_rate": 1.0, "epsilon_budget_one_server": 2.0}),
]
"""Budgets that end the task before its last round."""


@pytest.mark.parametrize(("algorithm", "changes"), TIGHT)
def test_budgets_change_no_number_of_rounds(algorithm: str, changes: dict[str, Any], tmp_path: Path) -> None:
    """Every figure is of the rounds that stand beside it, also where budgets would not allow them."""
    limited = task_of(algorithm, **{"rounds": ROUNDS, **changes})
    free = {name: value for name, value in changes.items() if not name.startswith("epsilon_budget")}
    ours, most = (account_of_task(one) for one in (limited, task_of(algorithm, **{"rounds": ROUNDS, **free})))
    limit = task_cost(limited).most_of_a_client
    assert limit is not None
    assert limit < ours["one_server"]["if_discarded"]["rounds"]
    for view in View:
        assert ours[view.value]["if_discarded"] == most[view.value]["if_discarded"]
        assert ours[view.value]["bound"] == most[view.value]["bound"]
    for level, found in ours["levels"].items():
        assert found["if_discarded"] == most["levels"][level]["if_discarded"]


def test_a_draft_and_flags_give_what_the_whole_task_gives(tmp_path: Path) -> None:
    """Flags go before the file's; names of clients, of records and of the model are not needed."""
    draft = tmp_path / "draft.toml"
    draft.write_text(
        '[task]\nalgorithm = "user-dp-fedavg"\nlocal_steps = 3\nclient_rate = 0.5\nclient_clip = 2.0\n'
        "record_clip = 1.0\nnoise_multiplier = 9.0\nrounds = 5\ndelta = 1e-5\n"
    )
    found = json.loads(precad("account", draft, "--sigma", 2.0, "--rounds", 10, "--json").stdout)
    assert (found["noise_multiplier"], found["rounds"], found["participation"]) == (2.0, 10, 5)
    assert found["one_server"]["bound"] == pytest.approx(eps_from_mu(1e-5, math.sqrt(5) / 2), rel=1e-6)
    assert found["warnings"] == []


def test_a_draft_has_the_delta_that_tasks_have(tmp_path: Path) -> None:
    """As `precad check` and `precad run` take it."""
    draft = tmp_path / "draft.toml"
    fields = '[task]\nalgorithm = "user-dp-fedavg"\nclient_rate = 0.5\nclient_clip = 2.0\nrecord_clip = 1.0\n'
    draft.write_text(f"{fields}noise_multiplier = 9.0\nrounds = 5\n")
    of_default = json.loads(precad("account", draft, "--json").stdout)
    draft.write_text(f"{fields}noise_multiplier = 9.0\nrounds = 5\ndelta = {task_of('user-dp-fedavg').delta}\n")
    assert json.loads(precad("account", draft, "--json").stdout) == of_default
    assert of_default["delta"] == 1e-5


def test_a_draft_of_records_without_a_dimension_says_so(tmp_path: Path) -> None:
    draft = tmp_path / "draft.toml"
    draft.write_text(
        '[task]\nalgorithm = "local-dp"\nclient_rate = 0.5\nclient_clip = 2.0\nrecord_clip = 1.0\nrecord_rate = 0.5\n'
        "noise_multiplier = 2.0\nrounds = 5\ndelta = 1e-5\n"
    )
    assert "dim: without it" in precad("account", draft).stdout


def test_what_rounding_takes_is_said_as_precad_check_says_it(tmp_path: Path) -> None:
    coarse = task_of("local-dp", dim=26_010, frac_bits=8, rounds=ROUNDS)
    assert "WARNING: 8 fractional bits leave 0.6135 of noise_multiplier" in precad(
        "account", written(coarse, tmp_path)
    ).stdout.replace("\n", " ")


@pytest.mark.parametrize(
    ("algorithm", "target"),
    [("user-dp-fedavg", 3.0), ("tsgd-ptr", 40.0), ("ins-dp-fedavg", 3.0), ("local-dp", 3.0), ("distributed-dp", 3.0)],
)
def test_the_least_noise_is_that_of_a_task_with_the_target(algorithm: str, target: float, tmp_path: Path) -> None:
    """And its epsilon, of a client in all rounds, is below the target by less than a hundredth."""
    task = task_of(algorithm, rounds=ROUNDS)
    path = written(task, tmp_path)
    found = json.loads(precad("account", path, "--calibrate", target, "--json").stdout)["calibrated"]
    again = json.loads(
        precad("account", path, "--sigma", found["smallest_sigma"], "--participation", ROUNDS, "--json").stdout
    )
    fields = task.model_dump(exclude_defaults=True) | {"target_epsilon": target}
    del fields["noise_multiplier"]
    assert found["smallest_sigma"] == Task.model_validate(fields).noise_multiplier
    assert target * 0.99 < again["one_server"]["bound"] <= target


def test_people_are_told_what_it_rests_on(tmp_path: Path) -> None:
    shown = precad("account", written(task_of("distributed-dp"), tmp_path)).stdout
    assert "epsilon of distributed-dp at delta" in shown
    assert "if of the uploads of every released round at least 2 are of clients" in shown.replace("\n", " ")
    assert "no bound" in precad("account", written(task_of("non-private"), tmp_path)).stdout


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--balls-in-bins", 4), "--balls-in-bins: expected precad, whose records it is of, found 'local-dp'"),
        (("--plot", "x.png"), "--plot: expected precad, whose rounds are drawn, found 'local-dp'"),
        (("--sigma", -1), "task.noise_multiplier: "),
        (("--participation", 6), "participation: expected at most 5, the rounds that a client can be in, found 6"),
        (("--calibrate", -2), "target_epsilon: expected a number above 0, found -2.0"),
    ],
)
def test_what_does_not_fit_ends_with_2(flags: tuple[object, ...], said: str, tmp_path: Path) -> None:
    path = written(task_of("local-dp", rounds=5), tmp_path)
    assert said in precad("account", path, *flags, exit_code=2).stderr.replace("\n", " ")


def test_a_file_that_says_too_little_names_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "task.toml"
    path.write_text('[task]\nalgorithm = "local-dp"\n')
    said = precad("account", path, exit_code=2).stderr
    assert all(f"task.{field}: " in said for field in ("client_rate", "rounds", "noise_multiplier", "record_clip"))


@pytest.mark.parametrize("clients", [4, ["alice", "bob"], None])
def test_an_evaluation_whose_bound_nobody_says_is_not_accounted(clients: object) -> None:
    """Else a client would count as one record, and an evaluation as costing a client next to nothing."""
    section = {
        "algorithm": "user-dp-fedavg",
        "rounds": 20,
        "client_rate": 0.5,
        "client_clip": 1.0,
        "record_clip": 1.0,
        "noise_multiplier": 8.0,
        "local_steps": 1,
        "local_rate": 0.1,
        "delta": 1e-5,
        "name": "t",
        "model": "mlp",
        "evaluation": "clients",
        "evaluation_every": 1,
        "evaluation_noise": 50.0,
        **({} if clients is None else {"clients": clients}),
    }
    with pytest.raises(ConfigError, match=r"task\.evaluation_clip: expected a number"):
        account_of_other(section, {})
    said = account_of_other({**section, "evaluation_clip": 71.0}, {})
    declared = account_of_other({**section, "clients": {"alice": 71, "bob": 20}}, {})
    assert said["one_server"]["bound"] == declared["one_server"]["bound"] > 10


@pytest.mark.parametrize(
    "draft",
    [
        {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile"},
        {"algorithm": "user-dp-fedavg", "update_clipping": "private-quantile-per-layer", "quantile": 0.3},
        {"algorithm": "tsgd-gaussian", "layer_clips": [1.0, 2.0], "accept_weak_wire_form": True},
        {"algorithm": "tsgd-ptr", "layer_clips": [1.0], "layer_sizes": [9], "accept_weak_wire_form": True},
        {"algorithm": "tsgd-ptr", "half_spaces": [0.0], "mode": "shares", "accept_weak_wire_form": True},
    ],
    ids=["quantile", "quantile-by-layer", "layers", "layers-of-sizes", "half-spaces"],
)
def test_a_draft_needs_nothing_of_the_model_that_no_figure_depends_on(draft: dict[str, Any]) -> None:
    """Say the same figures as of the task without its learnt bound or its smaller set, which cost nothing."""
    task = {"name": "draft", "clients": 8, "rounds": 3, "client_rate": 0.5, "noise_multiplier": 4.0}
    task |= {"record_clip": 1.0, "client_clip": 8.0}
    mode = {name: draft[name] for name in ("mode", "accept_weak_wire_form") if "mode" in draft}
    plainly = account_of_other({**task, **mode, "algorithm": draft["algorithm"]}, {})
    assert account_of_other({**task, **draft}, {}) == plainly
