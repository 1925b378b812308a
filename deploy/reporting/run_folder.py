"""The folder of `precad demo` and `precad run`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from precad.clients.config import ClientConfig
from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.sections import Deployment
from precad.deploy.errors import ConfigError, refusing
from precad.deploy.reporting.answers import Estimated, QueryAnswer
from precad.deploy.reporting.files import Amount, Count, Epsilon, Share, Written, read_lines, read_object
from precad.deploy.reporting.runs import (
    Cost,
    Evaluation,
    Link,
    PublicQuality,
    Round,
    Run,
    Statement,
    Trained,
    is_import_path,
)
from precad.deploy.reporting.settings import shown_configuration
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.run_files.own_task import require_own_task
from precad.deploy.run_files.public_quality import public_accuracy
from precad.deploy.run_files.spent import earlier_in
from precad.deploy.run_files.state import INTERRUPTED_RUN
from precad.dp.accountants.pld import Unit, View
from precad.dp.conditions import AGAINST
from precad.dp.errors import DpError
from precad.dp.ledgers.ledger import Level
from precad.dp.task_privacy import DRAWN_OR_NOT, DRAWS_HIDDEN, TaskPrivacy, budgets_of, task_cost, task_privacy
from precad.protos.messages.phases import in_order
from precad.protos.task.evaluation import n_due
from precad.protos.task.task import Task

_ROUNDING: Final = 1e-6
"""Part of an epsilon by which another machine's arithmetic may differ."""
_LINKS: Final[tuple[Link, ...]] = get_args(Link)


class _Line(Written):
    """One line of metrics.jsonl."""

    round: Count
    participants: list[str]
    accepted: list[str]
    rejected: list[str]
    missing: list[str]
    bytes: dict[Link, Count]
    seconds: dict[str, Amount]
    seconds_total: Amount
    epsilon_one_server: Epsilon
    epsilon_clients_only: Epsilon
    accuracy: Share | None
    attack_success: Share | None = None
    model_digest: str = ""


class _Measured(Written):
    """Hold what the operator of one server measured last."""

    round: Count
    figures: dict[str, float]


class _Evaluated(Written):
    """An evaluation by the clients."""

    rounds_done: Annotated[int, Field(ge=1)]
    figures: dict[str, Estimated]


class _Summary(Written):
    """summary.json."""

    rounds: Count
    processes: Count
    accuracy: Share | None = None
    attack_success: Share | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    public_quality: dict[Literal["a", "b"], _Measured] = Field(default_factory=dict)
    evaluations: list[_Evaluated] = Field(default_factory=list)
    epsilon_one_server: Epsilon
    epsilon_clients_only: Epsilon
    epsilon_client: Epsilon | None = None
    realised_epsilon_one_server: Epsilon | None = None
    """None in folders of before, whose epsilons above are the realised ones."""
    realised_epsilon_clients_only: Epsilon | None = None
    realised_epsilon_client: Epsilon | None = None
    epsilon_hidden_client: Epsilon | None = None
    realised_epsilon_hidden_client: Epsilon | None = None
    most_rounds_of_a_client: Count | None = None
    discarded_draws: Count | None = None
    delta: Annotated[float, Field(gt=0, lt=1)]
    accepted: Count
    rejected: Count
    missing: Count
    rejected_clients: list[str]
    seconds_total: Amount
    bytes_client_up: Count
    bytes_server_link: Count
    ended: str
    estimate: Estimated | None = None
    """A query has it, and the two fields below."""
    bins: list[Estimated] = Field(default_factory=list)
    level: Annotated[float, Field(gt=0, lt=1)] | None = None
    resumed: Count = 0
    """How often the run was continued. Lost rounds leave gaps in the numbers."""

    @property
    def is_of_before(self) -> bool:
        """Return whether it has one figure for each view, of the rounds that there were."""
        return self.realised_epsilon_one_server is None

    def realised(self, view: View) -> float | None:
        """Return the epsilon of the view's rounds, if no draw was discarded."""
        found: float | None = getattr(self, f"{'' if self.is_of_before else 'realised_'}epsilon_{view}")
        return found


