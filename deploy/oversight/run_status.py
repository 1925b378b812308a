"""The status of a run on this machine, read from what its folder holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import ConfigError, refusing
from precad.deploy.oversight.state_dirs import charged_in, is_state_dir, read_state_dir
from precad.deploy.run_files.folder import RunFolder, require_deployed
from precad.deploy.run_files.spent import costs_of_run, earlier_in
from precad.deploy.run_files.state import RunState, state_of
from precad.dp.accountants.pld import View
from precad.dp.accountants.task_cost import Charged, hid_draws
from precad.dp.errors import DpError
from precad.dp.ledgers.lines import Charge, participation
from precad.protos.messages.spoken import shown
from precad.protos.task.evaluation import n_due
from precad.protos.task.task import Task
from precad.servers.store.folder import ledger_path
from precad.servers.telemetry.audit_figures import AuditFile
from precad.servers.telemetry.status import (
    ACCURACY,
    NORM_EXCEEDED,
    ClientOutcome,
    Epsilon,
    RoundSummary,
    Status,
    epsilons_of,
    rounds_left_in_budget,
)


def read_run(root: Path) -> Status:
    """Return the state of a run on this machine, or of a server, by its folder. Raises ConfigError."""
    with refusing(OSError, f"{root}: expected a folder that this user can read, found"):
        return read_state_dir(root) if is_state_dir(root) else _read_run(root)


def _read_run(root: Path) -> Status:
    folder = RunFolder(root.absolute())
    wanted = "a folder of `precad run` or an aggregator's state_dir"
    require_deployed(root, str(root), wanted)
    if not folder.config.exists():
        raise ConfigError(f"{root}: expected {wanted}, found neither config.toml nor task.sqlite")
    deployment = configuration.load(folder.config)
    rounds, most_of_a_client = read_rounds(folder, deployment.task.record_bins or 1)
    epsilons = _epsilons(folder, deployment.task, rounds, most_of_a_client)
    state = state_of(folder.root)
    is_over = state in (RunState.FINISHED, RunState.INTERRUPTED, RunState.FAILED, RunState.CRASHED)
    modified = max(path.stat().st_mtime for path in (folder.config, folder.metrics, folder.summary) if path.exists())
    return Status(
        role="run",
        version="",
        task=deployment.task.name,
        state=state,
        since=modified,
        started_at=folder.config.stat().st_mtime,
        is_ready=not is_over,
        is_finished=state is RunState.FINISHED,
        ended=_ended(state, len(rounds), deployment.task.rounds, _why(folder.summary)) if is_over else "",
        rounds_planned=deployment.task.rounds,
        rounds_done=len(rounds),
        n_enrolled=len(deployment.task.clients),
        uploads={
            "accepted": sum(round.n_accepted for round in rounds),
            "rejected": sum(round.n_rejected for round in rounds),
            "missing": sum(round.n_missing for round in rounds),
        },
        hides_draws=deployment.task.hides_draws or hid_draws(earlier_in(folder)),
        checks_norms=deployment.task.checks_norms,
        epsilons=epsilons,
        audit=AuditFile(folder.root, deployment.task.digest()).read(),
        rounds_left_in_budget=rounds_left_in_budget(epsilons),
        rounds=tuple(rounds),
    )


def _ended(state: RunState, n_rounds: int, planned: int, why: str) -> str:
    """Say how a run ended, and what continues it if it ended early. why: what its summary says beyond its rounds."""
    done = f"{n_rounds} of {planned} rounds done"
    goes_on = "precad run RUN/config.toml --output RUN --resume continues"
    match state:
        case RunState.CRASHED:
            return f"its process is gone, and said nothing; {done}; {goes_on}"
        case RunState.FAILED:
            return f"it failed: logs/ says why; {done}"
        case RunState.INTERRUPTED:
            return f"interrupted; {done}; {goes_on}"
    return f"{done}{why}"


def _why(summary: Path) -> str:
    """Return why a run ended before its last round, or that its training diverged; nothing where neither is written."""
    try:
        found = json.loads(summary.read_text(encoding="utf-8"))
        ended, is_finite = str(found["ended"]), found.get("model_is_finite", True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    early = "" if ended.endswith("rounds done") else f"; {shown(ended)}"
    return early if is_finite else f"{early}; the training diverged"


def read_rounds(folder: RunFolder, bins: int) -> tuple[list[RoundSummary], int]:
    """Return the rounds of metrics.jsonl whose lines are whole, and the draws of the client with most of them.

    bins: of how many rounds all count that are in an epoch with one of them (`precad.dp.accountants.bins_event`).
    Raises ConfigError for a line that is not a round's.
    """
    if not folder.metrics.exists():
        return [], 0
    with refusing(
        (ValueError, KeyError, TypeError, AttributeError, RecursionError),
        f"{folder.metrics}: expected a round per line, found",
    ):
        lines = folder.metrics.read_text(encoding="utf-8").split("\n")[:-1]  # the last one may still be written
        read = [json.loads(line) for line in lines]
        if any("\\u" in line for line in lines):  # an escape may be half of a character, which no answer can hold
            json.dumps(read, ensure_ascii=False).encode()
        drawn = participation({int(line["round"]): Charge(list(line["participants"])) for line in read}, bins=bins)
        return [_round(line) for line in read], max(drawn.values(), default=0)


def _round(metrics: dict[str, Any]) -> RoundSummary:
    rejected, missing = metrics["rejected"], metrics["missing"]
    return RoundSummary(
        round=metrics["round"],
        n_chosen=len(metrics["participants"]),
        n_accepted=len(metrics["accepted"]),
        n_rejected=len(rejected),
        n_missing=len(missing),
        seconds=metrics["seconds"],
        bytes=metrics["bytes"],
        epsilon={view: metrics[f"epsilon_{view}"] for view in View},
        epsilon_client=metrics.get("epsilon_client"),
        model_digest=metrics["model_digest"],
        quality=_quality_in(metrics),
        outcomes=(
            *(ClientOutcome(client=client, verdict="rejected", reason=NORM_EXCEEDED) for client in rejected),
            *(ClientOutcome(client=client, verdict="missing") for client in missing),
        ),
    )


def _quality_in(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return what the runner of a local run measured on its records for testing, attackers' success too."""
    found = {ACCURACY: metrics.get("accuracy"), "attack_success": metrics.get("attack_success")}
    found |= metrics.get("metrics", {})
    return {name: value for name, value in found.items() if value is not None}


