"""The order in which a server writes down, sends and shows what a round has, in each mode.

Failure means that something leaves a server before what must come first:
- a coin before its number is used up, a challenge before the lock;
- a step of the check before the charge, a proof's opening before no proof can change any more;
- a noisy share before the servers compared their verdicts and each wrote them down;
- the digest of a model, or of an evaluation, before that is on disk.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from precad.clients.training.conduct import Honest
from precad.clients.upload.proved import RoundUpload, agree, proof_parts
from precad.dp.ledgers.ledger import Ledger
from precad.mpc.channel import MemoryChannel
from precad.mpc.proved.check import ProofCheck
from precad.mpc.sharing import Party
from precad.protos.precad.v1 import aggregator_pb2
from precad.servers.rounds.receiving import Receiving
from precad.servers.rounds.sessions import Sessions
from precad.servers.rounds.states import Proving
from precad.servers.store.checkpoints import Checkpoints
from precad.servers.store.rounds import TaskStore
from tests.harness.harness import ServerInProcess, asynchronous, small_task
from tests.servers.rounds.test_round import both_servers, take_part

CLIENTS = ("alice", "bob")
WRITES: dict[str, tuple[type, str]] = {
    "wrote number": (TaskStore, "reserve"),
    "wrote locked": (TaskStore, "checking"),
    "wrote charge": (Ledger, "charge"),
    "wrote verdicts": (TaskStore, "validated"),
    "wrote model": (Checkpoints, "save"),
    "wrote commit": (TaskStore, "commit"),
    "wrote evaluation": (TaskStore, "evaluated"),
}
"""They are on disk when the call returns."""
ORDER = {
    "proved": [
        *("sends coin/commit", "wrote number", "sends coin/reveal", "tells invitation", "closes uploads"),
        *("sends validation/lock", "sends coin/reveal", "tells challenge", "closes proofs"),
        *("wrote charge", "sends validation/proofs", "opens", "sends validation/verifier"),
        *("sends validation/accepted", "erases", "wrote verdicts", "sends noisy sum"),
        *("wrote model", "wrote commit", "sends model"),
    ],
    "masked": [
        *("sends coin/commit", "wrote number", "sends coin/reveal", "tells invitation", "closes uploads"),
        *("sends validation/lock", "wrote charge", "sends coin/reveal", "sends gate"),
        *("sends equality", "sends verdicts", "erases", "wrote verdicts", "sends noisy sum"),
        *("wrote model", "wrote commit", "sends model"),
    ],
}


class Traces:
    """Notes of what each server did, in its order. A step for several clients in a row counts once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch, self._party_of = monkeypatch, dict[int, int]()
        self.of: tuple[list[str], list[str]] = ([], [])
        for what, (owner, name) in WRITES.items():
            self._note(owner, name, functools.partial(_constant, what), is_after=True)
        self._note(MemoryChannel, "_swap", lambda channel, label, *_: f"sends {step_of(label)}")
        self._note(Sessions, "send", lambda sessions, client, event: f"tells {event.WhichOneof('event')}")
        self._note(Receiving, "close", lambda intake: f"closes {('uploads', 'proofs')[intake.phase]}")
        self._note(Receiving, "forget", functools.partial(_constant, "erases"))
        self._note(ProofCheck, "open", functools.partial(_constant, "opens"))

    def follow(self, servers: tuple[ServerInProcess, ServerInProcess]) -> None:
        """Learn whose the parts are that do not know their server."""
        for party, server in enumerate(servers):
            state = server.state
            for part in (state.store, state.ledger, state.checkpoints, server.sessions):
                self._party_of[id(part)] = party

    def _note(self, owner: Any, name: str, named: Callable[..., str], *, is_after: bool = False) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def noted(of: Any, *arguments: Any, **more: Any) -> Any:
            result = original(of, *arguments, **more) if is_after else None
            self._add(of, named(of, *arguments))
            return result if is_after else original(of, *arguments, **more)

        self._patch.setattr(owner, name, noted)

    def _add(self, of: Any, what: str) -> None:
        party = self._party_of.get(id(of), getattr(of, "party", getattr(of, "_party", None)))
        assert party is not None, (of, what)
        if self.of[party][-1:] != [what]:
            self.of[party].append(what)


