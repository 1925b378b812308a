"""One client's side of a task: registered with both servers, it answers every invitation with one submission.

    join A and B -> both invite to round t -> model (digest checked) -> Algorithm 2 -> upload

In the `masked` form there is one upload, to A, which relays it to B with the client's statement to B. In the `shares`
form there are two uploads, to B first. Otherwise A, which gets 16 bytes, would have everybody's upload while the long
uploads to B are still under way. A would close the round, and so cut them off.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import grpc
import numpy as np
import structlog
from numpy.typing import NDArray

from precad.clients.errors import (
    HolderLimitReachedError,
    ProtocolError,
    RestoredServersError,
    ServerBusyError,
    ServerUnreachableError,
    TaskEndedError,
    TaskRefusedError,
    UploadLimitError,
)
from precad.clients.submission import (
    ProvedMessage,
    RoundInvitation,
    agree,
    make_submission,
    round_task,
)
from precad.clients.training.conduct import Conduct, Honest
from precad.clients.upload import proved
from precad.clients.upload.events import MOST_EVENT_BYTES, Waiting
from precad.clients.upload.links import Links
from precad.clients.upload.model_cache import ModelCache
from precad.clients.upload.patience import Patience, Turns, longest_pause_s, retry_after_s, until_admitted
from precad.clients.upload.sending import parts_of, refusing_nonsense, send
from precad.clients.upload_limit import DEFAULT_UPLOADS_PER_MODEL, UploadLimit, require_covered
from precad.mpc.prg import Seed
from precad.mpc.proved.client import Invitation
from precad.mpc.ring import RingArray
from precad.mpc.sharing import Party
from precad.protos.messages import convert
from precad.protos.messages.spoken import LONGEST_REASON, LONGEST_REFUSAL, shown
from precad.protos.messages.undecoded import BytesStub, decoded
from precad.protos.precad.v1 import aggregator_pb2, common_pb2
from precad.protos.task.task import Task
from precad.protos.task.task_fields import hello_to
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import AGGREGATORS
from precad.protos.tls.transport import explain, require_not_cancelled

log = structlog.get_logger(__name__)

U = TypeVar("U")
Train: TypeAlias = Callable[[NDArray[np.float32]], RingArray]
"""The global model to the encoded update. Runs in a thread; blocking and slow is fine."""

Enter: TypeAlias = Callable[[str, int], None]
"""The run and the number of a round, as both servers state them, before its model is trained."""
Inbox: TypeAlias = Waiting[aggregator_pb2.Invitation]
"""Invitations of one server that are not answered yet."""
News: TypeAlias = aggregator_pb2.Invitation | aggregator_pb2.Challenge
"""Events that end a round's wait for its challenge, in mode `proved`."""

WORTH_ASKING_AGAIN: Final = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,  # the server is stopping
        grpc.StatusCode.ALREADY_EXISTS,  # it has not noticed yet that our last stream broke
    }
)
"""Statuses after which a server is asked to let us join again."""
HONEST: Final = Honest()
LATE_S: Final = 5.0
"""How long an upload may go on beyond its round by our clock: servers end it by their own."""
WELCOME_S: Final = 60.0
"""How long a server that took the call may take to say so. Other clients of this process wait for their turn."""
GONE_S, FAREWELL_S = 5.0, 30.0
"""How long the second server may take to say that the task is finished: one that is gone, and any other. One server
alone may say so falsely."""


def _enter_nothing(task_id: str, number: int) -> None:
    """Let training begin whatever the round's number is."""


async def _read(call: Any, limit_s: float | None) -> Any:
    """Return the next message of a call. Raises TimeoutError."""
    async with asyncio.timeout(limit_s):
        return await call.read()


