"""A deployment whose processes die and are started again, and what must be true of what it leaves on disk.

Failure means, for any sequence of deaths:
- a round number, a tuple, a mask seed or a charge that serves twice; a release that a ledger does not hold;
- in mode `proved`, what `tests.faults.witness` names, or two proofs of one client for a challenge;
- two servers that end with different models, or with different accounts of who was accepted;
- a final model that is not the one that the committed rounds give in the clear, each accepted update counted once;
- an audit log that does not verify, or contradicts the other server's;
- a task that does not go on when everything is up again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.clients.training.conduct import Conduct
from precad.clients.upload.session import ClientSession
from precad.clients.upload_limit import DEFAULT_UPLOADS_PER_MODEL, MOST_UPLOADS_PER_MODEL, UploadLimit
from precad.mpc import fixed_point
from precad.mpc.local.rows import RowStreams
from precad.mpc.local.step import Rows
from precad.mpc.proved.field import FieldArray
from precad.mpc.proved.prover import ProofMasks
from precad.mpc.proved.sizes import ProofSizes
from precad.mpc.ring import RingArray
from precad.mpc.tuples.burning import TupleUse
from precad.protos.messages import convert
from precad.protos.task.model_update import Past, updated
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.store import audit_log
from precad.servers.store.folder import open_ledger, open_task_store, open_tuple_ledger, store_path
from precad.servers.store.rounds import CommittedRound
from tests.faults import server_main, witness
from tests.harness.forked import FORK_SERVER
from tests.harness.harness import free_addresses
from tests.harness.pki import AGGREGATORS, Pki
from tests.mpc.robust import krum_rounds


class Proves(Conduct):
    """Follow the protocol, and note the rows that each proof is for: task, round and challenge give them."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Counter[bytes]) -> None:
        self._rows = rows

    def prove(self, encoded: RingArray, rows: Rows, sizes: ProofSizes, masks: ProofMasks) -> FieldArray:
        """See `Conduct.prove`."""
        assert isinstance(rows, RowStreams)
        self._rows[rows._keys[0].reveal()] += 1
        return super().prove(encoded, rows, sizes, masks)


