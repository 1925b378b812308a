"""The command `precad`.

Figures for programs go to standard output (`--json`), everything for people to standard error. A command imports its
role's modules when it runs, so that the dealer never waits for PyTorch.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn, Protocol

import structlog
import typer
from rich.console import Console

from deploy import config as configuration
from deploy import errors
from deploy.processes import watch_lifeline
from protos.identity import Role
from protos.transport import TlsFiles

app = typer.Typer(
    name="precad",
    help="PRECAD: federated learning that is private and robust, over two servers that need not be trusted alone.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
serve_app = typer.Typer(help="Run one server of a deployment.", no_args_is_help=True)
pki_app = typer.Typer(help="A private authority and the certificates that it issues.", no_args_is_help=True)
audit_app = typer.Typer(help="Attack the protocol yourself.", no_args_is_help=True)
app.add_typer(serve_app, name="serve")
app.add_typer(pki_app, name="pki")
app.add_typer(audit_app, name="audit")
bench_app = typer.Typer(help="Measure it, beside what you would otherwise pick.", no_args_is_help=True)
app.add_typer(bench_app, name="bench")
experiment_app = typer.Typer(help="Repeat what the papers report.", no_args_is_help=True)
app.add_typer(experiment_app, name="experiment")

people = Console(stderr=True, width=None if sys.stderr.isatty() else 140)

ConfigFile = Annotated[Path, typer.Argument(metavar="CONFIG", help="TOML file of the deployment.")]
Output = Annotated[Path | None, typer.Option("--output", metavar="DIR", help="Run folder; new or empty.")]
Quick = Annotated[bool, typer.Option("--quick", help="Fewer and smaller sizes: two minutes on two cores.")]
Repetitions = Annotated[
    int | None, typer.Option(help="Measurements per size, after a warm-up; 3 with --quick, else 7.", min=1)
]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw it (needs matplotlib).")]
PeersPython = Annotated[
    Path, typer.Option("--peers-python", metavar="PYTHON", help="Interpreter of the peers' environment (make peers).")
]
DEFAULT_PEERS_PYTHON = Path(".venv-peers/bin/python")
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object on standard output.")]


class AggregatorLetter(StrEnum):
    """Which of the two aggregators."""

    A = "a"
    B = "b"


class GateName(StrEnum):
    """Comparison gates."""

    CRYPTEN = "crypten"
    NATIVE = "native"


class ModeName(StrEnum):
    """Wire forms."""

    MASKED = "masked"
    SHARES = "shares"


class ImagesName(StrEnum):
    """Data sets that the CNN of 26 010 parameters takes."""

    DIGITS = "digits"
    MNIST = "mnist"
    FASHION_MNIST = "fashion-mnist"


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


@app.command()
def demo(
    output: Output = None,
    clients: Annotated[int, typer.Option(help="Clients, two of them malicious.")] = 8,
    rounds: Annotated[int, typer.Option(help="Training rounds.", min=1)] = 30,
    seed: Annotated[int, typer.Option(help="Of the data partition and the initial model.", min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Train on the bundled digits across real processes, two malicious clients included."""
    from deploy.demo import demo_config

    _run_local(lambda: demo_config(n_clients=clients, rounds=rounds, seed=seed), output, as_json=as_json)


@app.command()
def run(config: ConfigFile, output: Output = None, as_json: Json = False) -> None:
    """Run a whole deployment on this machine: every role a process of its own."""
    _run_local(lambda: configuration.read_toml(config), output, as_json=as_json)


