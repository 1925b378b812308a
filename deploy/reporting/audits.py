"""Read the audit beside a run: `audit.json`, which `precad audit privacy --output` writes into its folder.

An audit of a run whose task has audit clients is of that run alone. Any other trains anew, with audit clients as
members. So it says something of a run only where both have the same mechanism. Another one is refused.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from precad.deploy.errors import ConfigError
from precad.deploy.reporting.files import Amount, Count, Share, Written, read_object
from precad.deploy.reporting.runs import Run
from precad.deploy.shown.figures import AUDIT_METHODS, audit_label, three_digits_down, three_digits_up
from precad.dp.accountants.pld import Unit, View, unit_words
from precad.dp.conditions import AGAINST
from precad.protos.task.task import Task

FILE: Final = "audit.json"
MECHANISM: Final = (
    "noise_multiplier",
    "record_clip",
    "record_rate",
    "client_rate",
    "client_clip",
    "frac_bits",
    "delta",
)
"""Fields of a task that its audit must have been of."""


class Figures(Written):
    """Lower figures of one seat."""

    per_round: Amount
    f_dp: Amount
    strict: Amount


class AuditedSeat(Written):
    """Hold what one seat showed."""

    view: Literal["one_server", "clients_only"]
    printed: Amount
    figures: Figures


class Audit(Written):
    """Hold what a report needs of an audit."""

    confidence: Share
    rounds: Count
    observations: Count
    passed: bool
    mechanism: dict[str, float]
    records_per_person: Count = 1
    """How many records of one person its figures are of together."""
    task_digest: str = ""
    """Digest of the audited run's task; empty where the audit trained anew."""
    seats: Annotated[list[AuditedSeat], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_passed(self) -> Self:
        """Refuse one that passed against its own figures. Those of guesses accuse at another level, and may differ."""
        if self.passed and any(seat.figures.per_round > seat.printed for seat in self.seats):
            raise ValueError("passed: expected false, as a figure by single rounds is above a proved one, found true")
        return self


def with_audit(run: Run) -> Run:
    """Return the run with a note of the audit in its folder, if there is one.

    Raises: ConfigError for a file that is none, or an audit of another mechanism.
    """
    path = run.folder / FILE
    return replace(run, notes=(*run.notes, sentence_of(read_audit(path, run.task)))) if path.exists() else run


def read_audit(path: Path, task: Task) -> Audit:
    """Return the audit in a file. Raises: ConfigError for a file that is none, or an audit of something else."""
    found = read_object(path, Audit)
    if not task.rules.is_default:
        raise ConfigError(f"{path}: expected no audit of a run of {task.algorithm}, as audits are of precad")
    if task.record_bins is not None:
        raise ConfigError(f"{path}: expected no audit of a run with record_bins, as audits are of Poisson's draws")
    if task.sum_function is not None:
        raise ConfigError(f"{path}: expected no audit of a run with sum_function, as audits are of sums as they are")
    for name in MECHANISM:
        ours, theirs = float(getattr(task, name)), found.mechanism.get(name)
        if ours != theirs:
            raise ConfigError(f"{path}: expected an audit with {name} = {ours:g}, found {theirs}")
    if (theirs := found.records_per_person) != task.records_per_person:
        ours = task.records_per_person
        raise ConfigError(f"{path}: expected an audit with records_per_person = {ours}, found {theirs}")
    digest = task.digest().hex()
    if found.task_digest not in ("", digest):
        raise ConfigError(f"{path}: expected an audit of task {digest[:16]}, found {found.task_digest[:16]}")
    return found


def sentence_of(audit: Audit) -> str:
    """Return the sentence: all three figures of each view, beside what was proved for it.

    Where two servers' seats differ, each figure is the smaller one, which both show.
    """
    label = f"{audit_label(audit.confidence)}{' of this run' if audit.task_digest else ''}"
    if audit.records_per_person > 1:
        label += f", {unit_words(Unit.RECORD, audit.records_per_person)}"
    said = []
    for view in View:
        if seats := [seat for seat in audit.seats if seat.view == view.value]:
            least = {name: min(getattr(seat.figures, name) for seat in seats) for name in AUDIT_METHODS}
            lower = ", ".join(f"{AUDIT_METHODS[name]} {three_digits_down(figure)}" for name, figure in least.items())
            proved = three_digits_up(max(seat.printed for seat in seats))
            said.append(f"{lower}, of {proved} proved against {AGAINST[view]}")
    ended = "contradicts nothing" if audit.passed else "CONTRADICTS what is proved"
    return f"{label}, {audit.rounds} rounds, {audit.observations} observations: {'; '.join(said)}. It {ended}."
