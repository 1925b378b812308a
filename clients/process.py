"""A client process: its clients' records, Algorithm 2 on them, and one session per client that it hosts."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from precad.clients.auditing.head import with_head
from precad.clients.config import ClientConfig
from precad.clients.errors import ArgumentError, ClientError, QueryRefusedError, StoppedError
from precad.clients.external.mixed_training import Beside, Evaluating, Training
from precad.clients.external.training import ExternalTraining
from precad.clients.gradients.bit_exactness import made_up_records
from precad.clients.gradients.engine import RecordEngine
from precad.clients.gradients.first_gradients import require_some_gradient
from precad.clients.gradients.probe import EXHAUSTED, probe_labels
from precad.clients.gradients.record_range import require_range
from precad.clients.loading import Loaded, load_split_of, of_each_client
from precad.clients.models import networks
from precad.clients.models.adapters import train_first
from precad.clients.models.learning import Learning
from precad.clients.one_process import one_process
from precad.clients.own_code import Unspoken
from precad.clients.payments import payments_of, payments_of_answers
from precad.clients.queries.answers import Answers
from precad.clients.queries.columns import values_of
from precad.clients.query_consent import refusal
from precad.clients.records import Records, example_label_of, example_of
from precad.clients.same_deal import require_same_deal
from precad.clients.training.conduct import Conduct, Trained
from precad.clients.training.descent import PLAIN_DESCENT, descend, mean_gradient
from precad.clients.training.held_out import HeldOut
from precad.clients.training.record_draws import Drawn, PoissonDraws, RecordDraws, draws_of
from precad.clients.training.round_update import (
    Participant,
    StepNoise,
    record_clip,
    require_runnable,
    round_updates,
    secure_noise,
)
from precad.clients.upload.model_cache import ModelCache
from precad.clients.upload.patience import Turns
from precad.clients.upload.session import ClientSession, Train
from precad.clients.upload_limit import EVALUATIONS, UPLOADS, Payer, UploadLimit, require_writable
from precad.mpc.kernels import loading
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes
from precad.mpc.ring import RingArray
from precad.protos.task.query import Query
from precad.protos.task.task import Task

_SPARE_THREADS = 4
_SURELY_DRAWN = 20
"""Expected number of drawn records from which on a round without any has a probability below 2^-28."""
log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False, repr=False)
class _Request:
    """A client that waits for its update."""

    client: str
    parameters: NDArray[np.float32]
    drawn: Drawn
    """Records that the round's sample is of."""
    result: NDArray[np.float64] | ClientError | None = None


