"""`precad bench`: it is measured, beside what one would otherwise pick."""

from __future__ import annotations

import sys
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import (
    AggregatorLetter,
    Device,
    GateName,
    ImagesName,
    Json,
    Plot,
    Quick,
    exit_codes,
    say,
)
from precad.deploy.cli.roles import serve
from precad.lab.commands.measuring import measure
from precad.mpc.parameters import Mode

bench_app = typer.Typer(help="Measure it, beside what you would otherwise pick.", no_args_is_help=True)
Repetitions = Annotated[
    int | None, typer.Option(help="Measure so often per size, after a warm-up; 3 with --quick, else 7.", min=1)
]
RepetitionsOfTraining = Annotated[
    int | None, typer.Option(help="Measure so often per size, after warm-ups; 5 with --quick, else 20.", min=1)
]
RepetitionsOfSteps = Annotated[
    int | None, typer.Option(help="Measure so often per size, after warm-ups; 3 with --quick, else 20.", min=1)
]
FixedRepetitions = Annotated[int, typer.Option(help="Measure so often, after a warm-up.", min=1)]
PeersPython = Annotated[
    Path, typer.Option("--peers-python", metavar="PYTHON", help="Run peers with this interpreter (make peers).")
]
TableFile = Annotated[
    Path | None, typer.Option("--table", metavar="FILE", help="Write the table that is shown to this file too.")
]
DEFAULT_PEERS_PYTHON = Path(".venv-peers/bin/python")


class RobustSum(StrEnum):
    """Sums on shares that are measured beside the plain check."""

    TESTED = "tested"
    TRIMMED = "trimmed"
    KRUM = "krum"


@bench_app.command("validation")
@exit_codes()
def bench_validation(
    quick: Quick = False,
    full: Annotated[bool, typer.Option("--full", help="Measure every batch at every size, which takes hours.")] = False,
    dims: Annotated[
        list[int] | None, typer.Option("--dim", help="Measure this size instead of the usual ones; repeat.", min=1)
    ] = None,
    clients: Annotated[
        list[int] | None, typer.Option("--clients", help="Measure this batch instead of the usual ones; repeat.", min=1)
    ] = None,
    repetitions: Repetitions = None,
    peers_python: PeersPython = DEFAULT_PEERS_PYTHON,
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="Write what concerns mode proved to this file.")
    ] = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Measure the norm check of both servers, beside CrypTen, SPU, the unsound check and the floor."""
    from dataclasses import replace

    from precad.lab.bench import plots, tables, validation

    plan = validation.Plan.quick(repetitions or 3) if quick else validation.Plan(repetitions=repetitions or 7)
    if full:
        plan = replace(plan, max_words=sys.maxsize)
    plan = replace(plan, dims=tuple(dims or plan.dims), clients=tuple(clients or plan.clients))
    measure(
        partial(validation.run, plan, peers_python=peers_python, say=say),
        tables.print_validation,
        plots.plot_validation,
        plot=plot,
        as_json=as_json,
        print_to_file=tables.print_proved,
        table=table,
    )


@bench_app.command("noise")
@exit_codes()
def bench_noise(
    quick: Quick = False,
    size: Annotated[
        int, typer.Option(help="Draw so many coordinates per measurement of our sampler.", min=1)
    ] = 1_000_000,
    repetitions: Repetitions = None,
    peers_python: PeersPython = DEFAULT_PEERS_PYTHON,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Measure the noise sampler, beside OpenDP's and a vectorised Canonne-Kamath-Steinke."""
    from precad.lab.bench import noise, plots, tables

    run = partial(
        noise.run,
        size=min(size, 200_000) if quick else size,
        repetitions=repetitions or (3 if quick else 7),
        peers_python=peers_python,
        say=say,
    )
    measure(run, tables.print_noise, plots.plot_noise, plot=plot, as_json=as_json)


