"""`precad.App`: records, a model and a loss of the user's own, in a notebook, in local processes, and at a client."""

from __future__ import annotations

import copy
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from torch import Tensor, nn

import precad
from precad.clients import own_code
from precad.clients.config import ClientConfig
from precad.clients.errors import (
    ArgumentError,
    DropoutLayerError,
    MissingDataError,
    OwnRecordsError,
    RecordMixingLayerError,
    TargetError,
)
from precad.clients.loading import load_records
from precad.clients.models import networks
from precad.clients.models.fingerprint import model_digest
from precad.clients.models.learning import Learning
from precad.clients.models.losses import loss_of
from precad.deploy.cli import main
from precad.deploy.configuration.apps import client_of_app, load_with_app, with_app
from precad.deploy.configuration.check_records import records_here
from precad.deploy.configuration.local import resolve
from precad.deploy.run_files.folder import RunFolder
from precad.lab.simulation.apps import resolve_apps
from precad.servers.errors import SetupError
from tests.harness.command_line import CliRunner
from tests.harness.harness import small_task

TASK = precad.Task(
    name="own",
    rounds=2,
    client_rate=1.0,
    record_rate=0.5,
    record_clip=1.0,
    client_clip=8.0,
    noise_multiplier=0.5,
    learning_rate=1.0,
    gate="native",
)
RNG = np.random.default_rng(3)
ROWS = RNG.standard_normal((40, 3)).astype(np.float32)
SICK = (ROWS.sum(axis=1) > 0).astype(np.int64)
DOSES = ROWS @ np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]], dtype=np.float32)


def net(outputs: int = 2) -> nn.Module:
    """A table's model."""
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))


def confident(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
    """Punish with the square of what the right class lacks."""
    features, label = record
    return (1 - model(features).softmax(dim=1)[0, label[0]]).square()


def any_label(model: nn.Module, record: tuple[Tensor, Tensor]) -> Tensor:
    """Take classes and rows of numbers alike."""
    return model(record[0]).square().mean() + 0 * record[1].sum()


def share_of_sick(outputs: Any, labels: Any) -> float:
    """A metric of the user's own."""
    return float(np.mean(outputs.argmax(axis=1)))


class Pairs(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """A map-style data set."""

    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if i >= len(self):
            raise IndexError
        return torch.from_numpy(ROWS[i]), int(SICK[i])


def norm() -> nn.Module:
    """A model that mixes records."""
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def drop() -> nn.Module:
    """A model that draws."""
    return nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))


NETWORK = ("aggregator_a", "aggregator_b", "dealer")
ANIMALS = np.array(["ant", "bee", "cat"])[np.arange(40) % 3]
zoo = precad.App(
    model=lambda: net(3),
    records=lambda: (ROWS, ANIMALS),
    test=(ROWS[:2], np.array(["cat", "bee"])),
    loss="cross-entropy",
)
arrays = (ROWS, SICK)
app = precad.App(model=net, records=lambda: arrays, loss=confident, metrics=["accuracy", share_of_sick])
each = precad.App(model=net, records="csv:{client}.csv", label="sick", loss=confident)
tested = replace(app, test=(ROWS[:2], SICK[:2]))
public = replace(app, test="csv:public.csv")


@pytest.fixture(autouse=True)
def _own_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this test's modules and records are looked for is forgotten after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_code, "_BESIDE", [])


