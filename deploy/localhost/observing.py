"""Watch both aggregators as their operator: the rounds of a task, as both report them, and how it ends."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import grpc
import numpy as np
from numpy.typing import NDArray

from precad.deploy.configuration.sections import Deployment
from precad.deploy.errors import FAILURE, UNREACHABLE, RunFailedError
from precad.deploy.localhost.watch import LiveTable
from precad.deploy.shown.figures import plain
from precad.protos.messages import convert
from precad.protos.messages.undecoded import decoded, stub_of_bytes
from precad.protos.precad.v1 import control_pb2
from precad.protos.tls.identity import Role
from precad.protos.tls.transport import dial, require_not_cancelled

_CONTROL: Final = control_pb2.DESCRIPTOR.services_by_name["Control"]
START_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Observation:
    """A finished round as one aggregator reports it, with its model where that came along."""

    record: control_pb2.RoundRecord
    parameters: NDArray[np.float32] | None


@dataclass(slots=True)
class Progress:
    """Hold what the runner has seen of the task."""

    task_id: str = ""
    metrics: list[dict[str, Any]] = field(default_factory=list)
    final: NDArray[np.float32] | None = None
    ended: str = ""


class Observers:
    """Both aggregators, round by round."""

    def __init__(
        self,
        deployment: Deployment,
        progress: Progress,
        take_in: Callable[[Observation, Observation, LiveTable], Awaitable[None]],
    ) -> None:
        """take_in: writes down and shows a finished round. progress: of a run that is continued, what is known."""
        self._deployment, self._progress, self._take_in = deployment, progress, take_in
        self._up = [asyncio.Event(), asyncio.Event()]

    @property
    def are_joined(self) -> bool:
        """Whether both aggregators report to us, or did."""
        return all(event.is_set() for event in self._up)

    async def run(self, table: LiveTable) -> None:
        """Join the two aggregators' records round by round, until both say that the task is finished."""
        assert self._deployment.operator is not None  # resolve() supplied it
        operator, network = self._deployment.operator.tls, self._deployment.network
        addresses = ((network.aggregator_a, Role.AGGREGATOR_A), (network.aggregator_b, Role.AGGREGATOR_B))
        channels = [dial(address, role, operator) for address, role in addresses]
        inboxes: list[asyncio.Queue[Observation | None]] = [asyncio.Queue(), asyncio.Queue()]
        observers = [
            asyncio.create_task(self._observe(channels[i], inboxes[i], self._up[i], table if i == 0 else None))
            for i in (0, 1)
        ]
        joining = asyncio.create_task(self._join_records(inboxes, table))
        try:
            for finished in asyncio.as_completed((*observers, joining)):
                await finished
        finally:
            for task in (*observers, joining):
                task.cancel()
            await asyncio.gather(*observers, joining, return_exceptions=True)
            for channel in channels:
                await channel.close()

    async def _join_records(self, inboxes: list[asyncio.Queue[Observation | None]], table: LiveTable) -> None:
        for event in self._up:
            await event.wait()
        n_known = len(self._progress.metrics)  # of a run that is continued
        for index in itertools.count():
            a, b = await inboxes[0].get(), await inboxes[1].get()
            if a is None or b is None:
                if a is not b:
                    raise RunFailedError("the aggregators report different numbers of rounds", exit_code=FAILURE)
                return
            if index >= n_known:
                await self._take_in(a, b, table)
            elif a.parameters is not None:
                self._progress.final = a.parameters

    async def _observe(
        self,
        channel: grpc.aio.Channel,
        inbox: asyncio.Queue[Observation | None],
        up: asyncio.Event,
        table: LiveTable | None,
    ) -> None:
        """Report the finished rounds of one aggregator, then None. Tries again until it is up. Raises RunFailedError,
        MalformedMessageError."""
        deadline = time.monotonic() + START_TIMEOUT_S
        request = control_pb2.WatchRequest(with_models=table is not None)
        model = bytearray()
        while True:
            try:
                async for data in stub_of_bytes(channel, _CONTROL).Watch(request):
                    event = decoded(control_pb2.ControlEvent, data, "an aggregator")
                    up.set()
                    match event.WhichOneof("event"):
                        case "model":
                            model += event.model.data
                        case "round":
                            inbox.put_nowait(Observation(event.round, self._parameters(bytes(model))))
                            model.clear()
                        case "status" if table is not None:
                            self._show_status(event.status, table)
                        case "goodbye":
                            self._progress.ended = event.goodbye.reason
                            if not event.goodbye.finished:
                                raise RunFailedError(event.goodbye.reason, exit_code=UNREACHABLE)
                            inbox.put_nowait(None)
                            return
                raise RunFailedError("an aggregator hung up", exit_code=UNREACHABLE)
            except grpc.aio.AioRpcError as error:
                require_not_cancelled()
                if up.is_set() or time.monotonic() > deadline:
                    raise RunFailedError(f"lost an aggregator: {error.details()}", exit_code=UNREACHABLE) from None
                await asyncio.sleep(POLL_S)

    def _show_status(self, status: control_pb2.Status, table: LiveTable) -> None:
        self._progress.task_id = status.task
        table.say(f"{status.state}; {status.n_registered} of {len(self._deployment.task.clients)} clients connected")

    def _parameters(self, data: bytes) -> NDArray[np.float32] | None:
        return convert.model_from_bytes(data, self._deployment.task.dim) if data else None


def round_metrics(a: control_pb2.RoundRecord, b: control_pb2.RoundRecord, *, accuracy: float | None) -> dict[str, Any]:
    """Return one line of metrics.jsonl from both servers' records. Raises RunFailedError when the servers disagree."""
    for name in ("round", "chosen", "accepted", "rejected", "missing", "model_digest"):
        if getattr(a, name) != getattr(b, name):
            raise RunFailedError(f"the aggregators disagree on {name} of round {a.round}", exit_code=FAILURE)
    return {
        "round": a.round,
        "participants": list(a.chosen),
        "accepted": list(a.accepted),
        "rejected": list(a.rejected),
        "missing": list(a.missing),
        "bytes": {
            "clients_to_a": a.bytes_by_link["from_clients"],
            "clients_to_b": b.bytes_by_link["from_clients"],
            "a_to_b": a.bytes_by_link["to_peer"],
            "b_to_a": b.bytes_by_link["to_peer"],
            "dealer_to_a": a.bytes_by_link["from_dealer"],
            "dealer_to_b": b.bytes_by_link["from_dealer"],
        },
        "seconds": {name: round(value, 5) for name, value in a.seconds.items()},
        "seconds_total": round(max(sum(record.seconds.values()) for record in (a, b)), 5),
        "epsilon_one_server": plain(max(a.epsilon_one_server, b.epsilon_one_server)),
        "epsilon_clients_only": plain(max(a.epsilon_clients_only, b.epsilon_clients_only)),
        "accuracy": accuracy,
        "model_digest": a.model_digest.hex(),
    }
