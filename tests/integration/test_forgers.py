"""Clients whose uploads or proofs are forged, beside honest ones, over real gRPC with mutual TLS and in every mode.

Failure means one of these:
- a forged upload counts;
- one that a server can refuse by itself is refused for another reason than what is wrong with it;
- an honest client's upload does not count.

Whoever sends NaNs or inconsistent shares is told nothing: those are found when the round is closed. In mode `proved`
nobody is told whose proof is false.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from numpy.typing import NDArray
from structlog.testing import capture_logs

from precad.clients.attacks import (
    FalseProof,
    InconsistentProof,
    InconsistentShares,
    Late,
    NotANumber,
    OutOfRange,
    Replay,
    ReplayedProof,
    ScaledModelReplacement,
    WrapAround,
    WrongLength,
)
from precad.clients.training.conduct import Conduct, Honest
from precad.clients.upload.session import ClientSession
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from tests.harness.harness import AGGREGATORS, Deployment, Pki, asynchronous, running, small_task

ATTACKERS: Final[Mapping[str, Conduct]] = {
    "flips": InconsistentShares(),
    "late": Late(by_s=0.5),
    "long": WrongLength(excess=3),
    "nan": NotANumber(),
    "short": WrongLength(),
}
HONEST: Final = ("alice", "bob")


def silence(std: float, dim: int) -> RingArray:
    return np.zeros(dim, dtype=np.int64)


async def told_by(task: Task, conducts: Mapping[str, Conduct], folder: Path) -> tuple[set[tuple[str, str]], Deployment]:
    """Run a task with these clients. Return who was refused for what, and the servers.

    Each client has a coordinate of its own, so that the model tells whose updates it is made of, and how often.
    """
    names = sorted(conducts)
    pki = Pki.create(folder / "pki", names)

    def session(client: str, conduct: Conduct) -> ClientSession:
        def train(parameters: NDArray[np.float32]) -> RingArray:
            update = np.zeros(task.dim)
            update[names.index(client)] = 2.0**-task.frac_bits  # the integer 1
            return conduct.encode(conduct.on_update(update), task)

        addresses, tls = deployment.addresses, pki.tls(client)
        return ClientSession(client=client, task=task, addresses=addresses, tls=tls, train=train, conduct=conduct)

    with capture_logs() as logs:
        async with running(task, pki, folder, noises=(silence, silence)) as deployment:
            async with asyncio.timeout(60):
                await asyncio.gather(*(session(client, conduct).run() for client, conduct in conducts.items()))
                await deployment.finish()
    return {(entry["client"], entry["reason"]) for entry in logs if entry["event"] == "client.refused"}, deployment


def require_model_of(task: Task, names: list[str], counted: Mapping[str, int], state_dir: Path) -> None:
    """A server's model is made of these clients' updates, so often each, and of nothing else."""
    model = np.load(state_dir / "model.npy")
    step = task.learning_rate / task.divisor / 2**task.frac_bits
    np.testing.assert_allclose(
        model[: len(names)], step * np.array([counted.get(name, 0) for name in names]), rtol=1e-6
    )
    assert not model[len(names) :].any()


@pytest.mark.parametrize("mode", ["masked", pytest.param("shares", marks=pytest.mark.slow)])
@asynchronous
async def test_what_is_forged_does_not_count_and_everything_else_does(tmp_path: Path, mode: str) -> None:
    conducts = {**ATTACKERS, "replays": Replay(), **dict.fromkeys(HONEST, Honest())}
    names = sorted(conducts)
    task = small_task(names, mode=mode, rounds=2, submit_timeout_s=6.0)
    told, deployment = await told_by(task, conducts, tmp_path)
    too_late = {reason for client, reason in told if client == "late"}
    assert too_late  # where the next round has begun, it says so
    assert too_late <= {"no round is open for submissions", "wrong_round: round: expected 1, found 0"}
    assert {(client, reason) for client, reason in told if client != "late"} == {
        ("long", "wrong_length: payload: expected 192 bytes, found more"),
        ("replays", "wrong_round: round: expected 1, found 0"),
        ("short", "wrong_length: payload: expected 192 bytes, found 184"),
    }
    refused = ["flips", "late", "long", "short"]
    for party, role in enumerate(AGGREGATORS):
        first, second = deployment.rounds(party)
        assert (first["accepted"], first["rejected"], first["missing"]) == (
            ["alice", "bob", "replays"],
            ["nan"],
            refused,
        )
        assert (second["accepted"], second["rejected"], second["missing"]) == (
            ["alice", "bob"],
            ["nan"],
            sorted([*refused, "replays"]),
        )
        require_model_of(task, names, {"alice": 2, "bob": 2, "replays": 1}, tmp_path / role)


PROVERS: Final[Mapping[str, Conduct]] = {
    "flips": InconsistentShares(),
    "lies": FalseProof(),
    "nan": NotANumber(),
    "range": OutOfRange(),
    "scales": ScaledModelReplacement(gamma=2.0**17),
    "waverer": InconsistentProof(),
    "wraps": WrapAround(),
}


@asynchronous
async def test_what_is_forged_does_not_count_in_mode_proved(tmp_path: Path) -> None:
    """Uploads and proofs. A vector that is too long, or that another vector's proof came with, is rejected."""
    conducts = {**PROVERS, **dict.fromkeys(HONEST, Honest())}
    names = sorted(conducts)
    task = small_task(names, mode="proved", frac_bits=16, rounds=1, submit_timeout_s=40.0)
    told, deployment = await told_by(task, conducts, tmp_path)
    assert told == {("range", "malformed: payload: expected elements below p, found another")}
    for party, role in enumerate(AGGREGATORS):
        (record,) = deployment.rounds(party)
        assert (record["accepted"], record["missing"]) == (["alice", "bob"], ["flips", "range", "waverer"])
        assert record["rejected"] == ["lies", "nan", "scales", "wraps"]
        require_model_of(task, names, {"alice": 1, "bob": 1}, tmp_path / role)


