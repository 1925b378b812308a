"""The summary of a run, for people."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from precad.deploy.run_files.client_evaluations import told
from precad.deploy.shown import tables
from precad.deploy.shown.figures import three_digits
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import Conduct, Unit, View
from precad.dp.accountants.slack import most_epsilon, why_no_bound
from precad.dp.task_privacy import TaskPrivacy, task_privacy
from precad.protos.task.function_fields import function_claim
from precad.protos.task.task import Task
from precad.protos.task.validation_fields import UNCHECKED

HEADINGS: Final = {Conduct.MAY_DISCARD: "may discard draws", Conduct.WATCHES: "only watches"}
"""The two columns."""
NOT_COVERED: Final = "no epsilon counts when uploads come, which clients were missing, and records that only test"
NOT_COVERED_BESIDE_EVALUATIONS: Final = "no epsilon counts when uploads come, and which clients were missing"
"""Where records that only test are released about, every epsilon counts that."""
_AGAINST: Final = {View.ONE_SERVER: "one server, any clients", View.CLIENTS_ONLY: "any clients"}
_PLAIN: Final[dict[str, Any]] = {"box": None, "pad_edge": False, "title_style": ""}


def conditions_of(task: Task, earlier: Iterable[EarlierTask] = ()) -> list[str]:
    """Return what the figures rest on that count these earlier tasks, in words, where that must be said."""
    return list(dict.fromkeys(filter(None, task_privacy(task).beside(earlier).said.values())))


def print_summary(console: Console, summary: Mapping[str, Any], task: Task) -> None:
    """Print what was trained, what was refused, what is guaranteed to whom, and what it cost."""
    table = tables.facts()
    if not task.rules.is_default:
        table.add_row("algorithm", task.algorithm)
    table.add_row("model", ", ".join((task.model, f"{task.n_parameters} parameters", *quality(summary))))
    for name, figures in _measured(summary):
        table.add_row(name, Text(figures))  # a metric's name is its author's text
    if "learnt_bound" in summary:
        table.add_row("clipping", f"updates to {summary['learnt_bound']:.4g} in the end, a bound that was learnt")
    table.add_row("rounds", f"{summary['rounds']} ({summary['ended']})")
    if "attack_success" in summary:
        table.add_row(
            "attack", f"success {summary['attack_success']:.3f}, of this attack; a cleverer one may do better"
        )
    counts = ", ".join(f"{summary[name]} {name}" for name in ("accepted", "rejected", "missing"))
    table.add_row("uploads", counts)
    if not task.checks_norms:
        table.add_row("validation", UNCHECKED)
    if task.sum_function is not None:
        table.add_row("function of the sum", f"{task.sum_function}: {function_claim(task)}")
    table.add_row("rejected clients", ", ".join(summary["rejected_clients"]) or "none")
    table.add_row("privacy", _privacy(summary, task))
    table.add_row("", _counts(summary, task.record_bins))
    for note in summary.get("rests_on", ()):
        table.add_row("", f"rests on: {note}")
    if (trainer := summary.get("trainer")) is not None:
        table.add_row("", f"one record: no figure; {trainer['no_epsilon_record']}")
        counts = f"{trainer['trained']} trainings, {trainer['clipped']} clipped to C, {trainer['failed']} failed"
        if not trainer["trained"]:
            counts += "; no update but zeros was uploaded, and logs/ say why"
        table.add_row("trainer", Text(f"{trainer['name']}: {counts}"))  # a colon on either side of a word is no emoji
    if task.is_proved:
        table.add_row("", _of_mode(summary, task))
    table.add_row("not covered", NOT_COVERED if task.evaluation_round is None else NOT_COVERED_BESIDE_EVALUATIONS)
    table.add_row(
        "cost",
        f"{summary['seconds_per_round']:.2f} s per round, {summary['seconds_total']:.0f} s in all; "
        f"{summary['bytes_client_up'] / 1e6:.1f} MB from clients, "
        f"{summary['bytes_server_link'] / 1e6:.1f} MB between the servers",
    )
    if task.audit_clients:
        audited = f"precad audit privacy --run {shlex.quote(summary['output'])}"
        table.add_row("audit", f"{task.n_canaries} canaries; {audited}")
    table.add_row("run folder", summary["output"])
    console.print(table, highlight=False)


def _measured(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what operators measured on public records, and what clients found on records that they hold out."""
    for letter, found in summary.get("public_quality", {}).items():
        yield "public records", _public(letter, found)
    if evaluations := summary.get("evaluations"):
        yield "held-out records", f"{told(evaluations[-1])}; error bars are of the noise"


