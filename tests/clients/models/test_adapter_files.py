"""Constants of adapted models as files: only the bytes that a task names are ever used."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
import struct
from pathlib import Path

import pytest
import torch
from torch import nn

from precad.clients import own_code
from precad.clients.errors import AdapterError
from precad.clients.models import networks
from precad.clients.models.adapter_files import a_of, write_adapter
from precad.clients.models.adapters import adapted, lora
from precad.clients.models.safetensors_file import read_tensors, write_tensors
from precad.clients.own_code import look_in, offer
from precad.deploy.errors import exit_code_of
from precad.protos.task.task import Task
from tests.harness.adapted_models import TARGETS, Attention, small, texts
from tests.harness.harness import small_task

HERE = __name__
INPUTS = torch.from_numpy(texts(5).features)


def model() -> nn.Module:
    """Wrap it, as around a model of a library."""
    return nn.Sequential(small(4))


class Tied(nn.Module):
    """Read and written by one table, as language models are."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.mid, self.out = nn.Embedding(12, 8), nn.Linear(8, 8), nn.Linear(8, 12, bias=False)
        self.out.weight = self.tokens.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.mid(self.tokens(x)).mean(dim=1))


def tied() -> nn.Module:
    return lora(Tied(), 2, ["mid"])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Look here alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(own_code, "_BESIDE", [])
    monkeypatch.setattr(own_code, "_OFFERED", [own_code.USUAL_ADAPTER])
    (tmp_path / "site").mkdir()
    look_in(tmp_path / "site")
    return tmp_path


def public(seed: int = 9) -> nn.Module:
    torch.manual_seed(seed)
    return Attention().eval()


def task_of(path: Path | None = None, *, adapter: Path | None = None, name: str = "model") -> Task:
    def digest(file: Path | None) -> str | None:
        return None if file is None else hashlib.sha256(file.read_bytes()).hexdigest()

    dim = networks.parameter_count(networks.build(f"{HERE}:{name}"))
    return small_task(
        model=f"{HERE}:{name}", dim=dim, base_model_sha256=digest(path), adapter_sha256=digest(adapter), model_seed=4
    )


def test_the_base_is_the_file_that_the_task_names(folder: Path) -> None:
    path = folder / "site" / "base.safetensors"
    write_tensors(path, public().state_dict(), {"format": "pt"})
    offer("base.safetensors")
    task = task_of(path)
    built = networks.of_task(task).eval()
    assert torch.equal(built(INPUTS), public()(INPUTS))
    assert networks.initial_vector(task).tolist() == [0.0] * task.dim
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(AdapterError, match=r"^client.base_model: expected the file of task.base_model_sha256, .*base"):
        networks.of_task(task)
    path.unlink()
    with pytest.raises(AdapterError, match=r"found none; looked in .*site"):
        networks.of_task(task)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("k.bias"), r"expected a tensor 'k.bias', found none"),
        (lambda state: state.update(other=torch.zeros(1)), r"tensor 'other': expected a name of the model"),
        (lambda state: state.update({"k.bias": torch.zeros(3)}), r"'k.bias': expected finite numbers of shape \(16,\)"),
        (lambda state: state["k.bias"].fill_(float("nan")), r"'k.bias': expected finite numbers"),
    ],
)
def test_a_base_of_another_model_is_refused(change, message: str, folder: Path) -> None:
    state = {name: value.clone() for name, value in public().state_dict().items()}
    change(state)
    write_tensors(folder / "other.safetensors", state, {})
    offer("other.safetensors")
    with pytest.raises(AdapterError, match=message):
        networks.of_task(task_of(folder / "other.safetensors"))


def test_a_file_may_leave_out_what_is_tied(folder: Path) -> None:
    """So `transformers` writes it."""
    torch.manual_seed(2)
    whole = Tied()
    state = {name: value for name, value in whole.state_dict().items() if name != "out.weight"}
    write_tensors(folder / "base.safetensors", state, {})
    offer("base.safetensors")
    built = networks.of_task(task_of(folder / "base.safetensors", name="tied"))
    assert torch.equal(built(INPUTS), whole(INPUTS))


