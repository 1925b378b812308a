"""`precad export --certificate`: a certificate against poisoning that is signed, and computed again from its evidence.

Failure means one of these:
- a certificate that claims more than the definition gives for the evidence;
- evidence of other trainings or of another task;
- a stated certificate that its evidence does not give;
- two operators who state different things of the same evidence.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from precad.clients import records
from precad.clients.models import networks
from precad.clients.training import evaluation
from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import ConfigError
from precad.deploy.exporting.evidence import Evidence, evidence_for
from precad.deploy.exporting.export import export, source_of
from precad.deploy.exporting.statement import sha256
from precad.deploy.guarantees.run_evidence import training_of
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import Unit, View
from precad.dp.certificates.prediction import Method, Threat, certify
from precad.dp.task_privacy import task_cost
from precad.protos.task.task import Task
from tests.deploy.exporting.test_export import (
    LETTERS,
    finished,  # noqa: F401 - the fixture
    of_one_operator,
    precad,
    sign_anew,
    verified,
)


def other_run(run: Path, folder: Path, seed: int) -> Path:
    """The folder of another training of the same task: its model, and the digest in its records."""
    shutil.copytree(run, folder)
    parameters = networks.initial_parameters("mlp", seed=seed) * 50
    torch.save(networks.unflatten(torch.from_numpy(parameters), networks.build("mlp")), folder / "model.pt")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1]) | {"model_digest": f"{seed:064x}"}
    (folder / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps(last)]) + "\n")
    return folder


def evidence_like(task: Task, *, n_trainings: int, **changes: Any) -> Evidence:
    """Return evidence from `n_trainings` trainings that are sure of what they say, and right three times of four."""
    training = training_of(task)
    rows = [(0.95, 0.03, 0.02), (0.6, 0.4, 0.0), (0.02, 0.97, 0.01), (0.9, 0.1, 0.0)]
    values = {
        "configuration_sha256": task.digest().hex(),
        "client_rate": training.event.sampling_rate,
        "noise_multiplier": training.event.noise_multiplier,
        "rounds": training.rounds,
        "delta": task.delta,
        "models": tuple(f"{i:064x}" for i in range(n_trainings)),
        "labels": (0, 0, 1, 1),
        "confidences": tuple(rows),
    }
    return Evidence(**{**values, **changes})


def task_of(run: Path) -> Task:
    return configuration.load(run / "config.toml").task


def written(evidence: Evidence, folder: Path) -> Path:
    path = folder / "evidence.json"
    path.write_bytes(evidence.canonical())
    return path


def stated(folder: Path) -> dict[str, Any]:
    statement = json.loads((folder / "statement.json").read_bytes())
    return dict(statement["poisoning"]["certificate"])


def test_runs_become_evidence_that_is_signed_and_computed_again(finished: Path, tmp_path: Path) -> None:  # noqa: F811
    """The mean over both models, by the definition; both servers sign the file; whoever verifies computes it again."""
    runs = [finished, other_run(finished, tmp_path / "second", 7)]
    flags = [flag for run in runs for flag in ("--certificate", run)]
    out = tmp_path / "out"
    precad("export", finished, "--out", out, *flags)
    evidence = json.loads((out / "certificate.json").read_bytes())
    test = records.digits().test
    each = [evaluation.confidences(networks.initial_parameters("mlp", seed=seed) * 50, "mlp", test) for seed in (1, 7)]
    assert evidence["confidences"] == pytest.approx(np.mean(each, axis=0), abs=1e-9)
    assert evidence["labels"] == test.labels.tolist()
    assert len(set(evidence["models"])) == 2
    assert stated(out)["n_trainings"] == 2
    said = json.loads((out / "statement.json").read_text())["guarantee"]
    assert "The privacy is that of one training. The certificate publishes mean confidences of 2: whoever" in said
    report = verified(out, finished)
    assert report["certificate"] == "recomputed"
    assert report["files"]["certificate.json"] == ["aggregator-a", "aggregator-b"]
    (out / "certificate.json").unlink()  # then nobody could compute it again
    told = precad("verify-export", out, "--authority", finished / "pki/ca.pem", exit_code=3)
    assert "certificate.json: expected a file that is signed, found none" in told.stderr
    precad("export", finished, "--out", tmp_path / "without")
    assert verified(tmp_path / "without", finished)["certificate"] == "as stated"


def test_a_certificate_says_what_the_definition_gives(finished: Path, tmp_path: Path) -> None:  # noqa: F811
    """Hoeffding's radius over 2 bounds for each of 3 classes and 4 records, then the exact method, record by record."""
    task, n, psi = task_of(finished), 100_000, 0.01
    sure = ((0.999, 0.001, 0.0), (0.6, 0.4, 0.0), (0.001, 0.999, 0.0), (0.9, 0.1, 0.0))
    evidence = evidence_like(task, n_trainings=n, confidences=sure)
    export(source_of(finished, None, None), tmp_path / "out", certificate=[written(evidence, tmp_path)])
    radius = math.sqrt(math.log(2 * 3 * 4 / psi) / (2 * n))
    tolerated = []
    for row in evidence.confidences:
        first, second = sorted(row, reverse=True)[:2]
        low, high = max(first - radius, 0.0), min(second + radius, 1.0)
        found = certify(
            low, high, training_of(task), method=Method.EXACT, threat=Threat.ADD, delta=task.delta, at_most=128
        )
        tolerated.append(found.tolerated)
    right = [True, True, True, False]
    expected = [
        sum(ok and k <= most for ok, most in zip(right, tolerated, strict=True)) / 4
        for k in range(max(t for t, ok in zip(tolerated, right, strict=True) if ok) + 1)
    ]
    found = stated(tmp_path / "out")
    assert found["tolerated"] > 0
    assert found["certified_accuracy"] == expected
    assert (found["n_trainings"], found["n_samples"], found["confidence"]) == (n, 4, 1 - psi)
    assert verified(tmp_path / "out", finished)["certificate"] == "recomputed"


