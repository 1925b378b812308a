"""`precad demo` and `run`: a whole training on this machine."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from precad.deploy.cli.common import AppName, ConfigFile, Json, Output, exit_codes, people, say, write_json
from precad.deploy.errors import ConfigError, InterruptedRunError
from precad.deploy.localhost.forks import Forks

if TYPE_CHECKING:
    from precad.deploy.run_folder import RunFolder

Dashboard = Annotated[
    bool, typer.Option("--dashboard", help="Give every server a dashboard on this machine, and say where.")
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
    output: Output = None,
    dashboard: Dashboard = False,
    as_json: Json = False,
) -> None:
    """Run a whole deployment on this machine: every role a process of its own."""

    def contents() -> dict[str, Any]:
        from precad.deploy.configuration.apps import read_local_with_app

        return read_local_with_app(config, app)

    _run_local(contents, output, dashboard=dashboard, as_json=as_json)


def _run_local(
    raw: Callable[[], dict[str, Any]],
    output: Path | None,
    *,
    dashboard: bool,
    as_json: bool,
    forks: Forks | None = None,
) -> None:
    with exit_codes(), ExitStack() as unless_prepared:
        if forks is not None:
            unless_prepared.callback(forks.close)
        settings = raw()
        from precad.deploy.localhost.whole import complete, prepare, require_finite

        local = prepare(settings, output, people, dashboard=dashboard, forks=forks)
        unless_prepared.pop_all()
        from precad.deploy.localhost.summary import print_summary

        try:
            summary = complete(local)
        except InterruptedRunError:
            if local.folder.summary.exists():
                print_summary(people, json.loads(local.folder.summary.read_text()), local.deployment.task)
                _write_report(local.folder)
            raise
        print_summary(people, summary, local.deployment.task)
        _write_report(local.folder)
        if as_json:
            write_json(summary)
        require_finite(summary)


def _write_report(folder: RunFolder) -> None:
    """The run is over and its summary written: what keeps a page from being drawn is told, and no failure of it."""
    from precad.deploy.reporting.write import Report, write_files

    try:
        write_files({folder.report: Report.of([folder.root]).html().encode()})
    except ConfigError as error:
        say(f"no report was written: {error}")
    else:
        say(f"report            {folder.report}")
