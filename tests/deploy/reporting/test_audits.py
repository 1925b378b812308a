"""The audit beside a run: a note with its label on the page, and a refusal where it is of something else."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from precad.deploy.errors import ConfigError
from precad.deploy.reporting.audits import MECHANISM, read_audit, sentence_of
from precad.deploy.reporting.folders import read_folders
from precad.deploy.shown.figures import three_digits_up
from precad.dp.accountants.pld import View
from precad.dp.conditions import AGAINST
from precad.dp.task_privacy import task_cost
from precad.lab.auditing import audit as auditing
from precad.lab.simulation.simulate import resolve, run_plan

CONFIG: dict[str, Any] = {
    "task": {
        "name": "audited",
        "clients": ["one", "two"],
        "rounds": 2,
        "client_rate": 1.0,
        "record_rate": 1.0,
        "record_clip": 1.0,
        "client_clip": 16.0,
        "noise_multiplier": 4.0,
        "learning_rate": 0.5,
        "model": "mlp",
        "delta": 1e-5,
    },
    "client": {"dataset": "digits"},
}


@pytest.fixture(scope="module")
def audited() -> dict[str, Any]:
    return auditing.audit(resolve(CONFIG), canaries=64, seed=1)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("simulated") / "run"
    run_plan(resolve(CONFIG), folder, [0], Console(quiet=True))
    return folder


@pytest.fixture
def run(simulated: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(simulated, tmp_path / "run"))


def test_an_audit_is_a_note_with_its_label_and_three_figures_of_each_view(run: Path, audited: dict[str, Any]) -> None:
    """Both views; never called a bound. Without the file there is no note."""
    (plain,) = read_folders([run])
    (run / "audit.json").write_text(json.dumps(audited))
    (found,) = read_folders([run])
    (note,) = set(found.notes) - set(plain.notes)

    assert note.startswith("audit (95 %), 2 rounds, 128 observations: ")
    assert note.count("proved against") == 2
    of_view = {view: [seat["figures"] for seat in audited["seats"] if seat["view"] == view] for view in set(View)}
    for figures in of_view.values():
        least = {name: min(one[name] for one in figures) for name in ("per_round", "f_dp", "strict")}
        for name, called in (("per_round", "per round"), ("f_dp", "f-DP in one run"), ("strict", "strict in one run")):
            shown = [float(found) for found in re.findall(rf"{called} ([0-9.]+),", note)]
            assert len(shown) == 2
            assert any(figure <= least[name] <= 1.01 * figure + 1e-9 for figure in shown)
    assert note.endswith("It contradicts nothing.")
    assert "bound" not in note
    (run / "audit.json").write_text(json.dumps(audited | {"passed": False}))
    assert read_folders([run])[0].notes[-1].endswith("It CONTRADICTS what is proved.")


def test_an_audit_does_not_pass_against_its_own_figures(run: Path, audited: dict[str, Any]) -> None:
    """Whoever signs it: a figure by single rounds above the printed epsilon contradicts it."""
    seat = audited["seats"][0]
    above = seat | {"figures": seat["figures"] | {"per_round": seat["printed"] * 1.001}}
    accused = audited | {"seats": [above, *audited["seats"][1:]]}
    (run / "audit.json").write_text(json.dumps(accused | {"passed": True}))
    with pytest.raises(ConfigError, match="passed: expected false, as a figure by single rounds is above"):
        read_folders([run])
    (run / "audit.json").write_text(json.dumps(accused | {"passed": False}))
    assert read_folders([run])[0].notes[-1].endswith("It CONTRADICTS what is proved.")


def test_an_audit_is_of_the_algorithm_that_is_audited(run: Path, audited: dict[str, Any], tmp_path: Path) -> None:
    """Numbers alone do not make the mechanism: a run of local noise is no run of two servers' noise."""
    path = tmp_path / "audit.json"
    path.write_text(json.dumps(audited))
    task = read_folders([run])[0].task
    assert read_audit(path, task).passed
    with pytest.raises(ConfigError, match="expected no audit of a run of local-dp, as audits are of precad"):
        read_audit(path, task.model_copy(update={"algorithm": "local-dp"}))
    with pytest.raises(ConfigError, match="expected no audit of a run with sum_function, as audits are of sums"):
        read_audit(path, task.model_copy(update={"sum_function": "own.module:halved"}))
    path.write_text(json.dumps(audited | {"seats": []}))
    with pytest.raises(ConfigError, match="seats: expected a list of at least 1 item, found"):
        read_audit(path, task)


@pytest.mark.parametrize("name", MECHANISM)
def test_an_audit_of_another_mechanism_is_refused(run: Path, audited: dict[str, Any], name: str) -> None:
    other = audited["mechanism"] | {name: 0.123}
    (run / "audit.json").write_text(json.dumps(audited | {"mechanism": other}))
    with pytest.raises(ConfigError, match=f"expected an audit with {name} = .*, found 0.123"):
        read_folders([run])


def test_an_audit_is_of_as_many_records_of_one_person_as_the_run(audited: dict[str, Any], tmp_path: Path) -> None:
    """Refuse one of one record beside three, as less is proved for it; what is shown is what the ledger charges."""
    three = resolve(CONFIG | {"task": CONFIG["task"] | {"records_per_person": 3}})
    charged = {view: task_cost(three.task).of_view(view, 2) for view in View}
    assert all(seat["printed"] < 0.6 * charged[View(seat["view"])] for seat in audited["seats"])
    (path := tmp_path / "audit.json").write_text(json.dumps(audited))
    with pytest.raises(ConfigError, match="expected an audit with records_per_person = 3, found 1"):
        read_audit(path, three.task)

    path.write_text(json.dumps(auditing.audit(three, canaries=64, seed=1)))
    said = sentence_of(read_audit(path, three.task))
    assert said.startswith("audit (95 %), 3 records of one person, 2 rounds, ")
    for view in View:
        assert f"of {three_digits_up(charged[view])} proved against {AGAINST[view]}" in said
    with pytest.raises(ConfigError, match="expected an audit with records_per_person = 1, found 3"):
        read_audit(path, resolve(CONFIG).task)


def test_a_file_that_is_no_audit_is_refused(run: Path) -> None:
    (run / "audit.json").write_text('{"passed": true}')
    with pytest.raises(ConfigError, match=r"audit\.json"):
        read_folders([run])
