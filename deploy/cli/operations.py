"""`precad status` and `precad watch`: a running or finished task, from outside."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import Json, exit_codes, results, write_json
from precad.deploy.errors import UNREACHABLE, InterruptedRunError, RunFailedError

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG|URL|FOLDER",
        help="Look at this deployment, operations port, state_dir or run folder (default: the latest in runs/).",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token", metavar="FILE", help="Read the token here, where CONFIG and the environment have none."),
]


@exit_codes()
def status(
    target: Target = None,
    token: TokenFile = None,
    ready: Annotated[bool, typer.Option("--ready", help="Exit with 4 unless every server is ready.")] = False,
    as_json: Json = False,
) -> None:
    """Show where a task stands: rounds, clients, verdicts, both epsilons.

    In JSON a field is null that a folder does not say.
    """
    from precad.deploy.oversight import status_shown, status_sources

    statuses, faults = asyncio.run(status_sources.statuses_at(status_sources.place_of(target), token))
    if as_json:
        shown = {name: status_shown.for_programs(found) for name, found in statuses.items()}
        write_json({"servers": shown, "unreachable": faults})
    elif statuses:
        results.print(status_shown.status_table(statuses), highlight=False)
    unready = [f"{name} is not ready" for name, found in statuses.items() if ready and not found.is_ready]
    if faults or unready:
        raise RunFailedError("\n".join([*faults, *unready]), exit_code=UNREACHABLE)


@exit_codes()
def watch(target: Target = None, token: TokenFile = None) -> None:
    """Follow a task, a line per round, until it ends."""
    from precad.deploy.oversight import status_shown, status_sources

    place = status_sources.place_of(target)
    try:
        asyncio.run(status_shown.show_rounds(status_sources.as_it_goes(place, token), results, title=str(place)))
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted; the task goes on") from None
