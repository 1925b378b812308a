"""Own records in a configuration: dealt in a local run, each client's own in a deployment, told by `precad check`."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from numpy.testing import assert_array_equal

import precad
from precad.clients import own_code
from precad.clients.config import ClientConfig
from precad.clients.errors import DataError, ModelImportError, ModelInputError
from precad.clients.loading import load_records
from precad.clients.models import networks
from precad.clients.models.fingerprint import model_digest
from precad.clients.records import Records
from precad.deploy.cli import main as cli
from precad.deploy.configuration.check_records import local_records
from precad.deploy.configuration.demo import demo_config
from precad.deploy.configuration.local import draft, resolve
from precad.deploy.configuration.sections import Deployment, load, parse, read_local, read_toml
from precad.deploy.errors import ConfigError
from precad.deploy.run_files.folder import RunFolder
from precad.mpc.convex_set import ConvexSet
from precad.protos.tls.identity import Role
from tests.harness.command_line import CliRunner
from tests.harness.hospital import hospital, patients, write_csv
from tests.harness.organisations import CLIENTS, OF_THE_TABLE, OWN_RECORDS, Organisations


@pytest.fixture(autouse=True)
def _own_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this test's modules are looked for is forgotten after it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_code, "_BESIDE", [])
    monkeypatch.setattr(own_code, "_LEFT_OUT", [])


def test_a_kit_s_folder_brings_no_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its maker names the model, and packed the folder that lies where `precad join` is called."""
    (tmp_path / "ward-1").mkdir()
    (tmp_path / "ward-1" / "brought.py").write_text(
        "import pathlib, torch\npathlib.Path('ran').touch()\ndef net():\n    return torch.nn.Linear(2, 2)\n"
    )
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "client.toml").write_text('own = "own.toml"\n')
    monkeypatch.chdir(tmp_path)
    read_toml(tmp_path / "etc" / "client.toml")
    with pytest.raises(ModelImportError, match="No module named 'ward-1'"):
        networks.build("ward-1.brought:net")
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the configuration, while the current folder is another one."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = tmp_path / "hospital"
    folder.mkdir()
    return folder


def rows(*parts: Records) -> list[tuple[bytes, int]]:
    """Records as a sorted list, to compare as multisets."""
    return sorted((x.tobytes(), int(y)) for part in parts for x, y in zip(part.features, part.labels, strict=True))


def resolved(config: Path) -> tuple[dict, Deployment, object]:
    return resolve(read_local(config), RunFolder(config.parent / "run"))


def test_a_local_run_deals_one_source_over_its_clients(elsewhere: Path) -> None:
    """Every process of it finds its part: together all that the runner does not keep for testing, each once."""
    raw, deployment, split = resolved(hospital(elsewhere, "own_dealt"))
    task, client = deployment.task, deployment.client
    assert (task.class_names, task.record_shape) == (["ill", "well"], [4])
    assert len(split.train) + len(split.test) == 400
    assert 40 <= len(split.test) <= 120
    parts = {name: load_records(task, client, [name])[name] for name in task.clients}
    assert {name: len(part) for name, part in parts.items()} == task.clients
    assert rows(*parts.values()) == rows(split.train)
    again = parse(raw, base=elsewhere / "run")  # what the run folder holds
    assert again.task.digest() == task.digest()
    assert rows(load_records(again.task, again.client, ["a"])["a"]) == rows(parts["a"])


def test_each_client_may_have_its_own_file_in_a_local_run(elsewhere: Path) -> None:
    """As each organisation has its own in a deployment, with the same records to train on."""
    config = hospital(elsewhere, "own_files", records="csv:{client}.csv")
    for i, name in enumerate("abcd"):
        write_csv(elsewhere / f"{name}.csv", patients(30 + i, seed=i))
    _, deployment, split = resolved(config)
    found = load_records(deployment.task, deployment.client, list("abcd"))
    assert {name: len(part) for name, part in found.items()} == deployment.task.clients
    assert rows(*found.values()) == rows(split.train)
    for name in "abcd":
        alone = ClientConfig(
            certificates=Path(), authority=Path(), records=f"csv:{elsewhere / name}.csv", label="diagnosis", holdout=0.2
        )
        own = load_records(deployment.task, alone, [name])[name]
        assert_array_equal(own.features, found[name].features)
        assert_array_equal(own.labels, found[name].labels)


