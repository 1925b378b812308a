"""Adapters trained by simulation, by clients with shipped constants, and over real processes up to an export."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import precad
from precad.clients import own_code
from precad.clients.config import ClientConfig
from precad.clients.errors import AdapterError, UnnamedModelError
from precad.clients.loading import load_records
from precad.clients.models import networks
from precad.clients.models.adapter_files import write_adapter
from precad.clients.models.adapters import adapted
from precad.clients.models.safetensors_file import write_tensors
from precad.clients.process import Trainer
from precad.clients.records import Records
from precad.clients.training.conduct import Honest
from precad.clients.upload.session import ClientSession
from precad.deploy.exporting.adapters import CONFIG, WEIGHTS
from precad.deploy.exporting.export import export, source_of
from precad.lab.simulation import SeededRandomness
from precad.protos.task.task import Task
from precad.protos.tls.identity import AGGREGATORS
from tests.harness.adapted_models import Attention, small, texts
from tests.harness.harness import asynchronous, running
from tests.harness.pki import Pki

RANK, N_CLIENTS = 4, 4
MODEL = "tests.harness.adapted_models:small"
FIELDS = {
    "name": "adapters",
    "rounds": 6,
    "client_rate": 1.0,
    "record_rate": 1.0,
    "record_clip": 0.5,
    "client_clip": 60.0,
    "noise_multiplier": 0.02,
    "learning_rate": 6.0,
    "gate": "native",
}
MODULE = """
import precad
from tests.harness.adapted_models import small, texts

def records():
    own = texts(80, seed=1)
    return own.features, own.labels

app = precad.App(model=small, records=records)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_code, "_BESIDE", [])
    monkeypatch.setattr(own_code, "_OFFERED", [own_code.USUAL_ADAPTER])
    return tmp_path


def pair(own: Records) -> tuple[np.ndarray, np.ndarray]:
    return own.features, own.labels


def simulated(config: Mapping[str, object], folder: str) -> tuple[float, np.ndarray, torch.nn.Module]:
    app = precad.App(model=small, test=pair(texts(150, seed=99)))
    apps = [app.with_records(pair(texts(60, seed=i))) for i in range(N_CLIENTS)]
    found = precad.simulate(config, clients=apps, folder=folder).seeds[0]
    return found.accuracy, found.parameters(), found.load_model()


def test_adapters_learn_and_the_base_stays(folder: Path) -> None:
    """The vector is B alone; the base and A of the trained model are those of its start, bit by bit."""
    accuracy, parameters, model = simulated({"task": {**FIELDS, "rounds": 30}}, "all")
    start = networks.build(small)
    features, labels = pair(texts(150, seed=99))
    before = float((start.eval()(torch.from_numpy(features)).argmax(1).numpy() == labels).mean())
    assert parameters.size == RANK * (16 + 16 + 3)
    assert accuracy > before + 0.1
    trained = dict(model.named_buffers())
    assert all(torch.equal(trained[name], value) for name, value in start.named_buffers())


def test_a_smaller_rank_moves_the_first_columns_alone(folder: Path) -> None:
    """The vector has the task's length; noise moves all of it, so here there is none to speak of."""
    fields = {**FIELDS, "noise_multiplier": 3e-4, "rounds": 1}
    _, whole, model = simulated({"task": fields}, "whole")
    _, part, _ = simulated({"task": fields, "client": {"adapter_rank": 2}}, "part")
    assert part.size == whole.size
    n = 0
    for layer in adapted(model).layers():
        size = layer.B.weight.numel()
        own, all_of_it = (vector[n : n + size].reshape(-1, RANK) for vector in (part, whole))
        assert np.abs(own[:, 2:]).max() < 1e-3 < np.abs(own[:, :2]).max()
        assert np.abs(all_of_it[:, 2:]).max() > 1e-3
        n += size


@pytest.mark.parametrize("mode", ["masked", "proved"])
@asynchronous
async def test_clients_of_different_ranks_pass_the_same_check(mode: str, tmp_path: Path) -> None:
    """Two servers without noise open the sum of both updates; the smaller one has zeros in the last columns."""
    ranks = {"anna": RANK, "boris": 2}
    pki = Pki.create(tmp_path / "pki", tuple(ranks))
    task = Task.model_validate(
        {
            **{name: value for name, value in FIELDS.items() if name != "gate"},
            **({"gate": "native"} if mode == "masked" else {}),
            "rounds": 1,
            "lost_rounds": 1,
            "mode": mode,
            "clients": dict.fromkeys(ranks, 20),
            "model": MODEL,
            "dim": RANK * 35,
        }
    )
    trainers = {
        client: Trainer(
            task=task,
            records={client: texts(20, seed=rank)},
            conducts={client: Honest()},
            device="cpu",
            adapter_rank=rank,
        )
        for client, rank in ranks.items()
    }
    nothing = (lambda std, dim: np.zeros(dim, dtype=np.int64),) * 2
    async with running(task, pki, tmp_path, noises=nothing) as deployment:
        sessions = [
            ClientSession(
                client=client,
                task=task,
                addresses=deployment.addresses,
                tls=pki.tls(client),
                train=functools.partial(trainer.train, client),
                conduct=Honest(),
            )
            for client, trainer in trainers.items()
        ]
        await asyncio.gather(*(session.run() for session in sessions))
        await deployment.finish()
    (record,) = deployment.rounds(1)
    assert (record["accepted"], record["rejected"]) == (sorted(ranks), [])
    start = np.zeros(task.dim, dtype=np.float32)
    updates = {client: trainer.update(client, start) for client, trainer in trainers.items()}
    columns = updates["boris"].reshape(-1, RANK)
    assert np.abs(columns[:, :2]).max() > 0.0 == np.abs(columns[:, 2:]).max()
    moved = np.load(tmp_path / AGGREGATORS[0] / "model.npy")
    expected = (updates["anna"] + updates["boris"]) * task.learning_rate / task.divisor
    np.testing.assert_allclose(moved, expected, atol=1e-4)