def read_deployed(path: Path) -> Run:
    """Read a finished run. Raises ConfigError where a file is missing or damaged, or files contradict each other."""
    folder = RunFolder(path)
    deployment = configuration.load(folder.config)
    client = _client(deployment, path)
    for state_dir in folder.state_dirs:
        require_own_task(state_dir, deployment.task, folder.config, where=str(path))
    summary = read_object(folder.summary, _Summary)
    lines = read_lines(folder.metrics, _Line, may_be_empty=summary.rounds == 0)  # of a run interrupted before one
    _require_agreement(path, deployment, summary, lines)
    with refusing((DpError, OSError), f"{path}: expected ledgers of two servers, found"):
        privacy = task_privacy(deployment.task).beside(earlier_in(folder))
    return Run(
        folder=path,
        label=path.absolute().name,
        algorithm=deployment.task.algorithm,
        task=deployment.task,
        client=client,
        is_simulation=False,
        has_two_servers=True,
        is_validated=deployment.task.checks_norms,
        names_other_code=is_import_path(deployment.task.model),
        reacting_attack=client.reacting_attack,
        trainings=(_training(folder, summary, lines),),
        statements=_statements(deployment.task, privacy, summary, lines),
        says_conditions=privacy.says_conditions,
        cost=_cost(summary, lines) if lines else None,
        answer=_answer(path, deployment.task, summary),
        configuration=shown_configuration(deployment),
    )


def _answer(path: Path, task: Task, summary: _Summary) -> QueryAnswer | None:
    """Return what a query's summary says. Raises ConfigError where a summary is of another kind of run."""
    if (task.query is None) != (summary.level is None):
        wanted, found = ("no answer", "one") if task.query is None else ("an answer", "none")
        raise ConfigError(f"{path}: expected {wanted} in summary.json, as config.toml says, found {found}")
    if task.query is None or summary.level is None:
        return None
    return QueryAnswer(query=task.query, estimate=summary.estimate, bins=tuple(summary.bins), level=summary.level)


def _client(deployment: Deployment, path: Path) -> ClientConfig:
    if deployment.client is None:
        raise ConfigError(f"{path}: expected a [client] section in config.toml, found none")
    return deployment.client


def _require_agreement(path: Path, deployment: Deployment, summary: _Summary, lines: Sequence[_Line]) -> None:
    """Refuse a folder whose two files disagree on what both say. Raises ConfigError.

    The servers of an interrupted run may have finished a round that has no line, or lost one after its charge. So its
    summary may say more. The numbers of a run that went on have gaps.
    """
    task = deployment.task
    has_evaluations = task.evaluation_round is not None
    may_say_more = summary.resumed > 0 or summary.ended.startswith(INTERRUPTED_RUN) or has_evaluations
    numbers = [line.round for line in lines]
    in_order = [n + n_due(task.evaluation_every, n) for n in range(len(lines))]
    wanted = sorted(set(numbers)) if summary.resumed else in_order
    found: dict[str, tuple[object, object]] = {
        "rounds": (summary.rounds, len(lines)),
        "numbers of rounds": (wanted, numbers),
        "accepted": (summary.accepted, sum(len(line.accepted) for line in lines)),
        "rejected": (summary.rejected, sum(len(line.rejected) for line in lines)),
        "missing": (summary.missing, sum(len(line.missing) for line in lines)),
        "delta": (summary.delta, task.delta),
    }
    for view in View:
        said, there = summary.realised(view), _after(lines, view)
        found[f"epsilon_{view}"] = (said, there if said is None or not may_say_more else max(said, there))
    for name, (expected, got) in found.items():
        if expected != got:
            what = f"{expected!r:.60} of summary.json" if name != "numbers of rounds" else "0, 1, 2, ..."
            what += ", but for evaluations" if has_evaluations and name == "numbers of rounds" else ""
            raise ConfigError(f"{path}: {name}: expected {what}, found {got!r:.60}: this is no finished run's folder")
    if summary.epsilon_client is None and Level.CLIENT in task_privacy(task).every_round:
        raise ConfigError(f"{path}: epsilon_client: expected a value in summary.json, found none")
    for name, found_there, least in _least_figures(deployment, summary, lines):
        if found_there < least * (1 - _ROUNDING):
            raise ConfigError(f"{path}: {name}: expected at least {least:.6g}, found {found_there:.6g}: it was edited")
    most = task.most_draws if summary.resumed else task.rounds
    if not (len(lines) <= task.rounds and max(numbers, default=0) < most + task.most_evaluations):
        raise ConfigError(f"{path}: rounds: expected at most {task.rounds}, found {len(lines)}")


