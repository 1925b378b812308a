"""Kits name the organisations' own model and loss by digest, without anybody's asking; a client with others is told.

Failure means: an operator in a hurry trains on two models of equal shapes, and nobody says so.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w
import torch
from torch import nn

from precad.clients import own_code
from precad.clients.models import networks
from precad.clients.models.adapter_files import write_adapter
from precad.clients.models.safetensors_file import write_tensors
from precad.deploy import errors
from precad.deploy.provisioning.manifest import MANIFEST
from tests.harness.command_line import in_a_process
from tests.harness.kits import PARTICIPANTS, SERVERS, Project, precad, tried

ADDRESSES = {"aggregator-a": "127.0.0.1:9", "aggregator-b": "127.0.0.1:10", "lane": "127.0.0.1:11"}
MODEL = """
from torch import nn
from torch.nn import functional


def net():
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))


def loss(model, record):
    features, label = record
    return functional.cross_entropy(model(features), label)
"""
OF_OURS = {
    'model = "torch.nn:Linear"': 'model = "MODULE:net"',
    "model_arguments = { in_features = 6, out_features = 2 }\n": "",
    "dim = 14": "dim = 38",
}
ADAPTED = """
from torch import nn

import precad


def net():
    base = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    return precad.lora(base, rank=2, targets=["0", "2"])
"""
OF_ADAPTERS = {"dim = 38": "dim = 12"}
OWN_LOSS = {'loss = "cross-entropy"': 'loss = "MODULE:loss"'}
NO_COLUMNS = {re.escape("columns = {"): "# columns = {"}
NO_NAMES = {"class_names = ": "# class_names = "}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything up to the requests, which take a while."""
    project = Project(tmp_path_factory.mktemp("organisations") / "one", precad)
    project.begin(ADDRESSES)
    project.request()
    return project.root


@pytest.fixture
def project(asked: Path, tmp_path: Path) -> Project:
    shutil.copytree(asked, tmp_path / "one")
    return Project(tmp_path / "one", precad)


def bring(project: Project, module: str, *further: dict[str, str]) -> Path:
    """Let the task mean a module of the owner's. Each test has a name of its own: Python imports one of a name."""
    for changes in (OF_OURS, *further):
        for old, new in changes.items():
            path = project.start / "task.toml"
            text, n = re.subn(rf"(?m)^{old}", new.replace("MODULE", module), path.read_text())
            assert n == 1, old
            path.write_text(text)
    (project.start / f"{module}.py").write_text(MODEL)
    return project.start / f"{module}.py"


def provisioned(project: Project) -> tuple[int, str]:
    return tried("provision", project.start / "project.toml", "--out", project.root / "kits")


def digests_of(project: Project) -> set[str]:
    """Return the digests that kits name: in their task, and in what is signed."""
    kits = [project.root / "kits" / who for who in PARTICIPANTS]
    tasks = [tomllib.loads((kit / "task.toml").read_text())["task"] for kit in kits]
    tasks += [json.loads((kit / MANIFEST).read_bytes())["task"] for kit in kits]
    return {task["model_digest"] for task in tasks}


def test_a_client_with_other_code_is_told_before_it_starts(project: Project) -> None:
    """Equal names and shapes of parameters. One line, exit code 2; whoever has the same code may start.

    One of them is a process of its own, which takes six seconds.
    """
    bring(project, "ward", OWN_LOSS)
    digest = project.provision()
    project.give_records()
    kit = tomllib.loads((project.kit("hospital-1") / "task.toml").read_text())["task"]["model_digest"]
    other_model, other_loss = MODEL.replace("Tanh", "ReLU"), MODEL.replace("), label)", "), label) * 2")
    said = {}
    for client, code in {"hospital-1": MODEL, "hospital-2": other_model, "hospital-3": other_loss}.items():
        (project.home(client) / client / "ward.py").write_text(code)
        if client == "hospital-3":
            joined = in_a_process(project.home(client).parent, *project.join(client, digest), "--no-start")
            said[client] = joined.returncode, joined.stderr.splitlines()[-1]
        else:
            said[client] = elsewhere(project.home(client).parent, *project.join(client, digest), "--no-start")
    assert said["hospital-1"][0] == 0
    for client in ("hospital-2", "hospital-3"):
        code, line = said[client]
        assert code == errors.INVALID_INPUT
        assert re.match(rf"precad: task\.model_digest: expected {kit}, found [0-9a-f]{{64}} of 'ward:net' here", line)
    assert said["hospital-2"] != said["hospital-3"]


