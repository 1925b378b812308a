"""Read what a run's clients found on records that they hold out (`task.evaluation = "clients"`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from precad.deploy.run_files.folder import RunFolder
from precad.deploy.shown.error_bars import estimate_and_bar
from precad.protos.task.evaluation import BY_CLIENTS
from precad.protos.task.task import Task
from precad.servers.telemetry.model_figures import FILE, restored

_ENDS: Final = ("_low", "_high")


def client_evaluations(folder: RunFolder, task: Task, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary's part: every evaluation, oldest first; nothing of a task without.

    A server that was lost in an evaluation lacks its figures, which the other one may have. rounds: the lines of
    metrics.jsonl.
    """
    if task.evaluation != BY_CLIENTS:
        return {}
    digests = {line["round"]: line["model_digest"] for line in rounds}
    of_a, of_b = (restored(state_dir / FILE, digests) for state_dir in folder.state_dirs)
    found = {**of_b, **of_a}
    n_done = {line["round"]: n for n, line in enumerate(rounds, start=1)}
    evaluations = [{"round": t, "rounds_done": n_done[t], "figures": with_bars(found[t])} for t in sorted(found)]
    return {"evaluations": evaluations}


def with_bars(figures: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return figures by name, each with both ends of its error bar, where a server's file has them side by side."""
    names = [name for name in figures if all(f"{name}{end}" in figures for end in _ENDS)]
    return {name: {"value": figures[name], **{end[1:]: figures[f"{name}{end}"] for end in _ENDS}} for name in names}


def told(evaluation: Mapping[str, Any]) -> str:
    """Return one evaluation, of a summary, for people."""
    figures = ", ".join(
        f"{name} {' '.join(estimate_and_bar(one['value'], one['low'], one['high']))}"
        for name, one in evaluation["figures"].items()
    )
    return f"{figures} at 95%, after {evaluation['rounds_done']} rounds"
