"""Status of one server while it works: one line at each place where something happens.

`Telemetry` is the one owner of what a server says of itself. Its own services read it, and so do snapshots for
operators, health checks and log lines. It counts for Prometheus beside that. It never waits and never fails a caller.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import prometheus_client as prometheus
from numpy.typing import NDArray

from precad.dp.accountants.task_cost import NOTHING_CHARGED, TaskCost
from precad.protos.messages.phases import PHASES
from precad.protos.precad.v1 import common_pb2
from precad.protos.tls.identity import Role
from precad.servers.errors import Limit, MeasuringFault, RefusalReason, SubmissionRefusedError
from precad.servers.rounds.receiving import Receiving
from precad.servers.rounds.states import Aborted, Collecting, Locked, Proving, RoundState, Selecting, Validated
from precad.servers.store.rounds import Attempt, CommittedRound, EvaluatedRound
from precad.servers.telemetry.status import MAX_DETAILED, PHASE_OF_STATE, VERDICTS

SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper ends of the histograms' buckets."""
LINKS = ("to_peer", "from_clients", "from_dealer")


@dataclass(slots=True)
class RoundNotes:
    """Facts that a round's record does not hold."""

    absent: frozenset[str] = frozenset()
    """Chosen, and not connected when uploads were asked for."""
    refusals: dict[str, RefusalReason] = field(default_factory=dict)
    """The first refusal of each client."""
    committed_at: float | None = None


@dataclass(slots=True)
class Flight:
    """The round in flight."""

    round: int
    began_at: float
    chosen: tuple[str, ...] = ()
    collecting: Collecting | None = None
    """Its state while uploads may come in."""
    n_locked: int = 0
    """Uploads that both servers have locked."""
    asked_at: float = 0.0
    """When uploads, or proofs, were asked for."""
    proving: Proving | None = None
    """Its state while proofs may come in."""
    accepted: tuple[str, ...] | None = None
    rejected: tuple[str, ...] = ()

    @property
    def comes_in(self) -> tuple[Receiving, tuple[str, ...]] | None:
        """Return where uploads or proofs come in now, and the clients whose they are."""
        if self.collecting is not None:
            return self.collecting.intake, self.chosen
        return None if self.proving is None else (self.proving.proofs, self.proving.lock.active)