def test_a_training_on_own_records_in_this_process(elsewhere: Path) -> None:
    """Train on the file and folder of `precad run`, hostile folders in it: far better than a coin after six rounds."""
    found = precad.simulate(hospital(elsewhere, "own_simulated"), folder=elsewhere.parent / "out")
    assert found.seeds[0].accuracy > 0.85


def test_several_clients_of_one_process_need_a_source_each(elsewhere: Path) -> None:
    _, deployment, _ = resolved(hospital(elsewhere, "own_several"))
    shared = deployment.client.model_copy(update={"dealt": False})
    with pytest.raises(
        DataError, match=r"client\.records: expected \{client\} in it, as 2 clients have records of the"
    ):
        load_records(deployment.task, shared, ["a", "b"])


def test_organisations_must_agree_on_classes(elsewhere: Path) -> None:
    """Without names in the task, a client does not number classes by itself; other names do not fit the model."""
    config = hospital(elsewhere, "own_agreed")
    _, deployment, _ = resolved(config)
    alone = deployment.client.model_copy(update={"dealt": False})
    unnamed = deployment.task.model_copy(update={"class_names": []})
    with pytest.raises(DataError, match=r"task\.class_names: expected the names of the classes"):
        load_records(unnamed, alone, ["a"])
    three = deployment.task.model_copy(update={"class_names": ["ill", "well", "dead"]})
    with pytest.raises(ModelInputError, match="expected 3 logits, one for each class, found 2"):
        load_records(three, alone, ["a"])


def test_a_deployment_that_is_read_knows_its_folder(tmp_path: Path) -> None:
    """Paths and modules are looked for beside the configuration."""
    made = organisations(tmp_path, 'records = "csv:patients.csv"\nlabel = "diagnosis"')
    assert load(made.config(Role.CLIENT)).client.folder == made.folder(Role.CLIENT)


def organisations(folder: Path, sections: str) -> Organisations:
    made = Organisations.create(folder)
    model = {
        'model = "torch.nn:Linear"': 'model = "own_checked:net"\nclass_names = ["well", "ill"]',
        "dim = 14": "dim = 67",
    }
    made.write_configs(replaced={**OF_THE_TABLE, **model, OWN_RECORDS: sections})
    return made