def test_clients_train_on_the_constants_that_the_task_names(folder: Path) -> None:
    """Update for update that of a model which holds base and A itself; refused where a file is another one."""
    torch.manual_seed(5)
    public = Attention()
    for name in ("anna", "boris"):
        (folder / name).mkdir()
        features, labels = pair(texts(20, seed=len(name)))
        np.savez(folder / name / "texts.npz", features=features, labels=labels)
        write_tensors(folder / name / "public.safetensors", public.state_dict(), {})
    shipped = write_adapter(folder / "anna" / own_code.USUAL_ADAPTER, networks.build(small, seed=3))
    (folder / "boris" / own_code.USUAL_ADAPTER).write_bytes((folder / "anna" / own_code.USUAL_ADAPTER).read_bytes())
    agreed = {
        **FIELDS,
        "clients": {"anna": 20, "boris": 20},
        "model": MODEL,
        "model_seed": 3,
        "dim": RANK * 35,
        "base_model_sha256": hashlib.sha256((folder / "anna" / "public.safetensors").read_bytes()).hexdigest(),
        "adapter_sha256": shipped,
    }
    config = ClientConfig(
        certificates=Path(),
        authority=Path(),
        records="npz:texts.npz",
        folder=folder / "anna",
        base_model="public.safetensors",
    )
    with pytest.raises(UnnamedModelError, match=r'sets model_digest = "[0-9a-f]{64}"') as unnamed:
        load_records(Task.model_validate(agreed), config, ["anna"])
    task = Task.model_validate({**agreed, "model_digest": str(unnamed.value)[-65:-1]})
    records = load_records(task, config, ["anna"])
    trainer = Trainer(
        task=task,
        records=records,
        conducts={"anna": Honest()},
        device="cpu",
        random_bytes=SeededRandomness(1).records(0, "anna"),
    )
    at = 0.1 * np.random.default_rng(0).standard_normal(task.dim).astype(np.float32)
    found = trainer.update("anna", at)

    model = networks.build(small, seed=3)
    for name, value in public.state_dict().items():
        target, _, own = name.rpartition(".")
        layer = model.get_submodule(target)
        getattr(getattr(layer, "base", layer), own).copy_(value)
    assert np.linalg.norm(found) > 0.1
    np.testing.assert_allclose(found, _expected(model, at, records["anna"], task), atol=1e-5)
    (folder / "anna" / "public.safetensors").write_bytes(b"another")
    with pytest.raises(AdapterError, match=r"^client.base_model: expected the file of task.base_model_sha256"):
        load_records(task, config, ["anna"])


def _expected(model: torch.nn.Module, at: np.ndarray, records: Records, task: Task) -> np.ndarray:
    """Sum clipped gradients record by record by plain autograd; every record is in the round."""
    model = networks.trained(model, at).double().eval()
    total = np.zeros(at.size)
    for features, label in zip(records.features, records.labels, strict=True):
        loss = torch.nn.functional.cross_entropy(model(torch.from_numpy(features[None])), torch.tensor([label]))
        one = torch.cat([part.reshape(-1) for part in torch.autograd.grad(loss, list(model.parameters()))]).numpy()
        total += one * min(1.0, task.record_clip / np.linalg.norm(one))
    return -total


@pytest.mark.slow
def test_a_run_over_real_processes_is_exported_for_peft(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "adapted_app.py").write_text(MODULE)
    found = precad.run({"task": FIELDS}, "run", app="adapted_app:app", clients=3)
    assert (found.rounds, found.accepted) == (FIELDS["rounds"], 3 * FIELDS["rounds"])
    model = found.load_model()
    report = export(source_of(Path("run"), None, None), Path("exported"))
    assert set(report["files"]) == {"model.pt", CONFIG, WEIGHTS}
    checked = precad.verify_export("exported", authority="run/pki/ca.pem")
    assert set(checked.files) == {"model.pt", CONFIG, WEIGHTS}
    peft = pytest.importorskip("peft")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        base = Attention()
    loaded = peft.PeftModel.from_pretrained(base, "exported").eval()
    inputs = torch.from_numpy(texts(20).features)
    with torch.no_grad():
        assert (loaded(inputs) - model.eval()(inputs)).abs().max() <= 1e-5
