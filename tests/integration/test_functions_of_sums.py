"""Tasks whose servers clip the shared sum by CrypTen, before their noise: processes, `precad run`, and who deviates.

Failure means one of these:
- an opened sum that is not NumPy's clip of the accepted updates' sum and both servers' noise;
- a function that runs in a server whose operator did not name it, or of another file than the task's;
- a model that moves by what the dealer made up, or a round of the function that was not paid for.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console

from precad.clients.upload.session import ClientSession
from precad.deploy.errors import ConfigError
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.localhost.summary import print_summary
from precad.mpc.crypten import examples
from precad.mpc.errors import MpcError
from precad.mpc.tuples.dealt import deal
from precad.mpc.tuples.held import BatchShape, Dealt
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers import dealer as dealer_module
from precad.servers.errors import PeerUnreachableError, SetupError, TaskRefusedError
from precad.servers.rounds.sum_function import require_function
from tests.harness import server_main
from tests.harness.forked import exit_codes, servers
from tests.harness.harness import AGGREGATORS, Pki, asynchronous, free_addresses, read_rounds, small_task
from tests.integration.deviating import HangsUpAt, deviating_b
from tests.integration.test_deviating_server import charges, deployment, end_of_a, entries, update
from tests.integration.test_deviating_trims import committed
from tests.integration.test_simulated_training import simulation_of, training_task
from tests.mpc.crypten.test_bridge import MISSING

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "CrypTen is there")
CLIP = "precad.mpc.crypten.examples:clip"
CLIP_SHA256 = hashlib.sha256(Path(examples.__file__).read_bytes()).hexdigest()
CLIENTS = HONEST = ("alice", "bob", "carol")
BOUND = 0.5
OF_CLIP: dict[str, Any] = {"sum_function": CLIP, "sum_function_arguments": {"bound": BOUND}, "gate": "native"}


def task_of(**changes: Any) -> Task:
    return small_task(CLIENTS, **OF_CLIP | {"sum_function_sha256": CLIP_SHA256, "sum_function_factor": 1.0} | changes)


def vectors_of(task: Task) -> dict[str, NDArray[np.int64]]:
    """Two updates within C whose sum has coordinates on both sides of both bounds, and one that is too long."""
    most = task.client_clip * 2**task.frac_bits
    short = np.zeros((2, task.dim), dtype=np.int64)
    short[:, :4] = np.array([[0.6, -0.6, 0.2, 0.3], [0.5, -0.5, -0.4, 0.2]]) * most
    assert (np.linalg.norm(short, axis=1) < most).all()
    return {"alice": short[0], "bob": short[1], "carol": np.full(task.dim, int(most), dtype=np.int64)}


def wait_for(event: str, log: Path) -> None:
    """Return once a log has the event: each server loads PyTorch, which takes minutes on a busy machine."""
    ends_at = time.monotonic() + 300.0
    while not (log.exists() and event in log.read_text()):
        assert time.monotonic() < ends_at, log.read_text() if log.exists() else log
        time.sleep(0.1)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="native"),
        pytest.param({"gate": "crypten"}, id="crypten", marks=pytest.mark.slow),
        pytest.param({"mode": "shares"}, id="shares", marks=pytest.mark.slow),
        pytest.param({"sum_function_factor": 2.0}, id="factor", marks=pytest.mark.slow),
        pytest.param({"layer_sizes": [2, 1, 21], "layer_clips": [1.0, 0.3, 1.0]}, id="layers", marks=pytest.mark.slow),
    ],
)
def test_processes_open_the_clip_of_the_sum_and_both_servers_noise(changes: dict[str, Any], tmp_path: Path) -> None:
    """Exact, word for word, in every round; the dealer's tuples come over the wire, in a process of its own."""
    task = task_of(**changes)
    vectors, pki = vectors_of(task), Pki.create(tmp_path / "pki", CLIENTS)
    noise = np.random.default_rng(5).integers(-(2**16), 2**16, size=(2, task.rounds, task.dim))
    addresses = dict(zip((*AGGREGATORS, Role.DEALER), free_addresses(3), strict=True))
    written = {"task": task.model_dump(), "pki": str(pki.directory), "addresses": addresses}
    (tmp_path / "deployment.json").write_text(json.dumps(written))
    np.save(tmp_path / "initial.npy", np.zeros(task.dim, dtype=np.float32))
    np.save(tmp_path / "noise.npy", noise)

    @asynchronous
    async def everybody_takes_part() -> None:
        a, b = (addresses[role] for role in AGGREGATORS)
        sessions = [
            ClientSession(
                client=client,
                task=task,
                addresses=(a, b),
                tls=pki.tls(client),
                train=lambda _, own=vectors[client]: own,
            )
            for client in CLIENTS
        ]
        await asyncio.gather(*(session.run() for session in sessions))

    with servers(tmp_path, server_main.main) as processes:
        for role in AGGREGATORS:
            wait_for("aggregator.listening", tmp_path / f"{role}.log")
        everybody_takes_part()
        codes = exit_codes(processes)
    assert codes == dict.fromkeys(processes, 0), {r: (tmp_path / f"{r}.log").read_text() for r in codes if codes[r]}
    rejected = ["bob", "carol"] if "layer_clips" in changes else ["carol"]  # bob's third coordinate is -0.4
    clipped = np.clip(sum(vectors[client] for client in CLIENTS if client not in rejected), -(2**15), 2**15)
    assert 2**15 in clipped
    assert -(2**15) in clipped
    assert len(set(clipped.tolist())) > 3
    for role in AGGREGATORS:
        opened = np.load(tmp_path / role / "opened.npy")
        assert (opened == clipped + noise.sum(axis=0)).all()
        assert [record["rejected"] for record in read_rounds(tmp_path / role)] == [rejected] * task.rounds