def test_an_app_trains_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records as arrays, as a data set, from a function and from a file; a loss and a metric that are functions."""
    monkeypatch.chdir(tmp_path)
    lines = [",".join(map(str, [*row, label])) for row, label in zip(ROWS.tolist(), SICK.tolist(), strict=True)]
    Path("site.csv").write_text("\n".join(["a,b,c,sick", *lines]) + "\n")
    sites = {"dana": arrays, "eli": Pairs(), "fay": lambda: arrays, "gus": "csv:site.csv"}
    labelled = precad.App(model=net, loss=confident, metrics=["accuracy", share_of_sick], label="sick")
    found = precad.simulate(
        TASK, clients={site: labelled.with_records(own) for site, own in sites.items()}, folder="runs/own"
    )
    (one,) = found.seeds
    assert one.rounds == 2
    assert len(repr(found)) < 1500  # in a notebook it is shown
    assert one.accuracy == one.summary["metrics"]["accuracy"]
    assert set(one.metrics()[-1]["metrics"]) == {"accuracy", "share_of_sick"}
    model = one.load_model()
    with torch.no_grad():
        assert np.isfinite(model(torch.from_numpy(ROWS)).numpy()).all()
    task = (tmp_path / "runs" / "own" / "config.toml").read_text()
    assert f'model = "{__name__}:net"' in task
    assert "dana = 40\neli = 20\nfay = 40\ngus = 40" in task


def test_a_regression_has_no_accuracy_but_metrics(tmp_path: Path) -> None:
    doses = precad.App(model=net, records=(ROWS, DOSES), loss="mse", metrics=["mse", "mae"], test=(ROWS[:9], DOSES[:9]))
    found = precad.simulate({"task": TASK | {"rounds": 12}}, clients=[doses] * 3, folder=tmp_path / "doses")
    (one,) = found.seeds
    assert one.accuracy is None
    model = one.load_model()
    with torch.no_grad():
        expected = np.mean((model(torch.from_numpy(ROWS[:9])).numpy() - DOSES[:9]) ** 2)
    assert one.summary["metrics"]["mse"] == pytest.approx(float(expected), rel=1e-5)
    first = one.metrics()[0]["metrics"]["mse"] if "metrics" in one.metrics()[0] else None
    assert first is None or first > one.summary["metrics"]["mse"]


@pytest.mark.parametrize(
    ("clients", "error", "why"),
    [
        ([app], precad.ConfigError, "clients: expected two apps at least"),
        ([app, 3], precad.ConfigError, "expected apps, found a int for client-1"),
        (
            [app, precad.App(model="mlp", records=arrays, loss=confident)],
            precad.ConfigError,
            "one model for all of them",
        ),
        ([precad.App(model=net)] * 2, precad.ConfigError, "records of client-0: expected a data set, arrays"),
        (
            [app.with_records((ROWS, SICK[:3]))] * 2,
            OwnRecordsError,
            "records of client-0: expected a label for each of 40",
        ),
        (
            [app.with_records((ROWS[:, :2], SICK)), app],
            precad.ConfigError,
            r"expected shape \(2,\) of float32, as others have",
        ),
        (
            [app, app.with_records((ROWS.astype(np.int64), SICK))],
            precad.ConfigError,
            r"expected shape \(3,\) of float32, as others have, found shape \(3,\) of int64",
        ),
        ([precad.App(model=net, records=(ROWS, DOSES[:, :1]), loss="mse")] * 2, TargetError, "expected 2 a record"),
        ([precad.App(model=lambda: precad.fix(norm()), records=arrays)] * 2, None, ""),
        ([replace(app, metrics="accuracy")] * 2, ArgumentError, "^metrics: expected a list .* found 'accuracy'$"),
        ([replace(app, metrics=len)] * 2, ArgumentError, "^metrics: expected a list of names or functions, found <b"),
        ([replace(app, metrics={"auc": len})] * 2, ArgumentError, "^metrics: expected a list of names or functions"),
        ([precad.App(model=norm, records=arrays)] * 2, RecordMixingLayerError, r"precad.fix\(model\)"),
        ([precad.App(model=drop, records=arrays)] * 2, DropoutLayerError, r"precad.fix\(model\)"),
    ],
)
def test_apps_that_do_not_fit_are_refused_by_name(
    clients: list[Any], error: type[Exception] | None, why: str, tmp_path: Path
) -> None:
    if error is None:
        precad.simulate(TASK, clients=clients, folder=tmp_path / "a", rounds=1)
        return
    with pytest.raises(error, match=why):
        precad.simulate(TASK, clients=clients, folder=tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"loss": "mse"}, f"task.loss: expected '{__name__}:confident', of the apps, found 'mse'"),
        ({"model": "mlp"}, f"task.model: expected '{__name__}:net', of the apps, found 'mlp'"),
        ({"model_digest": "0" * 64}, f"task.model_digest: expected '[0-9a-f]*', of the apps, found '{'0' * 64}'"),
        ({"dim": 7}, "task.dim: expected 26, of the apps, found 7"),
        ({"record_shape": [4]}, r"task.record_shape: expected \[3\], of the apps, found \[4\]"),
        ({"clients": ["a", "c"]}, "clients: expected apps of a, c, as in task.clients, found a, b"),
        ({"clients": 3}, "clients: expected 3 apps, as many as task.clients, found 2"),
    ],
)
def test_a_task_that_says_something_else_than_its_apps_is_refused(given: dict[str, Any], why: str) -> None:
    apps = {"a": app.with_records(arrays), "b": app.with_records(arrays)}
    with pytest.raises(precad.ConfigError, match=why):
        resolve_apps({"task": TASK | given}, apps)


def test_a_section_that_is_none_is_refused_beside_apps_too() -> None:
    apps = {"a": app.with_records(arrays), "b": app.with_records(arrays)}
    with pytest.raises(precad.ConfigError, match=r"^name: expected one of task, client, simulation, found 'own'$"):
        resolve_apps({**TASK}, apps)  # its fields outside of a section


@pytest.mark.parametrize(
    ("section", "given", "why"),
    [
        (
            "client",
            {"attacks": {"c": {"kind": "sign-flip"}}},
            r"client\.attacks\.c: expected one of the task's clients",
        ),
        ("client", {"trainer": "mine:train"}, r"client\.trainer: expected none in a simulation"),
        ("simulation", {"initial_model": "absent.npy"}, r"initial_model: expected a \.npy file, found .*absent\.npy"),
        ("localhost", {"initial_model": "absent.npy"}, r"initial_model: expected a \.npy file, found .*absent\.npy"),
    ],
)
def test_what_a_file_says_beside_records_is_read_beside_apps_too(section: str, given: dict[str, Any], why: str) -> None:
    apps = {"a": app.with_records(arrays), "b": app.with_records(arrays)}
    with pytest.raises((precad.ConfigError, SetupError), match=why):
        resolve_apps({"task": TASK, section: given}, apps)


def test_apps_begin_where_the_settings_say(tmp_path: Path) -> None:
    start = np.arange(26, dtype=np.float32)
    np.save(tmp_path / "start.npy", start)
    raw = {"task": TASK, "simulation": {"initial_model": str(tmp_path / "start.npy")}}
    plan = resolve_apps(raw, [app.with_records(arrays)] * 2)
    assert np.array_equal(plan.simulation(0).progress.parameters, start)
    assert len(plan.raw["simulation"]["initial_model_sha256"]) == 64


def test_declared_numbers_of_records_stay() -> None:
    """They are public constants; a client may have another number."""
    plan = resolve_apps({"task": TASK | {"clients": {"a": 100, "b": 7}}}, [app.with_records(arrays)] * 2)
    assert plan.task.clients == {"a": 100, "b": 7}
    assert {name: len(own) for name, own in plan.records.items()} == {"a": 40, "b": 40}


def run_app(own: precad.App, folder: Path, rounds: int = 1) -> precad.SimulationResult:
    """Simulate two clients with the same records."""
    return precad.simulate(TASK, clients=[own.with_records(own.records())] * 2, folder=folder, rounds=rounds)


def test_a_folder_is_continued_with_the_same_records_and_code_only(tmp_path: Path) -> None:
    """Records with one other value, another loss of the same name, other metrics, and no app at all are refused."""
    own, folder = replace(app, loss=confident, test=(ROWS[:5], SICK[:5])), tmp_path / "own"
    run_app(own, folder)
    assert run_app(own, folder, rounds=2).seeds[0].rounds == 2
    moved = ROWS.copy()
    moved[3, 1] += 1
    others = {
        "records": replace(own, records=lambda: (moved, SICK)),
        "loss": replace(own, loss=other_of_that_name()),
        "metrics": replace(own, metrics=["accuracy"]),
    }
    for name, other in others.items():
        with pytest.raises(precad.ConfigError, match=rf"expected the same records and .*: app\.{name}_sha256$"):
            run_app(other, folder, rounds=2)
    written = (folder / "config.toml").read_text()
    assert "sha256" in written
    with pytest.raises(precad.ConfigError, match="app: expected one of task, client, simulation"):
        precad.simulate(folder / "config.toml", folder=folder)


def other_of_that_name() -> Any:
    """A loss that is called as `confident` is."""
    found: dict[str, Any] = {"__name__": __name__}
    exec("def confident(model, record):\n    return 2 * model(record[0])[0, record[1][0]]\n", found)
    return found["confident"]


def test_a_task_knows_its_fields() -> None:
    with pytest.raises(precad.ConfigError, match=r"task\.round: expected no such key, found 3"):
        precad.Task(round=3)
    task = copy.deepcopy(TASK)
    precad.Task(**task)
    assert task == TASK
    changed = task | {"rounds": 7}
    assert (type(changed), changed["rounds"], changed["name"], task["rounds"]) == (precad.Task, 7, "own", 2)
    with pytest.raises(precad.ConfigError, match=r"task\.round: expected no such key, found 3"):
        task | {"round": 3}


def test_an_app_itself_is_no_name_that_other_processes_can_import() -> None:
    with pytest.raises(precad.ConfigError, match=r"app: expected module:name, .*, found a App"):
        precad.run(TASK, app=app, clients=2)  # type: ignore[arg-type]


def test_a_run_names_the_app_and_deals_its_records(tmp_path: Path) -> None:
    """Everything up to the start of processes: the task says which model it means, and servers get a name alone."""
    raw = with_app({"task": {**TASK, "clients": ["a", "b", "c"]}}, f"{__name__}:app")
    resolved, deployment, split = resolve(raw, RunFolder(tmp_path))
    assert (deployment.task.model, deployment.task.loss) == (f"{__name__}:app", f"{__name__}:app")
    assert deployment.task.model_digest == resolved["task"]["model_digest"] is not None
    assert sum(deployment.task.clients.values()) == len(split.train) == 40
    assert deployment.client is not None
    assert deployment.client.dealt
    learning = Learning.of_task(deployment.task, deployment.client.metrics)
    assert set(learning.metrics) == {"accuracy", "share_of_sick"}
    with pytest.raises(precad.ConfigError, match=f"task.loss: expected '{__name__}:app', of the app"):
        with_app({"task": {"loss": "mse"}}, f"{__name__}:app")
    with pytest.raises(precad.ConfigError, match=f"expected a precad.App at {__name__}:net, found a function"):
        with_app({"task": {}}, f"{__name__}:net")
    with pytest.raises(precad.ConfigError, match="app: expected module:name, found 'app'"):
        with_app({"task": {}}, "app")


@pytest.mark.parametrize("call", ['run(task, app="unguarded:app", clients=2)', "simulate(task, clients=[app, app])"])
def test_a_module_that_trains_while_clients_import_it_is_refused(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of its clients would start the training again, and so would theirs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "unguarded", raising=False)
    own = f"import precad\nfrom {__name__} import TASK as task, app\nprecad.{call}\n"
    Path("unguarded.py").write_text(own)
    with pytest.raises(ArgumentError, match="module 'unguarded' calls it while clients import it: put the call below"):
        precad.run(TASK, app="unguarded:app", clients=2)
    assert not Path("runs").exists()


def test_an_app_is_checked_and_simulated_by_the_flags_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file names neither app nor clients; an app in the file itself trains to the same model."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{name} = {json.dumps(value)}" for name, value in TASK.items()]
    Path("task.toml").write_text("\n".join(["[task]", *lines]))
    named = f'clients = 4\nmodel = "{__name__}:app"\nloss = "{__name__}:app"\n[client]\nholdout = 0.0'
    client = f'records = "{__name__}:app"\nmetrics = ["{__name__}:app"]'
    Path("named.toml").write_text("\n".join(["[task]", *lines, named, client]))
    flags, runner = ["--app", f"{__name__}:app", "--clients", "4"], CliRunner()
    for command in (["simulate", "task.toml", *flags, "--output", "a"], ["simulate", "named.toml", "--output", "b"]):
        done = runner.invoke(main.app, command)
        assert done.exit_code == 0, done.output
    one, other = (np.load(Path(name, "seed-0.npz"))["parameters"].tobytes() for name in "ab")
    assert one == other
    done = runner.invoke(main.app, ["check", "task.toml", *flags])
    assert "10 records each" in done.output
    for wrong, why in (
        (
            ["simulate", "named.toml", "--clients", "3"],
            "precad: --clients: expected none beside task.clients = 4, found 3",
        ),
        (
            ["simulate", "task.toml", *flags[:2]],
            "--clients: expected a number, or task.clients in task.toml",
        ),
        (["run", "task.toml", *flags[:2]], "--clients: expected a number, or task.clients in task.toml"),
        (["simulate", "--clients", "4"], "expected a file with a section task beside --app and --clients"),
    ):
        done = runner.invoke(main.app, wrong)
        assert (done.exit_code, why in done.output) == (2, True), done.output


def test_an_app_names_a_source_for_each_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the client's id, in a notebook, in local processes and at an organisation; without an id it names no file."""
    monkeypatch.chdir(tmp_path)
    for client, n in (("anna", 12), ("boris", 8)):
        lines = [",".join(map(str, [*row, label])) for row, label in zip(ROWS[:n].tolist(), SICK, strict=False)]
        Path(f"{client}.csv").write_text("\n".join(["a,b,c,sick", *lines]) + "\n")
    sizes, here = {"anna": 12, "boris": 8}, f"{__name__}:each"
    plan = resolve_apps({"task": TASK}, dict.fromkeys(sizes, each))
    assert {name: len(own) for name, own in plan.records.items()} == plan.task.clients == sizes
    _, deployment, _ = resolve(with_app({"task": {**TASK, "clients": [*sizes]}}, here), RunFolder(tmp_path))
    assert deployment.task.clients == sizes
    assert deployment.client is not None
    assert {name: len(own) for name, own in load_records(deployment.task, deployment.client, ["boris"]).items()} == {
        "boris": 8
    }
    config = ClientConfig.model_validate({"certificates": "c", "authority": "a"}, context={"base": tmp_path})
    own = client_of_app(deployment.task, config, here)
    found = records_here(deployment.task, own, ["anna", "boris"])
    assert [said.partition(" ")[0] for said in found.values()] == ["12", "8"]


