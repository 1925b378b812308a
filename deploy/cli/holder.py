"""`precad holder`: what a data holder's records paid over all tasks and queries, and what they may still pay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from precad.deploy.cli.common import Json, exit_codes, tell, write_json
from precad.deploy.errors import ConfigError

holder_app = typer.Typer(help="Show and keep a data holder's own ledger over all tasks.", no_args_is_help=True)
_FIRST: Final = b"{"
"""How a ledger begins: its lines are JSON."""
LedgerFile = Annotated[Path, typer.Argument(metavar="FILE", help="Take this ledger (`client.holder.ledger`).")]


@holder_app.command("statement")
@exit_codes()
def holder_statement(ledger: LedgerFile, as_json: Json = False) -> None:
    """Print what was paid in which task, the limit, and what a person's records lost so far."""
    from precad.deploy.guarantees.holder import lines_of, statement

    _require_ledger(ledger)
    found = statement(ledger)
    if as_json:
        write_json(found)
        return
    for line in lines_of(found):
        tell(line)


@holder_app.command("charge")
@exit_codes()
def holder_charge(
    ledger: LedgerFile,
    client: Annotated[str, typer.Option(help="Pay for the records of this client.")],
    task: Annotated[str, typer.Option(help="Name what is paid for, as the statement shall say it.")],
    noise_multiplier: Annotated[float, typer.Option(help="Pay for this noise, over the record clip.")],
    rounds: Annotated[int, typer.Option(help="Pay for so many steps.", min=1)],
    record_rate: Annotated[float, typer.Option(help="Pay for records drawn at this rate a step.")] = 1.0,
    why: Annotated[str, typer.Option(help="Say in a word why it is paid by hand.")] = "tuning",
    limit_epsilon: Annotated[float | None, typer.Option(help="Begin a new ledger with this limit.")] = None,
    delta: Annotated[float | None, typer.Option(help="Take this delta for a new ledger; 1e-5 unless given.")] = None,
    records_per_person: Annotated[
        int | None, typer.Option(help="Let a new ledger count so many records of one person.", min=1)
    ] = None,
) -> None:
    """Pay for steps that no client of precad took, such as tuning on the same records elsewhere."""
    from precad.deploy.guarantees.holder import charge, figures_of, statement

    _require_ledger(ledger)
    given = {"limit_epsilon": limit_epsilon, "delta": delta, "records_per_person": records_per_person}
    charge(
        ledger,
        client=client,
        task=task,
        why=why,
        noise_multiplier=noise_multiplier,
        record_rate=record_rate,
        rounds=rounds,
        terms={name: value for name, value in given.items() if value is not None},
    )
    for line in figures_of(statement(ledger)):
        tell(line)


def _require_ledger(path: Path) -> None:
    """Refuse a file that never was a ledger; a damaged one is told by its reader. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            first = file.read(1)
    except OSError:
        return  # told by the reader too, which may begin a new one
    if first not in {b"", _FIRST}:
        raise ConfigError(f"{path}: expected a holder's ledger (client.holder.ledger), found another file")