def _least_figures(
    deployment: Deployment, summary: _Summary, lines: Sequence[_Line]
) -> Iterator[tuple[str, float, float]]:
    """Yield each epsilon of the summary: its name, what it says, and the least that it can be.

    That is what the task costs: in the rounds in which lines have a client most often, or in the most that there can
    be. Evaluations and earlier tasks only raise it. So a folder from elsewhere promises no more than its own task. Not
    so the most rounds where a budget limits them: of it, earlier tasks leave less.
    """
    task, servers = deployment.task, (deployment.aggregator.a, deployment.aggregator.b)
    has_less = bool(budgets_of(task)) and any(own is not None and own.earlier_ledgers for own in servers)
    cost, drawn = task_cost(task), Counter(client for line in lines for client in line.participants)
    n_most = max(drawn.values(), default=0)
    for view in View:
        if (realised := summary.realised(view)) is not None:
            there = max(cost.of_view(view, n_most) if n_most else 0.0, _after(lines, view))
            yield f"{'' if summary.is_of_before else 'realised_'}epsilon_{view}", realised, there
        if not (summary.is_of_before or has_less):
            yield f"epsilon_{view}", getattr(summary, f"epsilon_{view}"), cost.view_if_discarded(view, n_most)
    for level in (Level.CLIENT, Level.HIDDEN_CLIENT):
        stated: float | None = getattr(summary, f"epsilon_{level}")
        if stated is None or summary.is_of_before:
            continue
        if not has_less:
            yield f"epsilon_{level}", stated, cost.level_if_discarded(level)
        if (watched := getattr(summary, f"realised_epsilon_{level}")) is not None:  # what holds against more holds here
            yield f"realised_epsilon_{level}", watched, min(stated, cost.of_level(level, len(lines)))


def _after(lines: Sequence[_Line], view: View) -> float:
    """Return the epsilon that the last line states; nothing was spent where there is none."""
    return float(getattr(lines[-1], f"epsilon_{view}")) if lines else 0.0


def _training(folder: RunFolder, summary: _Summary, lines: Sequence[_Line]) -> Trained:
    is_measured, digests = bool(summary.public_quality), {line.round: line.model_digest for line in lines}
    public = public_accuracy(folder, digests) if is_measured else {}
    n_done = {line.round: n for n, line in enumerate(lines, start=1)}
    rounds = tuple(
        Round(
            n_done=n_done,
            n_accepted=len(line.accepted),
            n_rejected=len(line.rejected),
            n_missing=len(line.missing),
            seconds=line.seconds_total,
            accuracy=line.accuracy,
            attack_success=line.attack_success,
            public_accuracy=public.get(line.round, {}),
        )
        for n_done, line in enumerate(lines, start=1)
    )
    return Trained(
        seed=None,
        rounds=rounds,
        ended=summary.ended,
        accuracy=summary.accuracy,
        attack_success=summary.attack_success,
        rejected_clients=tuple(summary.rejected_clients),
        metrics=summary.metrics,
        public_quality={
            letter: PublicQuality(n_done=n_done[found.round], figures=found.figures)
            for letter, found in summary.public_quality.items()
            if found.round in n_done
        },
        evaluations=tuple(
            Evaluation(n_done=one.rounds_done, figures=one.figures)
            for one in summary.evaluations
            if one.rounds_done <= len(lines)
        ),
    )


