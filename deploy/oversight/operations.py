"""Read the state of servers and runs for `precad status` and `precad watch`, from operations ports or a run folder.

    URL       http[s]://HOST:PORT of one operations port; https is checked against the system's authorities
    CONFIG    every server of the file that has `operations_listen`; TLS is checked against the file's own authority
    FOLDER    of a run on this machine, or an aggregator's state_dir, from what was written

The token is in the file that --token names, else in `operations_token` of CONFIG, else in PRECAD_OPERATIONS_TOKEN. It
is sent in a header to the address that was named and to no other. Redirects are not followed, and plain text goes only
to this machine.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from rich.console import Console
from rich.table import Table
from rich.text import Text

from precad.deploy.client_evaluations import with_bars
from precad.deploy.configuration import sections as configuration
from precad.deploy.durations import in_words
from precad.deploy.errors import UNREACHABLE, ConfigError, RunFailedError
from precad.deploy.figures import at_most
from precad.deploy.localhost.watch import LiveTable
from precad.deploy.oversight.state_dirs import charged_in, is_state_dir, read_state_dir
from precad.deploy.run_folder import RunFolder
from precad.deploy.run_state import RunState, state_of
from precad.dp.accountants.pld import Unit, View, unit_words
from precad.dp.accountants.task_cost import Charged
from precad.dp.errors import DpError
from precad.protos.task.evaluation import n_due
from precad.protos.task.task import Task
from precad.protos.tls.address import is_loopback
from precad.protos.tls.identity import Role
from precad.servers.config import ServerConfig
from precad.servers.operations.access import ENVIRONMENT_VARIABLE
from precad.servers.store.folder import ledger_path
from precad.servers.telemetry.audited import AuditFile
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

POLL_S = 0.5
PATIENCE_S = 30.0
"""How long `watch` tries to find a server again."""
DATA = b"data: "
MAX_LINE = 1 << 24
ERRORS = (aiohttp.ClientError, OSError, TimeoutError, ValueError, KeyError)
"""Errors of a server that is not there, hangs, or is none of ours. (pydantic's and json's are ValueErrors.)"""


@dataclass(frozen=True, slots=True)
class Source:
    """One operations port."""

    name: str
    url: str
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    server_name: str | None = None
    """In the certificate, where it is not the URL's host."""


def place_of(target: str | None) -> str | Path:
    """Return a run folder, or what `sources_of` takes. Raises ConfigError."""
    if target is not None:
        return Path(target) if Path(target).is_dir() else target
    runs = [path.parent for path in Path("runs").glob("*/config.toml")]
    if not runs:
        raise ConfigError("expected CONFIG, URL or FOLDER, or a run under runs/, found none")
    return max(runs, key=lambda folder: (folder / "config.toml").stat().st_mtime)


def sources_of(target: str, token_file: Path | None) -> list[Source]:
    """Return the sources of a URL or a configuration. Raises ConfigError."""
    if target.startswith(("http://", "https://")):
        return [_source_of_url(target, token_file)]
    deployment = configuration.load(Path(target))
    servers: list[tuple[Role, ServerConfig | None]] = [
        (Role.AGGREGATOR_A, deployment.aggregator.a),
        (Role.AGGREGATOR_B, deployment.aggregator.b),
        (Role.DEALER, deployment.dealer),
    ]
    found = [_source_of_server(role, own, token_file) for role, own in servers if own and own.operations_listen]
    if not found:
        raise ConfigError(f"{target}: expected a server with operations_listen, found none")
    return found


def _source_of_url(url: str, token_file: Path | None) -> Source:
    parts = urlsplit(url)
    if parts.username is not None or parts.query or parts.fragment or parts.path not in {"", "/"} or not parts.netloc:
        raise ConfigError("expected http[s]://HOST[:PORT] and nothing else; the token is never part of it")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    if parts.scheme == "http" and not is_loopback(f"{host}:1"):
        raise ConfigError(f"expected https beyond this machine, found {url}: the token would travel in plain text")
    return Source(parts.netloc, f"{parts.scheme}://{parts.netloc}", _token(token_file))


def _source_of_server(role: Role, config: ServerConfig, token_file: Path | None) -> Source:
    token = _token(token_file or config.operations_token)
    if not config.operations_tls:
        return Source(role, f"http://{config.operations_listen}", token)
    tls = ssl.create_default_context(cafile=config.authority)
    return Source(role, f"https://{config.operations_listen}", token, tls, role.server_name)


