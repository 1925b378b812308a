"""The status of an aggregator and of a dealer, made from what they hold at this moment."""

from __future__ import annotations

import importlib.metadata
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from precad.dp.accountants.pld import View
from precad.dp.accountants.task_cost import TaskCost, hid_draws
from precad.dp.task_privacy import task_cost
from precad.protos.task.evaluation import n_due
from precad.protos.task.task import Task
from precad.servers.rounds.sessions import Sessions
from precad.servers.rounds.uploads import Spool
from precad.servers.store.rounds import CommittedRound
from precad.servers.telemetry.audit_figures import AuditFile
from precad.servers.telemetry.events import Flight, RoundNotes, Telemetry
from precad.servers.telemetry.status import (
    INCOMPLETE,
    MAX_DETAILED,
    MAX_NAMED,
    MAX_ROUNDS,
    NORM_EXCEEDED,
    NOT_CONNECTED,
    VERDICTS,
    AbsentClient,
    Checkpoint,
    ClientOutcome,
    ClientStanding,
    Epsilon,
    LiveRound,
    Queue,
    RoundSummary,
    Status,
    Verdict,
    client_epsilon,
    epsilons_of,
    phase_of,
    rounds_left_in_budget,
    seconds_left,
)

N_AGGREGATORS = 2
VERSION = importlib.metadata.version("precad")

CHECKPOINTS = ("model.npy", "rounds.jsonl", "ledger.jsonl")
"""Files of an aggregator's state folder that an operator may download: public to operators, and no share among them."""


