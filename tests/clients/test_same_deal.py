"""Client processes of a local run deal alike, or do not train: a record of two clients would move two updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from precad.clients.config import ClientConfig
from precad.clients.errors import DataError, StateFileError
from precad.clients.process import ClientProcess
from precad.clients.training.conduct import Honest
from precad.deploy.errors import exit_code_of
from precad.protos.task.task import Task
from tests.harness.pki import Pki

CLIENTS = ("alice", "bob")
FUNCTION = """import numpy as np
def rows():
    at = np.arange(40)
    {change}
    return (at[:, None, None, None] / 40 * np.ones((1, 1, 8, 8))).astype(np.float32), at.astype(int) % 3
"""
REFUSED = "expected the records that this run's first client process read, found others"


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return Pki.create(tmp_path_factory.mktemp("pki"), CLIENTS)


def start(client: str, records: str, folder: Path, pki: Pki, *, name: str = "deal", **changes: Any) -> None:
    """Do what the process of one client does before it meets a server."""
    fields = {"name": name, "clients": dict.fromkeys(CLIENTS, 20), "rounds": 1, "client_rate": 1.0, "dim": 4810}
    fields |= {"record_rate": 1.0, "record_clip": 1.0, "client_clip": 8.0, "noise_multiplier": 1.0, "model": "mlp"}
    task = Task.model_validate({**fields, "learning_rate": 1.0})
    given = {"records": records, "folder": folder, "state_dir": folder / "state", "dealt": True, "device": "cpu"}
    config = ClientConfig(certificates=pki.directory, authority=pki.authority, **{**given, **changes})
    ClientProcess(task=task, config=config, conducts={client: Honest()}, addresses=("localhost:1", "localhost:2"))


def module(folder: Path, name: str, change: str) -> str:
    (folder / f"{name}.py").write_text(FUNCTION.format(change=change))
    return f"{name}:rows"


@pytest.mark.parametrize(
    ("name", "change"),
    [("draws_anew", "at = at + np.random.rand(40) / 9"), ("leaves_out", "at = np.delete(at, CALLS.pop())")],
)
def test_code_that_gives_other_records_at_each_call_trains_nobody(
    name: str, change: str, tmp_path: Path, pki: Pki
) -> None:
    """Such as random crops without a seed, or a folder that still fills: a crop of one picture for each client."""
    records = module(tmp_path, name, change)
    with (tmp_path / f"{name}.py").open("a") as file:
        file.write("CALLS = [7, 3]\n")
    start("alice", records, tmp_path, pki)
    with pytest.raises(DataError, match=f"^client.records {records}: {REFUSED}") as refused:
        start("bob", records, tmp_path, pki)
    assert exit_code_of(refused.value) == 2


def test_code_that_shuffles_is_taken(tmp_path: Path, pki: Pki) -> None:
    """Its records are dealt by their content."""
    records = module(tmp_path, "shuffles_rows", "at = np.random.permutation(at)")
    for client in CLIENTS:
        start(client, records, tmp_path, pki)


def test_a_file_that_changed_between_two_starts_is_refused_until_it_is_put_back(tmp_path: Path, pki: Pki) -> None:
    """One line less at its beginning deals every record to another client. Another task begins anew."""
    rows = [",".join(str((7 * i * j) % 11 / 11) for j in range(64)) + f",{i % 3}" for i in range(1, 41)]
    head = ",".join(f"c{j}" for j in range(64)) + ",label\n"
    file = tmp_path / "rows.csv"
    for lines, name, is_taken in ((rows, "deal", True), (rows[1:], "deal", False), (rows, "deal", True)):
        file.write_text(head + "\n".join(lines) + "\n")
        if is_taken:
            start("alice", "csv:rows.csv", tmp_path, pki, name=name, label="label")
            continue
        with pytest.raises(DataError, match=REFUSED):
            start("alice", "csv:rows.csv", tmp_path, pki, name=name, label="label")
        start("alice", "csv:rows.csv", tmp_path, pki, name="another", label="label")
    with pytest.raises(DataError, match=REFUSED):
        start("alice", "csv:rows.csv", tmp_path, pki, label="label", partition_seed=1)


def test_an_organisation_s_own_records_may_change(tmp_path: Path, pki: Pki) -> None:
    """They are dealt to nobody else."""
    for shift in ("at = at + 1", "at = at + 2"):
        records = module(tmp_path, f"own_{shift[-1]}", shift)
        start("alice", records, tmp_path, pki, dealt=False)
    assert not list((tmp_path / "state").glob("deal-*"))


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path, pki: Pki) -> None:
    records = module(tmp_path, "quiet_rows", "pass")
    start("alice", records, tmp_path, pki)
    (kept,) = (tmp_path / "state").glob("deal-*")
    assert kept.stat().st_mode & 0o077 == 0
    kept.unlink()
    kept.mkdir()
    with pytest.raises(StateFileError, match=f"^client.state_dir: expected to write {kept}: "):
        start("alice", records, tmp_path, pki)