class Processes:
    """The servers, and the clients as sessions of this process."""

    def __init__(
        self,
        folder: Path,
        task: Task,
        *,
        own: Mapping[str, Any] | None = None,
        training_s: float = 0.0,
        database_url: str | None = None,
        uploads_per_model: int = DEFAULT_UPLOADS_PER_MODEL,
        **changes: Any,
    ) -> None:
        """Write the folder of the deployment.

        - `changes`: of both aggregators' configurations. `own`: of one's, by role.
        - `database_url`: of all servers.
        - `training_s`: how long a client takes for its update, in seconds.
        - `uploads_per_model`: m of every client, over all its lives.
        """
        self.folder, self.task, self._training_s = folder, task, training_s
        self._uploads_per_model = uploads_per_model
        self._sessions: dict[str, asyncio.Task[None]] = {}
        self.pki = Pki.create(folder / "pki", task.clients)
        self.proofs: dict[str, Counter[bytes]] = {client: Counter() for client in task.clients}
        """How often each client, over all its lives, proved for which rows: mode `proved`."""
        roles = AGGREGATORS if task.is_proved else (*AGGREGATORS, Role.DEALER)
        self.addresses = dict(zip(roles, free_addresses(len(roles)), strict=True))
        deployment = {"task": task.model_dump(), "pki": str(self.pki.directory), "addresses": self.addresses}
        deployment |= {"changes": changes, "own": own or {}, "database_url": database_url}
        (folder / "deployment.json").write_text(json.dumps(deployment))
        np.save(folder / "initial.npy", np.zeros(task.dim, dtype=np.float32))
        self.running: dict[Role, ForkServerProcess] = {}

    def start(self, *roles: Role, point: str | None = None) -> None:
        """With a point, it dies there."""
        for role in roles:
            self.running[role] = FORK_SERVER.Process(target=server_main.main, args=(self.folder, role, point))
            self.running[role].start()

    def kill(self, *roles: Role) -> None:
        """SIGKILL; returns when they are gone."""
        for role in roles:
            self.running[role].kill()
        for role in roles:
            self.running[role].join()

    async def wait(self, role: Role) -> int:
        """Its exit code."""
        while (code := self.running[role].exitcode) is None:
            await asyncio.sleep(0.02)
        return code

    async def finish(self) -> None:
        """All end in peace."""
        codes = {role: await self.wait(role) for role in self.running}
        assert set(codes.values()) == {0}, (codes, self.logs())

    @property
    def n_committed(self) -> int:
        """By A, as far as it has said so."""
        path = self.folder / AGGREGATORS[0] / "rounds.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    async def until_next_round(self, *, limit_s: float) -> None:
        """Returns when another one is committed, or after a while."""
        n_before = self.n_committed
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self.n_committed == n_before:
                    await asyncio.sleep(0.01)

    def logs(self) -> str:
        """For a test that fails."""
        return "\n".join(f"{role}:\n{self.log(role)[-3000:]}" for role in self.addresses)

    def log(self, role: Role) -> str:
        """Return what the role's processes have said so far."""
        path = self.folder / f"{role}.log"
        return path.read_text() if path.exists() else ""

    def marks(self, role: Role) -> list[tuple[str, float]]:
        """Return what the role's processes have marked so far, with the time."""
        path = self.folder / f"{role}.marks"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(name, float(seconds)) for name, _, seconds in (line.rpartition(" ") for line in lines)]

    def update(self, client: str) -> RingArray:
        """Return what this client uploads in every round it is in.

        No two clients' uploads, and no two sums of them, are alike.
        """
        index = sorted(self.task.clients).index(client)
        vector = np.zeros(self.task.dim)
        vector[index] = self.task.client_clip / 2
        return fixed_point.encode(vector, self.task.frac_bits)

    def signal(self, number: int, *roles: Role) -> None:
        """To those of them that run."""
        for role in roles:
            process = self.running[role]
            if process.exitcode is None and process.pid is not None:
                os.kill(process.pid, number)

    @contextlib.asynccontextmanager
    async def clients(self) -> AsyncIterator[None]:
        """All of them, until the task is finished; they come back to servers that come back."""
        for client in self.task.clients:
            self._start_client(client)
        try:
            yield
            await asyncio.gather(*self._sessions.values())
        finally:
            for session in self._sessions.values():
                session.cancel()
            await asyncio.gather(*self._sessions.values(), return_exceptions=True)

    def restart_client(self, client: str) -> None:
        """It hangs up in the middle of whatever it does; another one begins with nothing but its count of uploads."""
        if not self._sessions[client].done():
            self._sessions[client].cancel()
            self._start_client(client)

    def _start_client(self, client: str) -> None:
        def train(parameters: NDArray[np.float32]) -> RingArray:
            time.sleep(self._training_s)
            return self.update(client)

        limit = UploadLimit(
            client,
            self.task.digest(),
            most=min(self._uploads_per_model, MOST_UPLOADS_PER_MODEL),
            file=self.folder / "clients" / f"{client}.uploads",
        )
        session = ClientSession(
            client=client,
            task=self.task,
            addresses=(self.addresses[AGGREGATORS[0]], self.addresses[AGGREGATORS[1]]),
            tls=self.pki.tls(client),
            train=train,
            conduct=Proves(self.proofs[client]),
            reconnect_timeout_s=60.0,
            limit=limit,
        )
        limit.most = self._uploads_per_model  # more than mode `proved` lets a client be configured with
        self._sessions[client] = asyncio.create_task(session.run())

    def close(self) -> None:
        """Leaves nobody behind."""
        self.kill(*self.running)


def committed(folder: Path, task: Task, role: Role) -> list[CommittedRound]:
    """The releases that one server knows of."""
    with open_task_store(folder / role, task, bytes(4 * task.dim)) as store:
        return store.committed()