def _token(path: Path | None) -> str:
    """Raises ConfigError, which does not quote what it found."""
    if path is None:
        if not (token := os.environ.get(ENVIRONMENT_VARIABLE, "").strip()):
            raise ConfigError(f"--token: expected a file, or {ENVIRONMENT_VARIABLE} in the environment, found neither")
    else:
        try:
            token = path.read_text(encoding="utf-8-sig", errors="replace").strip()
        except OSError as error:
            raise ConfigError(f"--token: expected a readable file, found {path}: {error.strerror}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError("--token: expected one token, found something else")
    return token


async def fetch(source: Source) -> Status:
    """Return the status now. Raises RunFailedError."""
    try:
        async with (
            session_with(source, silence_s=10.0) as session,
            session.get("/status.json", allow_redirects=False, server_hostname=source.server_name) as answer,
        ):
            _require_ok(source, answer)
            return Status.model_validate_json(await answer.read())
    except ERRORS as error:
        raise _unreachable(source, error) from None


async def follow(source: Source) -> AsyncIterator[Status]:
    """Yield the status now and whenever it changes, until the stream ends. Raises RunFailedError."""
    try:
        async with (
            session_with(source, silence_s=45.0) as session,  # a stream without events says so every 15 seconds
            session.get("/events", allow_redirects=False, server_hostname=source.server_name) as answer,
        ):
            _require_ok(source, answer)
            async for line in answer.content:
                if line.startswith(DATA):
                    yield Status.model_validate(json.loads(line.removeprefix(DATA))["status"])
    except ERRORS as error:
        raise _unreachable(source, error) from None


def session_with(source: Source, *, silence_s: float) -> aiohttp.ClientSession:
    """Return a session that shows the token to this port alone."""
    return aiohttp.ClientSession(
        source.url,
        headers={"Authorization": f"Bearer {source.token}"},
        connector=aiohttp.TCPConnector(ssl=source.tls or True),
        timeout=aiohttp.ClientTimeout(total=None, connect=5.0, sock_read=silence_s),
        read_bufsize=MAX_LINE,
    )


def _require_ok(source: Source, answer: aiohttp.ClientResponse) -> None:
    """Raises ConfigError for a token that is not this server's, RunFailedError for anything else that is no status."""
    if answer.status in {401, 403}:
        raise ConfigError(f"{source.name}: expected the server's token, and it refused ours")
    if answer.status != 200:
        raise RunFailedError(f"{source.name}: expected a status, found HTTP {answer.status}", exit_code=UNREACHABLE)


def _unreachable(source: Source, error: Exception) -> RunFailedError:
    match error:
        case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
            why = "nothing listens there: is the server running?"
        case aiohttp.ClientConnectorError():
            why = error.os_error.strerror or str(error.os_error)
        case ValueError() | KeyError():
            why = "expected a status in its answer, found something else"
        case _:
            why = str(error) or type(error).__name__
    return RunFailedError(f"{source.name} at {source.url}: {why}", exit_code=UNREACHABLE)


async def statuses_at(place: str | Path, token: Path | None) -> tuple[dict[str, Status], list[str]]:
    """Return the status of each server that answers, by name, and what is wrong with the others."""
    if isinstance(place, Path):
        return {place.name or str(place): read_run(place)}, []
    sources = sources_of(place, token)
    answers = await asyncio.gather(*(fetch(source) for source in sources), return_exceptions=True)
    found: dict[str, Status] = {}
    faults: list[str] = []
    for source, answer in zip(sources, answers, strict=True):
        if isinstance(answer, Status):
            found[source.name] = answer
        elif isinstance(answer, RunFailedError):
            faults.append(str(answer))
        else:
            raise answer
    return found, faults


def as_it_goes(place: str | Path, token: Path | None) -> AsyncIterator[Status]:
    """Yield the status until the task is over: of a run folder, or of the first server that the configuration names.
    Raises ConfigError."""
    return _run_as_it_goes(place) if isinstance(place, Path) else _server_as_it_goes(sources_of(place, token)[0])


async def _server_as_it_goes(source: Source) -> AsyncIterator[Status]:
    """Yield the status until the server says that the task is over. A stream that breaks off is taken up again for a
    while."""
    seen_at: float | None = None
    while True:
        try:
            async for found in follow(source):
                seen_at = time.monotonic()
                yield found
                if found.ended:
                    return
        except RunFailedError:
            if seen_at is None or time.monotonic() - seen_at > PATIENCE_S:
                raise
        await asyncio.sleep(POLL_S)


async def _run_as_it_goes(folder: Path) -> AsyncIterator[Status]:
    """Yield the status until the run has its summary."""
    while True:
        found = read_run(folder)
        yield found
        if found.is_finished or found.ended:
            return
        await asyncio.sleep(POLL_S)


# -- run folders -------------------------------------------------------------------------------------------------------


def read_run(root: Path) -> Status:
    """Return the state of a run on this machine, or of a server, by its folder. Raises ConfigError."""
    if is_state_dir(root):
        return read_state_dir(root)
    folder = RunFolder(root.absolute())
    deployment = configuration.load(folder.config)
    rounds, most_of_a_client = read_rounds(folder)
    epsilons = _epsilons(deployment.task, rounds, _charged(folder, deployment.task, rounds, most_of_a_client))
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
        ended=_ended(state, len(rounds), deployment.task.rounds) if is_over else "",
        rounds_planned=deployment.task.rounds,
        rounds_done=len(rounds),
        n_enrolled=len(deployment.task.clients),
        uploads={
            "accepted": sum(round.n_accepted for round in rounds),
            "rejected": sum(round.n_rejected for round in rounds),
            "missing": sum(round.n_missing for round in rounds),
        },
        hides_draws=deployment.task.hides_draws,
        checks_norms=deployment.task.checks_norms,
        epsilons=epsilons,
        audit=AuditFile(folder.root, deployment.task.digest()).read(),
        rounds_left_in_budget=rounds_left_in_budget(epsilons),
        rounds=tuple(rounds),
    )


