"""The service of an aggregator for its operator: its state, and every round as it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

from precad.protos.messages import convert
from precad.protos.precad.v1 import common_pb2, control_pb2, control_pb2_grpc
from precad.protos.tls.identity import Role, require_role
from precad.servers.door.calls import Context, refusing
from precad.servers.door.servicers import TaskView
from precad.servers.store.record import to_message

STATUS_INTERVAL_S = 0.25
"""How often a watcher's state is looked at: a round passes through seven of them, and people read slower."""


class ControlServicer(control_pb2_grpc.ControlServicer):
    """For the operator."""

    def __init__(self, view: TaskView, role: Role) -> None:
        self._view, self._role = view, role
        self._changed = asyncio.Condition()
        self.n_watchers = 0

    def status(self) -> control_pb2.Status:
        """Return what `GetStatus` answers."""
        view = self._view
        return control_pb2.Status(
            role=self._role,
            state=view.state,
            task=view.task_id,
            round=view.round,
            n_registered=len(view.sessions.connected),
        )

    async def notify(self) -> None:
        """Wake the watchers: there is a new record, or the end."""
        async with self._changed:
            self._changed.notify_all()

    async def wait_until_unwatched(self) -> None:
        """Return when nobody watches any more."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.n_watchers == 0)

    async def GetStatus(self, request: control_pb2.StatusRequest, context: Context) -> control_pb2.Status:  # noqa: N802
        """Return whether we are up, and in which state."""
        async with refusing("GetStatus", context, self._view.telemetry):
            require_role(context, Role.OPERATOR)
        return self.status()

    async def Watch(  # noqa: N802
        self, request: control_pb2.WatchRequest, context: Context
    ) -> AsyncIterator[control_pb2.ControlEvent]:
        """Records of all rounds, old and new, the state now and then, and the end."""
        async with refusing("Watch", context, self._view.telemetry):
            require_role(context, Role.OPERATOR)
        self.n_watchers += 1
        try:
            n_seen, last = 0, control_pb2.Status()
            while True:
                while n_seen < len(self._view.records):
                    record = self._view.records[n_seen]
                    n_seen += 1
                    if request.with_models and n_seen == len(self._view.records):
                        for event in self._model_events():
                            yield event
                    yield control_pb2.ControlEvent(round=to_message(record))
                if (status := self.status()) != last:
                    last = status
                    yield control_pb2.ControlEvent(status=status)
                if self._view.ended is not None and n_seen == len(self._view.records):
                    yield control_pb2.ControlEvent(goodbye=self._view.ended)
                    return
                await self._news(n_seen)
        finally:
            self.n_watchers -= 1
            await asyncio.shield(self.notify())

    async def _news(self, n_seen: int) -> None:
        """Return at the next record or the end, or when it is time to look at the state again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(STATUS_INTERVAL_S), self._changed:
                await self._changed.wait_for(lambda: len(self._view.records) > n_seen or self._view.ended is not None)

    def _model_events(self) -> Iterator[control_pb2.ControlEvent]:
        assert self._view.parameters is not None  # a round has ended, so there is a model
        for piece in convert.pieces(convert.model_to_bytes(self._view.parameters)):
            yield control_pb2.ControlEvent(model=common_pb2.Chunk(data=piece))
