"""`precad account`: what a training costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.declared import declared
from precad.deploy.cli.shown import Shown
from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AccountFlags(Shown):
    """Compute the epsilon of a training in both views, by every accountant.

    A CONFIG whose task has another algorithm, or record_bins, gives what its servers' ledgers will have.
    """

    config: Annotated[Path | None, typer.Argument(metavar="CONFIG", help="Take what is not given from its task.")] = (
        None
    )
    sigma: Annotated[float | None, typer.Option(help="Set each server's noise over the record clip.")] = None
    q: Annotated[
        float | None, typer.Option("-q", "--client-rate", help="Draw each client for a round at this rate.")
    ] = None
    p: Annotated[
        float | None, typer.Option("-p", "--record-rate", help="Draw each record of a client at this rate.")
    ] = None
    rounds: Annotated[int | None, typer.Option(help="Count T rounds.")] = None
    delta: Annotated[float | None, typer.Option(help="Take this delta in every statement.")] = None
    participation: Annotated[
        int | None, typer.Option(help="Count so many rounds in which the client took part, if known.")
    ] = None
    record_clip: Annotated[
        float | None, typer.Option(help="Clip a record's gradient to R; with --dim, rounding is counted.")
    ] = None
    client_clip: Annotated[
        float | None, typer.Option(help="Clip a client's update to C; with R, a whole client is accounted too.")
    ] = None
    dim: Annotated[int | None, typer.Option(help="Take updates of d coordinates.")] = None
    frac_bits: Annotated[int | None, typer.Option(help="Encode with f fractional bits.")] = None
    records_per_person: Annotated[
        int | None, typer.Option(help="Count so many records of one person together, all of one client.")
    ] = None
    balls_in_bins: Annotated[
        int | None,
        typer.Option(metavar="T", help="Count each record in exactly one of T participations, in place of -p."),
    ] = None
    ptr: Annotated[
        tuple[float, float, float] | None,
        typer.Option(
            metavar="TAU B DELTA0", help="Take propose-test-release at one trusted server, in place of PRECAD."
        ),
    ] = None
    calibrate: Annotated[
        float | None,
        typer.Option(
            metavar="EPSILON",
            help="Find the least sigma for this epsilon, and the most rounds of a client.",
        ),
    ] = None


@declared(AccountFlags)
def account(flags: AccountFlags) -> None:
    """Print what the training costs. A flag goes before the configuration's task."""
    from precad.deploy.guarantees import accounting, accounting_shown, plots, task_account, tested_account
    from precad.protos.task.algorithms import names_default
    from precad.protos.task.bin_fields import BINS

    flags.require_plot()
    if flags.ptr is not None:
        report = tested_account.account_of_test(vars(flags))
        flags.show(report, tested_account.print_test_account, tested_account.plot_test_account)
        return
    config = {} if flags.config is None else configuration.read_toml(flags.config)
    task = None if flags.config is None else accounting.task_of(config)
    if task is None or (names_default(task) and BINS not in task):
        report = accounting.account_of_flags(
            vars(flags), task, target_epsilon=flags.calibrate, is_by_round=flags.plot is not None
        )
        report["warnings"] += accounting.not_counted(config)
        flags.show(report, accounting_shown.print_account, plots.plot_account)
        return
    if flags.plot is not None:
        found = f"{task['algorithm']!r:.60}" if BINS not in task else BINS
        raise ConfigError(f"--plot: expected precad, whose rounds are drawn, found {found}")
    report = task_account.account_of_other(task, vars(flags), target_epsilon=flags.calibrate)
    report["warnings"] += accounting.not_counted(config)
    flags.show(report, task_account.print_task_account, plots.plot_account)