def test_operators_with_the_same_evidence_state_the_same(finished: Path, tmp_path: Path) -> None:  # noqa: F811
    """A server's operator has no runs: it takes the file of the other's export, or both take one from elsewhere."""
    evidence = written(evidence_like(task_of(finished), n_trainings=50), tmp_path)
    outs = {}
    for letter in LETTERS:
        state, config = of_one_operator(finished, letter, tmp_path / letter)
        outs[letter] = tmp_path / f"out-{letter}"
        export(source_of(state, config, None), outs[letter], certificate=[evidence])
        evidence = outs[letter] / "certificate.json"
    assert (outs["a"] / "statement.json").read_bytes() == (outs["b"] / "statement.json").read_bytes()
    assert verified(outs["b"], finished, against=outs["a"])["certificate"] == "recomputed"


def more_often_right(evidence: Evidence) -> Evidence:
    return evidence.model_copy(update={"labels": (0, 0, 1, 0)})


def of_more_trainings(evidence: Evidence) -> Evidence:
    return evidence.model_copy(update={"models": (*evidence.models, "f" * 64)})


def of_another_task(evidence: Evidence) -> Evidence:
    return evidence.model_copy(update={"configuration_sha256": "0" * 64})


def of_one_model(evidence: Evidence) -> Evidence:
    return evidence.model_copy(update={"models": evidence.models[:1] * len(evidence.models)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (more_often_right, "another certificate follows from it than is stated"),
        (of_more_trainings, "another certificate follows from it than is stated: n_trainings"),
        (of_another_task, "expected trainings of the exported task"),
        (of_one_model, "found a model twice"),
    ],
)
def test_evidence_that_gives_another_certificate_is_refused_although_both_signed_it(
    finished: Path,  # noqa: F811
    tmp_path: Path,
    change: Any,
    message: str,
) -> None:
    out, evidence = tmp_path / "out", evidence_like(task_of(finished), n_trainings=3000)
    export(source_of(finished, None, None), out, certificate=[written(evidence, tmp_path)])
    other = change(evidence).canonical()
    (out / "certificate.json").write_bytes(other)
    told = precad("verify-export", out, "--authority", finished / "pki" / "ca.pem", exit_code=3)
    assert "no signature here names this file with this content" in told.stderr
    for role in ("aggregator-a", "aggregator-b"):
        files = json.loads((out / f"{role}.json").read_bytes())["files"]
        key = finished / "pki" / role / "key.pem"
        sign_anew(out, role, key, files=files | {"certificate.json": sha256(other)})
    told = precad("verify-export", out, "--authority", finished / "pki" / "ca.pem", exit_code=3)
    assert message in " ".join(told.stderr.split())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"configuration_sha256": "0" * 64}, "configuration_sha256: expected the exported task's"),
        ({"rounds": 1}, "rounds: expected the exported task's, 6, found 1"),
        ({"noise_multiplier": 100.0}, "noise_multiplier: expected"),
    ],
)
def test_a_server_signs_no_evidence_of_another_training(
    finished: Path,  # noqa: F811
    tmp_path: Path,
    changes: dict[str, Any],
    message: str,
) -> None:
    task = task_of(finished)
    path = written(evidence_like(task, n_trainings=50, **changes), tmp_path)
    with pytest.raises(ConfigError, match=message):
        evidence_for(task, [], [path])