@bench_app.command("scale")
@exit_codes()
def bench_scale(
    quick: Quick = False,
    full: Annotated[bool, typer.Option("--full", help="Measure up to d = 10^8.")] = False,
    gate: Annotated[GateName, typer.Option(help="Use this comparison gate.")] = GateName.NATIVE,
    mode: Annotated[Mode, typer.Option(help="Check with tuples in this form, or with proofs.")] = Mode.MASKED,
    repetitions: FixedRepetitions = 3,
    table: TableFile = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Measure time, memory and bytes as the model and the round grow."""
    from precad.lab.bench import plots, scale, tables

    plan = scale.Plan.of(quick=quick, full=full, repetitions=repetitions)
    run = partial(scale.run, plan, gate=gate, mode=mode, say=say)
    measure(run, tables.print_scale, plots.plot_scale, plot=plot, as_json=as_json, table=table)


@bench_app.command("threads")
@exit_codes()
def bench_threads(
    dim: Annotated[int, typer.Option("--dim", help="Take uploads of length d.", min=1)] = 1_000_000,
    clients: Annotated[int, typer.Option(help="Check so many uploads in the round.", min=1)] = 8,
    threads: Annotated[
        list[int] | None, typer.Option(help="Measure so many threads beside one; repeat.", min=1, max=256)
    ] = None,
    mode: Annotated[Mode, typer.Option(help="Take uploads of this mode; masked and shares are one.")] = Mode.MASKED,
    repetitions: FixedRepetitions = 7,
    as_json: Json = False,
) -> None:
    """Measure what one server computes of the norm check, on one core and on several."""
    from precad.lab.bench import tables
    from precad.lab.bench import threads as of_threads

    run = partial(
        of_threads.run,
        dim=dim,
        n_clients=clients,
        threads=threads or [2],
        repetitions=repetitions,
        is_proved=mode is Mode.PROVED,
        say=say,
    )
    measure(run, tables.table_of(tables.THREADS), as_json=as_json)


@bench_app.command("startup")
@exit_codes()
def bench_startup(repetitions: FixedRepetitions = 3, as_json: Json = False) -> None:
    """Measure how long people wait for a command, for an error and for the demo's first round."""
    from precad.lab.bench import startup, tables

    measure(partial(startup.run, repetitions=repetitions, say=say), tables.print_startup, as_json=as_json)


@bench_app.command("training")
@exit_codes()
def bench_training(
    quick: Quick = False,
    clients: Annotated[int, typer.Option(help="Train so many clients in the round.", min=1)] = 10,
    records: Annotated[int, typer.Option(help="Sample so many records of each.", min=1)] = 30,
    threads: Annotated[int, typer.Option(help="Give PyTorch so many threads; a client process uses one.", min=1)] = 1,
    device: Device = "cpu",
    repetitions: RepetitionsOfTraining = None,
    peers_python: PeersPython = DEFAULT_PEERS_PYTHON,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Measure clipped per-record gradients of a round, beside Opacus, a loop over clients and the plain gradient."""
    from precad.clients.gradients.engine import resolve_device
    from precad.lab.bench import plots, tables, training

    plan = training.Plan(
        clients=clients,
        records=records,
        repetitions=repetitions or (5 if quick else 20),
        threads=threads,
        device=str(resolve_device(device)),
    )
    run = partial(training.run, plan, peers_python=peers_python, say=say)
    measure(run, tables.print_training, plots.plot_training, plot=plot, as_json=as_json)


@bench_app.command("adapters")
@exit_codes()
def bench_adapters(
    quick: Quick = False,
    clients: Annotated[int, typer.Option(help="Train so many clients in the round.", min=2)] = 10,
    records: Annotated[
        list[int] | None,
        typer.Option("--records", help="Give each so many records instead of 10 and 30; repeat.", min=1),
    ] = None,
    threads: Annotated[int, typer.Option(help="Give PyTorch so many threads; a client process uses one.", min=1)] = 1,
    rounds: Annotated[
        int | None, typer.Option(help="Run so many rounds of real processes; 0 with --quick, else 10.", min=0)
    ] = None,
    repetitions: RepetitionsOfTraining = None,
    peers_python: PeersPython = DEFAULT_PEERS_PYTHON,
    table: TableFile = None,
    as_json: Json = False,
) -> None:
    """Measure a round of private adapters, beside Opacus' hooks and the pass without privacy."""
    from precad.lab.bench import adapter_tables, adapters

    plan = adapters.Plan(
        clients=clients,
        records=tuple(records) if records else (10, 30),
        repetitions=repetitions or (5 if quick else 20),
        threads=threads,
        rounds=(0 if quick else 10) if rounds is None else rounds,
    )
    run = partial(adapters.run, plan, peers_python=peers_python, say=say)
    measure(run, adapter_tables.print_adapters, as_json=as_json, table=table)


@bench_app.command("local-training")
@exit_codes()
def bench_local_training(
    quick: Quick = False,
    clients: Annotated[
        list[int] | None, typer.Option("--clients", help="Measure so many clients instead of 10 and 40; repeat.", min=1)
    ] = None,
    records: Annotated[int, typer.Option(help="Take so many records in a client's step.", min=1)] = 30,
    steps: Annotated[int, typer.Option(help="Take so many steps in a client's round.", min=1)] = 5,
    threads: Annotated[int, typer.Option(help="Give PyTorch so many threads.", min=1)] = 1,
    device: Device = "cpu",
    repetitions: RepetitionsOfSteps = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Measure several local steps of many clients, stacked and client by client."""
    from precad.clients.gradients.engine import resolve_device
    from precad.lab.bench import local_training, plots, tables

    plan = local_training.Plan(
        clients=tuple(clients) if clients else (10, 40),
        records=records,
        steps=steps,
        repetitions=repetitions or (3 if quick else 20),
        threads=threads,
        device=str(resolve_device(device)),
    )
    run = partial(local_training.run, plan)
    measure(run, tables.print_local_training, plots.plot_local_training, plot=plot, as_json=as_json)


@bench_app.command("simulation")
@exit_codes()
def bench_simulation(
    quick: Quick = False,
    drawn: Annotated[
        list[int] | None, typer.Option(help="Draw so many clients for a round, instead of 10, 30, 100; repeat.", min=1)
    ] = None,
    registered: Annotated[
        list[int] | None, typer.Option(help="Register so many clients, instead of 100 to 100 000; repeat.", min=50)
    ] = None,
    records: Annotated[int, typer.Option(help="Give a drawn client so many records.", min=1)] = 30,
    rounds: Annotated[
        int | None, typer.Option(help="Simulate so many rounds of each size; 10 with --quick, else 40.", min=1)
    ] = None,
    threads: Annotated[int, typer.Option(help="Give PyTorch so many threads.", min=1)] = 1,
    device: Device = "cpu",
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Measure simulated rounds of PRECAD as more clients are drawn or registered, and what of it is not gradients."""
    from precad.clients.gradients.engine import resolve_device
    from precad.lab.bench import plots, simulation, tables

    usual = simulation.Plan()
    plan = simulation.Plan(
        drawn=tuple(drawn) if drawn else usual.drawn,
        registered=tuple(registered) if registered else usual.registered,
        records=records,
        rounds=rounds or (10 if quick else usual.rounds),
        threads=threads,
        device=str(resolve_device(device)),
    )
    run = partial(simulation.run, plan, say=say)
    measure(run, tables.print_simulation, plots.plot_simulation, plot=plot, as_json=as_json)


@bench_app.command("overhead")
@exit_codes()
def bench_overhead(
    quick: Quick = False,
    clients: Annotated[int, typer.Option(help="Run so many virtual clients, in four processes.", min=4)] = 100,
    rounds: Annotated[int | None, typer.Option(help="Count so many rounds; 10 with --quick, else 30.", min=1)] = None,
    record_rate: Annotated[
        float, typer.Option(help="Draw this share p of the records for a round.", min=0.001, max=1)
    ] = 0.05,
    dataset: Annotated[
        ImagesName | None,
        typer.Option(
            help="Train on this data set; by default mnist where PRECAD_DATA has it, else the digits, enlarged."
        ),
    ] = None,
    parameters: Annotated[
        int, typer.Option(help="Train a dense model of at least so many parameters; 0: the CNN of 26 010.", min=0)
    ] = 0,
    delays: Annotated[
        list[float] | None,
        typer.Option(
            "--delay", help="Measure also with so many ms between the aggregators, each way; repeat.", min=0.1
        ),
    ] = None,
    table: TableFile = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Measure a federated round with no privacy, local DP, PRECAD without and with validation."""
    from precad.lab.bench import overhead, plots, tables

    n_rounds = rounds or (10 if quick else 30)
    source = dataset.value if dataset is not None else overhead.default_dataset()
    say(f"records: {source}")
    plan = overhead.Plan(
        clients=clients,
        rounds=n_rounds,
        record_rate=record_rate,
        dataset=source,
        parameters=parameters,
        delays_ms=tuple(delays or ()),
    )
    run = partial(overhead.run, plan, say=say)
    measure(run, tables.print_overhead, plots.plot_overhead, plot=plot, as_json=as_json, table=table)


@bench_app.command("audit")
@exit_codes()
def bench_audit(
    quick: Quick = False,
    rounds: Annotated[int | None, typer.Option(help="Count so many rounds; 10 with --quick, else 60.", min=10)] = None,
    repetitions: Annotated[
        int | None, typer.Option(help="Run both tasks so often; 3 with --quick, else 7.", min=1)
    ] = None,
    table: TableFile = None,
    as_json: Json = False,
) -> None:
    """Measure what canaries and kept noise cost the servers in a round."""
    from precad.lab.bench import audit_overhead, tables

    plan = audit_overhead.Plan(rounds=rounds or (10 if quick else 60), repetitions=repetitions or (3 if quick else 7))
    measure(partial(audit_overhead.run, plan, say=say), tables.print_audited, as_json=as_json, table=table)


@bench_app.command("audit-figures")
@exit_codes()
def bench_audit_figures(
    quick: Quick = False,
    audits: Annotated[
        int | None, typer.Option(help="Run so many whole audits; 20 with --quick, else 200.", min=0)
    ] = None,
    runs: Annotated[
        int | None, typer.Option(help="Draw so many runs in the clear; 10 with --quick, else 40.", min=1)
    ] = None,
    table: TableFile = None,
    as_json: Json = False,
) -> None:
    """Measure what audits show of sound systems, and how often they accuse them."""
    from precad.lab.bench import audit_figures

    audits = (20 if quick else 200) if audits is None else audits
    plan = audit_figures.Plan(audits=audits, runs=runs or (10 if quick else 40))
    measure(partial(audit_figures.run, plan, say=say), audit_figures.print_audit_figures, as_json=as_json, table=table)


@bench_app.command("robust")
@exit_codes()
def bench_robust(
    dim: Annotated[int, typer.Option("--dim", help="Take updates of length d.", min=1)] = 26_010,
    clients: Annotated[
        list[int] | None,
        typer.Option("--clients", help="Take so many clients, instead of 10, 30, 100, 256; repeat.", min=4, max=4096),
    ] = None,
    only: Annotated[
        list[RobustSum] | None, typer.Option("--only", help="Take this beside the check, not all; repeat.")
    ] = None,
    repetitions: FixedRepetitions = 7,
    table: TableFile = None,
    as_json: Json = False,
) -> None:
    """Measure trimmed sums and multi-Krum on shares, beside the plain check of norms."""
    from precad.lab.bench import robust, tables

    usual = robust.Plan()
    chosen = usual.implementations if only is None else (robust.NATIVE, *only)
    sizes = tuple(clients) if clients else usual.clients
    plan = robust.Plan(dim=dim, clients=sizes, repetitions=repetitions, implementations=chosen)
    measure(partial(robust.run, plan, say=say), tables.table_of(tables.ROBUST), as_json=as_json, table=table)


@bench_app.command("server", hidden=True)
@exit_codes()
def bench_server(
    job: Annotated[Path, typer.Argument(metavar="JOB")],
    result: Annotated[Path, typer.Argument(metavar="RESULT")],
    party: Annotated[AggregatorLetter, typer.Option(help="Say which of the two aggregators this is.")],
) -> None:
    """Run one of the two processes that the benchmarks measure."""
    from precad.lab.bench.server import BenchmarkServer, Job

    task = Job.read(job)
    serve(lambda: BenchmarkServer(task, 0 if party is AggregatorLetter.A else 1, result))