def test_records_that_are_trained_and_measured_on_are_not_kept_for_testing() -> None:
    """`precad check` of a client says no other: it measures nothing, and need not have an app's test records."""
    named = small_task(model=f"{__name__}:app", loss=f"{__name__}:app", dim=26, clients={"a": 40, "b": 40})
    digest = model_digest(networks.of_task(named), torch.zeros(3), loss_of(named.loss))
    task = named.model_copy(update={"model_digest": digest})
    config = ClientConfig.model_validate({"certificates": "c", "authority": "a"}, context={"base": Path("/")})
    for name, said in (
        ("app", "40 of shape (3,) in 2 classes; declares"),
        ("tested", "40 of shape (3,) in 2 classes; declares"),
        ("public", "40 of shape (3,) in 2 classes; declares"),
    ):
        found = records_here(task, config.model_copy(update={"records": f"{__name__}:{name}"}), ["a"])
        assert found["a"].startswith(said)


def test_absent_test_records_are_called_by_their_name(tmp_path: Path) -> None:
    """In a notebook and in local processes, which measure on them."""
    raw = with_app({"task": {**TASK, "clients": ["a", "b", "c"]}}, f"{__name__}:public")
    for read in (lambda: resolve(raw, RunFolder(tmp_path)), lambda: resolve_apps({"task": TASK}, [public] * 2)):
        with pytest.raises(MissingDataError, match=r"^app\.test: expected a file or folder public\.csv, looked in "):
            read()


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ((ROWS[:2, :2], SICK[:2]), r"records of shape \(3,\), as in training, found \(2,\)"),
        ((ROWS[:2], DOSES[:2]), r"labels of shape \(\), as in training, found \(2,\)"),
        ((np.ones((2, 3), np.int64), SICK[:2]), "records of float32, as in training, found int64"),
    ],
)
def test_records_to_measure_on_are_of_the_training_s_shape(
    test: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook and in local processes, before the model is asked for anything of them."""
    other = precad.App(model=net, records=lambda: arrays, loss=any_label, test=test)
    monkeypatch.setattr(sys.modules[__name__], "other_shape", other, raising=False)
    raw = with_app({"task": {**TASK, "clients": ["a", "b", "c"]}}, f"{__name__}:other_shape")
    for read in (lambda: resolve(raw, RunFolder(tmp_path)), lambda: resolve_apps({"task": TASK}, [other] * 2)):
        with pytest.raises(OwnRecordsError, match=rf"^app\.test: expected {why}$"):
            read()


def test_classes_of_test_records_are_those_of_the_training(tmp_path: Path) -> None:
    """Even where some are absent: by an alphabet of their own, cat would be 1."""
    plan = resolve_apps({"task": TASK}, [zoo.with_records((ROWS, ANIMALS))] * 2)
    raw = with_app({"task": {**TASK, "clients": ["a", "b", "c"]}}, f"{__name__}:zoo")
    _, _, split = resolve(raw, RunFolder(tmp_path))
    for found in (plan.split.test, split.test):
        assert found.labels.tolist() == [2, 1]
    unknown = replace(zoo, records=(ROWS, ANIMALS), test=(ROWS[:2], np.array(["cat", "emu"])))
    with pytest.raises(OwnRecordsError, match=r"test, row 1 .*: expected one of the 3 classes .*, found another class"):
        resolve_apps({"task": TASK}, [unknown] * 2)


def test_a_client_takes_an_app_that_its_task_means() -> None:
    here = f"{__name__}:app"
    config = ClientConfig.model_validate({"certificates": "c", "authority": "a"}, context={"base": Path("/")})
    task = small_task(model=here, loss=here)
    assert client_of_app(task, config, here).records == here
    with pytest.raises(precad.ConfigError, match=f"task.loss: expected '{__name__}:app'.*found 'cross-entropy'"):
        client_of_app(small_task(model=here), config, here)


def test_a_client_that_forgets_its_app_trains_on_nothing_else(tmp_path: Path) -> None:
    """Without records, a client's are those of a public data set, which it must then name."""
    here, path = f"{__name__}:app", tmp_path / "client.toml"
    task = small_task(model=here, loss=here, dim=26, clients={"a": 40, "b": 40}).model_dump(exclude_none=True)
    raw: dict[str, Any] = {"task": task, "network": {name: f"localhost:{i}" for i, name in enumerate(NETWORK, 1)}}
    raw["client"] = {"certificates": "c", "authority": "a"}
    path.write_text(tomli_w.dumps(raw))
    with pytest.raises(precad.ConfigError, match=f"^client.records: expected records, or --app {here} as task.model"):
        load_with_app(path, None)
    raw["client"]["dataset"] = "digits"
    path.write_text(tomli_w.dumps(raw))
    assert load_with_app(path, None).task.model == here


def test_a_model_of_another_dimension_is_refused_at_the_client() -> None:
    """Before a connection: two organisations have different modules of that name."""
    here = f"{__name__}:app"
    config = ClientConfig.model_validate({"certificates": "c", "authority": "a"}, context={"base": Path("/")})
    task = small_task(model=here, loss=here, dim=27, clients={"a": 40, "b": 40})
    with pytest.raises(ArgumentError, match=f"^task.dim: expected 26, of model '{here}', found 27$"):
        records_here(task, client_of_app(task, config, here), ["a"])


HOSPITAL = """
import sys
import numpy as np
import precad
from torch import nn

with open("importers", "a") as file:
    file.write(f"{' '.join(sys.argv[1:2])}\\n")

def records():
    rows = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
    return rows, (rows.sum(axis=1) > 0).astype(np.int64)

app = precad.App(model=lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), records=records)
"""


@pytest.mark.slow
def test_an_app_trains_over_real_processes_and_no_server_imports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a folder that also has `clients/`, `mpc/` and `dp/` of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "hospital_of_one.py").write_text(HOSPITAL)
    for hostile in ("clients", "mpc", "dp", "servers"):
        (tmp_path / hostile).mkdir()
        (tmp_path / hostile / "__init__.py").write_text("raise RuntimeError('taken for ours')\n")
    found = precad.run(TASK, "runs/own", app="hospital_of_one:app", clients=3)
    assert (found.rounds, found.accepted, found.rejected) == (2, 6, 0)
    assert found.accuracy is not None
    assert sum(own.numel() for own in found.load_model().parameters()) == 16 + 10
    importers = (tmp_path / "importers").read_text().splitlines()[1:]  # without this process
    assert importers == ["client"] * 3