def _event_of(data: bytes | Any, server: int) -> aggregator_pb2.ClientEvent | None:
    """Return a server's event; None at the end of its stream. Raises ProtocolError."""
    if data is grpc.aio.EOF:
        return None
    who = AGGREGATORS[server]
    if len(data) > MOST_EVENT_BYTES:
        raise ProtocolError(f"{who}: expected events of at most {MOST_EVENT_BYTES} bytes, found {len(data)}")
    with refusing_nonsense():
        return decoded(aggregator_pb2.ClientEvent, data, who)


@dataclass(frozen=True, slots=True)
class Work:
    """Work of a client in rounds of one kind: of the training, or evaluations."""

    task: Task
    """The round's parameters."""
    compute: Train
    limit: UploadLimit
    enter: Enter


class ClientSession:
    """One client, one task. `run` returns when the servers have finished the task."""

    def __init__(
        self,
        *,
        client: str,
        task: Task,
        addresses: tuple[str, str],
        tls: TlsFiles,
        train: Train,
        conduct: Conduct = HONEST,
        pins: tuple[Path | None, Path | None] = (None, None),
        connect_timeout_s: float = 60.0,
        reconnect_timeout_s: float = 0.0,
        cache: ModelCache | None = None,
        turns: Turns | None = None,
        limit: UploadLimit | None = None,
        enter: Enter = _enter_nothing,
        evaluate: tuple[Train, UploadLimit] | None = None,
    ) -> None:
        """Take the session's parts; nothing is sent yet.

        `addresses` and `pins` are those of A and B; with a pin file, its certificates alone are trusted. `conduct` is
        what the client does to its uploads; what else it does is in `train`. `limit` bounds how often the client
        uploads for one model. Without one, the default bound holds, and counts as long as this session lasts. `enter`
        hears which round `train` is asked for next.
        `evaluate` answers evaluations, within a limit of their own; without it they are skipped. All clients of a
        process share `cache` and `turns`. Raises ArgumentError for a bound that mode `proved` does not cover.
        """
        self.client, self.task = client, task
        self._addresses, self._tls, self._pins = addresses, tls, pins
        self._conduct = conduct
        self._cache, self._turns = cache or ModelCache(), turns or Turns()
        limit = limit or UploadLimit(client, task.digest(), most=DEFAULT_UPLOADS_PER_MODEL)
        require_covered(task, limit.most)
        self._training = Work(task, train, limit, enter)
        of_round = task.evaluation_round
        self._evaluation = None if evaluate is None or of_round is None else Work(of_round, *evaluate, _enter_nothing)
        self._connect_timeout_s, self._reconnect_timeout_s = connect_timeout_s, reconnect_timeout_s
        self._news: Waiting[News] = Waiting()
        self._answered: set[tuple[str, int]] = set()
        self._gone: set[int] = set()
        """Servers that were here, and are not."""
        self._log = log.bind(client=client)

    async def run(self) -> None:
        """Answer invitations until the servers have finished the task.

        Raises: TlsFileError, ServerUnreachableError, TaskRefusedError, TaskEndedError, ProtocolError,
        UploadLimitError, StateFileError."""
        links = Links(self._addresses, self._tls, self._pins)
        invitations: tuple[Inbox, Inbox] = (Waiting(), Waiting())
        listeners = [asyncio.create_task(self._listen(links, i, invitations[i])) for i in (0, 1)]
        rounds = asyncio.create_task(self._answer(links.stubs, invitations))
        try:
            done, _ = await asyncio.wait((*listeners, rounds), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await self._until_both_end(listeners)
            self._log.info("client.finished")
        finally:
            for task in (*listeners, rounds):
                task.cancel()
            await asyncio.gather(*listeners, rounds, return_exceptions=True)
            await links.close()

    async def _until_both_end(self, listeners: Sequence[asyncio.Task[None]]) -> None:
        """Wait for the second server's word that the task is finished; one that was here and is gone need not say it.

        Raises TaskEndedError where the second one says nothing, else what listeners raise.
        """
        _, others = await asyncio.wait(listeners, timeout=GONE_S)
        if any(server not in self._gone for server, one in enumerate(listeners) if one in others):
            _, others = await asyncio.wait(listeners, timeout=FAREWELL_S - GONE_S)
        for listener in listeners:
            if listener.done():
                listener.result()
        for server, one in enumerate(listeners):
            if one in others and server not in self._gone:
                told = f"expected both servers to say that it is finished, not {AGGREGATORS[1 - server]} alone"
                raise TaskEndedError(f"the task: {told}")
            if one in others:
                self._log.warning("client.finished_by_one", gone=AGGREGATORS[server])

    async def _listen(self, links: Links, server: int, inbox: Inbox) -> None:
        """Pass on one server's invitations until it says that the task is finished; join again when it is lost.

        Raises the reason of the last loss when the server has been away for too long.
        """
        longest_s = longest_pause_s(self._addresses[server], len(self.task.clients))
        patience = Patience(self._connect_timeout_s, self._reconnect_timeout_s, longest_s)
        said = ""
        while True:
            try:
                return await self._pass_on(links.stubs[server], server, inbox, patience)
            except ServerUnreachableError as error:
                if patience.was_here:
                    self._gone.add(server)
                if (pause_s := patience.next_pause_s(error.retry_after_s)) is None:
                    raise
                event = "client.lost" if patience.was_just_lost else "client.waiting"
                if patience.was_just_lost or str(error) != said:  # a line for each reason, not for each attempt
                    self._log.info(event, server=AGGREGATORS[server], reason=str(error))
                said = str(error)
            await asyncio.sleep(pause_s)
            await links.renew(server)

    async def _pass_on(self, stub: BytesStub, server: int, inbox: Inbox, patience: Patience) -> None:
        """Run one open stream, to the end of the task."""
        async with aclosing(self._join(stub, server, patience)) as events:
            await self._pass_on_events(events, server, inbox, patience)

    async def _pass_on_events(
        self, events: AsyncIterator[aggregator_pb2.ClientEvent], server: int, inbox: Inbox, patience: Patience
    ) -> None:
        async for event in events:
            match event.WhichOneof("event"):
                case "welcome":
                    patience.is_here()
                    self._gone.discard(server)
                    self._log.info("client.joined", server=AGGREGATORS[server])
                case "invitation":
                    inbox.put(server, event.invitation)
                    self._tell(server, event.invitation)
                case "challenge" if self.task.is_proved:
                    self._tell(server, event.challenge)
                case "goodbye" if event.goodbye.finished:
                    return
                case "goodbye":
                    reason = shown(event.goodbye.reason, LONGEST_REASON)
                    raise TaskEndedError(f"{AGGREGATORS[server]} ended the task: {reason}")
                case other:
                    raise ProtocolError(f"{AGGREGATORS[server]} sent {other or 'an empty event'}")
            del event  # an invitation has a share seed, and the next event may be rounds away
        raise ServerUnreachableError(f"{AGGREGATORS[server]} hung up")

    def _tell(self, server: int, news: News) -> None:
        """Tell a round that waits for its challenge of it, and of the next round, in mode `proved`."""
        if self.task.is_proved:
            self._news.put(server, news)

    async def _join(
        self, stub: BytesStub, server: int, patience: Patience
    ) -> AsyncGenerator[aggregator_pb2.ClientEvent, None]:
        """Yield the events of one stream, which this client opens when its turn comes. Raises: as `_events`."""
        async with AsyncExitStack() as turn, aclosing(self._events(stub, server)) as events:
            await turn.enter_async_context(self._turns[server])
            patience.asks()
            async for event in events:
                await turn.aclose()  # the first one is here, so that the stream is open
                yield event
                del event

    async def _events(self, stub: BytesStub, server: int) -> AsyncGenerator[aggregator_pb2.ClientEvent, None]:
        """Yield the events of one open stream. Raises ServerUnreachableError, TaskRefusedError, ProtocolError."""
        call = stub.Join(aggregator_pb2.JoinRequest(hello=hello_to(self.task)))
        try:
            limit_s: float | None = WELCOME_S
            while (event := _event_of(await _read(call, limit_s), server)) is not None:  # a loop over it keeps the last
                limit_s = None
                yield event
                del event
        except TimeoutError:
            expected = f"expected a first word within {WELCOME_S:g} s, found none"
            raise ServerUnreachableError(f"{AGGREGATORS[server]}: {expected}") from None
        except grpc.aio.AioRpcError as error:
            require_not_cancelled()
            who, address = AGGREGATORS[server], self._addresses[server]
            reason = shown(explain(error, who, address, self._tls.certificate), LONGEST_REFUSAL)
            if (hint_s := retry_after_s(error)) is not None:
                raise ServerBusyError(reason, hint_s) from None
            if error.code() not in WORTH_ASKING_AGAIN:
                raise TaskRefusedError(f"{reason} ({error.code().name})") from None
            raise ServerUnreachableError(reason) from None
        finally:
            call.cancel()

    async def _answer(self, stubs: list[BytesStub], inboxes: tuple[Inbox, Inbox]) -> None:
        """Answer each round that both servers invite us to with one submission."""
        while True:
            await self._answer_next(stubs, inboxes)

    async def _answer_next(self, stubs: list[BytesStub], inboxes: tuple[Inbox, Inbox]) -> None:
        """Wait for the next round that both servers invite us to, and answer it.

        Its invitations, with the share seed, are let go with this frame.
        """
        from_a, from_b = await self._invited_by_both(*inboxes)
        self._forget_news_before(from_a)
        try:
            work = self._work(round_task(from_a, from_b, self.task))
            if self.task.is_proved:
                await self._take_part_and_prove(stubs, work, *proved.agree(from_a, from_b, work.task))
            else:
                await self._take_part(stubs, work, agree(from_a, from_b, work.task))
        except ProtocolError as error:
            self._log.warning(
                "client.skipped", task=shown(from_a.task, LONGEST_REASON), round=from_a.round, reason=str(error)
            )
        except grpc.aio.AioRpcError as error:
            require_not_cancelled()
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await asyncio.sleep(1.0)  # the listener knows whether the server is gone, and says so
            reason = shown(error.details() or "", LONGEST_REASON)
            self._log.warning(
                "client.refused", task=shown(from_a.task, LONGEST_REASON), round=from_a.round, reason=reason
            )

    async def _invited_by_both(
        self, of_a: Inbox, of_b: Inbox
    ) -> tuple[aggregator_pb2.Invitation, aggregator_pb2.Invitation]:
        """Return A's and B's invitation to the next round whose number both name.

        A server may drop a client for a round, or be lost before it invites. The later of two rounds of one task is
        in progress; where the tasks differ, the round whose invitation came later.
        """
        (_, from_a), (_, from_b) = await of_a.get(), await of_b.get()
        while from_a.round != from_b.round:
            if from_a.task == from_b.task:
                is_a_behind = from_a.round < from_b.round
            else:
                is_a_behind = of_a.arrived < of_b.arrived
                self._log.warning("client.skipped", reason="expected one task of both servers, found two")
            if is_a_behind:
                _, from_a = await of_a.get()
            else:
                _, from_b = await of_b.get()
        return from_a, from_b

    def _work(self, task: Task) -> Work:
        """Return what to do in a round with these parameters. Raises ProtocolError."""
        if task is self.task:
            return self._training
        if self._evaluation is None:
            raise ProtocolError("evaluation: expected none of a client that evaluates nothing, the servers ask for one")
        return self._evaluation

    async def _take_part(self, stubs: list[BytesStub], work: Work, invitation: RoundInvitation) -> None:
        """Download the model, run Algorithm 2, and submit.

        A server without room is asked again until the round is over: for the same upload, which counts once. One that
        reads nothing keeps nobody beyond the round.
        """
        ends_at = time.monotonic() + self.task.submit_timeout_s
        parameters = await self._model(stubs, invitation, ends_at)
        share = functools.partial(make_submission, invitation=invitation, task=work.task, client=self.client)
        submission = await self._made(work, share, parameters, invitation, ends_at)
        named = {"task": invitation.task_id, "round": invitation.round}
        try:
            async with asyncio.timeout(max(0.0, ends_at - time.monotonic()) + LATE_S):
                for server in submission.servers:
                    ours = self._conduct.on_upload(submission, server)
                    parts = functools.partial(parts_of, ours, server)
                    await send(stubs, server, "Submit", parts, ends_at - time.monotonic())
        except TimeoutError:
            self._log.warning("client.silent", **named, reason="a server did not take the upload")
            return
        self._log.info("client.submitted", **named)

    async def _model(
        self, stubs: list[BytesStub], invitation: RoundInvitation | Invitation, ends_at: float
    ) -> NDArray[np.float32]:
        """Return the round's model, (d,), where the client may still upload for it. Raises AioRpcError, ProtocolError.

        A server that sends it slowly, or never, keeps nobody beyond the round.
        """

        async def download() -> NDArray[np.float32]:
            left_s = ends_at - time.monotonic()
            try:
                async with asyncio.timeout(left_s):
                    return await until_admitted(lambda: self._download(stubs[0], invitation), left_s)
            except TimeoutError:
                raise ProtocolError("model: expected all of it while uploads are taken, found less") from None

        return await self._cache.get(invitation.model_digest, download)

    def _enter(self, work: Work, invitation: RoundInvitation | Invitation) -> None:
        """Begin a round, in a thread, as a conduct may use files. Raises UploadLimitError, StateFileError.

        Raises ProtocolError for an evaluation that no limit has room for, which costs its own round alone.
        """
        with self._within(work):
            work.limit.require_room(invitation.model_digest, invitation.n_committed)
        if work is self._training:
            self._conduct.on_invitation(invitation.n_committed, invitation.model_digest)
        which = invitation.task_id if isinstance(invitation, RoundInvitation) else invitation.task
        work.enter(which, invitation.round)

    @contextmanager
    def _within(self, work: Work) -> Iterator[None]:
        """Raise ProtocolError in the place of a limit that an evaluation meets. Servers that were put back end both."""
        try:
            yield
        except (UploadLimitError, HolderLimitReachedError) as error:
            if work is self._training or isinstance(error, RestoredServersError):
                raise
            raise ProtocolError(str(error)) from None

    async def _made(
        self,
        work: Work,
        make: Callable[[RingArray], U],
        parameters: NDArray[np.float32],
        invitation: RoundInvitation | Invitation,
        ends_at: float,
    ) -> U:
        """Compute, make the upload and count it, durably, before its first byte leaves. Then wait as the conduct says.

        In one thread, as a change of threads costs as much as a small upload. One that comes too late does not count,
        and is dropped. Raises ClientError.
        """

        def done() -> U:
            self._enter(work, invitation)
            made = make(work.compute(parameters))
            if time.monotonic() > ends_at:
                raise ProtocolError("update: expected it while uploads are taken, found it done later")
            with self._within(work):
                work.limit.count(invitation.model_digest, invitation.n_committed)
            return made

        made = await asyncio.to_thread(done)
        await asyncio.sleep(self._conduct.delay_s(self.task.submit_timeout_s))
        return made

    async def _take_part_and_prove(
        self, stubs: list[BytesStub], work: Work, invitation: Invitation, seed: Seed
    ) -> None:
        """Download the model, run Algorithm 2, upload, and prove for the challenge of both servers: mode `proved`.

        No second invitation of a round is answered; from servers that were put back it ends the session. Whoever waits
        for a challenge that does not come is silent. The upload and its share seed are let go at the round's end, and
        at the latest when the limits have passed. Those are submit_timeout_s for the upload, proof_timeout_s for the
        challenge, and again for the proof. A training that takes longer sends nothing: the seed, under which nothing is
        kept then, goes with it.
        """
        if (which := (invitation.task, invitation.round)) in self._answered:
            await asyncio.to_thread(work.limit.require_same_past, invitation.model_digest, invitation.n_committed)
            raise ProtocolError(f"round: expected one invitation to round {invitation.round}, found a second")
        self._answered.add(which)
        ends_at = time.monotonic() + self.task.submit_timeout_s
        parameters = await self._model(stubs, invitation, ends_at)
        bind = functools.partial(proved.RoundUpload, task=work.task, client=self.client, conduct=self._conduct)
        make = functools.partial(bind, invitation=invitation, seed=seed)
        upload = await self._made(work, make, parameters, invitation, ends_at)
        most_s = max(0.0, ends_at - time.monotonic()) + 2 * self.task.proof_timeout_s
        try:
            async with asyncio.timeout(most_s):  # `wait_for` would keep an error's frames in a cycle, and so the upload
                await self._upload_and_prove(stubs, upload, ends_at)
        except TimeoutError:
            self._log.warning("client.silent", task=upload.task, round=upload.round, reason=f"no end in {most_s:.0f} s")

    async def _upload_and_prove(self, stubs: list[BytesStub], upload: proved.RoundUpload, ends_at: float) -> None:
        """Upload, wait for the challenge, and prove. Who calls bounds the time: nobody keeps an upload for longer."""
        left_s = ends_at - time.monotonic()
        preparing = asyncio.create_task(asyncio.to_thread(upload.prepare))  # while the upload is under way
        try:
            await send(stubs, upload.holder, "Submit", upload.parts, left_s)
        finally:
            await asyncio.gather(preparing, return_exceptions=True)  # no thread goes on with the seed alone
        await preparing
        self._log.info("client.submitted", task=upload.task, round=upload.round)
        if (proof := await self._proof(upload)) is None:
            self._log.warning("client.silent", task=upload.task, round=upload.round)
            return
        parts = functools.partial(proved.proof_parts, proof)
        await send(stubs, upload.holder, "Prove", parts, self.task.proof_timeout_s)
        self._log.info("client.proved", task=upload.task, round=upload.round)

    def _forget_news_before(self, invitation: aggregator_pb2.Invitation) -> None:
        """Drop challenges from before this invitation: a new task counts its rounds from 0 too (C2)."""
        self._news.keep(lambda news: isinstance(news, aggregator_pb2.Invitation) and news.round > invitation.round)

    async def _proof(self, upload: proved.RoundUpload) -> ProvedMessage | None:
        """Return the proof, once both servers have sent the same challenge; None once either begins another round, also
        of another task."""
        while True:
            server, news = await self._news.get()
            if isinstance(news, aggregator_pb2.Invitation):
                if (news.task, news.round) != (upload.task, upload.round):
                    return None
            elif news.round == upload.round:
                party: Party = 1 if server else 0
                if upload.hears(party, news.challenge):
                    return await asyncio.to_thread(upload.prove)

    async def _download(self, stub_of_a: BytesStub, invitation: RoundInvitation | Invitation) -> NDArray[np.float32]:
        """Return the global model, whose digest both servers named. Raises AioRpcError, ProtocolError."""
        replies = stub_of_a.GetModel(aggregator_pb2.ModelRequest(round=invitation.round))
        chunks = (decoded(common_pb2.Chunk, data, AGGREGATORS[0]) async for data in replies)
        with refusing_nonsense():
            data = await convert.collect(chunks, limit=convert.model_bytes(self.task.dim))
            if convert.sha256(data) != invitation.model_digest:
                raise ProtocolError("the downloaded model does not have the digest that both servers named")
            return convert.model_from_bytes(data, self.task.dim)
