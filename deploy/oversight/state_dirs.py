"""Read how far a task is from an aggregator's state_dir, on the server's machine, without a port or a token.

No record is changed. Whether a server holds its ledger is asked of the lock itself, for an instant. The list of locks
would leave out processes of other PID namespaces, such as another container's.
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from precad.deploy.errors import ConfigError
from precad.dp.accountants.bins_event import bins_of
from precad.dp.accountants.pld import Release, Unit, View, release_of
from precad.dp.accountants.task_cost import NOTHING_CHARGED, Charged, Level, TaskCost, evaluations_of, hid_draws
from precad.dp.conditions import beside_earlier
from precad.dp.errors import DpError
from precad.dp.ledgers.earlier import tasks_of_header
from precad.dp.ledgers.lines import participation, read_lines
from precad.dp.ledgers.sealed_file import is_open
from precad.servers.errors import ServerError
from precad.servers.operations.snapshot import summary_of
from precad.servers.store import audit_log
from precad.servers.store.folder import ledger_path, store_path
from precad.servers.store.record import from_line
from precad.servers.store.rounds import CommittedRound
from precad.servers.telemetry.model_figures import FILE, restored
from precad.servers.telemetry.status import MAX_NAMED, NORM_EXCEEDED, ClientOutcome, Epsilon, RoundSummary, Status

RECORDS: Final = "rounds.jsonl"


def is_state_dir(folder: Path) -> bool:
    """Tell whether a folder is an aggregator's: what is known of the task is there."""
    return store_path(folder).is_file()


def read_state_dir(folder: Path) -> Status:
    """Return what the server's log, ledger and records say. Raises ConfigError, also for fields of another kind."""
    try:
        return _read(folder)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, ServerError, DpError) as error:
        found = str(error).partition("\n")[0]
        raise ConfigError(f"{folder}: expected an aggregator's state_dir, found: {found}") from None


def _read(folder: Path) -> Status:
    log = audit_log.read(store_path(folder))
    ledger = ledger_path(folder)
    header = json.loads(ledger.read_bytes().partition(b"\n")[0] or b"{}")
    modified = store_path(folder).stat().st_mtime
    kept = _kept(folder / RECORDS)
    figures = restored(folder / FILE, {record.number: record.model_digest.hex() for record in kept})
    times = {e.fields["round"]: datetime.fromisoformat(e.at).timestamp() for e in log if e.kind == "committed"}
    rounds = [_summary(record, figures.get(record.number, {}), times.get(record.number)) for record in kept]
    ended = next((entry.fields["reason"] for entry in reversed(log) if entry.kind == "finished"), "")
    task = next((entry.fields for entry in log if entry.kind == "task"), {})
    is_held = is_open(ledger)
    return Status(
        role=str(task.get("role", "aggregator")),
        version="",
        task=str(task.get("task", "")),
        state="running" if is_held else "finished" if ended else "not running",
        since=modified,
        started_at=modified,
        is_ready=is_held,
        is_finished=bool(ended),
        ended=str(ended) if ended or is_held else _why_not(log),
        rounds_done=max(len(rounds), len(times)),
        last_commit_at=max(times.values(), default=None),
        **({} if times and not (folder / RECORDS).exists() else _sums(kept, rounds)),
        evaluations_done=sum(entry.kind == "evaluated" for entry in log),
        **_losses(folder, log, header, is_held=is_held),
        hides_draws=Level.HIDDEN_CLIENT in header.get("every_round", {}) or hid_draws(tasks_of_header(ledger, header)),
        epsilons=_epsilons(ledger, header, rounds, task.get("rests_on", {})),
        rounds=tuple(rounds),
    )


def _sums(kept: Sequence[CommittedRound], rounds: Sequence[RoundSummary]) -> dict[str, Any]:
    """Return what the records say of all rounds together. A copy for `precad audit log` goes without them."""
    return {
        "uploads": {
            "accepted": sum(round.n_accepted for round in rounds),
            "rejected": sum(round.n_rejected for round in rounds),
            "missing": sum(round.n_missing for round in rounds),
        },
        "bytes": dict(sum((Counter(record.bytes_by_link) for record in kept), Counter())),
    }


