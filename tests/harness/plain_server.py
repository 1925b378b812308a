"""A server of mode `proved` by the second implementation, over real gRPC, TLS and a lane, as A or as B.

The protocol's arithmetic, digests and checks are `tests/vectors/independent`; this file carries their messages. Nothing
of `precad.servers`, `precad.clients` or `precad.mpc` is used. Each method that sends something may be overridden, so
that a server that deviates is a subclass that says where.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc

from precad.protos.precad.v1 import aggregator_pb2, common_pb2, peer_pb2
from tests.harness import plain_wire
from tests.harness.plain_wire import HungUpError, Lane, LanePort, Seen, caller_of
from tests.vectors.independent import descent, digests, server
from tests.vectors.independent.proved_field import FIELD, from_bytes
from tests.vectors.independent.proved_messages import Relay, Round, Sent, config_digest, slot_labels
from tests.vectors.independent.proved_parameters import sizes
from tests.vectors.independent.proved_server import Server
from tests.vectors.independent.ring import RefusedError

UPLOADS, PROOFS = 0, 1
POLL_S = 0.005


class PlainServer:
    """One server, from its first meeting to the end of the task."""

    def __init__(
        self,
        party: int,
        task: Mapping[str, Any],
        divisor: float,
        pki: Path,
        addresses: tuple[str, str],
        noise: Callable[[int], Sequence[int]] | None = None,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """task: the fields of the canonical text. noise: of a round, d integers; zeros where there is none."""
        self.party, self.task, self.addresses = party, task, addresses
        self._divisor, self._noise, self._draw = divisor, noise, draw
        self.sizes = sizes(task["client_clip"], task["frac_bits"], task["dim"])
        self.digest = config_digest(task)
        self.tls = plain_wire.pem_of(pki, plain_wire.NAMES[party])
        self.enrolled = sorted(task["clients"])
        self.model = self.previous = bytes(4 * task["dim"])
        self.task_id, self.n_committed, self.last_round, self.next_round = "", 0, 0, 0
        self.seen: list[Seen] = []
        self.rounds: list[tuple[int, list[str], list[str]]] = []
        """Number, chosen, and valid clients of the committed rounds."""
        self.sums: list[list[int]] = []
        self.queues: dict[str, asyncio.Queue[aggregator_pb2.ClientEvent | None]] = {}
        self.state: Server | None = None
        self.slots: dict[str, int] = {}
        self.closed: set[tuple[int, int]] = set()
        self.goodbye: common_pb2.Goodbye | None = None
        self.lane: Lane | None = None
        self._calls: asyncio.Queue[_Call] = asyncio.Queue()
        self._port: LanePort | None = None

    # Its life

    async def run(self) -> None:
        """Serve clients, meet the other server, run all rounds, and say goodbye."""
        served = await self._serve()
        try:
            async with self.meeting():
                while self.n_committed < self.task["rounds"]:
                    await self.run_round(self.next_round)
                await self.say_goodbye(f"{self.task['rounds']} rounds done")
        finally:
            await served.stop(0.0)

    async def _serve(self) -> grpc.aio.Server:
        streams: dict[str, Any] = {"Aggregator/Join": self._join, "Aggregator/GetModel": self._get_model}
        if self.party == 1:
            streams["Peer/Link"] = self._link
        unary = {"Aggregator/Submit": self._submit, "Aggregator/Prove": self._prove}
        return await plain_wire.serve(self.addresses[self.party], self.tls, unary, streams)

    async def say_goodbye(self, reason: str) -> None:
        """Tell the peer and the clients that the task is finished, and wait for the peer's word."""
        goodbye = common_pb2.Goodbye(finished=True, reason=reason)
        await self.tell(peer_pb2.PeerMessage(goodbye=goodbye))
        for queue in self.queues.values():
            queue.put_nowait(aggregator_pb2.ClientEvent(goodbye=goodbye))
        await self.until(lambda: self.goodbye is not None and not self.queues, 5.0)

    @staticmethod
    async def until(condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until it holds, for so long at most."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not condition():
            if asyncio.get_running_loop().time() > deadline:
                return False
            await asyncio.sleep(POLL_S)
        return True

    # The meeting

    @contextlib.asynccontextmanager
    async def meeting(self) -> AsyncIterator[None]:
        """Meet the other server: link, hello, lane, charges. Within it, the link's messages are taken in."""
        async with contextlib.AsyncExitStack() as stack:
            call, ours, theirs = await self._linked(stack)
            self._tell = call.send
            nonces = (ours.nonce, theirs.nonce)[:: 1 if self.party == 0 else -1]
            self.task_id = theirs.task or ours.task or digests.task_id(self.task["name"], *nonces)
            self.next_round = max(self.next_round, theirs.next_round)
            self.lane = await self._open_lane(theirs)
            stack.callback(self.lane.close)
            self.closed.clear()
            reading = asyncio.create_task(self._take_in(call))
            stack.callback(reading.cancel)
            await self.lane.exchange(f"{self.task_id}/{self.next_round}/join/charges", b"{}")
            await self.until(lambda: len(self.queues) == len(self.enrolled), 20.0)
            yield

    async def _linked(self, stack: contextlib.AsyncExitStack) -> tuple[_Call, common_pb2.Hello, common_pb2.Hello]:
        if self.party == 1:
            self._port = LanePort(self._draw(32), self._draw(32))
            stack.callback(self._port.close)
            call = await self._calls.get()
            theirs = await call.receive()
            ours = self._hello(lane_port=self._port.port, lane_token=self._port.token)
            await call.send(peer_pb2.PeerMessage(hello=ours))
            stack.callback(call.over.set)
            return call, ours, theirs.hello
        ours = self._hello()
        while True:
            channel = plain_wire.channel_to(self.addresses[1], 1, self.tls)
            method = channel.stream_stream("/precad.v1.Peer/Link")
            call = _Call.dialled(method(wait_for_ready=True), self.seen)
            await call.send(peer_pb2.PeerMessage(hello=ours))
            try:
                theirs = await call.receive()
            except HungUpError:
                await channel.close()
                await asyncio.sleep(0.1)
                continue
            stack.push_async_callback(channel.close)
            return call, ours, theirs.hello

    def _hello(self, **lane: Any) -> common_pb2.Hello:
        return common_pb2.Hello(
            protocol_version="precad/v2",
            config_digest=self.digest,
            nonce=self._draw(16),
            task=self.task_id,
            n_committed=self.n_committed,
            last_round=self.last_round,
            next_round=self.next_round,
            model_digest=hashlib.sha256(self.model).digest(),
            previous_model_digest=hashlib.sha256(self.previous).digest(),
            **lane,
        )

    async def _open_lane(self, theirs: common_pb2.Hello) -> Lane:
        if self.party == 1:
            assert self._port is not None
            return await self._port.accept(self.tls, self.seen)
        return await plain_wire.dial_lane(self.addresses[1], theirs.lane_port, theirs.lane_token, self.tls, self.seen)

    async def tell(self, message: peer_pb2.PeerMessage) -> None:
        """Send a message over the link."""
        with contextlib.suppress(HungUpError):
            await self._tell(message)

    async def _take_in(self, call: _Call) -> None:
        with contextlib.suppress(HungUpError):
            while True:
                message = await call.receive()
                match message.WhichOneof("message"):
                    case "relay":
                        self.take_relay(message.relay)
                    case "relays":
                        for relay in message.relays.relays:
                            self.take_relay(relay)
                    case "closed":
                        self.closed.add((message.closed.round, message.closed.phase))
                    case "goodbye":
                        self.goodbye = message.goodbye

    def take_relay(self, message: peer_pb2.Relay) -> None:
        """Take the peer's word of an upload or a proof."""
        relay = Relay(message.round, message.client, message.digest, message.statement)
        if self.state is not None:
            (self.state.prove_relay if message.phase == PROOFS else self.state.submit_relay)(relay)

    # A round

    async def run_round(self, t: int) -> None:
        """Run one round, from the draw of its clients to the new model."""
        chosen = await self.select(t)
        await self.invite(t, chosen)
        state = self.state
        assert state is not None
        await self.collect(t, UPLOADS, lambda: len(state._uploads) == len(state._invited))
        peers_coin = await self.lock(t, state)
        challenge = state.challenge(peers_coin)
        active = [name for name, slot in self.slots.items() if slot in state.active]
        await self.send_challenge(t, challenge, active)
        await self.collect(t, PROOFS, lambda: len(state._proofs) == len(state.active))
        await self.check(t, state)
        await self.open(t, state, chosen)

    async def step(self, t: int, label: str, payload: bytes) -> bytes:
        """Exchange one step of a round with the other server."""
        assert self.lane is not None
        return await self.lane.exchange(f"{self.task_id}/{t}/{label}", payload)

    async def in_pieces(self, t: int, label: str, payload: bytes) -> bytes:
        """Exchange a vector of elements, in pieces that cut none."""
        size, received = plain_wire.PIECE_BYTES, b""
        for start in range(0, len(payload), size):
            received += await self.step(t, label, payload[start : start + size])
        return received

    async def select(self, t: int) -> list[str]:
        """Draw the round's clients, and label their slots."""
        coin, context = self._draw(32), f"{self.task_id}/{t}/selection"
        theirs = await self.step(t, "coin/commit", digests.coin_commitment(self.party, context, coin))
        self.next_round = t + 1
        revealed = await self.step(t, "coin/reveal", coin)
        seed = server.joint_seed(self.party, context, coin, revealed, theirs, b"")
        chosen = server.select(seed, self.task_id, t, self.enrolled, self.task["client_rate"])
        self.slots = slot_labels(seed, self.task_id, t, self.enrolled, chosen)
        known = (self.task_id, t, self.digest, hashlib.sha256(self.model).digest(), self.sizes)
        self.state = Server(self.party, Round(*known), self.slots, self._draw)
        return chosen

    async def invite(self, t: int, chosen: list[str]) -> None:
        """Send each connected client that was drawn its invitation, once."""
        assert self.state is not None
        for client in chosen:
            if client in self.queues:
                told = self.state.invite(client, self.n_committed)
                self.send(client, invitation=self.invitation(told))

    def invitation(self, told: Mapping[str, Any]) -> aggregator_pb2.Invitation:
        """Return the message of an invitation."""
        fields = {name: value for name, value in told.items() if name != "share_seed"}
        return aggregator_pb2.Invitation(mask_seed=told["share_seed"], deadline_s=20.0, **fields)

    def send(self, client: str, **event: Any) -> None:
        """Queue an event for a connected client."""
        if client in self.queues:
            self.queues[client].put_nowait(aggregator_pb2.ClientEvent(**event))

    async def collect(self, t: int, phase: int, has_all: Callable[[], bool]) -> None:
        """Wait for what clients send in a phase, then close it at both servers."""
        limit_s = self.task["proof_timeout_s" if phase == PROOFS else "submit_timeout_s"]
        await self.until(lambda: has_all() or (t, phase) in self.closed, limit_s)
        await self.tell(peer_pb2.PeerMessage(closed=peer_pb2.Closed(round=t, phase=phase)))
        await self.until(lambda: (t, phase) in self.closed, limit_s)

    async def lock(self, t: int, state: Server) -> bytes:
        """Lock the uploads, and return the peer's coin of the challenge."""
        coin = state.reveal(await self.step(t, "validation/lock", state.lock()))
        return await self.step(t, "coin/reveal", coin)

    async def send_challenge(self, t: int, challenge: bytes, active: list[str]) -> None:
        """Send the clients of active slots the challenge."""
        for client in active:
            self.send(client, challenge=aggregator_pb2.Challenge(round=t, challenge=challenge, deadline_s=20.0))

    async def check(self, t: int, state: Server) -> None:
        """Exchange the steps of the check; end where the servers' verdicts differ."""
        if state.due == "proofs":
            state.query(await self.step(t, "validation/proofs", state.proofs()))
        theirs = await self.in_pieces(t, "validation/verifier", state.verifier()) if state.due == "verifier" else b""
        state.accepted(await self.step(t, "validation/accepted", state.verdicts(theirs)))

    async def open(self, t: int, state: Server, chosen: list[str]) -> None:
        """Exchange the noisy shares, and make the model's step."""
        dim = self.sizes.dim
        ours = state.noisy_share([0] * dim if self._noise is None else self._noise(t))
        theirs = await self.in_pieces(t, "noisy sum", ours)
        pairs = zip(from_bytes(ours, dim), from_bytes(theirs, dim), strict=True)
        total = [FIELD.centred(a + b) for a, b in pairs]
        words = [value % 2**64 for value in total]
        model, _ = descent.updated(self.model, words, self.task, self._divisor, self.n_committed, [])
        digest = hashlib.sha256(model).digest()
        self.previous, self.model = self.model, model
        if await self.step(t, "model", digest) != digest:
            raise RefusedError("model")
        self.n_committed, self.last_round = self.n_committed + 1, t
        self.sums.append(total)
        self.rounds.append((t, chosen, [name for name in chosen if self.slots[name] in state.valid]))

    # What clients and the peer call

    def _keep(self, channel: str, who: str) -> Callable[[bytes], None]:
        return lambda data: self.seen.append(Seen(channel, who, data))

    async def _join(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        client = caller_of(context)
        async for data in requests:
            self.seen.append(Seen("Join", client, data))
            break
        queue = self.queues[client] = asyncio.Queue()
        try:
            yield aggregator_pb2.ClientEvent(welcome=aggregator_pb2.Welcome()).SerializeToString()
            while (event := await queue.get()) is not None:
                yield event.SerializeToString()
                if event.WhichOneof("event") == "goodbye":
                    return
        finally:
            del self.queues[client]

    async def _get_model(
        self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        async for data in requests:
            self.seen.append(Seen("GetModel", caller_of(context), data))
            break
        for chunk in plain_wire.chunks(self.model):
            yield chunk.SerializeToString()

    async def _submit(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        client = caller_of(context)
        part, payload = await plain_wire.parts_of(aggregator_pb2.SubmitPart, requests, self._keep("Submit", client))
        named = {name: getattr(part.binding, name) for name in _BINDING}
        sent = Sent({**named, "digest": part.binding.digest_a}, part.statement, part.salt, payload)
        await self._relay(UPLOADS, client, sent, context)
        return aggregator_pb2.SubmitReply().SerializeToString()

    async def _prove(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> bytes:
        client = caller_of(context)
        part, payload = await plain_wire.parts_of(aggregator_pb2.ProvePart, requests, self._keep("Prove", client))
        named = {name: getattr(part.binding, name) for name in _PROOF_BINDING}
        await self._relay(PROOFS, client, Sent(named, part.statement, part.salt, payload), context)
        return aggregator_pb2.ProveReply().SerializeToString()

    async def _relay(self, phase: int, client: str, sent: Sent, context: grpc.aio.ServicerContext) -> None:
        """Take an upload or a proof, and tell the seeded server; refuse the call where the protocol does."""
        assert self.state is not None
        await self.admit(phase, client, context)
        try:
            relay = (self.state.prove if phase == PROOFS else self.state.submit)(client, sent)
        except RefusedError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{error}: refused")
        await self.tell(peer_pb2.PeerMessage(relay=relay_message(phase, relay)))

    async def admit(self, phase: int, client: str, context: grpc.aio.ServicerContext) -> None:
        """Refuse a call for overload; this server has room for all."""

    async def _link(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        call = _Call.answered(aiter(requests), self.seen)
        self._calls.put_nowait(call)
        while not call.over.is_set() or not call.outbox.empty():
            with contextlib.suppress(TimeoutError):
                yield await asyncio.wait_for(call.outbox.get(), 0.02)


_BINDING = ("protocol_version", "task", "round", "client", "config_digest", "model_digest", "dim", "mode")
_PROOF_BINDING = ("protocol_version", "task", "round", "client", "binding_digest", "challenge", "proof_digest")


def relay_message(phase: int, relay: Relay) -> peer_pb2.Relay:
    """Return the message of a relay."""
    known = {"round": relay.round, "client": relay.client, "digest": relay.digest, "statement": relay.statement}
    return peer_pb2.Relay(phase=phase, **known)


class _Call:
    """The link's stream, at either end."""

    def __init__(self, read: Callable[[], Any], write: Callable[[bytes], Any], seen: list[Seen]) -> None:
        self._read, self._write, self._seen = read, write, seen
        self.outbox: asyncio.Queue[bytes] = asyncio.Queue()
        self.over = asyncio.Event()
        self._writing = asyncio.Lock()

    @classmethod
    def dialled(cls, call: Any, seen: list[Seen]) -> _Call:
        """Return A's end."""

        async def read() -> bytes:
            data = await call.read()
            if data is grpc.aio.EOF:
                raise HungUpError("link")
            return bytes(data)

        return cls(read, call.write, seen)

    @classmethod
    def answered(cls, requests: AsyncIterator[bytes], seen: list[Seen]) -> _Call:
        """Return B's end: what it sends waits in `outbox`."""
        call = cls(requests.__anext__, lambda data: None, seen)
        call._write = call.outbox.put
        return call

    async def send(self, message: peer_pb2.PeerMessage) -> None:
        """Send a message, one at a time: gRPC ends a call on which two writes wait. Raises HungUpError."""
        try:
            async with self._writing:
                await self._write(message.SerializeToString())
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            raise HungUpError("link") from None

    async def receive(self) -> peer_pb2.PeerMessage:
        """Return the next message. Raises HungUpError."""
        try:
            data = await self._read()
        except (StopAsyncIteration, grpc.aio.AioRpcError, asyncio.InvalidStateError, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            raise HungUpError("link") from None
        self._seen.append(Seen("link", "", data))
        return peer_pb2.PeerMessage.FromString(data)
