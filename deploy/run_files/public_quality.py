"""Read what the operators of a run's aggregators measured on public records of their own (`task.evaluation`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precad.deploy.run_files.folder import RunFolder
from precad.protos.task.task import Task
from precad.servers.telemetry.model_figures import FILE, restored
from precad.servers.telemetry.status import ACCURACY


def public_accuracy(folder: RunFolder, digests: Mapping[int, str]) -> dict[int, dict[str, float]]:
    """Return the accuracy by round and server's letter, of models that have one."""
    found: dict[int, dict[str, float]] = {}
    for letter, of_rounds in _figures(folder, digests).items():
        for number, figures in of_rounds.items():
            if ACCURACY in figures:
                found.setdefault(number, {})[letter] = figures[ACCURACY]
    return found


def last_public_figures(folder: RunFolder, task: Task, rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the summary's part: figures of the last model that each server's operator measured; nothing where nobody
    does.

    rounds: the lines of metrics.jsonl.
    """
    if task.evaluation != "public":
        return {}
    last = {}
    for letter, of_rounds in _figures(folder, {line["round"]: line["model_digest"] for line in rounds}).items():
        t = max(of_rounds)
        last[letter] = {"round": t, "is_of_final_model": t == rounds[-1]["round"], "figures": of_rounds[t]}
    return {"public_quality": last}


def _figures(folder: RunFolder, digests: Mapping[int, str]) -> dict[str, dict[int, dict[str, float]]]:
    """Return the figures by server's letter and round, of servers that have any.

    digests: of each round's model, in hexadecimal. A figure of another model is left out.
    """
    found = {letter: restored(folder.state_dir(letter) / FILE, digests) for letter in ("a", "b")}
    return {letter: of_rounds for letter, of_rounds in found.items() if of_rounds}
