"""A client of mode `proved` by the second implementation, over real gRPC with TLS.

The protocol's arithmetic, digests and rules are `tests/vectors/independent/proved_client.py`; this file carries its
messages. Nothing of `precad.servers`, `precad.clients` or `precad.mpc` is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from tests.harness import plain_wire
from tests.vectors.independent.proved_client import Client
from tests.vectors.independent.proved_messages import Round, Sent, config_digest
from tests.vectors.independent.proved_parameters import sizes
from tests.vectors.independent.ring import RefusedError

JOIN, SUBMIT, PROVE = (f"/precad.v1.Aggregator/{method}" for method in ("Join", "Submit", "Prove"))
ALIKE = ("task", "round", "slot", "dim", "model_digest", "n_committed")


class PlainClient:
    """One client, until both servers say goodbye."""

    def __init__(
        self,
        name: str,
        task: Mapping[str, Any],
        pki: Path,
        addresses: tuple[str, str],
        update: Callable[[int], Sequence[int]],
    ) -> None:
        """task: the fields of the canonical text. update: of a round, d integers within the bound."""
        self.name, self._update, self._rules = name, update, Client(name)
        self._digest = config_digest(task)
        self._sizes = sizes(task["client_clip"], task["frac_bits"], task["dim"])
        tls = plain_wire.pem_of(pki, name)
        self._channels = [plain_wire.channel_to(address, party, tls) for party, address in enumerate(addresses)]
        self._events: asyncio.Queue[tuple[int, aggregator_pb2.ClientEvent]] = asyncio.Queue()
        self._invited: dict[int, dict[int, aggregator_pb2.Invitation]] = {}
        self._holder = 0
        self.refused: list[str] = []
        """Texts of the calls that a server refused."""

    async def run(self) -> None:
        """Take part until the task is over."""
        listeners = [asyncio.create_task(self._listen(party)) for party in (0, 1)]
        try:
            n_goodbyes = 0
            while n_goodbyes < 2:
                party, event = await self._events.get()
                n_goodbyes += event.WhichOneof("event") == "goodbye"
                await self._hear(party, event)
        finally:
            for listener in listeners:
                listener.cancel()
            await asyncio.gather(*listeners, return_exceptions=True)
            for channel in self._channels:
                await channel.close()

    async def _listen(self, party: int) -> None:
        hello = common_pb2.Hello(protocol_version="precad/v2", config_digest=self._digest)
        call = self._channels[party].unary_stream(JOIN)(
            aggregator_pb2.JoinRequest(hello=hello).SerializeToString(), wait_for_ready=True
        )
        async for data in call:
            self._events.put_nowait((party, aggregator_pb2.ClientEvent.FromString(data)))

    async def _hear(self, party: int, event: aggregator_pb2.ClientEvent) -> None:
        if event.WhichOneof("event") == "invitation":
            both = self._invited.setdefault(event.invitation.round, {})
            both[party] = event.invitation
            if len(both) == 2:
                await self._upload([both[0], both[1]])
        if event.WhichOneof("event") == "challenge":
            sent = self._rules.challenge(party, event.challenge.round, event.challenge.challenge)
            if sent is not None:
                await self._send(PROVE, sent)

    async def _upload(self, invitations: list[aggregator_pb2.Invitation]) -> None:
        first = invitations[0]
        told = [{**{name: getattr(one, name) for name in ALIKE}, "share_seed": one.mask_seed} for one in invitations]
        at = Round(first.task, first.round, self._digest, first.model_digest, self._sizes)
        self._holder = first.slot % 2
        try:
            sent = self._rules.upload(at, told, self._update(first.round))
        except RefusedError as error:
            self.refused.append(str(error))
            return
        await self._send(SUBMIT, sent)

    async def _send(self, path: str, sent: Sent) -> None:
        """Make the call at the slot's holder. What it refuses ends the round for this client."""
        try:
            await self._channels[self._holder].stream_unary(path)(self._messages(path, sent))
        except grpc.aio.AioRpcError as error:
            self.refused.append(error.details() or "")

    @staticmethod
    async def _messages(path: str, sent: Sent) -> AsyncIterator[bytes]:
        first, *others = plain_wire.chunks(sent.payload)
        fields: dict[str, Any] = dict(sent.binding)
        if path == SUBMIT:
            fields["digest_a"] = fields.pop("digest")
        part = aggregator_pb2.SubmitPart if path == SUBMIT else aggregator_pb2.ProvePart
        binding = common_pb2.Binding if path == SUBMIT else common_pb2.ProofBinding
        known: dict[str, Any] = {"binding": binding(**fields), "statement": sent.statement, "salt": sent.salt}
        yield part(**known, chunk=first).SerializeToString()
        for chunk in others:
            yield part(chunk=chunk).SerializeToString()