def test_precad_check_says_what_a_client_has(tmp_path: Path) -> None:
    """Count, shape, classes, what is kept aside, and what a round draws on average; and makes nothing."""
    made = organisations(tmp_path, 'records = "csv:{client}.csv"\nlabel = "diagnosis"\nholdout = 0.25')
    here = made.folder(Role.CLIENT)
    (here / "own_checked.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Linear(2, 13), nn.Linear(13, 2))\n"
    )
    for i, name in enumerate(CLIENTS):
        lines = [f"{j},{j % 7},{'ill' if j % 3 else 'well'}" for j in range(40 + i)]
        (here / f"{name}.csv").write_text("\n".join(["x,y,diagnosis", *lines]) + "\n")
    result = CliRunner().invoke(cli.app, ["check", str(made.config(Role.CLIENT))])
    digest = model_digest(networks.build("own_checked:net"), torch.zeros(2))
    assert (result.exit_code, result.output.count("\n")) == (2, 1)
    assert (
        "task.model_digest: expected the digest of own_checked:net, which clients compare, found none" in result.output
    )
    assert f'every organisation sets model_digest = "{digest}"' in result.output
    text = made.config(Role.CLIENT).read_text()
    made.config(Role.CLIENT).write_text(text.replace("[task]\n", f'[task]\nmodel_digest = "{digest}"\n', 1))
    result = CliRunner().invoke(cli.app, ["check", str(made.config(Role.CLIENT)), "--json"])
    assert result.exit_code == 0, result.output
    whole = json.loads(result.stdout)
    assert whole["noise_multiplier"] == load(made.config(Role.CLIENT)).task.noise_multiplier
    assert re.match(r"after \d+ rounds epsilon <= \d", whole["privacy"])
    task, said = load(made.config(Role.CLIENT)).task, json.loads(result.stdout)["clients"]["records"]
    for name in CLIENTS:
        n = int(said[name].split()[0])
        n_test = 40 + CLIENTS.index(name) - n
        assert 1 <= n_test <= 20
        assert said[name] == (
            f"{n} of shape (2,) in 2 classes (well, ill), {n_test} more kept for testing; "
            f"declares {task.clients[name]}; a round draws {n * task.record_rate:g} on average; "
            "task.columns is not set: features are 2 columns in the file's order, SHA-256 9ab9de25768ac172"
        )
    assert not (here / "state").exists()
    made.config(Role.CLIENT).write_text(made.config(Role.CLIENT).read_text().replace("csv:{client}", "csv:hospital-1"))
    result = CliRunner().invoke(cli.app, ["check", str(made.config(Role.CLIENT))])
    assert (result.exit_code, "expected {client} in it, as 3 clients" in result.output) == (2, True), result.output
    made.config(Role.CLIENT).write_text(made.config(Role.CLIENT).read_text().replace("csv:hospital-1", "csv:{client}"))
    (here / f"{CLIENTS[0]}.csv").write_text("x,y,diagnosis\n1,2,ill\n3,sekret,well\n")
    result = CliRunner().invoke(cli.app, ["check", str(made.config(Role.CLIENT))])
    assert result.exit_code == 2
    assert f"{here / CLIENTS[0]}.csv, row 3, column 'y': expected a number" in result.output
    assert "sekret" not in result.output


def test_directions_of_a_local_run_are_beside_its_file(elsewhere: Path) -> None:
    """Not in the current folder, where another file has their name; `precad check` and `simulate` read it alike."""
    directions = np.array([[0] * 4160 + [100] * 650])
    np.save(elsewhere / "directions.npy", directions)
    Path("directions.npy").write_bytes(b"another")
    config = elsewhere / "task.toml"
    raw = demo_config(n_clients=4)
    cut = {"half_spaces": [-60.0], "directions": "directions.npy", "accept_weak_wire_form": True}
    raw["task"] |= {"mode": "masked", **cut}
    config.write_text(tomli_w.dumps(raw))
    task = resolved(config)[1].task
    assert task.directions == elsewhere / "directions.npy"
    assert isinstance(task.update_set, ConvexSet)
    assert_array_equal(task.update_set.half_spaces[0].direction, directions[0])
    draft(read_local(config), RunFolder(elsewhere / "run"))
    (elsewhere / "directions.npy").unlink()
    with pytest.raises(ConfigError, match=f"task.directions: expected a .npy file, found {elsewhere}"):
        draft(read_local(config), RunFolder(elsewhere / "run"))


def test_a_section_that_no_source_fits_is_named(elsewhere: Path) -> None:
    """Faults of own records are told first: there is no other data set to check the rest with."""
    raw = read_local(hospital(elsewhere, "own_faulty"))
    raw["client"]["holdout"] = 1.5
    with pytest.raises(ConfigError, match=r"client\.holdout: expected less than 1, found 1\.5"):
        resolve(raw, RunFolder(elsewhere / "run"))
    raw = read_local(elsewhere / "task.toml")
    raw["task"]["columns"]["age"]["std"] = 0
    with pytest.raises(ConfigError, match=r"task\.columns\.age\.std: expected greater than 0, found 0"):
        resolve(raw, RunFolder(elsewhere / "run"))


def test_a_folder_that_is_no_text_is_refused_where_its_files_would_be_named(tmp_path: Path) -> None:
    """Refuse what TOML, and so the run's own configuration, cannot hold."""
    folder = tmp_path / os.fsdecode(b"K\xf6ln")
    folder.mkdir()
    (folder / "task.toml").write_text('[task]\nmodel = "my_model:net"\n')
    with pytest.raises(ConfigError, match="in a folder whose path is text in this locale, found other bytes"):
        read_local(folder / "task.toml")
    (folder / "task.toml").write_text('[task]\nmodel = "mlp"\n')
    assert read_local(folder / "task.toml")["task"] == {"model": "mlp"}