def elsewhere(folder: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code and the last line of a command in a folder, in this process, which forgets `ward`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", [place for place in sys.path if not Path(place).is_relative_to(folder.parent)])
        patch.setattr(own_code, "_BESIDE", [])
        patch.delitem(sys.modules, "ward", raising=False)
        code, said = tried(*arguments)
        sys.modules.pop("ward", None)
    return code, said.splitlines()[-1]


def test_kits_keep_the_owner_s_comments_and_say_whose_digest_it_is(project: Project) -> None:
    bring(project, "commented_ward")
    before = (project.start / "task.toml").read_text()
    code, said = provisioned(project)
    assert code == 0, said
    (digest,) = digests_of(project)
    assert f"model digest       {digest}: a client with other code is refused" in said
    written = (project.root / "kits" / SERVERS[0] / "task.toml").read_text().splitlines()
    assert [line for line in written if line not in before.splitlines()] == [
        f'model_digest = "{digest}"  # by precad provision, of the code beside the project'
    ]
    assert (project.start / "task.toml").read_text() == before
    assert not list((project.root / "kits").rglob("*.py"))


def test_a_task_in_another_form_of_toml_gets_the_digest_too(project: Project) -> None:
    bring(project, "inline_ward")
    path = project.start / "task.toml"
    fields = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps({"network": fields["network"]}) + "\n" + dotted(fields["task"]))
    code, said = provisioned(project)
    assert code == 0, said
    assert len(digests_of(project)) == 1


def dotted(task: dict[str, object]) -> str:
    """Write `[task]` as `["task"]`, which is the same."""
    return tomli_w.dumps({"task": task}).replace("[task", '["task"')


def test_pytorch_s_own_model_needs_no_digest(project: Project) -> None:
    code, said = provisioned(project)
    assert (code, "model digest" in said) == (0, False)


def set_digest(project: Project) -> None:
    text = (project.start / "task.toml").read_text()
    (project.start / "task.toml").write_text(text.replace("[task]\n", f'[task]\nmodel_digest = "{64 * "0"}"\n'))


def narrower(project: Project) -> None:
    path = next(project.start.glob("*_ward.py"))
    path.write_text(MODEL.replace("(6, 4)", "(5, 4)"))


def of_images(project: Project) -> None:
    """The owner says the shape, and no columns."""
    path = project.start / "task.toml"
    text = path.read_text().replace("# record_shape = [6]", "record_shape = [2, 3]")
    path.write_text(text)
    module = next(project.start.glob("*_ward.py"))
    module.write_text(MODEL.replace("nn.Sequential(", "nn.Sequential(nn.Flatten(), "))


Changed = Callable[[Project], object]


def example(source: str) -> Changed:
    def named(project: Project) -> None:
        path = project.start / "project.toml"
        path.write_text(path.read_text().replace("[project]\n", f'[project]\nexample = "{source}"\n'))
        header, *rows = (project.start / "client" / "records.csv").read_text().splitlines()
        columns = [index for index, name in enumerate(header.split(",")) if name not in ("sex", "smoker")]
        numbers = [[row.split(",")[index] for index in columns] for row in (header, *rows)]
        (project.start / "numbers.csv").write_text("\n".join(map(",".join, numbers)) + "\n")

    return named


@pytest.mark.parametrize(
    ("module", "further", "change", "words"),
    [
        ("unknown_ward", NO_COLUMNS, None, "neither project.example nor task.columns says what a record looks like"),
        ("unlabelled_ward", OWN_LOSS | NO_NAMES, None, "nor task.class_names says what a label looks like"),
        ("absent_ward", {}, lambda p: (p.start / "absent_ward.py").unlink(), "Set what precad check says where"),
        ("other_ward", {}, set_digest, "of other_ward:net beside the project, found 0000"),
        (
            "shaped_ward",
            {},
            lambda p: Project.replace(p.start / "shaped_ward.py", {"(6": "(5"}),
            "fit records of shape",
        ),
        ("raising_ward", {}, lambda p: (p.start / "raising_ward.py").write_text("raise OSError"), "raises OSError"),
        ("missing_ward", {}, example("csv:nothing.csv"), "project.example: expected a file or folder nothing.csv"),
    ],
)
def test_a_project_whose_code_nobody_could_compare_is_refused(
    project: Project, module: str, further: dict[str, str], change: Changed | None, words: str
) -> None:
    """Exit code 2, one line that says what to do, and no kits."""
    bring(project, module, further)
    if change is not None:
        change(project)
    code, said = provisioned(project)
    assert (code, words in said) == (errors.INVALID_INPUT, True), said
    assert said.count("\n") == 1
    assert not (project.root / "kits").exists()