def test_a_server_whose_budget_counts_an_earlier_task_signs_no_draw(finished: Path, tmp_path: Path) -> None:  # noqa: F811
    """The budget is never reached by this task alone, so the rate of a server without earlier ledgers is its own."""
    plain = task_of(finished)
    budget = task_cost(plain).of_view(View.ONE_SERVER, task_cost(plain).most_draws or 0) * 1.01
    task = Task.model_validate(plain.model_dump() | {"epsilon_budget_one_server": budget})
    counting = replace(task_cost(task), earlier=(earlier_of(plain, rounds=3),))
    drawn = written(evidence_like(task, n_trainings=50), tmp_path)
    assert evidence_for(task, [task_cost(task)], [drawn]).client_rate == task.client_rate < 1
    with pytest.raises(ConfigError, match=r"client_rate: expected the exported task's, 1.0, found 0\."):
        evidence_for(task, [task_cost(task), counting], [drawn])
    whole = written(evidence_like(task, n_trainings=50, client_rate=1.0), tmp_path)
    for costs in ([task_cost(task)], [task_cost(task), counting]):  # what claims nothing of the draw is true of both
        assert evidence_for(task, costs, [whole]).client_rate == 1.0


def earlier_of(task: Task, *, rounds: int) -> EarlierTask:
    """Return a finished task like this one, whose clients were in so many rounds."""
    cost = task_cost(task)
    return EarlierTask(unit=Unit.RECORD, events=cost.events, levels={}, rounds=rounds, chain="")


@pytest.mark.parametrize(
    "changes",
    [
        {"labels": (0, 0, 1)},
        {"labels": (0, 0, 1, 3)},
        {"confidences": ((0.9, 0.9),) * 4},
        {"confidences": ((1.0,),) * 4},
    ],
)
def test_values_that_are_no_evidence_are_an_input_error(
    finished: Path,  # noqa: F811
    tmp_path: Path,
    changes: dict[str, Any],
) -> None:
    path = written(evidence_like(task_of(finished), n_trainings=50, **changes), tmp_path)
    told = precad("export", finished, "--out", tmp_path / "out", "--certificate", path, exit_code=2)
    assert "certificate.json: expected" in told.stderr
    assert not (tmp_path / "out").exists()


def test_the_same_run_twice_and_a_folder_that_is_none_are_input_errors(finished: Path, tmp_path: Path) -> None:  # noqa: F811
    twice = ("--certificate", finished, "--certificate", finished)
    told = precad("export", finished, "--out", tmp_path / "out", *twice, exit_code=2)
    assert "--certificate: expected different runs" in told.stderr
    told = precad("export", finished, "--out", tmp_path / "out", "--certificate", tmp_path / "none", exit_code=2)
    assert str(tmp_path / "none") in "".join(told.stderr.split("\n"))
