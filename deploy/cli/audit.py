"""`precad audit`: the protocol under attack."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from precad.deploy.cli.common import ConfigFile, GateName, Json, exit_codes, tell, write_json
from precad.deploy.configuration import sections as configuration
from precad.deploy.joined import AUDITS, joined
from precad.mpc.parameters import Mode
from precad.protos.messages.spoken import shown
from precad.protos.tls.identity import Role

audit_app = typer.Typer(
    help="Verify what servers wrote down; attack the norm check, and the privacy, yourself.", no_args_is_help=True
)


@audit_app.command("validation")
@exit_codes()
def audit_validation(
    vectors: Annotated[
        Path, typer.Option(metavar="FILE.npz", help="Check the rows of this array x: int64, shape (n, d).")
    ],
    clip: Annotated[float, typer.Option(help="Bound the decoded vector's L2 norm by C.")],
    frac_bits: Annotated[int, typer.Option(help="Encode with f fractional bits.")] = 16,
    seed_count: Annotated[
        int, typer.Option(help="Repeat under so many fresh seeds; accept once is accept.", min=1)
    ] = 1,
    rows: Annotated[
        int, typer.Option(help="Take so many rows in the no-wrap test; fewer than 64 only to study it.")
    ] = 64,
    gate: Annotated[GateName, typer.Option(help="Use this comparison gate; mode proved has none.")] = GateName.CRYPTEN,
    mode: Annotated[Mode, typer.Option(help="Use this wire form.")] = Mode.MASKED,
    as_json: Json = False,
) -> None:
    """Run the real two-party norm check on arbitrary ring vectors."""
    from precad.deploy.oversight.validation_audit import audit_file

    report = audit_file(
        vectors, clip=clip, frac_bits=frac_bits, n_rows=rows, seed_count=seed_count, gate=gate, mode=mode
    )
    if as_json:
        write_json(report)
    else:
        for i, verdict in enumerate(report["verdicts"]):
            sys.stdout.write(f"{i}\t{verdict}\n")


class RoleWithDatabase(StrEnum):
    """Roles that keep something that can be copied."""

    A = "aggregator-a"
    B = "aggregator-b"
    DEALER = "dealer"


@audit_app.command("copy")
@exit_codes()
def audit_copy(
    config: ConfigFile,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Write the copy to this new folder.")],
    role: Annotated[RoleWithDatabase, typer.Option(help="Copy the database of this server.")],
) -> None:
    """Copy what a server keeps in PostgreSQL into a folder that `precad audit log` and `precad export` read."""
    from precad.deploy.oversight.log_audit import copy_state

    for path in copy_state(configuration.load(config), Role(role.value), folder):
        tell(str(path))


@audit_app.command("log")
@exit_codes()
def audit_log(
    state_dir: Annotated[
        Path, typer.Argument(metavar="DIR", help="Verify an aggregator's state_dir, or a copy of it.")
    ],
    against: Annotated[
        Path | None, typer.Option("--against", metavar="DIR", help="Compare with the other aggregator's.")
    ] = None,
    known: Annotated[
        str | None,
        typer.Option("--known", metavar="CHAIN", help="Require this chain value, which an earlier check printed."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify what a server wrote down of its decisions and releases, offline: its log, and the ledger that it names.

    The log names the ledger's chain value at each release. So what rounds cost, or which earlier ledgers count, is not
    changed unseen after a release. Earlier ledgers are shown by their last chain values. With --against they are
    compared too, where both folders hold a ledger.
    """
    from precad.deploy.oversight.log_audit import check_log

    report = check_log(state_dir, against=against, known=known)
    if as_json:
        write_json(report)
    else:
        for name, value in report.items():
            for said in _said(value):
                tell(f"{name.replace('_', ' '):<18}{shown(said)}")


def _said(value: Any) -> list[str]:
    """Return a value of the report for people, a line for each loss."""
    if not isinstance(value, list):
        return [str(value)]
    if all(isinstance(one, str) for one in value):
        return [", ".join(value)]
    done = {True: " (released)", False: ""}
    return [f"{loss['at']}  round {loss['round']}{done[loss['released']]}: {loss['why']}" for loss in value]


@audit_app.command("events")
@exit_codes()
def audit_events(
    state_dir: Annotated[Path, typer.Argument(metavar="DIR", help="Read the ledger in an aggregator's state_dir.")],
) -> None:
    """Print what the ledger holds as events that dp-accounting reads, as one JSON object."""
    from precad.deploy.oversight.log_audit import events_of

    write_json(events_of(state_dir))


for _name, _audit in joined(AUDITS).items():  # the laboratory's share, where it is there
    audit_app.command(_name)(_audit.load())