def test_the_test_share_does_not_depend_on_who_else_is_there(elsewhere: Path) -> None:
    """One patient more, in front of all others: everybody else stays where they are."""
    config = hospital(elsewhere, "own_shares")
    before = resolved(config)[2]
    write_csv(elsewhere / "patients.csv", ["77,141.5,f,ill", *patients(400)])
    after = resolved(config)[2]
    changed = {name: len(rows(getattr(after, name))) - len(rows(getattr(before, name))) for name in ("train", "test")}
    assert sorted(changed.values()) == [0, 1]
    assert set(rows(before.train)) <= set(rows(after.train))
    assert set(rows(before.test)) <= set(rows(after.test))
    assert np.isfinite(after.train.features).all()


@pytest.mark.parametrize("mode", ["masked", "proved"])
def test_the_check_of_a_local_run_names_a_dealer_where_there_is_one(mode: str, tmp_path: Path) -> None:
    """In mode `proved` neither that nor a gate."""
    said = local_records(demo_config(n_clients=8, rounds=1, seed=0, mode=mode), tmp_path)["runs_here"]
    assert "two aggregators, 8 clients" in said
    assert ("a dealer, " in said) is ("; gate " in said) is (mode == "masked")


BAD_CODE = {
    "the_factory_raises": ("def net():\n    raise LookupError('sekret')\n", "calling it raises LookupError"),
    "it_calls_itself": ("def net():\n    return net()\n", "calling it raises RecursionError"),
    "it_ends_the_process": ("def net():\n    raise SystemExit('sekret')\n", "calling it raises SystemExit"),
    "an_error_of_no_words": ("        assert False\n", r"does not fit records of shape \(4,\): AssertionError"),
    "a_name_that_is_not_there": ("        return nowhere(x)\n", r"NameError: name 'nowhere' is not defined"),
    "another_answer_each_time": ("        return super().forward(x) + time.monotonic_ns() % 997\n", "draws or keeps"),
    "no_gradient": ("        return super().forward(x).detach()\n", "it has no gradient"),
}
"""A model's function, or the body of its forward pass, and what is said of it."""


@pytest.mark.parametrize("name", BAD_CODE)
def test_check_tries_the_model_as_a_clients_start_does(name: str, elsewhere: Path) -> None:
    """In one line, exit code 2: whatever a user's code raises is no defect of ours."""
    code, why = BAD_CODE[name]
    module = f"own_{name}"
    config = hospital(elsewhere, module)
    forward = "import time\nfrom torch import nn\nclass net(nn.Linear):\n    def __init__(self):\n"
    forward += "        super().__init__(4, 2)\n    def forward(self, x):\n"
    (elsewhere / f"{module}.py").write_text(code if code.startswith("def") else forward + code)
    result = CliRunner().invoke(cli.app, ["check", str(config)])
    assert result.exit_code == 2, result.output
    assert re.fullmatch(rf"precad: [^\n]*{why}[^\n]*\n", result.output), result.output
    assert "sekret" not in result.output


def test_a_check_says_whose_records_are_trained_on_and_which_classes_have_none(tmp_path: Path) -> None:
    """Where nobody chose any, the default is named as one; a file of one class has no second one."""
    raw = demo_config(n_clients=4, rounds=1, seed=0, mode="masked")
    raw["client"] = {}
    assert local_records(raw, tmp_path)["data"] == "digits, the default: client names neither dataset nor records"
    (tmp_path / "one.csv").write_text("a,b,label\n" + "".join(f"{i},{-i},0\n" for i in range(40)))
    raw["client"] = {"records": f"csv:{tmp_path / 'one.csv'}", "label": "label"}
    raw["task"] |= {"model": "torch.nn:Linear", "model_arguments": {"in_features": 2, "out_features": 2}}
    said = local_records(raw, tmp_path)
    assert said["data"] == "csv:one.csv"
    assert "in 2 classes, 1 of them without a record" in said["records"]