@pytest.mark.parametrize(
    ("module", "further", "change"),
    [
        ("images_ward", NO_COLUMNS, of_images),
        ("labelled_ward", OWN_LOSS, lambda p: None),
        ("example_ward", OWN_LOSS, example("csv:client/records.csv")),
    ],
)
def test_the_form_of_a_record_is_declared_or_an_example_s(
    project: Project, module: str, further: dict[str, str], change: Changed
) -> None:
    bring(project, module, further)
    change(project)
    code, said = provisioned(project)
    assert code == 0, said
    assert len(digests_of(project)) == 1


def test_a_digest_whose_code_is_elsewhere_is_the_clients_to_compare(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner has the initial model alone."""
    path = bring(project, "elsewhere_ward")
    start = project.start / "task.toml"
    project.type("initial-model", start, project.start / "initial.npy")
    path.unlink()
    monkeypatch.delitem(sys.modules, "elsewhere_ward")
    set_digest(project)
    Project.replace(project.start / "project.toml", {"[project]\n": '[project]\ninitial_model = "initial.npy"\n'})
    code, said = provisioned(project)
    assert code == 0, said
    assert digests_of(project) == {64 * "0"}


def adapted_project(project: Project, module: str) -> None:
    """Let the task mean adapters of a base that each client has, and constants that the owner made once."""
    bring(project, module, OF_ADAPTERS)
    (project.start / f"{module}.py").write_text(ADAPTED)
    with torch.random.fork_rng():
        base = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2))
    write_tensors(project.start / "public.safetensors", base.state_dict(), {})
    digest = hashlib.sha256((project.start / "public.safetensors").read_bytes()).hexdigest()
    set_task(project, f'base_model_sha256 = "{digest}"')
    path = project.start / "project.toml"
    path.write_text(path.read_text().replace("[client]\n", '[client]\nbase_model = "public.safetensors"\n', 1))
    assert "base_model" in path.read_text()


def set_task(project: Project, line: str) -> None:
    path = project.start / "task.toml"
    path.write_text(path.read_text().replace("[task]\n", f"[task]\n{line}\n", 1))


def make_constants(project: Project, name: str) -> str:
    """Return the digest of the constants that the owner writes."""
    network = networks.build(f"{name}:net", seed=4)
    return write_adapter(project.start / "adapter.safetensors", network)


def test_kits_carry_the_adapters_constants_which_the_manifest_signs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each machine would draw others. The base is each client's own, and in no kit; a changed file is refused."""
    adapted_project(project, "adapted_ward")
    monkeypatch.syspath_prepend(project.start)
    set_task(project, f'adapter_sha256 = "{make_constants(project, "adapted_ward")}"')
    agreed = project.provision()
    made = (project.start / "adapter.safetensors").read_bytes()
    assert {(project.kit(who) / "adapter.safetensors").read_bytes() for who in PARTICIPANTS} == {made}
    assert not list((project.start / "kits").rglob("public.safetensors"))
    project.give_records()
    home = project.home("hospital-1")
    for name in ("adapted_ward.py", "public.safetensors"):
        shutil.copy(project.start / name, home.parent / name)
    monkeypatch.chdir(home.parent)
    code, said = tried(*project.join("hospital-1", agreed), "--no-start")
    assert code == 0, said
    changed = bytearray(made)
    changed[-1] ^= 1
    (project.kit("hospital-2") / "adapter.safetensors").write_bytes(changed)
    code, said = tried(*project.join("hospital-2", agreed), "--no-start")
    assert (code, "adapter.safetensors" in said) == (errors.INVALID_INPUT, True), said


def test_adapters_without_a_file_of_their_constants_are_no_project(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted_project(project, "drawn_ward")
    monkeypatch.syspath_prepend(project.start)
    code, said = provisioned(project)
    assert (code, "task.adapter_sha256: expected the digest of a file that precad adapter writes" in said) == (2, True)
    assert not (project.root / "kits").exists()
