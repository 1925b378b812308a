"""`precad bench robust`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import Json, exit_codes, say


@exit_codes()
def bench_robust(
    dim: Annotated[int, typer.Option("--dim", help="Take updates of length d.", min=1)] = 26_010,
    clients: Annotated[
        list[int] | None,
        typer.Option("--clients", help="Take so many clients, instead of 10, 30, 100, 256; repeat.", min=4, max=4096),
    ] = None,
    repetitions: Annotated[int, typer.Option(help="Measure so often per size, after a warm-up.", min=1)] = 7,
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="Write the table that is shown to this file too.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure propose-test-release on shares, beside the plain check of norms."""
    from precad.lab.bench import robust, tables
    from precad.lab.commands.bench import measure

    usual = robust.Plan()
    plan = robust.Plan(dim=dim, clients=tuple(clients) if clients else usual.clients, repetitions=repetitions)
    written = (tables.print_robust, table) if table else None
    measure(partial(robust.run, plan, say=say), tables.print_robust, as_json=as_json, written=written)
