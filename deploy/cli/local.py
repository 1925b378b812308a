"""`precad demo` and `run`: a whole training on this machine."""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precad.deploy.cli.common import (
    AppName,
    ClientsNumber,
    ConfigFile,
    Json,
    Output,
    exit_codes,
    people,
    results,
    say,
    tell,
    write_json,
)
from precad.deploy.errors import ConfigError, InterruptedRunError
from precad.deploy.localhost.forks import Forks

if TYPE_CHECKING:
    from precad.deploy.run_files.folder import RunFolder
    from precad.protos.task.task import Task

Dashboard = Annotated[
    bool,
    typer.Option("--dashboard", help="Give every server a dashboard on this machine; on a terminal, until Enter."),
]


class DemoMode(enum.StrEnum):
    """Modes of the demo."""

    MASKED = "masked"
    PROVED = "proved"


def demo(
    output: Output = None,
    clients: Annotated[int, typer.Option(help="Start so many clients, two of them malicious.")] = 8,
    rounds: Annotated[int, typer.Option(help="Train for so many rounds.", min=1)] = 30,
    seed: Annotated[int, typer.Option(help="Seed the data partition and the initial model.", min=0)] = 0,
    mode: Annotated[
        DemoMode, typer.Option(help="Check updates with a dealer's tuples (masked), or with clients' proofs.")
    ] = DemoMode.MASKED,
    dashboard: Dashboard = False,
    as_json: Json = False,
) -> None:
    """Train on the bundled digits across real processes, two malicious clients included."""
    forks = Forks()  # loads the children's code while we load ours: here, no file of the user's may be at fault
    from precad.deploy.configuration.demo import demo_config

    raw = partial(demo_config, n_clients=clients, rounds=rounds, seed=seed, mode=mode.value)
    _run_local(raw, output, dashboard=dashboard, as_json=as_json, forks=forks)


def run(
    config: ConfigFile,
    app: AppName = None,
    clients: ClientsNumber = None,
    output: Output = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --output, which ended early; CONFIG is its task.")
    ] = False,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", help="Train so many times, in folders of their own below --output.", min=1, max=10_000),
    ] = None,
    dashboard: Dashboard = False,
    as_json: Json = False,
) -> None:
    """Run a whole deployment on this machine: every role a process of its own."""

    def contents() -> dict[str, Any]:
        from precad.deploy.configuration.apps import read_local_with_app

        return read_local_with_app(config, app, clients)

    if seeds is not None:
        _run_several(contents, output, seeds, dashboard=dashboard, resumes=resume, as_json=as_json)
    else:
        _run_local(contents, output, dashboard=dashboard, resumes=resume, as_json=as_json)


def _run_several(
    raw: Callable[[], dict[str, Any]],
    output: Path | None,
    number: int,
    *,
    dashboard: bool,
    resumes: bool,
    as_json: bool,
) -> None:
    """Train several times, and say what all came to."""
    with exit_codes():
        settings = raw()
        from precad.deploy.localhost.several import print_together, require_all_finite, train_several
        from precad.deploy.localhost.summary import print_summary

        def shown(summary: Mapping[str, Any], folder: RunFolder, task: Task) -> None:
            found, lines = _with_report(folder, summary)
            print_summary(people, found, task)
            for line in lines:
                say(line)

        found = train_several(settings, output, people, number, shown=shown, dashboard=dashboard, resumes=resumes)
        print_together(results, found)
        if as_json:
            write_json(found)
        require_all_finite(found)


def _run_local(
    raw: Callable[[], dict[str, Any]],
    output: Path | None,
    *,
    dashboard: bool,
    as_json: bool,
    resumes: bool = False,
    forks: Forks | None = None,
) -> None:
    stays = dashboard and sys.stdin.isatty() and people.file.isatty()
    with exit_codes(), ExitStack() as unless_prepared:
        if forks is not None:
            unless_prepared.callback(forks.close)
        settings = raw()
        from precad.deploy.localhost.whole import complete, prepare, require_fulfilled

        local = prepare(settings, output, people, dashboard=dashboard, stays=stays, resumes=resumes, forks=forks)
        unless_prepared.pop_all()
        try:
            summary = _shown(local.folder, complete(local, stays=stays), local.deployment.task)
            if as_json:
                write_json(summary)
            if stays:
                _wait_for_enter()
        except InterruptedRunError:
            if local.folder.summary.exists():
                _shown(local.folder, json.loads(local.folder.summary.read_text()), local.deployment.task)
            raise
        finally:
            local.close()
        require_fulfilled(summary)


def _wait_for_enter() -> None:
    """Leave the dashboards to whoever looks at them. Ctrl-C ends them as Enter does: the run is over."""
    say("the run is over; its dashboards stay until Enter")
    with suppress(KeyboardInterrupt):
        sys.stdin.readline()


def _shown(folder: RunFolder, summary: Mapping[str, Any], task: Task) -> dict[str, Any]:
    """Write the page of a run that is over, then print its summary, and return it as `_with_report` does."""
    from precad.deploy.localhost.summary import print_summary

    found, lines = _with_report(folder, summary)
    print_summary(results, found, task)
    for line in lines:
        tell(line)
    return found


def _with_report(folder: RunFolder, summary: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Write the page of a run that is over. Return its summary, and what is to be said of page and certificate.

    The summary has the certificate where clients attacked. What keeps the page from being drawn is told, and no failure
    of the run.
    """
    from precad.deploy.reporting.guarantees import certificate_in_words
    from precad.deploy.reporting.write import Report, write_files

    found = dict(summary)
    try:
        report = Report.of([folder.root])
        write_files({folder.report: report.html().encode()})
    except ConfigError as error:
        say(f"no report was written: {error}")
        return found, []
    (run,), (certificate,), lines = report.runs, report.certificates, list[str]()
    if run.client.attackers:
        found["certificate"] = certificate_in_words(certificate)
        folder.write_summary(found)
        lines.append(f"certificate       {found['certificate']}")
    return found, [*lines, f"report            {folder.report}"]