def quality(summary: Mapping[str, Any]) -> list[str]:
    """Return the accuracy, where labels are classes, and the metrics that were asked for; each in words."""
    accuracy = {} if summary["accuracy"] is None else {"accuracy": summary["accuracy"]}
    found = {**accuracy, **summary.get("metrics", {})}
    return [f"test {name} {value:.3f}" for name, value in found.items()]


def _public(letter: str, found: Mapping[str, Any]) -> str:
    """Return what the operator of a server measured on public records of its own."""
    figures = ", ".join(f"{name} {value:.4g}" for name, value in found["figures"].items())
    which = "" if found["is_of_final_model"] else f" of the model of round {found['round']}"
    return f"{figures}{which}, measured at server {letter.upper()}"


def _privacy(summary: Mapping[str, Any], task: Task) -> Table:
    """Return one line for each unit and view: the bound that assumes less first. What a budget limits comes first."""
    privacy = task_privacy(task)
    title = f"epsilon at delta = {summary['delta']} (proved bounds, add/remove {_together(privacy)})"
    words = ("of one", "against")
    found = tables.titled(title, *words, *HEADINGS.values(), words=words, **_PLAIN)
    for name, unit, against in _rows(summary, privacy.unit, task):
        figures = (float(summary[key]) for key in (f"epsilon_{name}", f"realised_epsilon_{name}"))
        is_nothing = _is_nothing(name, privacy)
        found.add_row(unit, against, *("no guarantee" if is_nothing else three_digits(x) for x in figures))
    return found


def _is_nothing(name: str, privacy: TaskPrivacy) -> bool:
    """Return whether nothing is claimed against this adversary, whatever the noise."""
    return name in set(View) and privacy.events[View(name)] is None


def _of_mode(summary: Mapping[str, Any], task: Task) -> str:
    """Say what mode `proved` takes of delta, and where that leaves no bound."""
    privacy, keys = task_privacy(task), ("epsilon", "realised_epsilon")
    names = [name for name, _, _ in _rows(summary, privacy.unit, task) if not _is_nothing(name, privacy)]
    without = [name for name in names if math.inf in (float(summary[f"{key}_{name}"]) for key in keys)]
    if not set(without).isdisjoint(View):
        return why_no_bound(task.delta, task.delta_slack)
    said = f"mode proved takes {task.delta_slack:.1e} (1 + e^epsilon) of delta, counted in every figure"
    return f"{said}; all from epsilon = {most_epsilon(task.delta, task.delta_slack):g} on" if without else said


def _together(privacy: TaskPrivacy) -> str:
    return "one" if privacy.group_size == 1 else f"one; a group is of {privacy.group_size} records of one person"


def _rows(summary: Mapping[str, Any], unit: Unit, task: Task) -> list[tuple[str, str, str]]:
    """Return (name in the summary, of whom, against whom)."""
    of_one = str(unit) if task.records_per_person == 1 else f"group of {task.records_per_person} records"
    of_views = [(view.value, of_one, _AGAINST[view]) for view in View]
    if "epsilon_client" not in summary:
        return of_views
    drawn_or_not = "client" if unit is Unit.RECORD else "client, drawn or not"
    budget = "" if task.epsilon_budget_client is None else f" (budget {task.epsilon_budget_client:g})"
    row = ("client", f"{drawn_or_not}{budget}", _AGAINST[View.CLIENTS_ONLY])
    rows = [row, *of_views] if budget else [*of_views, row]
    if "epsilon_hidden_client" in summary:
        rows.append(("hidden_client", "client, draws hidden", _AGAINST[View.CLIENTS_ONLY]))
    return rows


def _counts(summary: Mapping[str, Any], bins: int | None) -> str:
    """Say what each adversary does, and how many rounds its column counts. bins: whose epochs count whole."""
    most = summary["most_rounds_of_a_client"]
    limit = "any number of" if most is None else f"at most {most}"
    return (
        f"{HEADINGS[Conduct.MAY_DISCARD]}: makes rounds fail, or ends the task, for what it saw; a client in {limit} "
        f"rounds. {HEADINGS[Conduct.WATCHES]}: does neither; a client in at most {summary['rounds_of_a_client']} "
        f"rounds, {summary['discarded_draws']} draws given up before their charge{_evaluations(summary)}"
        f"{'' if bins is None else f'. Of a record, all {bins} rounds of an epoch count that has begun'}"
    )


def _evaluations(summary: Mapping[str, Any]) -> str:
    """Say how many evaluations both columns count as well."""
    if "most_evaluations" not in summary:
        return ""
    return f". Beside these, {summary['most_evaluations']} evaluations; {summary['evaluations_of_a_client']} there were"