class Twice(nn.Module):
    """Uses one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second, self.out = self.first, nn.Linear(8, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.second(self.first(x)))


def twice() -> nn.Module:
    return lora(Twice(), 2, ["first", "second"])


@pytest.mark.parametrize("left_out", ["", "second."])
def test_the_base_of_a_layer_under_two_names_is_read(folder: Path, left_out: str) -> None:
    torch.manual_seed(2)
    whole, inputs = Twice(), torch.ones(3, 8)
    state = {name: value for name, value in whole.state_dict().items() if not left_out or left_out not in name}
    write_tensors(folder / "base.safetensors", state, {})
    offer("base.safetensors")
    built = networks.of_task(task_of(folder / "base.safetensors", name="twice"))
    assert torch.equal(built(inputs), whole(inputs))


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    """A full disk; the next try finds nothing in its way."""
    path, state = tmp_path / "new.safetensors", {"a": torch.ones(100_000)}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_tensors(path, state, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert not path.exists()
    write_tensors(path, state, {})


def test_a_is_made_once_from_the_tasks_seed_and_shipped(folder: Path) -> None:
    """A client builds from seed 0; with the file it has the A of `task.model_seed`, whichever machine made it."""
    path = folder / own_code.USUAL_ADAPTER
    digest = write_adapter(path, networks.build(model, seed=4))
    task = task_of(adapter=path)
    assert digest == task.adapter_sha256
    expected, found, own = (
        a_of(adapted(built)) for built in (networks.build(model, seed=4), networks.of_task(task), networks.build(model))
    )
    assert set(found) == {f"{name}.lora_A.weight" for name in TARGETS}
    assert all(torch.equal(found[name], expected[name]) and not torch.equal(found[name], own[name]) for name in found)
    with pytest.raises(FileExistsError):
        write_adapter(path, networks.build(model))


def test_a_model_without_adapters_has_no_such_files(folder: Path) -> None:
    write_tensors(folder / "a", {}, {})
    with pytest.raises(AdapterError, match=r"task.model: expected a model with adapters"):
        networks.of_task(small_task(base_model_sha256="0" * 64))
    with pytest.raises(AdapterError, match=r"task.model: expected a model with adapters"):
        write_adapter(folder / "b", networks.build("mlp"))


def test_files_are_those_of_the_library(folder: Path) -> None:
    """Read here what `safetensors` wrote, and there what we wrote."""
    library = pytest.importorskip("safetensors.torch")
    tensors = {
        "b": torch.arange(6, dtype=torch.float32).view(2, 3),
        "a": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "c": torch.tensor([], dtype=torch.int64),
        "d": torch.tensor(7, dtype=torch.uint8),
    }
    library.save_file(tensors, folder / "theirs", metadata={"format": "pt"})
    write_tensors(folder / "ours", tensors, {"format": "pt"})
    with (folder / "theirs").open("rb") as file:
        read = read_tensors(file, folder / "theirs")
    for found in (read, library.load_file(folder / "ours")):
        assert found.keys() == tensors.keys()
        for name, value in tensors.items():
            assert found[name].dtype == value.dtype
            assert torch.equal(found[name], value)


def _raw(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def _file(header: object, data: bytes = b"") -> bytes:
    return _raw(json.dumps(header).encode(), data)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 16,
        struct.pack("<Q", 4) + b"nope",
        _file([1]),
        _file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, bytes(8)),
        _file({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(7)),
        _file({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, bytes(8)),
        _file({"a": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        _file({"a": {"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]}}, bytes(8)),
        _file({"a": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
        _raw(b"[" * 200_000),
        _raw(b'{"a":' * 2_000),
    ],
)
def test_a_file_of_another_format_is_refused(content: bytes, folder: Path) -> None:
    (folder / "x").write_bytes(content)
    with (folder / "x").open("rb") as file, pytest.raises(AdapterError, match=r"expected a safetensors file"):
        read_tensors(file, folder / "x")


ROW = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
TEXT = json.dumps(ROW).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x08\0\0", r"expected a safetensors file of 10 bytes or more, found 3"),
        (struct.pack("<Q", 2**63) + bytes(99), r"a header of 2 to 100000000 bytes, found 9223372036854775808"),
        (struct.pack("<Q", 10**8 + 1) + bytes(99), r"a header of 2 to 100000000 bytes, found 100000001"),
        (_file({"a": ROW})[:-20], r"of \d+ bytes or more, as its header says, found \d+"),
        (_file({"a": ROW}, bytes(9)), r"with 8 bytes after its header, found 9"),
        (_file({"a": ROW, "b": ROW}, bytes(8)), r"tensor 'b': expected its bytes from 8 on, found from 0 on"),
        (_file({"a": {**ROW, "data_offsets": [4, 12]}}, bytes(12)), r"tensor 'a': expected its bytes from 0 on, found"),
        (_file({"a": {**ROW, "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}), r"'a': expected a shape that"),
        (_file({"a": {**ROW, "shape": [0, 2**80], "data_offsets": [0, 0]}}), r"'a': expected a shape that"),
        (_raw(b'{"a":' + TEXT + b',"a":' + TEXT + b"}", bytes(8)), r"name 'a': expected it once in the header, found"),
        (_raw(b'{"a":{"dtype":"F64",' + TEXT[1:] + b"}", bytes(8)), r"name 'dtype': expected it once in the header"),
    ],
)
def test_a_file_that_would_mislead_a_reader_is_refused_by_name(content: bytes, message: str, folder: Path) -> None:
    """Cut off, with a header of any length, or with bytes that two tensors or none have."""
    (folder / "x").write_bytes(content)
    with (folder / "x").open("rb") as file, pytest.raises(AdapterError, match=message) as refused:
        read_tensors(file, folder / "x")
    assert str(folder / "x") in str(refused.value)
    assert exit_code_of(refused.value) == 2


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_base_that_is_no_file_is_refused_by_name(kind: str, folder: Path) -> None:
    """A pipe has no writer, and is not waited for."""
    path, base = folder / "site" / "base.safetensors", folder / "elsewhere"
    write_tensors(base, public().state_dict(), {})
    offer("base.safetensors")
    os.mkfifo(path) if kind == "pipe" else path.mkdir()
    with pytest.raises(
        AdapterError, match=rf"client.base_model: expected .*, found {path}, which is no file"
    ) as refused:
        networks.of_task(task_of(base))
    assert exit_code_of(refused.value) == 2
    path.rmdir() if kind == "folder" else path.unlink()
    base.rename(path)
    assert torch.equal(networks.of_task(task_of(path)).eval()(INPUTS), public()(INPUTS))


def test_a_link_is_followed_to_the_bytes_that_the_task_names_and_to_no_others(folder: Path) -> None:
    """Caches of models are made of links."""
    link, base, other = folder / "site" / "base.safetensors", folder / "elsewhere", folder / "other"
    write_tensors(base, public().state_dict(), {})
    write_tensors(other, {name: value + 1 for name, value in public().state_dict().items()}, {})
    offer("base.safetensors")
    link.symlink_to(base)
    assert torch.equal(networks.of_task(task_of(base)).eval()(INPUTS), public()(INPUTS))
    link.unlink()
    link.symlink_to(other)
    with pytest.raises(AdapterError, match=rf"found {link} has"):
        networks.of_task(task_of(base))
