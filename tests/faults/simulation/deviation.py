"""One aggregator of a simulated world that deviates at random, and what the other one must not do all the same.

The deviating one runs production's code. At its steps, and in what it says as a server to clients and on the link, it
says something else, as a draw decides. It dies at some of its transitions, and may find an older folder at its start.
"""

from __future__ import annotations

import asyncio
import functools
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from precad.deploy.errors import REFUSED, UNREACHABLE, exit_code_of
from precad.protos.precad.v1 import aggregator_pb2
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.links.step_limits import StepLimits
from precad.servers.store.rounds import CommittedRound, EvaluatedRound
from tests.faults.simulation import network as network_module
from tests.faults.simulation.lane import SimulatedLane
from tests.faults.simulation.network import Call
from tests.faults.simulation.oracle import Oracle
from tests.faults.simulation.world import CURRENT, Plan, Process, World
from tests.harness.pki import AGGREGATORS, Pki

WAYS: Final = ("hang up", "flip", "flip and go on", "go on", "say it longer", "an earlier one", "another step")
TYPES: Final = {"number": int, "bytes": bytes, "text": str}
MOST_LIVES: Final = 12
LAST_WORDS_S: Final = 1.0


class OneSided(Oracle):
    """Watch the honest server alone: what it lets out is charged, and leaves once; lost rounds are limited."""

    def __init__(self, task: Task, honest: Role) -> None:
        super().__init__(task)
        self._honest, self._drawn = honest, set[int]()
        self.n_released = 0

    def invites(self, role: Role, disk: Path, client: str, invitation: aggregator_pb2.Invitation) -> None:
        """See `Oracle.invites`; so the others."""
        if role is self._honest:
            super().invites(role, disk, client, invitation)

    def steps(self, role: Role, disk: Path, lane: int, label: str, payload: bytes) -> None:
        if role is not self._honest:
            return
        super().steps(role, disk, lane, label, payload)
        _, number, step = label.split("/", 2)
        self.n_released += step == "noisy sum"
        if step == "coin/reveal" and int(number) not in self._drawn:
            lost = self._drawn - self.commits[role].keys() - self.evaluations[role].keys()
            most = self._task.most_lost_rounds + self._task.draws_ahead + self._task.most_evaluations
            self._require(len(lost) <= most, f"{role} draws round {number} after it lost {sorted(lost)}")
            self._drawn.add(int(number))

    def drew(self, role: Role, t: int, draw: int) -> None:
        if role is self._honest:
            super().drew(role, t, draw)

    def commits_round(self, role: Role, round: CommittedRound) -> None:
        self._ends(role, round.number, self.commits[role], round)

    def evaluates(self, role: Role, round: EvaluatedRound) -> None:
        self._ends(role, round.number, self.evaluations[role], round)

    def _ends(self, role: Role, number: int, ended: dict[int, Any], record: Any) -> None:
        if role is self._honest:
            self._require(number not in ended, f"{role} ends round {number} twice")
            ended[number] = record


class DeviatingLane(SimulatedLane):
    """An end of the lane that gives the other one no longer than production's does."""

    def __init__(self, world: DeviatingWorld, *end: Any) -> None:
        super().__init__(*end)
        self._world, self.limits = world, StepLimits()

    def exchange(self, label: str, payload: bytes, at_most: int | None = None) -> bytes:
        """See `SimulatedLane.exchange`."""
        most = len(payload) if at_most is None else at_most
        limit_s = min(self.limits.seconds(label, len(payload) + most), 1e6)
        timer = self._network.loop.call_later(limit_s, self.close)
        try:
            if self._host.name == self._world.deviating:
                return self._deviates(self._world, label, payload, most)
            return super().exchange(label, payload, most)
        finally:
            timer.cancel()

    def _deviates(self, world: DeviatingWorld, label: str, payload: bytes, most: int) -> bytes:
        task, t, step = label.split("/", 2)
        earlier = world.said[step]
        way = world.way(f"lane {step}", WAYS)
        earlier.append(payload)
        ours = {
            "flip": world.flipped(payload),
            "flip and go on": world.flipped(payload),
            "say it longer": payload + b"\0",
            "an earlier one": world.chance.choice(earlier),
        }.get(way or "", payload)
        if way == "hang up":
            self.close()
        if way == "another step":
            label = f"{task}/{t}/{world.chance.choice(sorted(world.said))}"
        theirs = super().exchange(label, ours, most)
        return payload if way in ("go on", "flip and go on") else theirs