def assert_nothing_wrong(processes: Processes) -> None:
    """Assert that a finished task left nothing wrong at both servers, see the module's text."""
    folder, task = processes.folder, processes.task
    a, b = (committed(folder, task, role) for role in AGGREGATORS)
    keys = [[(r.number, r.chosen, r.accepted, r.rejected, r.model_digest, r.test) for r in rounds] for rounds in (a, b)]
    assert keys[0] == keys[1]
    assert len(a) == task.rounds
    assert len({r.number for r in a}) == len(a)
    models = [np.load(folder / role / "model.npy") for role in AGGREGATORS]
    expected = in_the_clear(processes, a)
    for role, model in zip(AGGREGATORS, models, strict=True):
        assert model.tobytes() == expected.tobytes(), role
        assert convert.sha256(convert.model_to_bytes(model)) == a[-1].model_digest
        lines = (folder / role / "rounds.jsonl").read_text().splitlines()
        assert [int(json.loads(line).get("round", 0)) for line in lines] == [r.number for r in a]
    assert_ledgers(processes, a)
    assert_tuples_used_once(processes)
    if task.is_proved:
        assert_sent_once(processes)
    logs = [audit_log.read(store_path(folder / role)) for role in AGGREGATORS]
    assert audit_log.compare(*logs) == task.rounds


def in_the_clear(processes: Processes, rounds: Iterable[CommittedRound]) -> NDArray[np.float32]:
    """The model after these rounds, from the updates of those that were accepted."""
    task = processes.task
    parameters, past = np.zeros(task.dim, dtype=np.float32), Past.first(task)
    for round in rounds:
        total = np.zeros(task.dim, dtype=np.int64)
        kept, count = list(round.accepted), task.dropped_count
        if round.test is not None and round.test.has_passed:
            count = round.test.trim_count
        if count is not None:
            kept.sort(key=lambda client: fixed_point.exact_squared_norm(processes.update(client)))
            kept = kept[: max(0, len(kept) - count)]
        if (rule := task.krum_rule) is not None and kept:
            vectors = [processes.update(client) for client in kept]
            _, chosen, _ = krum_rounds.in_the_clear(krum_rounds.Round(vectors, rule.krum(len(kept))))
            kept = [kept[i] for i in chosen]
        for client in kept:
            total += processes.update(client)
        parameters, past = updated(parameters, total, task, past, len(round.accepted))
    return parameters


def assert_ledgers(processes: Processes, rounds: list[CommittedRound]) -> None:
    """Both hold every release, once, and charge alike."""
    participation = []
    for role in AGGREGATORS:
        with open_ledger(processes.folder / role, processes.task) as ledger:
            assert {r.number for r in rounds} <= ledger.rounds
            participation.append((ledger.rounds, dict(ledger.participation)))
    assert participation[0] == participation[1]
    released = Counter(client for r in rounds for client in r.chosen)
    for client, n_released in released.items():
        assert participation[0][1][client] >= n_released


def assert_tuples_used_once(processes: Processes) -> None:
    """By (round, slot, use); the numbers of all rounds are distinct, so no tuple of one serves another."""
    for role in AGGREGATORS:
        task_ids = task_ids_of(processes, role)
        with open_tuple_ledger(processes.folder / role) as burns:
            rows: list[tuple[int, int, str, TupleUse]] = [row for t in task_ids for row in burns.burnt(t)]
        uses = Counter((number, slot, use) for number, slot, _, use in rows)
        assert not uses or max(uses.values()) == 1


def assert_sent_once(processes: Processes) -> None:
    """By what the servers wrote down before they sent it, and by what the clients proved."""
    lines = [witness.read(processes.folder / f"{role}.once") for role in AGGREGATORS]
    assert any(what == witness.OPENED for what, *_ in lines[0])
    witness.assert_once(*lines)
    for rows in processes.proofs.values():
        assert max(rows.values(), default=0) <= 1


def task_ids_of(processes: Processes, role: Role) -> list[str]:
    """One: a task that is resumed keeps its id."""
    entries: list[Any] = audit_log.read(store_path(processes.folder / role))
    ids = [entry.fields["task"] for entry in entries if entry.kind == "task"]
    assert len(ids) == 1
    return ids