@app.command()
def simulate(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="As for `precad run`; without one, the demo's training.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="In place of the task's.", min=1)] = None,
    seeds: Annotated[int, typer.Option(help="Trainings, with seeds from 0 on.", min=1)] = 1,
    threads: Annotated[int | None, typer.Option(help="Of PyTorch; its own choice unless given.", min=1)] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Run folder; one of the same runs is gone on with.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train in one process: PRECAD, what it is compared with, and attacks, from seeds."""
    with _exit_codes():
        import torch

        from deploy import simulate as simulation
        from deploy.demo import demo_config
        from deploy.localhost import default_output

        if threads is not None:
            torch.set_num_threads(threads)
        raw = demo_config() if config is None else configuration.read_toml(config)
        plan = simulation.resolve(raw, rounds=rounds)
        folder = output or default_output(f"{plan.task.name}-simulated")
        summary = simulation.run_plan(plan, folder, range(seeds), people)
        simulation.print_simulation(people, summary)
        if as_json:
            sys.stdout.write(json.dumps(summary) + "\n")


def _run_local(raw: Callable[[], dict[str, Any]], output: Path | None, *, as_json: bool) -> None:
    with _exit_codes():
        settings = raw()
        from deploy.localhost import LocalRun, default_output
        from deploy.report import print_summary

        task = settings.get("task")
        name = str(task.get("name", "task")) if isinstance(task, dict) else "task"
        local = LocalRun(settings, output or default_output(name), people)
        summary = asyncio.run(local.run())
        print_summary(people, summary, local.deployment.task)
        if as_json:
            sys.stdout.write(json.dumps(summary) + "\n")


@serve_app.command("aggregator")
def serve_aggregator(
    config: ConfigFile,
    role: Annotated[AggregatorLetter, typer.Option(help="Which of the two aggregators this is.")],
) -> None:
    """Run aggregation server A or B."""
    with _exit_codes():
        deployment = configuration.load(config)
        from servers.aggregator import Aggregator

        letter = role.value
        own = configuration.section(getattr(deployment.aggregator, letter), f"aggregator.{letter}")
        network = deployment.network
        _serve(
            lambda: Aggregator(
                party=0 if role is AggregatorLetter.A else 1,
                task=deployment.task,
                config=own,
                addresses=(network.aggregator_b, network.dealer),
            )
        )


@serve_app.command("dealer")
def serve_dealer(config: ConfigFile) -> None:
    """Run the dealer."""
    with _exit_codes():
        deployment = configuration.load(config)
        from servers.dealer import Dealer

        own = configuration.section(deployment.dealer, "dealer")
        _serve(lambda: Dealer(task=deployment.task, config=own))


@app.command()
def client(
    config: ConfigFile,
    ids: Annotated[list[str], typer.Option("--id", help="Client to host; repeat for several virtual ones.")],
) -> None:
    """Run one client, or several virtual ones."""
    with _exit_codes():
        deployment = configuration.load(config)
        own = configuration.section(deployment.client, "client")
        unknown = [name for name in ids if name not in deployment.task.clients]
        if unknown or len(set(ids)) != len(ids):
            raise errors.ConfigError(f"--id: expected distinct clients of the task, found {', '.join(ids)}")
        for name in ids:
            _require_identity(own.tls(name), name)
        from clients.process import ClientProcess

        addresses = (deployment.network.aggregator_a, deployment.network.aggregator_b)
        _serve(lambda: ClientProcess(task=deployment.task, config=own, clients=ids, addresses=addresses))


def _require_identity(tls: TlsFiles, client_id: str) -> None:
    found = tls.load().identity
    if (found.role, found.name) != (Role.CLIENT, client_id):
        raise errors.ConfigError(f"certificate: expected one of client {client_id!r}, found {found.uri}")


class Service(Protocol):
    """A role of the deployment, ready to run."""

    def stop(self) -> None:
        """Ends it at the next possible moment."""

    def run(self) -> Coroutine[None, None, None]:
        """Runs it to its end."""


def _serve(make: Callable[[], Service]) -> None:
    """Runs a service until it ends or a signal stops it; logs JSON lines to standard error."""
    watch_lifeline()
    _configure_logging()

    async def main() -> None:
        service = make()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, service.stop)
        await service.run()

    asyncio.run(main())


def _configure_logging() -> None:
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _Log(sys.stderr),
    )


class _Log(structlog.PrintLogger):
    """Loses lines, not rounds, when standard error cannot be written: the disk that holds it may be full."""

    def msg(self, message: str) -> None:
        """One line."""
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


@pki_app.command("init")
def pki_init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty folder for the authority.")],
    days: Annotated[int, typer.Option(help="Validity of the authority's certificate.", min=1)] = 3650,
) -> None:
    """Create a private authority."""
    with _exit_codes():
        from deploy import pki

        people.print(f"authority: {pki.create_authority(directory, days=days)}", soft_wrap=True)


@pki_app.command("issue")
def pki_issue(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The authority's folder.")],
    role: Annotated[str, typer.Option(help="aggregator-a, aggregator-b, dealer, client or operator.")],
    name: Annotated[str | None, typer.Option(help="The client's id.")] = None,
    days: Annotated[int, typer.Option(help="Validity of the certificate.", min=1)] = 365,
) -> None:
    """Issue a certificate and its key."""
    with _exit_codes():
        from deploy import pki
        from protos.identity import Identity

        if role not in set(Role):
            raise errors.ConfigError(f"--role: expected one of {', '.join(Role)}, found {role!r}")
        if name is None and role == Role.CLIENT:
            raise errors.ConfigError("--name: expected the client's id, found none")
        files = pki.issue(directory, Identity(Role(role), name or role), days=days)
        people.print(f"certificate: {files.certificate}\nkey: {files.key}", soft_wrap=True)


@audit_app.command("validation")
def audit_validation(
    vectors: Annotated[Path, typer.Option(metavar="FILE.npz", help="Array x: int64, shape (n, d).")],
    clip: Annotated[float, typer.Option(help="C, the L2 bound on the decoded vector.")],
    frac_bits: Annotated[int, typer.Option(help="f, fractional bits of the encoding.")] = 16,
    seed_count: Annotated[int, typer.Option(help="Fresh seeds to repeat under; accept once is accept.", min=1)] = 1,
    rows: Annotated[int, typer.Option(help="Rows of the no-wrap test; fewer than 64 only to study it.")] = 64,
    gate: Annotated[GateName, typer.Option(help="Comparison gate.")] = GateName.CRYPTEN,
    mode: Annotated[ModeName, typer.Option(help="Wire form.")] = ModeName.MASKED,
    as_json: Json = False,
) -> None:
    """Run the real two-party norm check on arbitrary ring vectors."""
    with _exit_codes():
        from deploy.audit import audit_file

        report = audit_file(
            vectors, clip=clip, frac_bits=frac_bits, n_rows=rows, seed_count=seed_count, gate=gate, mode=mode
        )
        if as_json:
            sys.stdout.write(json.dumps(report) + "\n")
        else:
            for i, verdict in enumerate(report["verdicts"]):
                sys.stdout.write(f"{i}\t{verdict}\n")


@app.command()
def account(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG]", help="Take what is not given from its task.")
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
    with _exit_codes():
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
            None if config is None else configuration.read_toml(config).get("task", {}),
            target_epsilon=calibrate,
            is_by_round=plot is not None,
        )
        if plot is not None:
            plots.plot_account(report, plot)
        if as_json:
            sys.stdout.write(to_json(report) + "\n")
        else:
            accounting.print_account(people, report)


@app.command()
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
    with _exit_codes():
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


@experiment_app.command("xie-tables")
def experiment_xie_tables(as_json: Json = False) -> None:
    """Every epsilon that Xie et al. print, beside its reproduction and what is proved."""
    with _exit_codes():
        from deploy import xie_tables

        report = xie_tables.xie_tables()
        if as_json:
            sys.stdout.write(json.dumps(report, allow_nan=False) + "\n")
        else:
            xie_tables.print_xie_tables(people, report)


@experiment_app.command("tightness")
def experiment_tightness(
    quick: Annotated[bool, typer.Option("--quick", help="Simulate the attack for the first setting only.")] = False,
    as_json: Json = False,
) -> None:
    """Attackers certified by every method, and the simulated attack that no certificate may be beaten by."""
    with _exit_codes():
        from deploy import tightness

        report = tightness.tightness(quick=quick)
        if as_json:
            sys.stdout.write(json.dumps(report, allow_nan=False) + "\n")
        else:
            tightness.print_tightness(people, report)


@experiment_app.command("precad-mnist")
def experiment_precad_mnist(
    quick: Annotated[bool, typer.Option("--quick", help="1000 rounds and one seed: minutes on two cores.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Trainings of each sigma; 1 with --quick, else 3.", min=1)] = None,
    sigmas: Annotated[
        list[float] | None, typer.Option("--sigma", help="Instead of 1, 1.5 and 2; repeat for several.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="In place of the paper's 5000.", min=1)] = None,
    dataset: Annotated[ImagesName, typer.Option(help="mnist is the paper's.")] = ImagesName.MNIST,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "auto",
    threads: Annotated[int | None, typer.Option(help="Of PyTorch; its own choice unless given.", min=1)] = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Folder; one of the same runs is gone on with.")
    ] = None,
    as_json: Json = False,
) -> None:
    """PRECAD's Figure 2: privacy and accuracy by epoch, on MNIST (PRECAD_DATA)."""
    with _exit_codes():
        import torch

        from deploy import precad_mnist
        from deploy.localhost import default_output

        precad_mnist.require_matplotlib()
        if threads is not None:
            torch.set_num_threads(threads)
        experiment = precad_mnist.Experiment(
            sigmas=tuple(dict.fromkeys(sigmas or precad_mnist.SIGMAS)),
            seeds=seeds or (1 if quick else 3),
            rounds=rounds or (precad_mnist.QUICK_ROUNDS if quick else precad_mnist.ROUNDS),
            dataset=dataset.value,
            device=device,
        )
        report = precad_mnist.run(experiment, output or default_output("precad-mnist"), people)
        precad_mnist.print_report(people, report)
        if as_json:
            sys.stdout.write(json.dumps(report) + "\n")


@bench_app.command("validation")
def bench_validation(
    quick: Quick = False,
    full: Annotated[bool, typer.Option("--full", help="Every batch at every size; takes hours.")] = False,
    dims: Annotated[list[int] | None, typer.Option("--dim", help="Instead of the usual sizes; repeat.", min=1)] = None,
    clients: Annotated[
        list[int] | None, typer.Option("--clients", help="Instead of the usual batches; repeat.", min=1)
    ] = None,
    repetitions: Repetitions = None,
    peers_python: PeersPython = DEFAULT_PEERS_PYTHON,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """The norm check of both servers, beside CrypTen, SPU, the unsound check and the floor."""
    with _exit_codes():
        from dataclasses import replace

        from benchmarks import plots, tables, validation

        if plot is not None:
            plots.require_matplotlib()
        plan = validation.Plan.quick(repetitions or 3) if quick else validation.Plan(repetitions=repetitions or 7)
        if full:
            plan = replace(plan, max_words=sys.maxsize)
        plan = replace(plan, dims=tuple(dims or plan.dims), clients=tuple(clients or plan.clients))
        report = validation.run(plan, peers_python=peers_python, say=_say)
        _show(report, lambda: tables.print_validation(people, report), as_json=as_json)
        if plot is not None:
            plots.plot_validation(report, plot)


@bench_app.command("noise")
def bench_noise(
    quick: Quick = False,
    size: Annotated[int, typer.Option(help="Coordinates per measurement of our sampler.", min=1)] = 1_000_000,
    repetitions: Repetitions = None,
    peers_python: PeersPython = DEFAULT_PEERS_PYTHON,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """The noise sampler, beside OpenDP's and a vectorised Canonne-Kamath-Steinke."""
    with _exit_codes():
        from benchmarks import noise, plots, tables

        if plot is not None:
            plots.require_matplotlib()
        report = noise.run(
            size=min(size, 200_000) if quick else size,
            repetitions=repetitions or (3 if quick else 7),
            peers_python=peers_python,
            say=_say,
        )
        _show(report, lambda: tables.print_noise(people, report), as_json=as_json)
        if plot is not None:
            plots.plot_noise(report, plot)


@bench_app.command("scale")
def bench_scale(
    quick: Quick = False,
    full: Annotated[bool, typer.Option("--full", help="Up to d = 10^8.")] = False,
    gate: Annotated[GateName, typer.Option(help="Comparison gate.")] = GateName.NATIVE,
    mode: Annotated[ModeName, typer.Option(help="Wire form.")] = ModeName.MASKED,
    repetitions: Repetitions = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Time, memory and bytes as the model and the round grow."""
    with _exit_codes():
        from benchmarks import plots, scale, tables

        if plot is not None:
            plots.require_matplotlib()
        plan = scale.Plan.of(quick=quick, full=full, repetitions=repetitions or 3)
        report = scale.run(plan, gate=gate, mode=mode, say=_say)
        _show(report, lambda: tables.print_scale(people, report), as_json=as_json)
        if plot is not None:
            plots.plot_scale(report, plot)


@bench_app.command("training")
def bench_training(
    quick: Quick = False,
    clients: Annotated[int, typer.Option(help="Clients of the round.", min=1)] = 10,
    records: Annotated[int, typer.Option(help="Sampled records of each.", min=1)] = 30,
    threads: Annotated[int, typer.Option(help="Of PyTorch; a client process uses one.", min=1)] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:N or auto.")] = "cpu",
    repetitions: Repetitions = None,
    peers_python: PeersPython = DEFAULT_PEERS_PYTHON,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Clipped per-record gradients of a round, beside Opacus, a loop over clients and the plain gradient."""
    with _exit_codes():
        from benchmarks import plots, tables, training
        from clients.per_record import resolve_device

        if plot is not None:
            plots.require_matplotlib()
        plan = training.Plan(
            clients=clients,
            records=records,
            repetitions=repetitions or (5 if quick else 20),
            threads=threads,
            device=str(resolve_device(device)),
        )
        report = training.run(plan, peers_python=peers_python, say=_say)
        _show(report, lambda: tables.print_training(people, report), as_json=as_json)
        if plot is not None:
            plots.plot_training(report, plot)


@bench_app.command("overhead")
def bench_overhead(
    quick: Quick = False,
    clients: Annotated[int, typer.Option(help="Virtual clients, in four processes.", min=4)] = 100,
    rounds: Annotated[int | None, typer.Option(help="Rounds that count; 10 with --quick, else 30.", min=1)] = None,
    record_rate: Annotated[float, typer.Option(help="p, the share of records in a round.", min=0.001, max=1)] = 0.05,
    dataset: Annotated[
        ImagesName | None, typer.Option(help="Default: mnist where PRECAD_DATA has it, else the digits, enlarged.")
    ] = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """A federated round with no privacy, local DP, PRECAD without and with validation."""
    with _exit_codes():
        from benchmarks import overhead, plots, tables

        if plot is not None:
            plots.require_matplotlib()
        n_rounds = rounds or (10 if quick else 30)
        source = dataset.value if dataset is not None else overhead.default_dataset()
        _say(f"records: {source}")
        plan = overhead.Plan(clients=clients, rounds=n_rounds, record_rate=record_rate, dataset=source)
        report = overhead.run(plan, say=_say)
        _show(report, lambda: tables.print_overhead(people, report), as_json=as_json)
        if plot is not None:
            plots.plot_overhead(report, plot)


@bench_app.command("server", hidden=True)
def bench_server(
    job: Annotated[Path, typer.Argument(metavar="JOB")],
    result: Annotated[Path, typer.Argument(metavar="RESULT")],
    party: Annotated[AggregatorLetter, typer.Option(help="Which of the two aggregators this is.")],
) -> None:
    """One of the two processes that the benchmarks measure."""
    with _exit_codes():
        from benchmarks.server import BenchmarkServer, Job

        task = Job.read(job)
        _serve(lambda: BenchmarkServer(task, 0 if party is AggregatorLetter.A else 1, result))


def _say(line: str) -> None:
    people.print(line, highlight=False, markup=False, soft_wrap=True)


def _show(report: dict[str, Any], print_table: Callable[[], None], *, as_json: bool) -> None:
    """The report for people on standard error and, if asked for, for programs on standard output."""
    from benchmarks import tables

    print_table()
    tables.print_machine(people, report["machine"])
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")


@contextmanager
def _exit_codes() -> Iterator[None]:
    """Ends the process with the code that an error stands for, and one clear line per fault."""
    try:
        yield
    except Exception as error:
        if not errors.is_known(error):
            raise  # a defect of ours: the traceback is what helps
        code = errors.exit_code_of(error)
        for line in str(error).splitlines():
            style = None if code == errors.SUCCESS else "bold red"
            people.print(f"precad: {line}", style=style, markup=False, emoji=False, highlight=False, soft_wrap=True)
        raise typer.Exit(code) from error


def main() -> NoReturn:
    """The entry point: every way out is a documented exit code."""
    app(prog_name="precad")
    raise AssertionError("typer exits by itself")


if __name__ == "__main__":
    main()