class Trainer:
    """The task's algorithm up to the encoding, for the clients that one process hosts.

    While one gradient computation runs, clients that become ready queue up. The next computation takes all of them that
    hold the same model, in one pass over their records together. A client alone waits for nobody.
    """

    def __init__(
        self,
        *,
        task: Task,
        records: Mapping[str, Records],
        conducts: Mapping[str, Conduct],
        device: str = "auto",
        memory_mb: int | None = None,
        adapter_rank: int | None = None,
        draws: RecordDraws | None = None,
        random_bytes: RandomBytes = SYSTEM_BYTES,
        noise: StepNoise = secure_noise,
    ) -> None:
        """`conducts`: one for each client (`precad.clients.training.conduct`). `draws`: which records a round's sample
        is of; None: all, at the task's rate. `random_bytes` draws the records of a round, client by client; `noise` is
        what clients add by themselves, where the algorithm wants it. Both are fixed streams in tests.

        Raises: ArgumentError (also ModelInputError, UnknownNameError), RecordMixingLayerError."""
        self._task, self._conducts, self._random_bytes, self._noise = task, conducts, random_bytes, noise
        self._draws = PoissonDraws(task) if draws is None else draws
        self._records = {client: conducts[client].on_records(own) for client, own in records.items()}
        learning, some = Learning.of_task(task), next(iter(records.values()))
        self._engine = engine_of(
            task,
            some,
            device=device,
            memory_mb=memory_mb,
            adapter_rank=adapter_rank,
            has_canaries=not self._records.keys().isdisjoint(task.audit_clients),
        )
        passes = self._engine.passes
        log.info(
            "client.engine", device=str(self._engine.device), path=passes.path.value, records_per_pass=passes.n_tile
        )
        own_records = {f"records of {client}": own for client, own in self._records.items()}
        require_range(self._engine.model_copy(), own_records, learning.loss)
        require_some_gradient(self._engine, own_records)
        self._training = threading.Lock()
        self._waiting: list[_Request] = []
        self._idle = set[str]()
        self._waiting_lock = threading.Lock()
        # the first pass loads kernels and costs a second: not in the first round
        self._engine.clipped_sums(networks.flatten(self._engine.model_copy()), [_made_up(some)], record_clip(task))

    def close(self) -> None:
        """End what is computed, and whatever conducts hold open.

        A thread cannot be cancelled: the process would stay, and count uploads that never leave, for all of a training.
        """
        self._engine.stop()
        for conduct in self._conducts.values():
            conduct.close()

    def train(self, client: str, parameters: NDArray[np.float32]) -> RingArray:
        """Train from the global model (d,) to this client's encoded update (d,). Called by one thread per client.

        Raises: ClientError; nothing may be uploaded then.
        """
        conduct = self._conducts[client]
        trained = Trained(
            parameters=parameters,
            records=self._records[client],
            update=self.update(client, parameters),
            descend=functools.partial(self._descend, client, parameters),
            gradient=self._gradient,
            clipped_sum=functools.partial(self._clipped_sum, parameters),
        )
        return conduct.encode(conduct.on_trained(trained), self._task)

    def _descend(self, client: str, parameters: NDArray[np.float32], steps: int, rate: float) -> NDArray[np.float64]:
        """See `Trained.descend`; only attacks call it."""
        with self._training, Unspoken(self._engine.spoken, EXHAUSTED):
            return descend(
                parameters[: self._task.n_parameters],
                self._records[client],
                engine=self._engine,
                steps=steps,
                rate=rate,
                sample_rate=self._task.rate_of(client),
                training=PLAIN_DESCENT,
                random_bytes=self._random_bytes,
            )

    def _gradient(self, parameters: NDArray[np.float64], records: Records) -> NDArray[np.float64]:
        """See `Trained.gradient`; only attacks call it."""
        with self._training, Unspoken(self._engine.spoken, EXHAUSTED):
            return mean_gradient(parameters, records, self._engine)

    def _clipped_sum(self, parameters: NDArray[np.float32], records: Records) -> NDArray[np.float64]:
        """See `Trained.clipped_sum`; only audit clients call it."""
        with self._training, Unspoken(self._engine.spoken, EXHAUSTED):
            found = self._engine.clipped_sums(parameters[: self._engine.dim], [records], record_clip(self._task))
        return np.asarray(found[0, : self._task.n_parameters])

    def update(self, client: str, parameters: NDArray[np.float32]) -> NDArray[np.float64]:
        """Return the round's update before conduct and encoding: norm at most C."""
        request = _Request(client, parameters, self._draws.drawn(client, self._records[client]))
        with self._waiting_lock:
            self._waiting.append(request)
        with self._training:
            if request.result is None:  # nobody before us has taken it along
                self._train_waiting(request)
        if isinstance(request.result, ClientError):
            raise request.result
        assert request.result is not None  # `_train_waiting` filled it
        self._look_for_nothing(client, request.drawn, request.result)
        return request.result

    def _look_for_nothing(self, client: str, drawn: Drawn, update: NDArray[np.float64]) -> None:
        """Say once, to the client's own operator, that its records move the model no more. It uploads all the same."""
        n_drawn = drawn.rate * len(drawn.records)
        if client not in self._idle and n_drawn >= _SURELY_DRAWN and not update.any():
            self._idle.add(client)
            why = "no drawn record gave a finite gradient other than zero: model or loss may have diverged"
            log.warning("client.learns_nothing", client=client, reason=why)

    def _train_waiting(self, first: _Request) -> None:
        with self._waiting_lock:
            batch = [r for r in self._waiting if np.array_equal(r.parameters, first.parameters, equal_nan=True)]
            self._waiting = [r for r in self._waiting if r not in batch]
        if first not in batch:  # whoever took it along failed for a reason of its own, out of memory for one
            batch = [first, *batch]
        try:
            for request, update in zip(batch, self._updates(batch), strict=True):
                request.result = update
        except ClientError:
            for request in batch:  # one by one: a client's bad records are nobody else's
                try:
                    (request.result,) = self._updates([request])
                except ClientError as error:
                    request.result = error

    def _updates(self, batch: Sequence[_Request]) -> list[NDArray[np.float64]]:
        participants = [
            Participant(
                records=request.drawn.records,
                n_declared=self._task.clients[request.client],
                random_bytes=self._random_bytes,
                record_rate=request.drawn.rate,
                noise=self._noise,
                adds_noise=self._conducts[request.client].follows_protocol,
            )
            for request in batch
        ]
        with Unspoken(self._engine.spoken, EXHAUSTED):  # of a user's model, in local training or beside other records
            return round_updates(self._task, batch[0].parameters, participants, self._engine)


def _made_up(like: Records) -> Records:
    """Return one record of that shape: what a process does before the first round depends on no real one."""
    label = example_label_of(like)
    return Records(made_up_records(example_of(like), 1).numpy(), probe_labels(label, 1).numpy())


