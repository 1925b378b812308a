"""`precad track`: a task's rounds in TensorBoard, MLflow, Weights & Biases, or as spans."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import exit_codes, say
from precad.deploy.cli.operations import Target, TokenFile
from precad.deploy.errors import InterruptedRunError


@exit_codes()
def track(
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="KIND:PLACE",
            help="Write to tensorboard:FOLDER, mlflow:URL, mlflow:sqlite:///FILE, wandb:[ENTITY/]PROJECT or otlp:URL; "
            "repeat for several.",
        ),
    ],
    target: Target = None,
    token: TokenFile = None,
    folder: Annotated[
        Path,
        typer.Option("--folder", metavar="DIR", help="Keep here what wandb and otlp were sent, and wandb's own files."),
    ] = Path("tracked"),
    offline: Annotated[
        bool, typer.Option("--offline", help="Leave runs of wandb in files, for `wandb sync`, and send nothing.")
    ] = False,
    tell_draws: Annotated[
        bool,
        typer.Option("--tell-draws", help="Tell draws of a task that hides them: no client ever sees this."),
    ] = False,
) -> None:
    """Write a task's rounds to trackers or as spans, until it ends; never names of clients."""
    from precad.deploy.oversight import status_sources
    from precad.deploy.tracking import follow
    from precad.deploy.tracking.destinations import destination_of

    destinations = [destination_of(one, folder.absolute(), is_offline=offline) for one in dict.fromkeys(to)]
    place = status_sources.place_of(target)

    async def tracking() -> None:
        following = follow.track(place, token, destinations, tells_draws=tell_draws, say=say)
        await follow.until_told(asyncio.create_task(following))

    try:
        asyncio.run(tracking())
    except KeyboardInterrupt:
        raise InterruptedRunError("interrupted; the task goes on, and another start from here") from None