def trained(folder: Path, **changes: Any) -> tuple[NDArray[np.float32], str]:
    """How far `precad run` of one deterministic round, without noise, moves the model; and its summary as printed."""
    task = {
        "algorithm": "non-private", "clients": 3, "rounds": 1, "client_rate": 1.0, "record_rate": 1.0,
        "record_clip": 1.0, "client_clip": 64.0, "noise_multiplier": 0.0, "learning_rate": 1.0, "gate": "native",
        **changes,
    }  # fmt: skip
    consent = {letter: {"sum_function": changes["sum_function"]} for letter in "ab"} if changes else {}
    printed = io.StringIO()
    console = Console(file=printed, width=200)
    run = LocalRun({"task": task, **({"aggregator": consent} if consent else {})}, folder, console)
    summary = asyncio.run(run.run())
    print_summary(console, summary, run.deployment.task)
    moved = np.load(folder / "a" / "model.npy") - np.load(folder / "initial_model.npy")
    return moved * np.float32(run.deployment.task.divisor), printed.getvalue()


@pytest.mark.slow  # the two tests behind it are of server processes and of a simulation
def test_precad_run_moves_the_model_by_the_clip_of_the_cleartext_sum(tmp_path: Path) -> None:
    """Two runs, with the function and without, of equal gradients: within what float32 of a model rounds.

    Without a factor the summary says that there is no bound.
    """
    plain, of_plain = trained(tmp_path / "plain")
    clipped, printed = trained(tmp_path / "clipped", **OF_CLIP, sum_function_sha256=CLIP_SHA256)
    expected = np.clip(plain, -BOUND, BOUND)
    n_at_bound = int((np.abs(plain) > BOUND).sum())
    assert 10 < n_at_bound < plain.size - 10
    assert np.abs(clipped - expected).max() < 1e-3
    assert np.abs(clipped).max() < BOUND + 1e-3
    why = "no bound: sum_function has no declared factor"
    assert why in " ".join(printed.split())
    assert why not in " ".join(of_plain.split())


@pytest.mark.parametrize("servers", ["cleartext", "mpc"])
def test_a_simulation_moves_the_model_by_the_clip_of_the_sum(servers: str) -> None:
    """One round with the function and one without, of equal gradients and no noise, in one process."""
    function = {**OF_CLIP, "sum_function_sha256": CLIP_SHA256, "rounds": 1}
    moved = []
    for changes in ({"rounds": 1}, function):
        task = training_task("non-private", record_rate=1.0, client_clip=64.0, **changes)
        simulation = simulation_of(task, {0: HONEST}, servers)
        assert [list(metrics.rejected) for metrics in simulation.run()] == [[]]
        moved.append(simulation.progress.parameters.astype(np.float64) * task.divisor / task.learning_rate)
    plain, clipped = moved
    assert (np.abs(plain) > BOUND).sum() == 10  # biases of the last layer, at a model of zeros
    assert np.abs(clipped - np.clip(plain, -BOUND, BOUND)).max() < 1e-4


# Consent


@pytest.mark.parametrize(
    ("of_task", "of_server", "why"),
    [
        (CLIP, None, f"sum_function: expected {CLIP}, as task.sum_function says, found none"),
        (CLIP, "os:abort", f"sum_function: expected {CLIP}, as task.sum_function says, found os:abort"),
        (None, CLIP, f"sum_function: expected none, as task.sum_function says, found {CLIP}"),
    ],
)
def test_a_function_runs_by_both_operators_word_alone(
    of_task: str | None, of_server: str | None, why: str, tmp_path: Path
) -> None:
    task = task_of() if of_task else small_task(CLIENTS)
    config = Pki.create(tmp_path, CLIENTS).aggregator(1, listen="127.0.0.1:1", folder=tmp_path, sum_function=of_server)
    with pytest.raises(SetupError, match=why):
        require_function(task, config)
    local = {"task": task.model_dump(exclude={"dim"}, exclude_defaults=True), "aggregator": {"b": {}, "a": {}}}
    local["task"]["clients"] = 3
    for letter, name in (("a", of_task), ("b", of_server)):
        if name:
            local["aggregator"][letter]["sum_function"] = name
    with pytest.raises(ConfigError, match=rf"aggregator\.b\.{why}"):
        LocalRun(local, tmp_path / "run", Console(file=io.StringIO()))


