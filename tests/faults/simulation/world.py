"""Both servers, the dealer and the clients of one task, with the code that they run in production, in one thread.

`Aggregator.run`, `Dealer.run` and `ClientSession.run` work on a simulated loop, over a simulated network. Their
databases, ledgers and checkpoints are real files. Only admission control, which knows gRPC's insides, is left out.

A process that dies leaves its folder as it is at that moment, and the one that is started in its place finds that.
Whatever the dead one's code still does is done to a copy that nobody reads, and nothing of it reaches the network.
(What the system had not written out yet is not lost with it: this is `kill -9`, not a power cut.) A seed decides all
that can come in one order or another; in another interpreter, PYTHONHASHSEED does as well.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

import numpy as np
import structlog

from precad.clients.errors import ServerUnreachableError
from precad.clients.upload import links as links_module
from precad.clients.upload import patience as patience_module
from precad.clients.upload import session as session_module
from precad.clients.upload_limit import UploadLimit
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers import aggregator as aggregator_module
from precad.servers.aggregator import Aggregator
from precad.servers.dealer import Dealer
from precad.servers.door import admission as admission_module
from precad.servers.errors import PeerUnreachableError
from precad.servers.rounds.equipment import Randomness
from precad.servers.store.rounds import TaskStore
from precad.servers.task import meeting as meeting_module
from precad.servers.task import patience as task_patience_module
from precad.servers.task import run as task_run_module
from tests.faults.server_main import AGGREGATOR_POINTS, DEALER_POINTS
from tests.faults.simulation.lane import SimulatedLane
from tests.faults.simulation.loop import LateError, SimulatedLoop, Strand, StuckError
from tests.faults.simulation.malice import Honest, Mallory
from tests.faults.simulation.network import Call, Mishap, Network
from tests.faults.simulation.oracle import Oracle
from tests.harness.pki import AGGREGATORS, Pki

PATIENCE_S: Final = 60.0
LIMIT_S: Final = 3_600.0
"""On the clock: a task that is not over by then does not go on."""
LONGEST_DEATH_S: Final = 3.0
SERVERS: Final = (*AGGREGATORS, Role.DEALER)
ADDRESSES: Final = {role: f"{role}:1" for role in SERVERS}
TRANSITIONS: Final = {
    (owner, function)
    for owner, function, _ in (*AGGREGATOR_POINTS.values(), *DEALER_POINTS.values())
    if isinstance(owner, type)
} | {(TaskStore, "interrupted"), (TaskStore, "charged_by_peer"), (TaskStore, "settle"), (TaskStore, "evaluated")}
"""Functions whose effect is on disk when they return."""
CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("process")


@dataclass(frozen=True)
class Death:
    """The process that holds this name dies at its n-th persisted transition, counted over all of its lives."""

    name: str
    transition: int
    after: bool


@dataclass(frozen=True)
class Accident:
    """At a time: a process dies (`other` empty), or every connection between two of them breaks."""

    at_s: float
    name: str
    other: str = ""


@dataclass(frozen=True)
class Plan:
    """One run. The seed decides times, selections and the malicious client's doings."""

    seed: int = 0
    deaths: tuple[Death, ...] = ()
    accidents: tuple[Accident, ...] = ()
    mishaps: tuple[tuple[int, Mishap], ...] = ()


class Process:
    """One life of a server or a client."""

    def __init__(self, name: str, number: int, folder: Path) -> None:
        self.name, self.number, self.folder = name, number, folder
        self.is_dead = False
        self.strand: Strand | None = None
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)

    @property
    def disk(self) -> Path:
        """A server's state dir."""
        return self.folder / self.name


