"""One server of a test's deployment as a process of its own: noise from a file in, every opened noisy sum out.

Its folder holds deployment.json (the task, the three addresses, where the certificates are), initial.npy, and noise.npy
of shape (2, rounds, d). The dealer may have fields of the task of its own. Where the servers test a margin, the noise
is of the seed in deployment.json instead. An aggregator writes opened.npy, shape (rounds so far, d), beside its ledger
and model.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np

from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.aggregator import Aggregator
from precad.servers.dealer import Dealer
from precad.servers.rounds.equipment import Randomness
from precad.servers.rounds.states import Opened, RoundState
from tests.harness.pki import AGGREGATORS, Pki


def main(folder: Path, role: Role) -> None:
    """Runs the server until its task is over."""
    deployment = json.loads((folder / "deployment.json").read_text())
    pki, addresses = Pki(Path(deployment["pki"])), deployment["addresses"]
    task = Task(**deployment["task"] | (deployment.get("own_of_dealer", {}) if role is Role.DEALER else {}))
    if role is Role.DEALER:
        asyncio.run(_deal(task, pki, addresses[Role.DEALER], folder))
    else:
        asyncio.run(_aggregate(task, pki, deployment, folder, AGGREGATORS.index(role)))


async def _deal(task: Task, pki: Pki, address: str, folder: Path) -> None:
    await Dealer(task=task, config=pki.dealer(listen=address, folder=folder, connect_timeout_s=240.0)).run()


async def _aggregate(task: Task, pki: Pki, deployment: dict[str, Any], folder: Path, party: int) -> None:
    role, addresses = AGGREGATORS[party], deployment["addresses"]
    noises = iter(() if task.rules.trims else np.load(folder / "noise.npy")[party])
    opened: list[RingArray] = []

    def noise(std: float, dim: int) -> RingArray:
        assert (std, dim) == (task.noise_std_on_grid, task.dim)  # what production's sampler would be asked for
        return next(noises)

    def on_state(state: RoundState) -> None:
        if isinstance(state, Opened):
            opened.append(state.noisy_sum)
            np.save(folder / role / "opened.npy", np.array(opened))

    config = pki.aggregator(party, listen=addresses[role], folder=folder, sum_function=task.sum_function)
    others = addresses[Role.AGGREGATOR_B], addresses[Role.DEALER]
    randomness = Randomness(noise=noise)
    if task.rules.trims:
        from tests.harness.seeded_servers import SeededNoise  # loads the simulation, and PyTorch with it

        seeded = SeededNoise(deployment["seed"], party)
        randomness = Randomness(noise=seeded.noise, margin_noise=seeded.margin_noise)
    await Aggregator(
        party=party, task=task, config=config, addresses=others, randomness=randomness, on_state=on_state
    ).run()