class AggregatorSnapshots:
    """Snapshots of one aggregator. Sums over all rounds are kept between them."""

    def __init__(self, task: Task, telemetry: Telemetry, sessions: Sessions, spool: Spool, state_dir: Path) -> None:
        self._task, self._telemetry, self._sessions = task, telemetry, sessions
        self._spool, self._state_dir = spool, state_dir
        self._audit = AuditFile(state_dir, task.digest())
        self._n_summed = 0
        self._uploads: Counter[str] = Counter(dict.fromkeys(VERDICTS, 0))
        self._bytes: Counter[str] = Counter()
        self._of_client: dict[Verdict, Counter[str]] = {verdict: Counter() for verdict in VERDICTS}

    def take(self) -> Status:
        """Return the status now."""
        task, telemetry, sessions = self._task, self._telemetry, self._sessions
        self._sum_new_records()
        epsilons, rounds = self._epsilons(), self._rounds()
        n_done = len(telemetry.records)
        return Status(
            **_common(telemetry),
            rounds_planned=task.rounds,
            rounds_done=n_done,
            rounds_left_in_budget=rounds_left_in_budget(epsilons),
            seconds_left=None if telemetry.is_over else seconds_left(task, rounds, n_done, epsilons),
            evaluation=task.evaluation,
            evaluations_done=telemetry.n_evaluations,
            last_commit_at=telemetry.last_commit_at,
            rounds_lost=telemetry.n_lost,
            rounds_lost_at_most=task.most_lost_rounds,
            verdicts_unknown=dict(self._unknown()),
            n_enrolled=len(task.clients),
            n_connected=len(sessions.connected),
            absent=tuple(AbsentClient(client=client, since=since) for client, since in sessions.absent()),
            clients=self._clients(),
            live=self._live(),
            hides_draws=task.hides_draws or hid_draws(self._cost.earlier),
            checks_norms=task.checks_norms,
            uploads=dict(self._uploads),
            refused={str(reason): n for reason, n in sorted(telemetry.refused.items())},
            bytes=dict(self._bytes),
            epsilons=epsilons,
            audit=self._audit.read(),
            measuring_fault=telemetry.measuring_fault or "",
            queues=self._queues(),
            rounds=rounds,
            checkpoints=tuple(checkpoints(self._state_dir)),
        )

    def _sum_new_records(self) -> None:
        for record in self._telemetry.records[self._n_summed :]:
            self._uploads.update({verdict: len(getattr(record, verdict)) for verdict in VERDICTS})
            self._bytes.update(record.bytes_by_link)
            for verdict, counted in self._of_client.items():
                counted.update(getattr(record, verdict))
        self._n_summed = len(self._telemetry.records)

    def _clients(self) -> tuple[ClientStanding, ...]:
        left_out = self._of_client["rejected"] + self._of_client["missing"]
        return tuple(
            ClientStanding(
                client=client,
                absent_since=self._sessions.absent_since(client),
                **{verdict: counted[client] for verdict, counted in self._of_client.items()},
            )
            for client in sorted(self._task.clients, key=lambda client: (-left_out[client], client))[:MAX_NAMED]
        )

    def _unknown(self) -> list[tuple[str, int]]:
        by_client = Counter(client for attempt in self._telemetry.unknown for client in attempt.active)
        return by_client.most_common(MAX_NAMED)

    def _live(self) -> LiveRound | None:
        if (flight := self._telemetry.flight) is None:
            return None
        verdicts: dict[Verdict, tuple[str, ...]] = {}
        if flight.accepted is not None:
            verdicts = {"accepted": flight.accepted, "rejected": flight.rejected, "missing": _missing(flight)}
        notes = self._telemetry.notes.get(flight.round, RoundNotes())
        return LiveRound(
            round=flight.round,
            phase=phase_of(self._telemetry.state, is_proved=self._task.is_proved),
            began_at=flight.began_at,
            n_chosen=len(flight.chosen),
            outcomes=outcomes(verdicts, notes),
            **self._awaited(flight, notes),
        )

    def _awaited(self, flight: Flight, notes: RoundNotes) -> dict[str, Any]:
        """Return what came in of the round in flight, and for whom it waits."""
        n_complete = flight.n_locked if flight.accepted is None else len(flight.accepted) + len(flight.rejected)
        if (comes_in := flight.comes_in) is None:
            return {"n_complete": n_complete, "n_receiving": 0}
        intake, clients = comes_in
        is_proving, complete = flight.proving is not None, intake.complete
        without = [client for client in clients if client not in complete]
        waits_s = self._task.proof_timeout_s if is_proving else self._task.submit_timeout_s
        proofs = {"n_active": len(clients), "n_proved": len(complete)} if is_proving else {}
        return {
            "n_complete": n_complete if is_proving else len(complete),
            "n_receiving": intake.n_receiving,
            "waits_until": flight.asked_at + waits_s,
            "waiting_for": tuple(client for client in without if client not in notes.absent)[:MAX_NAMED],
            "absent": tuple(client for client in without if client in notes.absent)[:MAX_NAMED],
            **proofs,
        }

    def _epsilons(self) -> tuple[Epsilon, ...]:
        task, telemetry = self._task, self._telemetry
        last = next(reversed(telemetry.records), None)
        spent = epsilon_of(last) if last is not None else dict.fromkeys(View, 0.0)
        due = n_due(task.evaluation_every, max(len(telemetry.records) - 1, 0))
        drawn = max(0 if last is None else last.number + 1 - due, telemetry.charged.n_drawn)
        evaluations = max(due, telemetry.charged.n_evaluations)
        charged = telemetry.charged._replace(n_drawn=drawn, n_evaluations=evaluations)
        return epsilons_of(task, spent, charged, self._cost)

    @property
    def _cost(self) -> TaskCost:
        """Return the cost by the ledger, which counts earlier tasks; before it is open, by the task alone."""
        return self._telemetry.cost or task_cost(self._task)

    def _queues(self) -> tuple[Queue, ...]:
        flight = self._telemetry.flight
        comes_in = None if flight is None else flight.comes_in
        collecting = self._telemetry.collecting
        depths = {
            "uploads_receiving": 0 if comes_in is None else comes_in[0].n_receiving,
            "uploads_complete": 0 if collecting is None else len(collecting.intake.complete),
            "uploads_in_file": self._spool.n_in_file,
            "events_to_clients": self._sessions.n_queued,
        }
        return tuple(Queue(name=name, depth=depth) for name, depth in depths.items())

    def _rounds(self) -> tuple[RoundSummary, ...]:
        records = self._telemetry.records[-MAX_ROUNDS:]
        n_before, oldest_detailed = len(self._telemetry.records) - len(records), len(records) - MAX_DETAILED
        return tuple(
            self._round(record, n_before + index, is_detailed=index >= oldest_detailed)
            for index, record in enumerate(records)
        )

    def _round(self, record: CommittedRound, n_before: int, *, is_detailed: bool) -> RoundSummary:
        """Return a round as the status shows it. n_before: how many were committed before it."""
        due = n_due(self._task.evaluation_every, n_before)
        notes = self._telemetry.notes.get(record.number, RoundNotes())
        verdicts: dict[Verdict, Iterable[str]] = {verdict: getattr(record, verdict) for verdict in VERDICTS}
        return summary_of(
            record,
            committed_at=notes.committed_at,
            outcomes=outcomes(verdicts, notes) if is_detailed else (),
            epsilon_client=client_epsilon(self._cost, record.number + 1 - due, due),
            quality=self._telemetry.quality.get(record.number),
        )


