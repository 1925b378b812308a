"""The simulated world of mode `proved`: two servers and clients that prove, no dealer.

Forbidden, beside what `tests.faults.simulation.oracle` names and this mode has:

- A share seed that leaves twice, or that the holder of a slot gives.
- A challenge that clients hear before the server has locked, twice, or in two forms in one round.
- A coin of the challenge that leaves before both servers have locked.
- A step that leaves twice in a round: so one verifier message, for one pair of points.
- A step of the check that leaves before the charge, or a noisy share before the verdicts are on disk.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from precad.clients.attacks.attack import Attack
from precad.mpc.proved import field
from precad.mpc.proved.submission import seeded_of
from precad.mpc.ring import RingArray
from precad.protos.precad.v1 import aggregator_pb2
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.store.folder import store_path
from tests.faults.simulation.malice import FORGED, TOO_LARGE, Honest
from tests.faults.simulation.network import Call
from tests.faults.simulation.oracle import Oracle, _rows, value_of
from tests.faults.simulation.world import Process, World
from tests.harness.pki import AGGREGATORS

CHECK = ("validation/proofs", "validation/verifier", "validation/accepted", "noisy sum")
"""Steps that leave once a round is charged."""


class ProvedOracle(Oracle):
    """See the module."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self._challenges: dict[int, bytes] = {}
        self._n_reveals: dict[tuple[Role, int], int] = {}

    def invites(self, role: Role, disk: Path, client: str, invitation: aggregator_pb2.Invitation) -> None:
        """A server invites a client, and gives it its share seed where it is the seeded one."""
        t, seed = invitation.round, invitation.mask_seed
        self._require_once("invitation", role, t, client)
        self._require_once("slot", role, t, invitation.slot)
        is_seeded = seeded_of(invitation.slot) == AGGREGATORS.index(role)
        self._require(len(seed) == 16 * is_seeded, f"{role} gives {len(seed)} bytes for slot {invitation.slot}")
        if is_seeded:
            self._require_once("share seed", seed)
        self._require(bool(self._round(disk, t)), f"{role} invites to round {t}, which it has not reserved")
        self._invited.setdefault((role, t), set()).add(client)

    def challenges(self, role: Role, client: str, challenge: aggregator_pb2.Challenge) -> None:
        """A server tells a client the challenge."""
        t, told = challenge.round, challenge.challenge
        self._require_once("told", role, t, client)
        self._require((role, t) in self._locked, f"{role} tells the challenge of round {t} before its lock")
        self._require(self._challenges.setdefault(t, told) == told, f"round {t} has two challenges")
        self._require(list(self._challenges.values()).count(told) == 1, f"the challenge of round {t} is an old one")

    def steps(self, role: Role, disk: Path, lane: int, label: str, payload: bytes) -> None:
        """A server sends a step of MPC."""
        _, number, step = label.split("/", 2)
        if step.startswith("join"):
            return
        t, known = int(number), self._round(disk, int(number))
        if step in {"coin/commit", "validation/lock", "validation/proofs"}:
            self._require_once("coin", payload[:32])
        if step == "coin/commit":  # of a coin that may be forgotten, and be drawn afresh on the next lane
            self._require(not known, f"{role} commits to a coin of round {t}, which is used up")
            return
        self._require(self._lane_of.setdefault(t, lane) == lane, f"round {t} on two lanes")
        self._require(bool(known), f"{role} steps in round {t}, which it has not reserved")
        if step == "coin/reveal":
            self._reveals(role, t)
            return
        self._require_once("step", role, t, step)
        if step == "validation/lock":
            self._locked.add((role, t))
        if step in CHECK:
            self._require_charge(role, disk, t, step)
        if step == "noisy sum":
            self._require(known == [("validated",)], f"{role} releases round {t}, which is {known}")
            self._releases(role, disk, t, field.from_bytes(payload, n_elements=len(payload) // 7))

    def _reveals(self, role: Role, t: int) -> None:
        n = self._n_reveals[role, t] = self._n_reveals.get((role, t), 0) + 1
        self._require(n <= 2, f"{role} shows a third coin in round {t}")
        if n == 2:
            missing = [other for other in AGGREGATORS if (other, t) not in self._locked]
            self._require(not missing, f"{role} shows its coin in round {t} before the lock of {missing}")

    def _round(self, disk: Path, t: int) -> list[tuple[Any, ...]]:
        return _rows(store_path(disk), "SELECT state FROM round WHERE number = ?", t)

    def total(self, t: int) -> RingArray:
        """See `Oracle.total`. Shares are elements here."""
        a, b = (self._shares[role, t] for role in AGGREGATORS)
        return field.to_integers(field.add(a, b))


class Prover(Honest):
    """An honest client of mode `proved`."""

    async def _take_part_and_prove(self, stubs: Any, work: Any, invitation: Any, seed: Any) -> None:
        if work.task is self.task:
            work = replace(work, compute=lambda parameters: self._vector(self._value(invitation.round)))
        await super()._take_part_and_prove(stubs, work, invitation, seed)

    def _value(self, t: int) -> int:
        return value_of(t)


class Forger(Prover):
    """Enrolled, and up to something in every round: silence, before or after the lock, or a vector that is too long."""

    _mute: int | None = None

    async def _take_part_and_prove(self, stubs: Any, work: Any, invitation: Any, seed: Any) -> None:
        way = self.draw.choice(("silence", "no proof", "as asked", "as asked"))
        self._mute = invitation.round if way == "no proof" else None
        if way != "silence":
            await super()._take_part_and_prove(stubs, work, invitation, seed)

    async def _proof(self, upload: Any) -> Any:
        proof = await super()._proof(upload)
        return None if upload.round == self._mute else proof

    def _value(self, t: int) -> int:
        if self.draw.random() < 0.3:
            return TOO_LARGE
        value = FORGED + self.draw.randrange(FORGED // 2)
        self.oracle.forgeries.setdefault(t, set()).add(value)
        return value


class ProvedWorld(World):
    """One task of mode `proved` under one plan."""

    servers = AGGREGATORS
    kind_of_oracle = ProvedOracle
    kinds_of_clients = (Prover, Forger)
    oracle: ProvedOracle

    def _client(self, process: Process, **more: Any) -> Any:
        return super()._client(process, **({"conduct": Attack()} if process.name == "mallory" else {}), **more)

    def _on_reply(self, call: Call, message: Any) -> None:
        server: Any = call.server
        if not call.method.endswith("/Join"):
            return
        if message.HasField("invitation"):
            role = Role(server.name)
            self._judge(self.oracle.invites, role, server.disk, call.client.name, message.invitation)
        elif message.HasField("challenge"):
            self._judge(self.oracle.challenges, Role(server.name), call.client.name, message.challenge)