class Telemetry:
    """Status of one server, and what it counts. For the event loop."""

    def __init__(self, role: Role) -> None:
        self.role, self.started_at = role, time.time()
        self.state, self.since = "starting", self.started_at
        self.is_listening = self.is_draining = False
        self.ended: common_pb2.Goodbye | None = None
        self.task_id = ""
        self.round = 0
        """The latest that this process began."""
        self.flight: Flight | None = None
        self._given_up: int | None = None
        """The round that was aborted since the latest one began, until that counts as an interruption."""
        self.records: list[CommittedRound] = []
        """All committed rounds of the task, also those of earlier processes."""
        self.parameters: NDArray[np.float32] | None = None
        """The model after the last of them."""
        self.last_commit_at: float | None = None
        """When the latest model was committed, also by an earlier process."""
        self.n_lost = 0
        self.unknown: list[Attempt] = []
        """Rounds whose check began, and whose verdicts this server never saw."""
        self.notes: OrderedDict[int, RoundNotes] = OrderedDict()
        self.refused: Counter[RefusalReason] = Counter()
        self.n_batches_dealt = 0
        self.quality: dict[int, dict[str, float]] = {}
        """Figures of the models that rounds made, by round; of those that were measured."""
        self.n_evaluations = 0
        """Evaluations by clients that are over, also those of earlier processes."""
        self.measuring_fault: MeasuringFault | None = None
        """Why the latest model that was to be measured has no figure; None if it has."""
        self.charged = NOTHING_CHARGED
        """Counts that budgets are compared with, at the start of the coming round."""
        self.cost: TaskCost | None = None
        """Prices of rounds by the ledger, which counts earlier tasks too; None before it is open."""
        self._count = _Counters()
        self.registry = self._count.registry

    @property
    def is_over(self) -> bool:
        """Return whether the task is over, and this server about to leave."""
        return self.ended is not None

    @property
    def is_ready(self) -> bool:
        """Return whether others should be sent here: the main port listens, and the server is not about to leave.

        The other servers' links come through that port, so this must not wait for them.
        """
        return self.is_listening and not self.is_draining and not self.is_over

    @property
    def collecting(self) -> Collecting | None:
        """Return the round that takes uploads now."""
        return None if self.flight is None else self.flight.collecting

    @property
    def proving(self) -> Proving | None:
        """Return the round that takes proofs now."""
        return None if self.flight is None else self.flight.proving

    def left(self, client: str) -> None:
        """Note that a client's session has ended: the round in flight does not wait for it."""
        if self.collecting is not None:
            self.collecting.intake.hung_up(client)
        if self.proving is not None:
            self.proving.proofs.hung_up(client)

    def about(self) -> dict[str, object]:
        """Return the context of every line that is logged on the server's behalf."""
        known = {"role": self.role, "task": self.task_id, "round": None if self.flight is None else self.flight.round}
        return {key: value for key, value in known.items() if value not in ("", None)}

    def entered(self, state: str) -> None:
        """Note that the server is in another state now."""
        if state != self.state:
            self.state, self.since = state, time.time()
        if state not in PHASE_OF_STATE:
            self.flight = None

    def over(self, state: str, goodbye: common_pb2.Goodbye) -> None:
        """Note that the task is over for this server. goodbye: what the others are told."""
        self.ended = goodbye
        self.entered(state)

    def in_task(self, task_id: str, parameters: NDArray[np.float32], records: Sequence[CommittedRound] = ()) -> None:
        """Note that the server has opened its files, or met the other one. records: those that are not shown yet."""
        self.task_id, self.parameters = task_id, parameters
        self.records.extend(records)

    def note(self, round: int) -> RoundNotes:
        """Return the notes of this round; the notes of old rounds make room."""
        while round not in self.notes and len(self.notes) > MAX_DETAILED:
            self.notes.popitem(last=False)
        return self.notes.setdefault(round, RoundNotes())

    def interrupted(self) -> int | None:
        """Note that another server was lost, and is waited for. Return the round that is lost with it, if one is."""
        self._count.interruptions.inc()
        lost = self._given_up if self.flight is None else self.flight.round
        self.flight = self._given_up = None
        return lost

    def settled(self, lost: Collection[int], unknown: Sequence[Attempt]) -> list[Attempt]:
        """Note the rounds that are lost by now, and those of them whose verdicts are unknown. Return the new ones."""
        new = unknown[len(self.unknown) :]
        self.n_lost, self.unknown = len(lost), list(unknown)
        return list(new)

    def entered_round(self, state: RoundState, connected: frozenset[str]) -> None:
        """Note that the round in flight is in another state now; `connected`: clients with a session."""
        if self.flight is not None:
            self.flight.collecting = self.flight.proving = None
        match state:
            case Selecting():
                self.round, self.flight = state.round, Flight(state.round, time.time())
                self._given_up = None
            case Aborted() if self.flight is not None:
                self._given_up = self.flight.round
            case Collecting() if self.flight is not None:
                self.flight.chosen, self.flight.collecting, self.flight.asked_at = state.chosen, state, time.time()
                self.note(state.round).absent = frozenset(state.chosen) - connected
            case Locked() if self.flight is not None:
                self.flight.n_locked = len(state.lock.active)
            case Proving() if self.flight is not None:
                self.flight.proving, self.flight.asked_at = state, time.time()
            case Validated() if self.flight is not None:
                self.flight.accepted, self.flight.rejected = state.accepted, state.rejected
        self.entered(type(state).__name__.lower())

    def released(self, record: CommittedRound, parameters: NDArray[np.float32]) -> None:
        """Note that both servers hold the model that a round made."""
        self.records.append(record)
        self.parameters = parameters

    def committed(self, record: CommittedRound) -> None:
        """Note that the record of a released round is on disk too: the round is no longer in flight."""
        self.flight = None
        self.note(record.number).committed_at = self.last_commit_at = time.time()
        self._count.committed(record)

    @contextmanager
    def submission(self, client: str) -> Iterator[None]:
        """Around the taking of one upload or proof: counts its refusal."""
        round, collecting, proving = self.round, self.collecting, self.proving
        is_chosen = collecting is not None and collecting.intake.is_chosen(client)
        is_chosen |= proving is not None and proving.proofs.is_chosen(client)
        try:
            yield
        except SubmissionRefusedError as error:
            self.refused[error.reason] += 1
            self._count.refused.labels(error.reason).inc()
            if is_chosen:  # so a round's notes are no longer than its list of clients
                self.note(round).refusals.setdefault(client, error.reason)
            raise

    def call_refused(self, call: str, code: str) -> None:
        """Count a gRPC call that ended with an error status."""
        self._count.calls.labels(call, code).inc()

    def pushed_back(self, limit: Limit) -> None:
        """Count a call that was refused for now, since it met this limit."""
        self._count.pushed_back.labels(limit).inc()

    def undecodable(self, call: str) -> None:
        """Count a caller of this method that sent what is no message of it."""
        self._count.undecodable.labels(call).inc()

    def evaluated(self, made_by: int, record: EvaluatedRound, figures: Mapping[str, float]) -> None:
        """Take in how good the model of a round is on held-out records of clients. The evaluation is over.

        made_by: the round.
        """
        self.flight, self.quality[made_by] = None, dict(figures)
        self.n_evaluations += 1
        self._count.evaluated(record)

    def measured(self, round: int, figures: Mapping[str, float]) -> None:
        """Take in how good the model of a round is on public records."""
        self.quality[round], self.measuring_fault = dict(figures), None

    def not_measured(self, fault: MeasuringFault) -> None:
        """Count a model without a figure."""
        self.measuring_fault = fault
        self._count.unmeasured.labels(fault).inc()

    def batch_dealt(self, to: Role) -> None:
        """Count a part of a batch that a dealer gave away."""
        self.n_batches_dealt += 1
        self._count.dealt.labels(to).inc()

    def login_failed(self) -> None:
        """Somebody showed the operations port a wrong token."""
        self._count.logins.inc()