def engine_of(
    task: Task,
    some: Records,
    *,
    device: str = "auto",
    memory_mb: int | None = None,
    adapter_rank: int | None = None,
    has_canaries: bool = False,
) -> RecordEngine:
    """Return what takes gradients of the task's model, for records like these, or for canaries too.

    Raises: as `Trainer`.
    """
    engine = engine_for(
        Learning.of_task(task),
        some,
        device=device,
        memory_mb=memory_mb,
        adapter_rank=adapter_rank,
        head_of=task if has_canaries else None,
    )
    require_runnable(task, engine)
    _require_bit_exact(task, engine)
    return engine


def engine_for(
    learning: Learning,
    some: Records,
    *,
    device: str,
    memory_mb: int | None,
    adapter_rank: int | None,
    head_of: Task | None = None,
) -> RecordEngine:
    """Return what takes gradients of that model, for records like these. head_of: the task of canaries beside them.

    Raises: ArgumentError, RecordMixingLayerError.
    """
    model = learning.build(0)
    if adapter_rank is not None:
        train_first(model, adapter_rank)
    if head_of is not None:
        model = with_head(model, head_of)
    return RecordEngine(
        model,
        example_of(some),
        loss=learning.loss,
        label=example_label_of(some),
        device=device,
        memory_bytes=None if memory_mb is None else memory_mb * 2**20,
    )


def _require_bit_exact(task: Task, engine: RecordEngine) -> None:
    """Refuse a device on which the bits of a record's gradient depend on its neighbours. Raises ArgumentError.

    On such a device the servers' statements about records hold in real arithmetic only. Servers know no client's
    device, so the client stays out. Algorithms without a statement about records take any device.
    """
    if task.rules.protects_records and not engine.passes.is_bit_exact:
        raise ArgumentError(
            "client.device: expected one on which a record's gradient is the same bits every time, "
            f"found {engine.device} with {torch.get_num_threads()} threads; use another, or 'cpu', "
            "and a model and a loss that keep nothing between calls"
        )


def _after_the_deal(loaded: Loaded, task: Task, conducts: Mapping[str, Conduct]) -> dict[str, Records]:
    """Return the clients' records, or what their conducts make of a deal."""
    found = of_each_client(loaded, task)
    if not loaded.is_dealt:
        return found
    return {
        client: conducts[client].on_deal(own, functools.partial(loaded.of_others, client))
        for client, own in found.items()
    }


def _work_of(
    task: Task, config: ClientConfig, conducts: Mapping[str, Conduct], draws: RecordDraws
) -> tuple[Training, Evaluating | None]:
    """Return what makes these clients' uploads, and what answers evaluations, if there are any.

    Uploads are of Algorithm 2 on their records, of foreign trainers that the configuration names, or answers to the
    task's query. Raises ClientError.
    """
    if task.query is not None:
        return _answers_to(task.query, task, config, conducts), None
    if config.trainer is None:
        return _own_training(task, config, conducts, draws)
    foreign = {client: conduct for client, conduct in conducts.items() if client not in config.attackers}
    attackers = {client: conduct for client, conduct in conducts.items() if client in config.attackers}
    own = _own_training(task, config, attackers, draws) if attackers else None  # before a trainer is started
    if not foreign and own is not None:
        return own
    external = ExternalTraining(task=task, config=config, conducts=foreign)
    if own is None:
        return external, external if task.evaluation_round is not None else None
    trainings: dict[str, Training] = {**dict.fromkeys(foreign, external), **dict.fromkeys(attackers, own[0])}
    if own[1] is None:
        return Beside(trainings, {}), None
    both = Beside(trainings, {**dict.fromkeys(foreign, external), **dict.fromkeys(attackers, own[1])})
    return both, both


def _own_training(
    task: Task, config: ClientConfig, conducts: Mapping[str, Conduct], draws: RecordDraws
) -> tuple[Trainer, HeldOut | None]:
    loaded = load_split_of(task, config, list(conducts))
    if loaded.deal is not None:
        require_same_deal(config.state_dir, task.digest(), loaded.deal(), source=loaded.source)
    trainer = Trainer(
        task=task,
        records=_after_the_deal(loaded, task, conducts),
        conducts=conducts,
        device=config.device,
        memory_mb=config.memory_mb,
        adapter_rank=config.adapter_rank,
        draws=draws,
    )
    if task.evaluation_round is None:
        return trainer, None
    return trainer, HeldOut(task=task, records=loaded.held_out, conducts=conducts, device=config.device)