class DeviatingWorld(World):
    """One task, in which the named server deviates. It is over when the honest one has ended."""

    def __init__(self, folder: Path, task: Task, pki: Pki, seed: int, *, rate: float) -> None:
        """rate: probability of a deviation, at each place where there can be one."""
        super().__init__(folder, task, pki, Plan(seed=seed))
        self.chance, self._rate = random.Random(f"deviations of {seed}"), rate
        self.deviating, self.honest = random.Random(seed).sample(AGGREGATORS, 2)
        self.oracle: OneSided = OneSided(task, self.honest)
        self.said: dict[str, list[bytes]] = defaultdict(list)
        self.done = Counter[str]()
        self._older: list[Path] = []

    def way(self, where: str, ways: tuple[str, ...]) -> str | None:
        """Return how to deviate here, if at all."""
        if self._over.is_set() or self.chance.random() >= self._rate:
            return None
        way = self.chance.choice(ways)
        self.done[f"{where}: {way}"] += 1
        return way

    def flipped(self, payload: bytes) -> bytes:
        """Return the payload with another bit."""
        changed = bytearray(payload)
        if changed:
            changed[self.chance.randrange(len(changed))] ^= 1 << self.chance.randrange(8)
        return bytes(changed)

    def _ended(self, process: Process, main: asyncio.Task[None]) -> None:
        """End with the honest server, for a reason of its own; start anybody else again."""
        error = None if main.cancelled() else main.exception()
        if process.is_dead or self._over.is_set():
            return
        if process.name == self.honest:
            if error is not None and exit_code_of(error) not in (REFUSED, UNREACHABLE):
                self._error = error
            self.loop.call_later(LAST_WORDS_S, self._over.set)
        elif error is not None and self.lives[process.name] < MOST_LIVES:
            self.kill(process)

    def kill(self, process: Process) -> None:
        """See `World.kill`. What the deviating server finds at its next start may be an older folder."""
        own = process.folder
        if process.name == self.deviating and self._older and self.way("folder", ("older",)):
            process.folder = self.chance.choice(self._older)
        super().kill(process)
        process.folder = own

    def _transition(self, function: Callable[..., Any], name: str, *args: Any, **kwargs: Any) -> Any:
        process = CURRENT.get()
        if process.name == self.deviating and not process.is_dead and not self._over.is_set():
            self._older.append(self.folder / f"older-{len(self._older)}")
            shutil.copytree(process.folder, self._older[-1])
            if self.way(name, ("dies",)):
                self.kill(process)
        return super()._transition(function, name, *args, **kwargs)

    def _on_reply(self, call: Call, message: Any) -> None:
        super()._on_reply(call, message)
        if call.server.name == self.deviating and call.method.endswith(("/Join", "/Link")):
            self._lies(message)

    def _lies(self, message: Any) -> None:
        """Change a field of what the deviating server says."""
        kind = message.WhichOneof(message.DESCRIPTOR.oneofs[0].name)
        if (way := self.way(kind, ("number", "bytes", "text"))) is None:
            return
        said = getattr(message, kind)
        of_way = [field.name for field in said.DESCRIPTOR.fields if type(getattr(said, field.name)) is TYPES[way]]
        if of_way:
            name = self.chance.choice(of_way)
            setattr(said, name, self._other(getattr(said, name)))

    def _other(self, value: Any) -> Any:
        if isinstance(value, int):
            return max(0, value + self.chance.choice((-1, 1, 2)))
        return self.flipped(value) if isinstance(value, bytes) else value + "x"

    @contextmanager
    def _patched(self) -> Iterator[None]:
        lane = functools.partial(DeviatingLane, self)
        with super()._patched(), patch.object(network_module, "SimulatedLane", lane):
            yield