def _ended(state: RunState, n_rounds: int, planned: int) -> str:
    """Say how a run ended, and where its rounds are if it ended early."""
    done = f"{n_rounds} of {planned} rounds done"
    match state:
        case RunState.CRASHED:
            return f"its process is gone, and said nothing; {done}"
        case RunState.FAILED:
            return f"it failed: logs/ says why; {done}"
        case RunState.INTERRUPTED:
            return f"interrupted; {done}"
    return done


def read_rounds(folder: RunFolder) -> tuple[list[RoundSummary], int]:
    """Return the rounds of metrics.jsonl whose lines are whole, and the draws of the client with most of them.

    Raises ConfigError for a line that is not a round's.
    """
    if not folder.metrics.exists():
        return [], 0
    lines = folder.metrics.read_text(encoding="utf-8").split("\n")[:-1]  # the last one may still be written
    try:
        read = [json.loads(line) for line in lines]
        drawn = Counter(client for line in read for client in line["participants"])
        return [_round(line) for line in read], max(drawn.values(), default=0)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{folder.metrics}: expected a round per line, found: {error}") from None


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


def _charged(folder: RunFolder, task: Task, rounds: list[RoundSummary], most_of_a_client: int) -> Charged:
    """Return what was charged, by the lines of a run and by its servers' ledgers, the more of each.

    Servers may charge rounds that have no line: those that were lost, or that outlived their runner.
    Raises ConfigError for a ledger that was changed.
    """
    due = n_due(task.evaluation_every, max(len(rounds) - 1, 0))
    found = [Charged(rounds[-1].round + 1 - due if rounds else 0, len(rounds), most_of_a_client)]
    try:
        found += [charged_in(ledger_path(folder.state_dir(letter))) for letter in ("a", "b")]
    except (OSError, DpError) as error:
        raise ConfigError(f"{folder.root}: expected ledgers as servers write them, found: {error}") from None
    return Charged(*(max(each) for each in zip(*found, strict=True)))


def _epsilons(task: Task, rounds: list[RoundSummary], charged: Charged) -> tuple[Epsilon, ...]:
    return epsilons_of(task, rounds[-1].epsilon if rounds else dict.fromkeys(View, 0.0), charged)


# -- for people --------------------------------------------------------------------------------------------------------


def status_table(statuses: Mapping[str, Status]) -> Table:
    """Return a column per server."""
    table = Table(show_header=True, box=None, pad_edge=False)
    table.add_column("")
    for name in statuses:
        table.add_column(_shown(name), overflow="fold")
    facts = [_facts(status) for status in statuses.values()]
    for key in dict.fromkeys(key for found in facts for key in found):
        table.add_row(Text(key, style="bold"), *(_shown(found.get(key, "-")) for found in facts))
    return table


