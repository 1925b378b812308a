"""Clients whose uploads are forged, beside honest ones, over real gRPC with mutual TLS and in both wire forms.

Failure means one of these:
- a forged upload counts;
- one that a server can refuse by itself is refused for another reason than what is wrong with it;
- an honest client's upload does not count.

Whoever sends NaNs or inconsistent shares is told nothing: those are found when the round is closed.
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

from precad.clients.attacks import InconsistentShares, Late, NotANumber, Replay, WrongLength
from precad.clients.training.conduct import Conduct, Honest
from precad.clients.upload.session import ClientSession
from precad.mpc.ring import RingArray
from tests.harness.harness import AGGREGATORS, Pki, asynchronous, running, small_task

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


@pytest.mark.parametrize("mode", ["masked", pytest.param("shares", marks=pytest.mark.slow)])
@asynchronous
async def test_what_is_forged_does_not_count_and_everything_else_does(tmp_path: Path, mode: str) -> None:
    """Each client has a coordinate of its own, so that the model tells whose updates it is made of, and how often."""
    conducts = {**ATTACKERS, "replays": Replay(), **dict.fromkeys(HONEST, Honest())}
    names = sorted(conducts)
    task = small_task(names, mode=mode, rounds=2, submit_timeout_s=3.0)
    pki = Pki.create(tmp_path / "pki", names)

    def session(client: str, conduct: Conduct) -> ClientSession:
        def train(parameters: NDArray[np.float32]) -> RingArray:
            update = np.zeros(task.dim)
            update[names.index(client)] = 2.0**-task.frac_bits  # the integer 1
            return conduct.encode(update, task)

        addresses, tls = deployment.addresses, pki.tls(client)
        return ClientSession(client=client, task=task, addresses=addresses, tls=tls, train=train, conduct=conduct)

    with capture_logs() as logs:
        async with running(task, pki, tmp_path, noises=(silence, silence)) as deployment:
            async with asyncio.timeout(60):
                await asyncio.gather(*(session(client, conduct).run() for client, conduct in conducts.items()))
                await deployment.finish()

    told = {(entry["client"], entry["reason"]) for entry in logs if entry["event"] == "client.refused"}
    too_late = {reason for client, reason in told if client == "late"}
    assert too_late  # where the next round has begun, it says so
    assert too_late <= {"no round is open for submissions", "wrong_round: expected 1, got 0"}
    assert {(client, reason) for client, reason in told if client != "late"} == {
        ("long", "wrong_length: expected 192 bytes, got more"),
        ("replays", "wrong_round: expected 1, got 0"),
        ("short", "wrong_length: expected 192 bytes, got 184"),
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
        times = np.array([{"alice": 2, "bob": 2, "replays": 1}.get(name, 0) for name in names])
        step = task.learning_rate / task.divisor / 2**16
        model = np.load(tmp_path / role / "model.npy")
        np.testing.assert_allclose(model[: len(names)], step * times, rtol=1e-6)
        assert not model[len(names) :].any()
