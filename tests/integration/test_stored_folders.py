"""Folders that an earlier version left are read, and continued: a finished run, its export, and a task cut off.

Failure means that an operator who updates loses a run's figures, a signature, or the rest of a training. No certificate
in the archives has to be valid today: a signature is judged by its day, and servers that continue get new ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from precad.clients.records import digits
from precad.deploy.cli.main import app
from precad.deploy.errors import REFUSED
from precad.dp.accountants.pld import PldAccountant, SampledGaussian
from precad.protos.task.task import Task
from precad.servers.store.folder import open_ledger
from tests.data.make_stored import HERE, ROUNDS_BEFORE, interrupted_task
from tests.data.stored_model import small
from tests.harness.command_line import CliRunner
from tests.harness.harness import asynchronous, read_rounds, running
from tests.harness.pki import AGGREGATORS, Pki
from tests.reference.round import run_round
from tests.vectors.final_models import CLIENTS, DIM, coins_of, noise_of, session_of, task_of, trainer

MOST_BYTES = 150_000
ARCHIVES = ("finished.tar.gz", "interrupted.tar.gz")


def unpacked(name: str, folder: Path) -> Path:
    """Return a folder with a copy of what an archive holds."""
    with tarfile.open(HERE / name) as archive:
        archive.extractall(folder, filter="data")
    return folder


def precad(*arguments: object, exit_code: int = 0) -> dict[str, Any]:
    """Return what a command prints with --json, in this process; nothing of one that fails."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"], prog_name="precad")
    assert done.exit_code == exit_code, done.output
    found: dict[str, Any] = {} if exit_code else json.loads(done.stdout)
    return found


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    return unpacked("finished.tar.gz", tmp_path)


def test_archives_are_small_and_hold_no_key() -> None:
    """Nor a file that a key could hide in: every other line of PEM is a certificate's."""
    assert sum((HERE / name).stat().st_size for name in ARCHIVES) <= MOST_BYTES
    for name in ARCHIVES:
        with tarfile.open(HERE / name) as archive:
            contents = [archive.extractfile(member).read() for member in archive if member.isfile()]
        assert contents
        assert not [content for content in contents if b"PRIVATE KEY" in content]


def test_status_and_report_say_what_the_run_spent(finished: Path) -> None:
    """Epsilon by an accountant, from the rate, the noise of one server or of both, and the rounds.

    The folder's own figure is of the processor that made it: vector units of another width add in another order.
    """
    status = precad("status", finished / "run")["servers"]["run"]
    assert (status["state"], status["rounds_done"], status["ended"]) == ("finished", 4, "4 of 4 rounds done")
    spent = {one["view"]: one["spent"] for one in status["epsilons"]}
    for view, noise in (("one_server", 8.0), ("clients_only", 8.0 * 2**0.5)):
        proved = PldAccountant().epsilon(SampledGaussian(0.5, noise), 4, 1e-5)
        assert proved <= spent[view] <= proved * 1.02
    (run,) = precad("report", finished / "run")["runs"]
    assert run["figures"]["rounds"] == 4.0
    assert spent["one_server"] in [pytest.approx(figure, rel=1e-9) for figure in run["figures"].values()]
    assert b"0.461" in (finished / "run" / "report.html").read_bytes()


def test_certify_measures_the_stored_model(finished: Path) -> None:
    """Its accuracy and confidences, by a forward pass of our own on the bundled test records."""
    found = precad("certify", "--run", finished / "run")
    model, test = small(), digits().test
    model.load_state_dict(torch.load(finished / "run" / "model.pt", weights_only=True))
    with torch.no_grad():
        classes = model(torch.from_numpy(test.features)).argmax(dim=1).numpy()
    assert found["correct"] == (classes == test.labels).tolist()
    assert found["accuracy"] == pytest.approx(np.mean(classes == test.labels))
    assert set(found["tolerated"]) == {"published", "pld", "exact"}


def verify(folder: Path, exit_code: int = 0) -> dict[str, Any]:
    """Verify the export by the stored authority's certificate."""
    authority = folder / "run" / "pki" / "ca.pem"
    return precad("verify-export", folder / "export", "--authority", authority, exit_code=exit_code)


def test_verify_export_believes_both_signatures(finished: Path) -> None:
    """Find that it is the model that both servers keep."""
    found = verify(finished)
    assert set(found["signatures"]) == set(AGGREGATORS)
    for letter in "ab":
        model = np.load(finished / "run" / letter / "model.npy").astype("<f4")
        assert found["statement"]["model"]["sha256"] == hashlib.sha256(model.tobytes()).hexdigest()


@pytest.mark.parametrize("name", ["statement.json", "model.pt", "aggregator-a.json", "aggregator-b.sig"])
def test_a_changed_export_is_refused(name: str, finished: Path) -> None:
    """One byte of any of its files, by whoever handed it on."""
    content = bytearray((finished / "export" / name).read_bytes())
    content[len(content) // 2] ^= 1
    (finished / "export" / name).write_bytes(content)
    verify(finished, exit_code=REFUSED)


def by_reference(task: Task, rounds: list[dict[str, Any]]) -> NDArray[np.float32]:
    """Return the model after these rounds in the clear, from who was accepted and the noise that servers drew."""
    noises = [[noise_of(name, party) for party in (0, 1)] for name in ("noise", "resumed")]
    parameters = np.zeros(DIM, dtype=np.float32)
    for done in rounds:
        own = noises[int(done["round"]) >= ROUNDS_BEFORE]
        result = run_round(
            parameters,
            {},
            {client: trainer(task, client)(parameters).tolist() for client in done["accepted"]},
            tuple(draw(task.noise_std_on_grid, DIM).tolist() for draw in own),
            clip_norm=task.client_clip,
            frac_bits=task.frac_bits,
            learning_rate=task.learning_rate,
            divisor=task.divisor,
        )
        assert result.accepted == done["accepted"]
        parameters = result.parameters
    return parameters


def test_status_says_that_nobody_runs_the_interrupted_task(tmp_path: Path) -> None:
    """Read a server's folder alone."""
    folder = unpacked("interrupted.tar.gz", tmp_path)
    for role in AGGREGATORS:
        status = precad("status", folder / role)["servers"][role]
        assert (status["state"], status["rounds_done"]) == ("not running", ROUNDS_BEFORE)


@asynchronous
async def test_real_servers_continue_the_interrupted_task(tmp_path: Path) -> None:
    """To the model of the reference, with the rounds before as they were. Both servers and the dealer start anew."""
    folder, task = unpacked("interrupted.tar.gz", tmp_path), task_of(**interrupted_task())
    before = [read_rounds(folder / role) for role in AGGREGATORS]
    pki, noises = Pki.create(folder / "pki", CLIENTS), (noise_of("resumed", 0), noise_of("resumed", 1))
    async with running(task, pki, folder, noises=noises, coins=coins_of()) as deployment:
        await asyncio.gather(*(session_of(client, deployment).run() for client in CLIENTS))
        await deployment.finish()
    rounds = [read_rounds(folder / role) for role in AGGREGATORS]
    assert [done["accepted"] for done in rounds[0]] == [done["accepted"] for done in rounds[1]]
    for role, earlier, now in zip(AGGREGATORS, before, rounds, strict=True):
        assert (now[:ROUNDS_BEFORE], len(now)) == (earlier, task.rounds)
        assert np.load(folder / role / "model.npy").tobytes() == by_reference(task, now).tobytes()
        with open_ledger(folder / role, task) as ledger:
            assert {int(done["round"]) for done in now} <= set(ledger.rounds)