def _printable(text: str) -> str:
    """Return what of a text from outside a terminal shows and does not obey: names and reasons are not ours."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _shown(text: str) -> Text:
    """Return a text from outside as it is, not as markup."""
    return Text(_printable(text))


def _facts(status: Status) -> dict[str, str]:
    """Return the cells of one column, by row. Values of servers are shown as they are, not as markup."""
    facts = {"task": status.task or "-", "state": status.state + (", draining" if status.is_draining else "")}
    if status.role != "run":
        facts["ready"] = "yes" if status.is_ready else "no"
    if status.role == Role.DEALER:
        return facts | {
            "aggregators": f"{status.n_connected} of {status.n_enrolled} connected",
            "batches dealt": str(status.n_batches_dealt),
        }
    planned = f" of {status.rounds_planned}" if status.rounds_planned else ""  # a state_dir does not say
    facts["rounds"] = f"{status.rounds_done}{planned}"
    if status.live is not None:
        facts["in flight"] = (
            f"round {status.live.round}: {status.live.phase}, "
            f"{status.live.n_complete} of {status.live.n_chosen} uploads complete"
        )
    if status.role != "run" and status.n_enrolled:
        facts["clients"] = f"{status.n_connected} of {status.n_enrolled} connected"
    if status.absent:
        named = ", ".join(f"{one.client} since {datetime.fromtimestamp(one.since):%H:%M:%S}" for one in status.absent)
        n_more = status.n_enrolled - status.n_connected - len(status.absent)
        facts["absent"] = named + (f" and {n_more} more" if n_more > 0 else "")
    facts["uploads"] = ", ".join(f"{n} {verdict}" for verdict, n in status.uploads.items())
    facts |= {} if status.checks_norms else {"validation": "none: no norm is checked, and nothing is enforced"}
    if status.rounds_lost:
        facts["lost"] = f"{status.rounds_lost} rounds ({status.rounds_lost_at_most} end the task)"
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


def _epsilon_facts(status: Status) -> dict[str, str]:
    """Return both figures of each epsilon, its budget, and its condition where one must be said."""
    facts: dict[str, str] = {}
    for epsilon in status.epsilons:
        budget = "no budget" if epsilon.budget is None else f"budget {epsilon.budget:g}, {epsilon.left:.2f} left"
        whose = "" if epsilon.unit is Unit.RECORD else f" of a whole {epsilon.unit}"
        if epsilon.group_size > 1:
            whose = f" of {unit_words(epsilon.unit, epsilon.group_size)}"
        drawn = ", drawn or not" if epsilon.is_level else ""
        name = f"epsilon{whose}{drawn}, {epsilon.view.replace('_', ' ')}"
        if epsilon.if_discarded is not None:
            facts[f"{name}, draws discarded or not"] = f"{at_most(epsilon.if_discarded)} in the end"
        facts[f"{name}, no draw discarded"] = f"{at_most(epsilon.spent)} ({budget})"
        if epsilon.rests_on:
            facts[f"{name}, rests on"] = _printable(epsilon.rests_on)
        if epsilon.no_bound:
            facts[f"{name}, why"] = _printable(epsilon.no_bound)
    return facts


def _audited(status: Status) -> dict[str, str]:
    """Return what an attack showed beside what is proved for the same rounds; nothing where nobody audited."""
    if (audit := status.audit) is None:
        return {}
    label = f"audit ({100 * audit.confidence:g} %)"
    facts = {
        f"{label}, {found.view.replace('_', ' ')}": (
            f">= {math.floor(100 * found.lower) / 100:.2f} shown, of {at_most(found.proved)} proved for "
            f"{found.participation} rounds"
        )
        for found in audit.views
    }
    return facts if audit.passed else facts | {label: "CONTRADICTS what is proved: precad audit privacy says where"}


def _progress(status: Status) -> dict[str, str]:
    """Return how good the model is, and how far the task is from its end."""
    facts: dict[str, str] = {}
    if status.rounds_left_in_budget is not None:
        facts["budget"] = f"for {status.rounds_left_in_budget} more rounds at least"
    if (measured := next((one for one in reversed(status.rounds) if one.quality), None)) is not None:
        figures = ", ".join(f"{_printable(name)} {value}" for name, value in _shown_quality(measured.quality).items())
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
    return shown | {name: f"{one['value']:.4g} [{one['low']:.4g}, {one['high']:.4g}]" for name, one in bars.items()}


def metrics_of(round: RoundSummary) -> dict[str, Any]:
    """Return a round as `LiveTable` takes it, from a server's status: who was accepted is counted, who was not is
    named."""
    left_out: dict[str, list[str]] = {"rejected": [], "missing": []}
    for outcome in round.outcomes:
        if outcome.verdict != "accepted":
            left_out[outcome.verdict].append(_printable(outcome.client))
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
                told = dict.fromkeys(_printable(one.rests_on) for one in last.epsilons if one.rests_on)
                for condition in told:
                    table.note(f"every epsilon rests on: {condition}")
            table.why_no_bound = next((_printable(one.no_bound) for one in last.epsilons if one.no_bound), "")
            n_new = min(last.rounds_done - n_shown, len(last.rounds))
            new = last.rounds[len(last.rounds) - n_new :]
            for round in new:
                table.add(metrics_of(round))
            n_shown = last.rounds_done
            found = {round.round: round for round in last.rounds if ACCURACY in round.quality}
            for number in sorted(found.keys() - measured - {round.round for round in new}):
                table.measured(metrics_of(found[number]))
            measured |= found.keys()
            task = _printable(f"{last.task}: {last.state}")
            table.say(f"{task}; {last.rounds_done} of {last.rounds_planned} rounds")
    if last is not None and last.ended and not last.is_finished:
        raise RunFailedError(f"the task ended early: {_printable(last.ended)}", exit_code=UNREACHABLE)