def _losses(
    folder: Path, log: Sequence[audit_log.Entry], header: Mapping[str, Any], *, is_held: bool
) -> dict[str, Any]:
    """Return the lost rounds and unknown verdicts as fields of the status. One that the folder does not say is not set.

    While the server runs, a number without a commit may be of a round in flight. Where clients evaluate models, the
    task alone tells such a number from a lost round's.
    """
    charged = () if is_held else read_lines(ledger_path(folder))[1].keys()  # a running server may be in that check
    unknown = dict(audit_log.unknown_verdicts(log, charged).most_common(MAX_NAMED))
    if is_held or evaluations_of(header) is not None:
        return {"verdicts_unknown": unknown}
    numbers = audit_log.rows_in(store_path(folder), "SELECT number FROM round WHERE state <> 'committed'")
    return {"verdicts_unknown": unknown, "rounds_lost": len(numbers)}


def _kept(path: Path) -> list[CommittedRound]:
    """Return the records of a file; the last line may be what a crash left of one. Raises ValueError for another."""
    if not path.exists():
        return []
    *lines, last = path.read_bytes().split(b"\n")
    records = [from_line(line) for line in lines]
    if None in records:
        raise ValueError(f"{path.name}, line {records.index(None) + 1}: expected a round, found something else")
    return [record for record in (*records, from_line(last)) if record is not None]


def _why_not(log: list[audit_log.Entry]) -> str:
    """Say what the last thing was that a server which does not run wrote about its end."""
    last = log[-1] if log else None
    if last is not None and last.kind == "interrupted":
        return f"interrupted: {last.fields['reason']}; start it again in this folder to go on"
    return "no process holds it: stopped or crashed; start it again in this folder to go on"


def _summary(record: CommittedRound, quality: Mapping[str, float], committed_at: float | None) -> RoundSummary:
    rejected = (ClientOutcome(client=name, verdict="rejected", reason=NORM_EXCEEDED) for name in record.rejected)
    missing = (ClientOutcome(client=name, verdict="missing") for name in record.missing)
    return summary_of(record, committed_at=committed_at, quality=quality, outcomes=(*rejected, *missing))


def charged_in(ledger: Path) -> Charged:
    """Return what a ledger's file holds: rounds that were committed, and those that were lost after their charge.

    Nothing without a file. Raises LedgerCorruptedError; OSError as the file system gives it.
    """
    if not ledger.is_file():
        return NOTHING_CHARGED
    found = ledger.stat()
    return _charged_in(ledger, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=8)
def _charged_in(ledger: Path, n_bytes: int, modified_ns: int) -> Charged:
    """Read the file once for each state of it: whoever watches asks again and again."""
    header, charges, _ = read_lines(ledger)
    bins = bins_of(_events_in(header).values())
    rounds, answered = (participation(charges, is_evaluation=kind, bins=bins) for kind in (False, True))
    n_evaluations = sum(charge.is_evaluation for charge in charges.values())
    return Charged(
        n_drawn=max(charges, default=-1) + 1 - n_evaluations,
        n_charged=len(charges) - n_evaluations,
        most_of_a_client=max(rounds.values(), default=0),
        n_evaluations=n_evaluations,
        most_evaluations=max(answered.values(), default=0),
    )


def _events_in(header: Mapping[str, Any]) -> dict[View, Release | None]:
    found = header.get("events", dict.fromkeys(View))
    return {view: None if found[view] is None else release_of(found[view]) for view in View}


def _epsilons(
    ledger: Path, header: dict[str, Any], rounds: list[RoundSummary], rests_on: Mapping[str, str]
) -> tuple[Epsilon, ...]:
    """Return what the charged rounds and earlier tasks have spent; nothing where there are none.

    The folder does not say which budget the task has.

    rests_on: conditions of the figures, by view, where the task's must be said.
    """
    charged = charged_in(ledger)
    earlier = tasks_of_header(ledger, header)
    if "delta" not in header or not (rounds or charged.n_charged or earlier):
        return ()
    unit = Unit(header.get("unit", Unit.RECORD))
    events = _events_in(header)
    cost = TaskCost(
        events=events,
        delta=header["delta"],
        steps_per_round=header.get("steps_per_round", 1),
        slack=header.get("slack", 0.0),
        earlier=earlier,
        evaluations=evaluations_of(header),
    )
    stated = rounds[-1].epsilon if rounds else dict.fromkeys(View, 0.0)
    counted = (charged.most_of_a_client, charged.most_evaluations)
    spent = {view: max(stated[view], cost.of_view(view, *counted)) for view in View}
    groups = {view: 1 if (event := events[view]) is None else event.group_size for view in View}
    return tuple(
        Epsilon(
            view=view,
            unit=unit,
            group_size=groups[view],
            spent=spent[view],
            delta=cost.delta,
            rests_on=beside_earlier(rests_on.get(view, ""), earlier, view),
        )
        for view in View
    )