class World:
    """One task under one plan."""

    servers: tuple[Role, ...] = SERVERS
    kind_of_oracle: type[Oracle] = Oracle
    kinds_of_clients: tuple[type[Any], type[Any]] = (Honest, Mallory)
    """First clients that follow the protocol, then the one that does not."""

    def __init__(self, folder: Path, task: Task, pki: Pki, plan: Plan) -> None:
        self.folder, self.task, self._pki, self._plan = folder, task, pki, plan
        self.draw = random.Random(plan.seed)
        self.loop = SimulatedLoop(self.draw, limit_s=LIMIT_S)
        self.loop.set_task_factory(_owned)
        self.network = Network(self.loop, CURRENT.get, lambda: CURRENT.get().context)
        self.network.mishaps = dict(plan.mishaps)
        self.network.on_reply, self.network.on_step = self._on_reply, self._on_step
        self.oracle = self.kind_of_oracle(task)
        self.running: dict[str, Process] = {}
        self.lives: Counter[str] = Counter()
        self.transitions: Counter[str] = Counter()
        self.trace: list[tuple[float, str, str]] = []
        """(time, process, transition)."""
        self._n_draws = 0
        self._last_step: dict[str, str] = {}
        self._finished: set[str] = set()
        self._over = asyncio.Event()
        self._error: BaseException | None = None

    # -- a run ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """To the end of the task. Raises ViolationError; whatever ended a process that should have gone on."""
        with self._patched():
            try:
                self.loop.run_until_complete(self._run())
            except (StuckError, LateError) as error:
                raise AssertionError(f"the task does not go on: {error}; {self.trace[-3:]}") from error
            finally:
                self._bury()
        for role in self.servers:
            shutil.copytree(self.running[role].disk, self.folder / role)

    async def _run(self) -> None:
        for name in (*self.servers, *sorted(self.task.clients)):
            folder = self.folder / f"{name}-0"
            folder.mkdir()
            np.save(folder / "initial.npy", np.zeros(self.task.dim, dtype=np.float32))
            self._start(name)
        for accident in self._plan.accidents:
            self.loop.call_at(accident.at_s, self._happens, accident)
        await self._over.wait()
        if self.oracle.violations:
            raise self.oracle.violations[0]
        if self._error is not None:
            raise self._error

    def _start(self, name: str) -> None:
        process = self.running[name] = Process(name, self.lives[name], self.folder / f"{name}-{self.lives[name]}")
        work = process.context.run(self._program, process)
        main = self.loop.create_task(work, context=process.context)
        main.add_done_callback(functools.partial(self._ended, process))

    def _program(self, process: Process) -> Any:
        if process.name not in self.servers:
            return self._client(process)
        folder = process.folder
        role, changes = Role(process.name), {"folder": folder, "reconnect_timeout_s": PATIENCE_S}
        changes["listen"] = ADDRESSES[role]
        if role is Role.DEALER:
            return Dealer(task=self.task, config=self._pki.dealer(**changes)).run()
        has_dealer, party = Role.DEALER in self.servers, AGGREGATORS.index(role)
        if not has_dealer:
            changes["dealer_certificate"] = None
        draw = self.draw.randbytes
        return Aggregator(
            party=party,
            task=self.task,
            config=self._pki.aggregator(party, **changes),
            addresses=(ADDRESSES[AGGREGATORS[1]], ADDRESSES[Role.DEALER] if has_dealer else None),
            randomness=Randomness(coin=draw, share_seeds=draw, noise=functools.partial(self.noise, process, party)),
        ).run()

    def _client(self, process: Process, **more: Any) -> Any:
        honest, other = self.kinds_of_clients
        evaluation = UploadLimit(process.name, self.task.digest(), most=1)
        limit = UploadLimit(process.name, self.task.digest(), most=1)
        session = (other if process.name == "mallory" else honest)(
            client=process.name,
            task=self.task,
            addresses=(ADDRESSES[AGGREGATORS[0]], ADDRESSES[AGGREGATORS[1]]),
            tls=self._pki.tls(process.name),
            train=lambda parameters: np.zeros(self.task.dim, dtype=np.int64),
            reconnect_timeout_s=PATIENCE_S,
            limit=limit,
            evaluate=(lambda _: session.evaluation(), evaluation),
            **more,
        )
        limit.most = 1_000_000  # more than mode `proved` lets anybody configure: servers die often
        session.draw, session.oracle = self.draw, self.oracle
        return session.run()

    def noise(self, process: Process, party: int, std: float, dim: int) -> RingArray:
        """Says which draw it is."""
        self._n_draws += 1
        noise = np.zeros(dim, dtype=np.int64)
        noise[party] = self._n_draws
        if not process.is_dead:
            number = int(self._last_step[process.name].split("/")[1])
            self._judge(self.oracle.drew, Role(process.name), number, self._n_draws)
        return noise

    # -- ends ----------------------------------------------------------------------------------------------------------

    def _ended(self, process: Process, main: asyncio.Task[None]) -> None:
        if process.is_dead or self._over.is_set():
            if not main.cancelled():
                main.exception()
            return
        error = None if main.cancelled() else main.exception()
        is_late = process.name not in AGGREGATORS and self._has_every_round()
        both_done = set(AGGREGATORS) <= self._finished or is_late
        if error is not None and not (both_done and isinstance(error, (PeerUnreachableError, ServerUnreachableError))):
            self._error = self._error or error
            error.add_note(f"in {process.name}, at {self.loop.time():.3f} s")
            self._over.set()
            return
        self._finished.add(process.name)
        if self._finished >= {*self.servers, *self.task.clients}:
            self._over.set()

    def _has_every_round(self) -> bool:
        """Both aggregators, so that one may have left before a client or the dealer could hear of it."""
        return all(len(self.oracle.commits[role]) == self.task.rounds for role in AGGREGATORS)

    def _happens(self, accident: Accident) -> None:
        one = self.running[accident.name]
        if accident.other:
            self.network.cut_between(one, self.running[accident.other])
        elif accident.name not in self._finished:
            self.kill(one)

    def kill(self, process: Process) -> None:
        """As SIGKILL does; another one is started in its place, some drawn time later."""
        if process.is_dead or self._over.is_set():
            return
        process.is_dead = True
        self.lives[process.name] += 1
        shutil.copytree(process.folder, self.folder / f"{process.name}-{self.lives[process.name]}")
        self.network.forget(process)
        for task in list(process.tasks):
            self.loop.call_soon(task.cancel)
        self.loop.call_later(self.draw.uniform(0.0, LONGEST_DEATH_S), self._start, process.name)

    def _bury(self) -> None:
        """Nothing of this world goes on."""
        self._over.set()
        self.network.on_reply, self.network.on_step = (lambda *_: None), (lambda *_: None)
        for lane in self.network.lanes:
            lane.close()
        for _ in range(5):
            left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
            for task in left:
                task.cancel()
            if left:
                self.loop.clock.limit_s += LIMIT_S
                self.loop.run_until_complete(asyncio.wait(left, timeout=30.0))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    # -- what is seen --------------------------------------------------------------------------------------------------

    def _on_reply(self, call: Call, message: Any) -> None:
        if call.method.endswith("/Join") and message.HasField("invitation"):
            server: Any = call.server
            self._judge(self.oracle.invites, Role(server.name), server.disk, call.client.name, message.invitation)
        elif call.method.endswith("/Deal") and message.HasField("key"):
            dealer: Any = call.server
            self._judge(self.oracle.deals, str(dealer.folder), call.client.name, message.key)

    def _on_step(self, host: Any, lane: SimulatedLane, label: str, payload: bytes) -> None:
        self._last_step[host.name] = label
        self._judge(self.oracle.steps, Role(host.name), host.disk, lane.number, label, payload)

    def _judge(self, rule: Callable[..., None], *seen: Any) -> None:
        """End the run on what a rule says, whatever the program makes of it."""
        try:
            rule(*seen)
        except AssertionError:
            self.loop.call_soon(self._over.set)
            raise

    def _transition(self, function: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        """One persisted transition, at which the process may die."""
        process = CURRENT.get()
        if process.is_dead or self._over.is_set():
            return function(*args, **kwargs)
        number = self.transitions[process.name]
        self.transitions[process.name] += 1
        self.trace.append((self.loop.time(), process.name, name))
        if Death(process.name, number, after=False) in self._plan.deaths:
            self.kill(process)
        result = function(*args, **kwargs)
        if name == "commit" and not process.is_dead:
            self._judge(self.oracle.commits_round, Role(process.name), args[1])
        if name == "evaluated" and not process.is_dead:
            self._judge(self.oracle.evaluates, Role(process.name), args[1])
        if Death(process.name, number, after=True) in self._plan.deaths:
            self.kill(process)
        return result

    # -- what is in another's place ------------------------------------------------------------------------------------

    @contextmanager
    def _patched(self) -> Iterator[None]:
        """Clock, network, threads and public randomness are ours; nothing is logged."""
        clock = SimpleNamespace(monotonic=self.loop.time)
        with ExitStack() as stack:
            for module, changes in (
                (aggregator_module, {"ThreadPoolExecutor": self._new_strand}),
                (admission_module, {"bind_server": self.network.bind_server}),
                (task_run_module, {"dial": self.network.dial}),
                (task_patience_module, {"time": clock}),
                (meeting_module, self._lanes),
                (session_module, {"time": clock}),
                (links_module, {"dial": self.network.dial}),
                (patience_module, {"time": clock, "random": self.draw}),
            ):
                stack.enter_context(patch.multiple(module, **changes))
            for owner, name in sorted(TRANSITIONS, key=repr):
                function = getattr(owner, name)
                wrapped = functools.partialmethod(_through, self, function, name)
                stack.enter_context(patch.object(owner, name, wrapped))
            stack.callback(structlog.reset_defaults)
            structlog.configure(processors=[_drop])
            yield

    @property
    def _lanes(self) -> dict[str, Any]:
        return {
            "dial": self.network.dial,
            "LaneListener": self.network.lane_listener,
            "open_lane": self.network.open_lane,
        }

    def _new_strand(self, *args: Any, **kwargs: Any) -> Strand:
        strand = CURRENT.get().strand = Strand()
        return strand


def _through(owner: Any, world: World, function: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
    return world._transition(function, name, owner, *args, **kwargs)


def _drop(logger: Any, method: str, event: Any) -> Any:
    raise structlog.DropEvent


def _owned(loop: asyncio.AbstractEventLoop, work: Any, context: contextvars.Context | None = None) -> Any:
    """A task of the process in whose context it runs."""
    task = asyncio.Task(work, loop=loop, context=context)
    process = (context or contextvars.copy_context()).get(CURRENT)
    if process is not None:
        process.tasks[task] = None
        task.add_done_callback(lambda done: process.tasks.pop(done, None))
        if process.is_dead:
            loop.call_soon(task.cancel)
    return task
