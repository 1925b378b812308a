"""The clients of a simulated world: honest ones, whose updates tell for which round they are, and one that is not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import numpy as np

from precad.clients.submission import RoundInvitation, Submission, make_submission
from precad.clients.upload.sending import parts_of
from precad.clients.upload.session import ClientSession, Work
from precad.mpc.ring import RingArray
from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2
from tests.faults.simulation.oracle import N_NOISE, Oracle, value_of

TOO_LARGE = 10_000_000
FORGED = 20_000
"""Smallest of the malicious client's values; no two of them make a third."""


class Honest(ClientSession):
    """One whose update has the round's value in its own coordinate."""

    draw: random.Random
    oracle: Oracle

    def _vector(self, value: int) -> RingArray:
        vector = np.zeros(self.task.dim, dtype=np.int64)
        vector[N_NOISE + sorted(self.task.clients).index(self.client)] = value
        return vector

    async def _take_part(self, stubs: Any, work: Work, invitation: RoundInvitation) -> None:
        if work.task is self.task:
            work = replace(work, compute=lambda parameters: self._vector(value_of(invitation.round)))
        await super()._take_part(stubs, work, invitation)

    def evaluation(self) -> RingArray:
        """Return this client's bit."""
        return np.array([0] * N_NOISE + [1 << sorted(self.task.clients).index(self.client)])


class Mallory(Honest):
    """Enrolled, and up to something in every round."""

    _last: Submission | None = None

    async def _take_part(self, stubs: Any, work: Work, invitation: RoundInvitation) -> None:
        attacks: list[Callable[[Any, RoundInvitation], Awaitable[None]]] = [
            self._two_vectors,
            self._replay,
            self._too_large,
            self._as_another,
            self._cut,
            self._silence,
            self._as_asked,
        ]
        if work.task is not self.task:
            if self.draw.random() < 0.5:
                await super()._take_part(stubs, work, invitation)
            return
        await self.draw.choice(attacks)(stubs, invitation)

    def _forge(self, invitation: RoundInvitation) -> Submission:
        value = FORGED + self.draw.randrange(FORGED // 2)
        self.oracle.forgeries.setdefault(invitation.round, set()).add(value)
        self._last = make_submission(self._vector(value), invitation, task=self.task, client=self.client)
        return self._last

    async def _send(self, stubs: Any, *submissions: Submission) -> None:
        uploads = [stubs[0].Submit(parts_of(submission, 0)) for submission in submissions]
        for outcome in await asyncio.gather(*uploads, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _as_asked(self, stubs: Any, invitation: RoundInvitation) -> None:
        await self._send(stubs, self._forge(invitation))

    async def _two_vectors(self, stubs: Any, invitation: RoundInvitation) -> None:
        await self._send(stubs, self._forge(invitation), self._forge(invitation))

    async def _replay(self, stubs: Any, invitation: RoundInvitation) -> None:
        earlier = self._last or self._forge(invitation)
        stale = common_pb2.Binding()
        stale.CopyFrom(earlier.binding)
        stale.round = invitation.round
        await self._send(stubs, earlier, replace(earlier, binding=stale), self._forge(invitation))

    async def _too_large(self, stubs: Any, invitation: RoundInvitation) -> None:
        vector = self._vector(self.draw.choice((TOO_LARGE, -(2**62), 2**63 - 1)))
        await self._send(stubs, make_submission(vector, invitation, task=self.task, client=self.client))

    async def _as_another(self, stubs: Any, invitation: RoundInvitation) -> None:
        victim = next(client for client in sorted(self.task.clients) if client != self.client)
        await self._send(stubs, make_submission(self._vector(value_of(0)), invitation, task=self.task, client=victim))

    async def _cut(self, stubs: Any, invitation: RoundInvitation) -> None:
        whole = self._forge(invitation)
        payload = whole.payloads[0][: self.draw.randrange(1, len(whole.payloads[0]))]
        if self.draw.random() < 0.5:
            binding = common_pb2.Binding()
            binding.CopyFrom(whole.binding)
            binding.digest_a = convert.sha256(payload)
            whole = replace(whole, binding=binding)
        await self._send(stubs, replace(whole, payloads=(payload, b"")))

    async def _silence(self, stubs: Any, invitation: RoundInvitation) -> None:
        """Keeps everybody waiting until the deadline."""
