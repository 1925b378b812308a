"""Statuses for people: a column per server, and a line per round as it comes.

Names, reasons and conditions come from outside: they are shown as they are, and obeyed by no terminal.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from precad.deploy.errors import UNREACHABLE, RunFailedError
from precad.deploy.localhost.watch import LiveTable
from precad.deploy.run_files.client_evaluations import with_bars
from precad.deploy.shown.durations import in_words
from precad.deploy.shown.error_bars import estimate_and_bar
from precad.deploy.shown.figures import AUDIT_METHODS, audit_label, rounded_down, three_digits
from precad.dp.accountants.pld import Unit, unit_words
from precad.protos.messages.spoken import shown
from precad.protos.tls.identity import Role
from precad.servers.telemetry.audit_figures import AuditedView
from precad.servers.telemetry.status import ACCURACY, LiveRound, RoundSummary, Status


def for_programs(status: Status) -> dict[str, Any]:
    """Return the status as JSON has it. A field is null where its source does not say: a folder has no task."""
    told = json.loads(status.model_dump_json())
    return {name: value if name in status.model_fields_set else None for name, value in told.items()}


def status_table(statuses: Mapping[str, Status]) -> Table:
    """Return a column per server."""
    of_servers = (Column(_shown(name), overflow="fold") for name in statuses)
    table = Table("", *of_servers, show_header=True, box=None, pad_edge=False)
    facts = [_facts(status) for status in statuses.values()]
    for key in dict.fromkeys(key for found in facts for key in found):
        table.add_row(Text(key, style="bold"), *(_shown(found.get(key, "-")) for found in facts))
    return table


def _shown(text: str) -> Text:
    """Return a text from outside as it is, not as markup."""
    return Text(shown(text))


def _rounds(status: Status) -> str:
    """Return how many rounds are done, of how many where the source says it: a state_dir does not."""
    return f"{status.rounds_done}" + (f" of {status.rounds_planned}" if status.rounds_planned else "")


def _facts(status: Status) -> dict[str, str]:
    """Return the cells of one column, by row. Values of servers are shown as they are, not as markup."""
    facts = {"task": status.task or "-", "state": status.state + (", draining" if status.is_draining else "")}
    if status.role != "run":
        facts["ready"] = "yes" if status.is_ready else "no"
    if status.role == Role.DEALER:
        return facts | {
            "aggregators": f"{status.n_connected} of {status.n_enrolled} connected",
            "batches dealt": str(status.n_batches_dealt),
            **({"ended": status.ended} if status.ended else {}),
        }
    facts["rounds"] = _rounds(status)
    if status.live is not None:
        facts["in flight"] = (
            f"round {status.live.round}: {status.live.phase}, "
            f"{status.live.n_complete} of {status.live.n_chosen} uploads complete{_proofs(status.live)}"
        )
    if status.role != "run" and status.n_enrolled:
        facts["clients"] = f"{status.n_connected} of {status.n_enrolled} connected"
    if status.absent:
        named = ", ".join(f"{one.client} since {datetime.fromtimestamp(one.since):%H:%M:%S}" for one in status.absent)
        n_more = status.n_enrolled - status.n_connected - len(status.absent)
        facts["absent"] = named + (f" and {n_more} more" if n_more > 0 else "")
    if status.uploads:  # of which a copy of a log and a ledger says nothing
        facts["uploads"] = ", ".join(f"{n} {verdict}" for verdict, n in status.uploads.items())
    facts |= {} if status.checks_norms else {"validation": "none: no norm is checked, and nothing is enforced"}
    if status.rounds_lost:
        end = f" ({status.rounds_lost_at_most} end the task)" if status.rounds_lost_at_most else ""
        n = status.rounds_lost
        facts["lost"] = f"{n} round{'s' if n != 1 else ''}{end}"
    if status.verdicts_unknown:
        n_unknown, n_clients = sum(status.verdicts_unknown.values()), len(status.verdicts_unknown)
        facts["verdicts unknown"] = f"{n_unknown} uploads of {n_clients} clients, in lost rounds"
    if status.refused:
        facts["refused"] = ", ".join(f"{n} {reason}" for reason, n in status.refused.items())
    facts |= _epsilon_facts(status)
    facts |= _audited(status)
    facts |= _progress(status)
    if status.ended:
        facts["ended"] = status.ended
    return facts


def _proofs(live: LiveRound) -> str:
    """Return how many proofs came in, while they do."""
    return "" if live.n_active is None else f", {live.n_proved} of {live.n_active} proofs"


def _epsilon_facts(status: Status) -> dict[str, str]:
    """Return both figures of each epsilon, its budget, and its condition where one must be said."""
    facts: dict[str, str] = {}
    for epsilon in status.epsilons:
        budget = (
            f"budget {epsilon.budget:g}, {rounded_down(epsilon.left, 2)} left"
            if epsilon.budget is not None and epsilon.left is not None
            else "no budget"
        )
        if epsilon.budget is None and not status.rounds_planned:  # a state_dir does not say
            budget = "its budget is in the task alone"
        whose = "" if epsilon.unit is Unit.RECORD else f" of a whole {epsilon.unit}"
        if epsilon.group_size > 1:
            whose = f" of {unit_words(epsilon.unit, epsilon.group_size)}"
        drawn = ", drawn or not" if epsilon.is_level else ""
        name = f"epsilon{whose}{drawn}, {epsilon.view.replace('_', ' ')}"
        if epsilon.if_discarded is not None:
            facts[f"{name}, draws discarded or not"] = f"{three_digits(epsilon.if_discarded)} in the end"
        facts[f"{name}, no draw discarded"] = f"{three_digits(epsilon.spent)} ({budget})"
        if epsilon.rests_on:
            facts[f"{name}, rests on"] = shown(epsilon.rests_on)
        if epsilon.no_bound:
            facts[f"{name}, why"] = shown(epsilon.no_bound)
    return facts


def _audited(status: Status) -> dict[str, str]:
    """Return what an attack showed beside what is proved for the same rounds; nothing where nobody audited."""
    if (audit := status.audit) is None:
        return {}
    label = audit_label(audit.confidence)
    size = max((epsilon.group_size for epsilon in status.epsilons), default=1)
    whose = f" of {unit_words(Unit.RECORD, size)}" if size > 1 else ""
    facts = {
        f"{label}{whose}, {found.view.replace('_', ' ')}": (
            f"{_shown_lower(found)}, of {three_digits(found.proved)} proved for {found.participation} rounds"
        )
        for found in audit.views
    }
    return facts if audit.passed else facts | {label: "CONTRADICTS what is proved: precad audit privacy says where"}


def _shown_lower(found: AuditedView) -> str:
    """Return the lower figures that a server gave, rounded down, each with how it was shown."""
    figures = zip(AUDIT_METHODS.values(), (found.lower, found.f_dp, found.strict), strict=True)
    return ", ".join(f">= {math.floor(100 * low) / 100:.2f} {how}" for how, low in figures if low is not None)


def _progress(status: Status) -> dict[str, str]:
    """Return how good the model is, and how far the task is from its end."""
    facts: dict[str, str] = {}
    if status.rounds_left_in_budget is not None:
        facts["budget"] = f"for {status.rounds_left_in_budget} more rounds at least"
    if (measured := next((one for one in reversed(status.rounds) if one.quality), None)) is not None:
        figures = ", ".join(f"{shown(name)} {value}" for name, value in _shown_quality(measured.quality).items())
        facts["quality"] = f"{figures} (round {measured.round})"
    if status.measuring_fault:
        facts["not measured"] = f"the latest model: {status.measuring_fault.replace('_', ' ')}"
    if status.rounds:
        facts["last round"] = f"{status.rounds[-1].seconds_total:.2f} s"
    if status.seconds_left is not None:
        facts["time left"] = in_words(status.seconds_left)
    return facts


def _shown_quality(quality: Mapping[str, float]) -> dict[str, str]:
    """Return figures for people, with the error bars of those that have one."""
    bars = with_bars(quality)
    ends = {f"{name}_{end}" for name in bars for end in ("low", "high")}
    shown = {name: f"{value:.4g}" for name, value in quality.items() if name not in ends}
    return shown | {
        name: " ".join(estimate_and_bar(one["value"], one["low"], one["high"])) for name, one in bars.items()
    }


def metrics_of(round: RoundSummary) -> dict[str, Any]:
    """Return a round as `LiveTable` takes it, from a server's status: who was accepted is counted, who was not is
    named."""
    left_out: dict[str, list[str]] = {"rejected": [], "missing": []}
    for outcome in round.outcomes:
        if outcome.verdict != "accepted":
            left_out[outcome.verdict].append(shown(outcome.client))
    return {
        "round": round.round,
        "participants": range(round.n_chosen),
        "accepted": range(round.n_accepted),
        **left_out,
        "accuracy": round.quality.get(ACCURACY),
        "seconds": round.seconds,
        "seconds_total": round.seconds_total,
        **{f"epsilon_{view}": epsilon for view, epsilon in round.epsilon.items()},
        **({} if round.epsilon_client is None else {"epsilon_client": round.epsilon_client}),
    }


async def show_rounds(statuses: AsyncIterator[Status], console: Console, *, title: str) -> None:
    """Show a line per round as it comes. Raises RunFailedError when the task ended early."""
    last: Status | None = None
    n_shown = 0
    measured: set[int] = set()
    told: dict[str, None] = {}
    with LiveTable(console, title=title) as table:
        async for last in statuses:
            if not told:
                told = dict.fromkeys(shown(one.rests_on) for one in last.epsilons if one.rests_on)
                for condition in told:
                    table.note(f"every epsilon rests on: {condition}")
            table.why_no_bound = next((shown(one.no_bound) for one in last.epsilons if one.no_bound), "")
            n_new = min(last.rounds_done - n_shown, len(last.rounds))
            new = last.rounds[len(last.rounds) - n_new :]
            for round in new:
                table.add(metrics_of(round))
            n_shown = last.rounds_done
            found = {round.round: round for round in last.rounds if ACCURACY in round.quality}
            for number in sorted(found.keys() - measured - {round.round for round in new}):
                table.measured(metrics_of(found[number]))
            measured |= found.keys()
            task = shown(f"{last.task}: {last.state}")
            table.say(f"{task}; {_rounds(last)} rounds")
    if last is not None and last.ended and not last.is_finished:
        raise RunFailedError(f"the task ended early: {shown(last.ended)}", exit_code=UNREACHABLE)