class _Counters:
    """Counters and histograms, in their own registry. What is known beforehand is there from the start, as zero."""

    def __init__(self) -> None:
        self.registry = registry = prometheus.CollectorRegistry()
        prometheus.ProcessCollector(registry=registry)
        prometheus.PlatformCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> prometheus.Counter:
            return prometheus.Counter(name, text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> prometheus.Histogram:
            return prometheus.Histogram(name, text, labels, registry=registry, buckets=SECONDS)

        self.rounds = counter("precad_rounds", "Rounds committed by this process.")
        self.evaluations = counter("precad_evaluations", "Evaluations by clients that this process finished.")
        self.answers = counter(
            "precad_evaluation_answers", "Chosen clients of these evaluations, by verdict.", "verdict"
        )
        self.interruptions = counter("precad_interruptions", "Losses of another server that were waited out.")
        self.uploads = counter("precad_uploads", "Chosen clients of committed rounds, by verdict.", "verdict")
        self.refused = counter("precad_uploads_refused", "Uploads refused before the norm check, by reason.", "reason")
        self.calls = counter("precad_calls_refused", "gRPC calls refused, by call and status.", "call", "code")
        self.pushed_back = counter("precad_calls_pushed_back", "gRPC calls told to come back later, by limit.", "limit")
        self.undecodable = counter("precad_messages_undecodable", "Requests that are no message, by call.", "call")
        self.bytes = counter("precad_bytes", "Bytes of committed rounds, by link.", "link")
        self.dealt = counter("precad_batches_dealt", "Parts of batches that left the dealer.", "to")
        self.unmeasured = counter("precad_quality_faults", "Models without a figure of quality, by reason.", "reason")
        self.logins = counter("precad_operations_logins_failed", "Wrong tokens shown to the operations port.")
        self.round_seconds = histogram("precad_round_seconds", "Duration of a round, all phases.")
        self.phase_seconds = histogram("precad_phase_seconds", "Duration of a phase of a round.", "phase")
        for verdict in VERDICTS:
            self.uploads.labels(verdict)
            self.answers.labels(verdict)
        for reason in RefusalReason:
            self.refused.labels(reason)
        for limit in Limit:
            self.pushed_back.labels(limit)
        for fault in MeasuringFault:
            self.unmeasured.labels(fault)
        for link in LINKS:
            self.bytes.labels(link)
        for phase in PHASES:
            self.phase_seconds.labels(phase)

    def evaluated(self, record: EvaluatedRound) -> None:
        self.evaluations.inc()
        for verdict in VERDICTS:
            self.answers.labels(verdict).inc(len(getattr(record, verdict)))

    def committed(self, record: CommittedRound) -> None:
        self.rounds.inc()
        for verdict in VERDICTS:
            self.uploads.labels(verdict).inc(len(getattr(record, verdict)))
        for link, n_bytes in record.bytes_by_link.items():
            self.bytes.labels(link).inc(n_bytes)
        for phase, seconds in record.seconds.items():
            self.phase_seconds.labels(phase).observe(seconds)
        self.round_seconds.observe(sum(record.seconds.values()))