@pytest.mark.slow
@asynchronous
async def test_what_is_sent_late_or_again_does_not_count_in_mode_proved(tmp_path: Path) -> None:
    """Nor what has another length. Phases last to their time limits. A server awaits the other one's word of what
    the other one has refused. Who is refused before its first byte may still send what is right."""
    lengths = {"long": WrongLength(excess=3), "short": WrongLength()}
    replays = {"again": ReplayedProof(), "late": Late(by_s=0.5), "replays": Replay(), **lengths}
    conducts = {**replays, **dict.fromkeys(HONEST, Honest())}
    names = sorted(conducts)
    task = small_task(names, mode="proved", frac_bits=16, rounds=2, submit_timeout_s=6.0, proof_timeout_s=6.0)
    told, deployment = await told_by(task, conducts, tmp_path)
    assert {client for client, _ in told} == set(replays)
    assert {(client, reason) for client, reason in told if client != "late"} == {
        ("again", "wrong_binding: binding: expected that of this upload, round and task, found another"),
        ("long", "wrong_length: payload: expected 168 bytes, found more"),
        ("replays", "wrong_round: round: expected 1, found 0"),
        ("short", "wrong_length: payload: expected 168 bytes, found 161"),
    }
    for party, role in enumerate(AGGREGATORS):
        first, second = deployment.rounds(party)
        assert (first["accepted"], first["missing"]) == (
            ["again", "alice", "bob", "replays"],
            ["late", "long", "short"],
        )
        assert (second["accepted"], second["missing"]) == (["alice", "bob"], sorted(replays))
        assert first["rejected"] == second["rejected"] == []
        require_model_of(task, names, {"again": 1, "alice": 2, "bob": 2, "replays": 1}, tmp_path / role)