def of_dealer(telemetry: Telemetry, *, n_connected: int, n_waiting: int) -> Status:
    """Return a dealer's status. n_waiting: batches of which one server has its part and the other has not asked yet."""
    return Status(
        **_common(telemetry),
        n_connected=n_connected,
        n_enrolled=N_AGGREGATORS,
        queues=(Queue(name="batches_half_dealt", depth=n_waiting),),
        n_batches_dealt=telemetry.n_batches_dealt,
    )


def _common(telemetry: Telemetry) -> dict[str, Any]:
    ended = telemetry.ended
    return {
        "role": telemetry.role,
        "version": VERSION,
        "task": telemetry.task_id,
        "state": telemetry.state,
        "since": telemetry.since,
        "started_at": telemetry.started_at,
        "is_ready": telemetry.is_ready,
        "is_draining": telemetry.is_draining,
        "ended": "" if ended is None else ended.reason,
        "is_finished": ended is not None and ended.finished,
    }


def summary_of(
    record: CommittedRound,
    *,
    committed_at: float | None = None,
    outcomes: tuple[ClientOutcome, ...] = (),
    epsilon_client: float | None = None,
    quality: Mapping[str, float] | None = None,
) -> RoundSummary:
    """Return a record as the status shows it."""
    return RoundSummary(
        round=record.number,
        n_chosen=len(record.chosen),
        n_accepted=len(record.accepted),
        n_rejected=len(record.rejected),
        n_missing=len(record.missing),
        seconds=dict(record.seconds),
        bytes=dict(record.bytes_by_link),
        epsilon=epsilon_of(record),
        epsilon_client=epsilon_client,
        model_digest=record.model_digest.hex(),
        quality=dict(quality or {}),
        committed_at=committed_at,
        outcomes=outcomes,
    )


def epsilon_of(record: CommittedRound) -> dict[View, float]:
    """Return the bounds that a record states."""
    return {View.ONE_SERVER: record.epsilon_one_server, View.CLIENTS_ONLY: record.epsilon_clients_only}


def outcomes(verdicts: Mapping[Verdict, Iterable[str]], notes: RoundNotes) -> tuple[ClientOutcome, ...]:
    """Return at most MAX_NAMED clients by name: those that were left out first, with the reason as known here."""
    named = (
        ClientOutcome(client=client, verdict=verdict, reason=_reason(client, verdict, notes))
        for verdict in ("rejected", "missing", "accepted")
        for client in verdicts.get(verdict, ())
    )
    return tuple(itertools.islice(named, MAX_NAMED))


def _reason(client: str, verdict: str, notes: RoundNotes) -> str:
    if verdict == "accepted":
        return ""
    if verdict == "rejected":
        return NORM_EXCEEDED
    if client in notes.refusals:
        return str(notes.refusals[client])
    return NOT_CONNECTED if client in notes.absent else INCOMPLETE


def _missing(flight: Flight) -> tuple[str, ...]:
    seen = {*(flight.accepted or ()), *flight.rejected}
    return tuple(client for client in flight.chosen if client not in seen)


def checkpoints(state_dir: Path) -> Iterable[Checkpoint]:
    """Return those of the files that exist now."""
    for name in CHECKPOINTS:
        try:
            found = (state_dir / name).stat()
        except OSError:
            continue
        yield Checkpoint(name=name, n_bytes=found.st_size, modified_at=found.st_mtime)