def _constant(what: str, *_: Any) -> str:
    return what


def step_of(label: str) -> str:
    """Return the step without task and round; messages of the gate, or of the equality, are one."""
    step = label.split("/", 2)[2]
    return step.split("/")[0] if step.startswith(("gate/", "equality/")) else step


async def prove(client: str, servers: tuple[ServerInProcess, ServerInProcess]) -> None:
    """Be an honest client of mode `proved` in the next round."""
    task = servers[0].task
    queues = [server.sessions.enter(client) for server in servers]
    of_a, of_b = [(await queue.get()).invitation for queue in queues]
    invitation, seed = agree(of_a, of_b, task)
    vector = np.ones(task.dim, dtype=np.int64)
    upload = RoundUpload(vector, invitation, seed, task=task, client=client, conduct=Honest())
    holder = servers[upload.holder]
    await send(holder.intake, client, [part async for part in upload.parts()])
    parties: tuple[Party, Party] = (0, 1)
    for party in parties:
        upload.hears(party, (await queues[party].get()).challenge.challenge)
    proof = upload.prove()
    assert proof is not None
    proving = holder.of_kind(Proving)[-1]
    assert isinstance(proving, Proving)
    await send(proving.proofs, client, [part async for part in proof_parts(proof)])


async def send(
    intake: Receiving, client: str, parts: list[aggregator_pb2.SubmitPart] | list[aggregator_pb2.ProvePart]
) -> None:
    """As the servicer takes it."""
    async with intake.upload(client) as upload:
        upload.begin(parts[0].binding, parts[0].statement, parts[0].salt)
        for part in parts:
            upload.write(part.chunk.data)


@pytest.mark.parametrize("mode", ORDER)
@asynchronous
async def test_nothing_leaves_before_what_must_come_first(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole round of both servers, from the draw to the model."""
    traces = Traces(monkeypatch)
    changes = {"frac_bits": 3} if mode == "proved" else {"batches_ahead": 0, "gate": "native"}
    task = small_task(CLIENTS, rounds=1, mode=mode, **changes)
    async with both_servers(task, tmp_path) as servers:
        traces.follow(servers)
        if mode == "proved":
            for server in servers:
                server.link.begin(0, n_phases=2)
        part = prove if mode == "proved" else take_part
        clients = [asyncio.create_task(part(client, servers)) for client in CLIENTS]
        await asyncio.sleep(0)  # they are connected
        records = await asyncio.gather(*(server.runner.run_round(0) for server in servers))
        assert all(record.accepted == CLIENTS for record in records)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    for trace in traces.of:
        written = trace.index("wrote locked")  # in a thread, while proofs come
        assert trace.index("sends validation/lock") < written < trace.index("wrote charge")
        assert trace[:written] + trace[written + 1 :] == ORDER[mode]


@asynchronous
async def test_an_evaluation_is_on_disk_before_its_digest_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round after the one round of the training, in which nobody is connected."""
    traces = Traces(monkeypatch)
    evaluation = {"evaluation": "clients", "evaluation_every": 1, "evaluation_noise": 5.0}
    task = small_task(CLIENTS, rounds=1, batches_ahead=0, gate="native", **evaluation)
    async with both_servers(task, tmp_path, noise=lambda std, dim: np.zeros(dim, dtype=np.int64)) as servers:
        traces.follow(servers)
        for t in (0, 1):
            await asyncio.gather(*(server.runner.run_round(t) for server in servers))
    for trace in traces.of:
        assert trace[-4:] == ["wrote verdicts", "sends noisy sum", "wrote evaluation", "sends evaluation"]