def test_a_servers_file_must_be_the_tasks(tmp_path: Path) -> None:
    task = task_of(sum_function_sha256="0" * 64)
    config = Pki.create(tmp_path, CLIENTS).aggregator(0, listen="127.0.0.1:1", folder=tmp_path, sum_function=CLIP)
    with pytest.raises(SetupError, match=f"sum_function_sha256: expected {'0' * 64}, found {CLIP_SHA256}"):
        require_function(task, config)


# Who deviates


def fewer(b: Dealt) -> Dealt:
    return replace(b, products=b.products[:-1])


def other_words(b: Dealt) -> Dealt:
    """Corrections of another word for each product of the function, and the check's as they are."""
    products, n = b.products.copy(), 28 * 24 * 2
    products[-n:] = np.random.default_rng(7).integers(-(2**63), 2**63 - 1, size=n)
    return replace(b, products=products)


@pytest.mark.parametrize("change", [fewer, other_words])
@asynchronous
async def test_no_model_moves_by_what_a_dealer_makes_up(change: Callable[[Dealt], Dealt], tmp_path: Path) -> None:
    """Fewer words are refused before a round, others with the sum that they make."""
    task = task_of(rounds=3, batches_ahead=0)

    def lying(shape: BatchShape, random_bytes: Any) -> tuple[Dealt, Dealt]:
        a, b = deal(shape, random_bytes)
        return a, change(b)

    with patch.object(dealer_module, "deal", lying):
        async with consenting(task, tmp_path) as (running, _):
            (ended, *_), _ = await asyncio.wait(running._runs[1:], return_when=asyncio.FIRST_COMPLETED)
            error = ended.exception()
    if change is other_words:
        assert isinstance(error, TaskRefusedError)
        assert "opened sum: expected accepted updates and both servers' noise" in str(error)
    else:
        assert "corrections of a batch: expected shapes" in str(error)
        assert not charges(tmp_path)
    assert committed(task, tmp_path) == []


def consenting(task: Task, folder: Path, **others: Any) -> Any:
    vectors = {client: update(task, 0.5) for client in CLIENTS}
    return deployment(task, folder, vectors=vectors, of_both={"sum_function": CLIP}, **others)


@pytest.mark.parametrize("step", ["function/1", "function/9"])
@asynchronous
async def test_every_round_in_whose_function_b_hangs_up_is_paid_and_there_are_at_most_lost_rounds(
    step: str, tmp_path: Path
) -> None:
    """Tuples that serve once hide what B reads: words of equal updates differ in every round."""
    task, read = task_of(rounds=5, lost_rounds=2, batches_ahead=0), list[bytes]()
    with deviating_b(lambda channel: HangsUpAt(channel, step, lambda ours, theirs: read.append(theirs))):
        async with consenting(task, tmp_path) as (running, _):
            error = await end_of_a(running)
    assert isinstance(error, TaskRefusedError)
    assert "lost_rounds: expected fewer than 2" in str(error)
    assert charges(tmp_path) == dict.fromkeys(range(2), sorted(CLIENTS))
    assert len(set(read)) == len(read) == 2
    assert committed(task, tmp_path) == []
    assert entries(tmp_path, "validated") == []


@asynchronous
async def test_a_server_b_with_another_function_ends_the_round(tmp_path: Path) -> None:
    """It names ours and runs another: no sum is opened. A sees it for itself, or passes B's word on."""
    task = task_of(batches_ahead=0)
    from precad.servers.rounds import dealt_form

    honest = dealt_form.share_of_function

    def other(function: Any, share: Any, tuples: Any, channel: Any) -> Any:
        if channel.party == 1:
            function._function = lambda x, bound: x.relu()
        return honest(function, share, tuples, channel)

    with patch.object(dealt_form, "share_of_function", other):
        async with consenting(task, tmp_path, reconnect_timeout_s=3.0) as (running, _):  # A waits so long for B
            error = await end_of_a(running)
    is_told = isinstance(error, PeerUnreachableError) and "the other aggregator ended the task: step" in str(error)
    assert is_told or isinstance(error, MpcError)
    assert committed(task, tmp_path) == []