def _uploading(client: str, task: Task, config: ClientConfig, payer: Payer | None) -> UploadLimit:
    """Return what limits this client's uploads of the training. payer: of each, where no epoch is paid whole.

    Raises StateFileError.
    """
    own, answers = (config.state_dir / f"{client}{kind}" for kind in (UPLOADS, EVALUATIONS))
    payer, most = (payer if task.record_bins is None else None), config.uploads_per_model
    return UploadLimit(client, task.digest(), most=most, file=own, payer=payer, beside=answers)


def _evaluating(
    client: str, task: Task, config: ClientConfig, held_out: Evaluating | None, payer: Payer | None
) -> tuple[Train, UploadLimit] | None:
    """Return what answers evaluations of this client, once for each model; None where there are none.

    Its holder's ledger pays for each answer too. Raises StateFileError, ArgumentError.
    """
    if held_out is None or task.evaluation_round is None:
        return None
    uploads, own = (config.state_dir / f"{client}{kind}" for kind in (UPLOADS, EVALUATIONS))
    limit = UploadLimit(client, task.digest(), most=1, file=own, payer=payer, beside=uploads)
    return functools.partial(held_out.evaluate, client), limit


def _answers_to(query: Query, task: Task, config: ClientConfig, conducts: Mapping[str, Conduct]) -> Answers:
    if (why := refusal(query, config.queries)) is not None:  # before a record is read
        raise QueryRefusedError(why)
    return Answers(
        task=task,
        values=values_of(config, query.column, list(task.clients), list(conducts)),
        conducts=conducts,
        consent=config.queries,
        state_dir=config.state_dir,
    )


class ClientProcess:
    """Hosts one client, or several virtual ones."""

    def __init__(
        self, *, task: Task, config: ClientConfig, conducts: Mapping[str, Conduct], addresses: tuple[str, str]
    ) -> None:
        """conducts: of the clients to host, in order; whoever starts the process chooses them. Raises ClientError."""
        clients = list(conducts)
        torch.set_num_threads(1)  # a machine may host many client processes, and one update is small
        self._stop = asyncio.Event()
        if not task.rules.is_private:
            log.warning("client.not_private", algorithm=task.algorithm)
        if task.krum_rule is not None:
            log.warning("client.releases_updates", why=task.krum_rule.released)
        if task.accept_weak_wire_form:
            log.warning("client.weak_wire_form", mode=task.mode, bounds=task.fixed_word)
        if not task.checks_norms:
            log.warning("client.no_norm_is_checked", validation=task.validation)
        require_writable(config.state_dir)
        self._alone = [one_process(config.state_dir, client, task.digest()) for client in clients]
        payments = payments_of(task, clients, config.holder)
        of_evaluations = payments_of_answers(task, clients, config)
        if task.record_bins is None:  # else what a client goes on with is paid
            for own in payments.values():
                own.require_room()  # before a record is read
        draws = draws_of(task, config.state_dir, clients, payments)
        self._trainer, held_out = _work_of(task, config, conducts, draws)
        if task.is_proved:
            loading.warm_up_proofs()  # where nothing is kept yet, compiling takes seconds: not in the first round
        limits = {client: _uploading(client, task, config, payments.get(client)) for client in clients}
        cache, turns = ModelCache(), Turns()
        self._sessions = [
            ClientSession(
                client=client,
                task=task,
                addresses=addresses,
                tls=config.tls(client),
                pins=config.pins,
                train=functools.partial(self._trainer.train, client),
                conduct=conducts[client],
                connect_timeout_s=config.connect_timeout_s,
                reconnect_timeout_s=config.reconnect_timeout_s,
                cache=cache,
                turns=turns,
                limit=limits[client],
                enter=functools.partial(draws.enter, client),
                evaluate=_evaluating(client, task, config, held_out, of_evaluations.get(client)),
            )
            for client in clients
        ]

    def stop(self) -> None:
        """Leave the task at the next possible moment."""
        self._stop.set()

    async def run(self) -> None:
        """Returns when every client's task is finished. Called once.

        Raises what ended one of them early; StoppedError; StateFileError where another process hosts one of them.
        """
        threads = ThreadPoolExecutor(len(self._sessions) + _SPARE_THREADS)  # every client may wait for its update
        asyncio.get_running_loop().set_default_executor(threads)
        stopping, sessions = asyncio.create_task(self._stop.wait()), list[asyncio.Task[None]]()
        with ExitStack() as alone:
            try:
                for of_client in self._alone:
                    alone.enter_context(of_client)
                sessions = [asyncio.create_task(session.run()) for session in self._sessions]
                waiting = {*sessions, stopping}
                while any(not session.done() for session in sessions):
                    done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                    if stopping in done:
                        raise StoppedError("the client was stopped by its operator")
                    for session in done:
                        session.result()
            finally:
                for task in (*sessions, stopping):
                    task.cancel()
                await asyncio.to_thread(self._trainer.close)
                await asyncio.gather(*sessions, stopping, return_exceptions=True)