def _statements(task: Task, privacy: TaskPrivacy, summary: _Summary, lines: Sequence[_Line]) -> tuple[Statement, ...]:
    """Return both views of what the algorithm protects, and a whole client where there is an account of it."""
    figures = {name: _figures(task, summary, name) for name in (*View, Level.CLIENT, Level.HIDDEN_CLIENT)}
    by_round = {
        View.ONE_SERVER: tuple(enumerate((line.epsilon_one_server for line in lines), start=1)),
        View.CLIENTS_ONLY: tuple(enumerate((line.epsilon_clients_only for line in lines), start=1)),
    }
    most = summary.most_rounds_of_a_client or task_cost(task).most_of_a_client
    return deployed_statements(task, privacy, figures, most, by_round)


def _figures(task: Task, summary: _Summary, name: View | Level) -> Figures | None:
    """Return both figures. A folder of before says what was realised alone; the other figure follows from its task."""
    stated: float | None = getattr(summary, f"epsilon_{name}")
    if stated is None:
        return None
    if not summary.is_of_before:
        return Figures(stated, getattr(summary, f"realised_epsilon_{name}"))
    cost = task_cost(task)
    most = cost.view_if_discarded(name) if isinstance(name, View) else cost.level_if_discarded(name)
    return Figures(max(most, stated), stated)


@dataclass(frozen=True, slots=True)
class Figures:
    """Both figures of one statement."""

    if_discarded: float
    realised: float | None


def deployed_statements(
    task: Task,
    privacy: TaskPrivacy,
    figures: Mapping[View | Level, Figures | None],
    most_rounds: int | None,
    by_round: Mapping[View, tuple[tuple[int, float], ...]] | None = None,
) -> tuple[Statement, ...]:
    """State what the epsilons of a task's ledger mean. A whole client stands first where a budget limits its epsilon.

    privacy: of the task, beside the earlier ones that the ledger counts.
    """
    statements = []
    for view in View:
        found = figures[view]
        assert found is not None  # of both views there are figures, which may be infinite
        is_nothing = privacy.events[view] is None
        statements.append(
            Statement(
                unit=privacy.unit,
                against=AGAINST[view],
                epsilon=None if is_nothing else found.if_discarded,
                realised=None if is_nothing else found.realised,
                most_rounds=None if is_nothing else most_rounds,
                delta=task.delta,
                note=privacy.rests_on[view],
                by_round=() if by_round is None or is_nothing else by_round[view],
                group_size=privacy.group_size,
            )
        )
    if (hidden := figures.get(Level.HIDDEN_CLIENT)) is not None:
        statements.append(_of_hidden_client(hidden, task.delta, privacy))
    client, budget = figures.get(Level.CLIENT), task.epsilon_budget_client
    if client is None or (privacy.unit is Unit.CLIENT and budget is None):
        return tuple(statements)
    whole = Statement(
        unit=Unit.CLIENT,
        against=f"{AGAINST[View.CLIENTS_ONLY]}{DRAWN_OR_NOT if privacy.unit is Unit.CLIENT else ''}",
        epsilon=client.if_discarded,
        realised=client.realised,
        delta=task.delta,
        note=privacy.rests_on[View.CLIENTS_ONLY],
    )
    return (whole, *statements) if budget is not None else (*statements, whole)


def _of_hidden_client(found: Figures, delta: float, privacy: TaskPrivacy) -> Statement:
    """State what a client that is drawn or not loses where nobody but it and the servers learns its draws."""
    return Statement(
        unit=Unit.CLIENT,
        against=f"{AGAINST[View.CLIENTS_ONLY]}{DRAWN_OR_NOT}",
        epsilon=found.if_discarded,
        realised=found.realised,
        delta=delta,
        note=f"{DRAWS_HIDDEN}; {privacy.rests_on[View.CLIENTS_ONLY]}",
    )


def _cost(summary: _Summary, lines: Sequence[_Line]) -> Cost:
    n = len(lines)
    phases = in_order(name for line in lines for name in line.seconds)
    return Cost(
        bytes_by_link={link: sum(line.bytes.get(link, 0) for line in lines) / n for link in _LINKS},
        seconds_by_phase={phase: sum(line.seconds.get(phase, 0.0) for line in lines) / n for phase in phases},
        bytes_from_clients=summary.bytes_client_up,
        bytes_between_servers=summary.bytes_server_link,
        seconds_total=summary.seconds_total,
        n_processes=summary.processes,
    )
