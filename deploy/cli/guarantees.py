"""`precad account` and `precad certify`: what a training proves."""

from __future__ import annotations

import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

from precad.deploy.cli.common import Json, Plot, exit_codes, people
from precad.deploy.configuration import sections as configuration

Number: TypeAlias = float | None
Count: TypeAlias = int | None
"""Flags that may be left out."""


class ThreatName(StrEnum):
    """The attackers' relation to the training: they join it, or replace members."""

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
    sigma: Annotated[Number, typer.Option(help="Each server's noise over the record clip.")] = None,
    q: Annotated[Number, typer.Option("-q", "--client-rate", help="Rate of clients in a round.")] = None,
    p: Annotated[Number, typer.Option("-p", "--record-rate", help="Rate of a client's records.")] = None,
    rounds: Annotated[Count, typer.Option(help="T.")] = None,
    delta: Annotated[Number, typer.Option(help="Of every statement.")] = None,
    participation: Annotated[Count, typer.Option(help="Rounds that the client took part in, if known.")] = None,
    record_clip: Annotated[Number, typer.Option(help="R. With --dim, rounding is counted.")] = None,
    client_clip: Annotated[Number, typer.Option(help="C. With R, a whole client is accounted too.")] = None,
    dim: Annotated[Count, typer.Option(help="d, coordinates of an update.")] = None,
    frac_bits: Annotated[Count, typer.Option(help="f, fractional bits of the encoding.")] = None,
    calibrate: Annotated[Number, typer.Option(metavar="EPSILON", help="Least sigma, most rounds for it.")] = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Epsilon of a training in both views, by every accountant."""
    given = {"sigma": sigma, "q": q, "p": p, "rounds": rounds, "delta": delta, "participation": participation}
    given |= {"record_clip": record_clip, "client_clip": client_clip, "dim": dim, "frac_bits": frac_bits}
    with exit_codes():
        from precad.deploy.guarantees import accounting, plots

        if plot is not None:
            plots.require_plot(plot)
        task = None if config is None else accounting.task_of(configuration.read_toml(config))
        report = accounting.account_of_flags(given, task, target_epsilon=calibrate, is_by_round=plot is not None)
        _show(report, accounting.print_account, plots.plot_account, plot=plot, as_json=as_json)


Confidences = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Lists `confidences` and `labels`.")]
Runs = Annotated[
    list[Path] | None, typer.Option("--run", metavar="DIR", help="Run folder; repeat for runs of one configuration.")
]
Delta = Annotated[Number, typer.Option(help="Of the published method and of the planner; 1e-5, or the run's.")]
AttackCost = Annotated[
    bool, typer.Option("--attack-cost", help="Bounds on the expected confidence in the true class, by attackers.")
]
Planning = Annotated[bool, typer.Option("--plan", help="Least sigma for the median lead, by attackers; or for a wish.")]
Lead = Annotated[tuple[float, float] | None, typer.Option(metavar="FA FB", help="Of the prediction planned for.")]


def certify(
    confidences: Confidences = None,
    runs: Runs = None,
    q: Annotated[Number, typer.Option("-q", "--client-rate", help="Rate of attacking units in a round.")] = None,
    sigma: Annotated[Number, typer.Option(help="Noise over the clip of one attacking unit.")] = None,
    rounds: Annotated[Count, typer.Option(help="T; the planner takes it as the most.")] = None,
    delta: Delta = None,
    threat: Annotated[ThreatName, typer.Option(help="Attackers join, or replace benign units.")] = ThreatName.ADD,
    method: Annotated[MethodName, typer.Option(help="How the number of attackers is bounded.")] = MethodName.ALL,
    at_most: Annotated[int, typer.Option(help="Where the search for more attackers stops.", min=1)] = 128,
    trainings: Annotated[Count, typer.Option(help="That the confidences are means of; none: exact.")] = None,
    psi: Annotated[float, typer.Option(help="Probability that the trainings mislead.")] = 0.01,
    with_attack_cost: AttackCost = False,
    is_planning: Planning = False,
    attackers: Annotated[Count, typer.Option(help="With --plan, wished: attackers tolerated.", min=1)] = None,
    epsilon: Annotated[Number, typer.Option(help="With --plan, wished: the largest epsilon.")] = None,
    lead: Lead = None,
    clients: Annotated[Count, typer.Option(help="n, to plan with.")] = None,
    p: Annotated[Number, typer.Option("-p", "--record-rate", help="To plan with; none: users.")] = None,
    records: Annotated[Count, typer.Option(help="Of all clients together, to plan with.")] = None,
    record_clip: Annotated[Number, typer.Option(help="R, to plan with.")] = None,
    client_clip: Annotated[Number, typer.Option(help="C, the largest to plan with.")] = None,
    most_noise: Annotated[float, typer.Option(help="Noise over signal beyond which a wish is out of reach.")] = 1.0,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """How many poisoning attackers predictions withstand, and which training would withstand more."""
    with exit_codes():
        from precad.deploy.guarantees import certificates, certify_flags, planning, plots

        if plot is not None:
            plots.require_plot(plot)
        flags = certify_flags.CertifyFlags(
            confidences=confidences,
            runs=runs or [],
            q=q,
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
            p=p,
            records=records,
            record_clip=record_clip,
            client_clip=client_clip,
            most_noise=most_noise,
        )
        if flags.is_wishing:
            _show(flags.plan(), planning.print_wish, plots.plot_wish, plot=plot, as_json=as_json)
        else:
            report, show = flags.certify(), certificates.print_certificates
            _show(report, show, plots.plot_certificates, plot=plot, as_json=as_json)


def _show(
    report: dict[str, Any],
    print_report: Callable[[Console, dict[str, Any]], None],
    draw: Callable[[dict[str, Any], Path], None],
    *,
    plot: Path | None,
    as_json: bool,
) -> None:
    """As a picture where one is asked for, and as JSON or for people."""
    from precad.deploy.figures import to_json

    if plot is not None:
        draw(report, plot)
    if as_json:
        sys.stdout.write(to_json(report) + "\n")
    else:
        print_report(people, report)
