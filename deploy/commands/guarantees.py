"""`precad account` and `precad certify`: what a training proves."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deploy import config as configuration
from deploy.commands.common import Json, Plot, exit_codes, people


class ThreatName(StrEnum):
    """What attackers are to the training."""

    ADD = "add"
    REPLACE = "replace"


class MethodName(StrEnum):
    """Ways to bound the number of attackers."""

    PUBLISHED = "published"
    PLD = "pld"
    EXACT = "exact"
    ALL = "all"


def account(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="Take what is not given from its task.")
    ] = None,
    sigma: Annotated[float | None, typer.Option(help="Each server's noise over the record clip.")] = None,
    client_rate: Annotated[
        float | None, typer.Option("-q", "--client-rate", help="Rate of clients in a round.")
    ] = None,
    record_rate: Annotated[
        float | None, typer.Option("-p", "--record-rate", help="Rate of a client's records.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="T.")] = None,
    delta: Annotated[float | None, typer.Option(help="Of every statement.")] = None,
    participation: Annotated[int | None, typer.Option(help="Rounds that the client took part in, if known.")] = None,
    record_clip: Annotated[float | None, typer.Option(help="R. With --dim, rounding is counted.")] = None,
    client_clip: Annotated[float | None, typer.Option(help="C. With R, a whole client is accounted too.")] = None,
    dim: Annotated[int | None, typer.Option(help="d, coordinates of an update.")] = None,
    frac_bits: Annotated[int | None, typer.Option(help="f, fractional bits of the encoding.")] = None,
    calibrate: Annotated[float | None, typer.Option(metavar="EPSILON", help="Least sigma, most rounds for it.")] = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Epsilon of a training in both views, by every accountant."""
    with exit_codes():
        from deploy import accounting_commands as accounting
        from deploy import accounting_plots as plots
        from deploy.figures import to_json

        if plot is not None:
            plots.require_plot(plot)
        given = {
            "sigma": sigma,
            "q": client_rate,
            "p": record_rate,
            "rounds": rounds,
            "delta": delta,
            "participation": participation,
            "record_clip": record_clip,
            "client_clip": client_clip,
            "dim": dim,
            "frac_bits": frac_bits,
        }
        report = accounting.account_of_flags(
            given,
            None if config is None else accounting.task_of(configuration.read_toml(config)),
            target_epsilon=calibrate,
            is_by_round=plot is not None,
        )
        if plot is not None:
            plots.plot_account(report, plot)
        if as_json:
            sys.stdout.write(to_json(report) + "\n")
        else:
            accounting.print_account(people, report)


def certify(
    confidences: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Lists `confidences` and `labels`.")
    ] = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option("--run", metavar="DIR", help="Run folder; repeat for runs of one configuration."),
    ] = None,
    client_rate: Annotated[
        float | None, typer.Option("-q", "--client-rate", help="Rate of attacking units in a round.")
    ] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise over the clip of one attacking unit.")] = None,
    rounds: Annotated[int | None, typer.Option(help="T; the planner takes it as the most.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Of the published method and of the planner; 1e-5, or the run's.")
    ] = None,
    threat: Annotated[ThreatName, typer.Option(help="Attackers join, or replace benign units.")] = ThreatName.ADD,
    method: Annotated[MethodName, typer.Option(help="How the number of attackers is bounded.")] = MethodName.ALL,
    at_most: Annotated[int, typer.Option(help="Where the search for more attackers stops.", min=1)] = 128,
    trainings: Annotated[int | None, typer.Option(help="That the confidences are means of; none: exact.")] = None,
    psi: Annotated[float, typer.Option(help="Probability that the trainings mislead.")] = 0.01,
    with_attack_cost: Annotated[
        bool, typer.Option("--attack-cost", help="Bounds on the expected confidence in the true class, by attackers.")
    ] = False,
    is_planning: Annotated[
        bool, typer.Option("--plan", help="Least sigma for the median lead, by attackers; or for a wish.")
    ] = False,
    attackers: Annotated[int | None, typer.Option(help="With --plan, wished: attackers tolerated.", min=1)] = None,
    epsilon: Annotated[float | None, typer.Option(help="With --plan, wished: the largest epsilon.")] = None,
    lead: Annotated[
        tuple[float, float] | None, typer.Option(metavar="FA FB", help="Of the prediction planned for.")
    ] = None,
    clients: Annotated[int | None, typer.Option(help="n, to plan with.")] = None,
    record_rate: Annotated[float | None, typer.Option("-p", "--record-rate", help="To plan with; none: users.")] = None,
    records: Annotated[int | None, typer.Option(help="Of all clients together, to plan with.")] = None,
    record_clip: Annotated[float | None, typer.Option(help="R, to plan with.")] = None,
    client_clip: Annotated[float | None, typer.Option(help="C, the largest to plan with.")] = None,
    most_noise: Annotated[float, typer.Option(help="Noise over signal beyond which a wish is out of reach.")] = 1.0,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """How many poisoning attackers predictions withstand, and which training would withstand more."""
    with exit_codes():
        from deploy import accounting_plots as plots
        from deploy import certify_commands, certify_flags, figures, planning_commands

        if plot is not None:
            plots.require_plot(plot)
        flags = certify_flags.CertifyFlags(
            confidences=confidences,
            runs=runs or [],
            q=client_rate,
            sigma=sigma,
            rounds=rounds,
            delta=delta,
            trainings=trainings,
            threat=threat.value,
            method=method.value,
            at_most=at_most,
            psi=psi,
            with_attack_cost=with_attack_cost or plot is not None,
            is_planning=is_planning,
            attackers=attackers,
            epsilon=epsilon,
            lead=lead,
            clients=clients,
            p=record_rate,
            records=records,
            record_clip=record_clip,
            client_clip=client_clip,
            most_noise=most_noise,
        )
        if flags.is_wishing:
            report = flags.plan()
            draw, show = plots.plot_wish, planning_commands.print_wish
        else:
            report = flags.certify()
            draw, show = plots.plot_certificates, certify_commands.print_certificates
        if plot is not None:
            draw(report, plot)
        if as_json:
            sys.stdout.write(figures.to_json(report) + "\n")
        else:
            show(people, report)