def _epsilons(folder: RunFolder, task: Task, rounds: list[RoundSummary], most_of_a_client: int) -> tuple[Epsilon, ...]:
    """Return what was spent, by the lines of a run and by its servers' ledgers, the more of each.

    Servers may charge rounds that have no line: those that were lost, or that outlived their runner.
    Raises ConfigError for a ledger that was changed, or is of other parameters than the configuration.
    """
    due = n_due(task.evaluation_every, max(len(rounds) - 1, 0))
    found = [Charged(rounds[-1].round + 1 - due if rounds else 0, len(rounds), most_of_a_client)]
    ledgers = [ledger_path(state_dir) for state_dir in folder.state_dirs]
    try:
        found += [charged_in(ledger) for ledger in ledgers]
        costs = costs_of_run(folder, task)
    except (OSError, DpError) as error:
        raise ConfigError(f"{folder.root}: expected ledgers as servers write them, found: {error}") from None
    charged = Charged(*(max(each) for each in zip(*found, strict=True)))
    stated = rounds[-1].epsilon if rounds else dict.fromkeys(View, 0.0)
    return tuple(map(_larger, *(epsilons_of(task, stated, charged, cost) for cost in costs)))


def _larger(one: Epsilon, other: Epsilon) -> Epsilon:
    """Return the larger figures of two servers, and the fewer rounds that their budgets leave."""
    found: dict[str, Any] = {"spent": max(one.spent, other.spent), "no_bound": one.no_bound or other.no_bound}
    if one.if_discarded is not None and other.if_discarded is not None:
        found["if_discarded"] = max(one.if_discarded, other.if_discarded)
    if one.rounds_left is not None and other.rounds_left is not None:
        fewer = min(one, other, key=lambda epsilon: epsilon.rounds_left or 0)
        found |= {"rounds_left": fewer.rounds_left, "rounds_counted": fewer.rounds_counted}
    return one.model_copy(update=found)
