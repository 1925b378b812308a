"""The functions of `import precad`. Each loads what it needs when it is called, and prints nothing unless asked.

They call the functions of `deploy` and `lab` that the commands of the same names call. What those raise comes through.
A ConfigError has a line for each fault: the field or argument, what was expected, what was found. Errors of data sets,
models and attacks are ValueErrors too. A configuration is a TOML file's path, or what such a file holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from precad import arguments
from precad.arguments import Config, Folder

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from precad.clients.app import App
    from precad.results import Account, AuditResult, Certificates, RunResult, SimulationResult, VerifiedExport


def simulate(
    config: Config,
    /,
    *,
    clients: Sequence[App] | Mapping[str, App] | None = None,
    seeds: int | Iterable[int] = 1,
    rounds: int | None = None,
    folder: Folder | None = None,
    workers: int = 1,
    ray: str | None = None,
    progress: bool = False,
) -> SimulationResult:
    """Train in this process, once for each seed, and return what came out.

    The same seed gives the same model, bit for bit, on one machine and number of PyTorch threads. Seeds protect nobody:
    what a result guarantees is said of the algorithm with the operating system's randomness.
    (docs/guides/simulation.md)

        config    sections `[task]`, `[client]` and `[simulation]`, or a `precad.Task`; those of servers are read over
        clients   an app for each client, with records, model and loss of your own, in place of those of the file
        seeds     how many, from 0 on; or which
        rounds    in place of the task's
        folder    where files go; one of the same runs is continued. None: a new one, `runs/<task>-simulated-<time>`
        workers   trainings at once, a process each; 1 with `clients`
        ray       address of a Ray cluster that runs them
        progress  show a bar on standard error

    A training that diverges is a result too: see its `ended`, or call the result's `require_fulfilled`.

    Raises: ConfigError, ArgumentError (unknown names, data), and other errors of the client.

        >>> found = precad.simulate({
        ...     "task": {
        ...         "name": "digits", "clients": 4, "rounds": 20, "model": "mlp", "delta": 1e-5,
        ...         "client_rate": 0.9, "record_rate": 0.5, "record_clip": 1.0, "client_clip": 16.0,
        ...         "noise_multiplier": 4.6, "learning_rate": 3.0,
        ...     },
        ...     "client": {"dataset": "digits"},
        ... }, seeds=2, folder="runs/simulated")
        >>> [(one.seed, one.rounds, one.accuracy > 0.5) for one in found.seeds]
        [(0, 20, True), (1, 20, True)]
    """
    from precad.clients.own_code import refuse_within_import
    from precad.deploy.run_files.folder import default_output
    from precad.lab.simulation import simulate as simulation
    from precad.lab.simulation.apps import resolve_apps
    from precad.lab.simulation.workers import Workers
    from precad.results import SimulationResult

    refuse_within_import("simulate")
    with arguments.named():
        n_workers = arguments.count_of("workers", workers)
        n_rounds = None if rounds is None else arguments.count_of("rounds", rounds)
        given = None if folder is None else arguments.path_of("folder", folder)
        wanted, helpers = arguments.seeds_of(seeds), Workers.asked_for(n_workers, ray)
        if clients is None:
            plan = simulation.resolve(arguments.contents(config), rounds=n_rounds)
        else:
            arguments.require_none("clients", workers=n_workers if n_workers > 1 else None, ray=ray)
            plan = resolve_apps(arguments.contents(config), arguments.apps_of(clients), rounds=n_rounds)
        output = given or default_output(f"{plan.task.name}-simulated")
        build = None if plan.learning is None else plan.learning.build
        return SimulationResult.of(
            simulation.run_plan(plan, output, wanted, arguments.console(progress), helpers), build=build
        )


def run(
    config: Config,
    /,
    folder: Folder | None = None,
    *,
    app: str | None = None,
    clients: int | None = None,
    dashboard: bool = False,
    progress: bool = False,
    resume: bool = False,
) -> RunResult:
    """Run a whole deployment on this machine over real processes, and return what came out.

    The dealer, both aggregators and the clients are processes of their own, over gRPC with mutual TLS. Randomness is
    the operating system's, so that two runs differ and the epsilons hold.

        config     sections `[task]` and `[client]`, or a `precad.Task`; the runner supplies addresses, certificates and
                   the dimension
        folder     new or empty, for everything that the run leaves; None: a new one, `runs/<task>-<time>`
        app        `module:name` of a `precad.App` beside the script, whose records are dealt over the clients
        clients    how many, in place of the task's
        dashboard  give every server a dashboard. Its token is shown with `progress`, and is a file of the folder
        progress   show the rounds on standard error
        resume     continue the run in `folder`, which was interrupted, failed or crashed; config means the same task

    It works in scripts, in threads and in notebooks. Children import nothing from the current folder, except for a
    model, records and an app of your own, which servers never import. Ctrl-C stops every process:
    InterruptedRunError, in a notebook KeyboardInterrupt.

    Raises: ConfigError before a role's process starts. RunFailedError where a server or the dealer ends early.
    UnfulfilledError where the model is not finite, or no foreign trainer trained, once all files are written.

        >>> found = precad.run({
        ...     "task": {
        ...         "name": "digits", "clients": ["a", "b", "c"], "rounds": 2, "model": "mlp", "delta": 1e-5,
        ...         "client_rate": 1.0, "record_rate": 0.5, "record_clip": 1.0, "client_clip": 16.0,
        ...         "noise_multiplier": 4.6, "learning_rate": 3.0, "gate": "native",
        ...     },
        ...     "client": {"dataset": "digits"},
        ... }, "runs/first")
        >>> found.rounds, found.accepted, found.rejected
        (2, 6, 0)
    """
    from precad.clients.own_code import refuse_within_import
    from precad.deploy.configuration.apps import with_app
    from precad.deploy.configuration.client_ids import with_clients
    from precad.deploy.localhost.whole import complete, prepare, require_fulfilled
    from precad.results import RunResult

    refuse_within_import("run")
    with arguments.named():
        raw = arguments.contents(config)
        if clients is not None:
            raw = with_clients(raw, arguments.number(clients))
        local = prepare(
            raw if app is None else with_app(raw, app),
            None if folder is None else arguments.path_of("folder", folder),
            arguments.console(progress),
            dashboard=dashboard,
            resumes=resume,
        )
        summary = complete(local)
    require_fulfilled(summary)
    task = local.deployment.task
    return RunResult.of(summary, task.model, task.model_arguments)


def fix(model: nn.Module) -> nn.Module:
    """Return a copy of a model whose layers treat records separately, with all of its parameters.

    Batch normalisation becomes a GroupNorm over the same channels. Dropout is switched off, as a record's gradient must
    depend on that record alone. The copy is another model: train it from its start.

    Raises: ValueError for a lazy layer whose sizes are not known yet.

        >>> from torch import nn
        >>> fixed = precad.fix(nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)))[1]
        >>> type(fixed).__name__, fixed.num_groups
        ('GroupNorm', 32)
    """
    from precad.clients.models.fixing import fix as fixed

    return fixed(model)


def account(
    config: Config | None = None,
    /,
    *,
    sigma: float | None = None,
    q: float | None = None,
    p: float | None = None,
    rounds: int | None = None,
    delta: float | None = None,
    participation: int | None = None,
    record_clip: float | None = None,
    client_clip: float | None = None,
    dim: int | None = None,
    frac_bits: int | None = None,
    records_per_person: int | None = None,
    balls_in_bins: int | None = None,
    target_epsilon: float | None = None,
) -> Account:
    """Compute what a training costs in epsilon, in both views and by every accountant.

        config          a draft is enough: its `[task]` gives what no argument does
        sigma           each server's noise over the record clip; with a target it may be left out, and is the least one
                        that meets the target against one server that may discard draws
        q, p            rates of clients in a round, and of a client's records
        rounds, delta   of the training, and of every statement
        participation   rounds that the client took part in, once known; None plans with the expected number
        record_clip     R; with client_clip, C, a whole client is accounted as well
        dim, frac_bits  d and f: with R, the rounding to fixed point is counted
        records_per_person  k records of one person, all of one client, are accounted together
        balls_in_bins   each record is in exactly one of so many participations, in place of p: in `report`

    Raises: ConfigError naming what is missing or outside its range.
    Source: docs/explanation/privacy.md.

        >>> cost = precad.account(sigma=1.0, q=0.1, p=0.05, rounds=500, delta=1e-5)
        >>> cost.participation, cost.one_server.epsilon <= cost.one_server.epsilon_if_discarded
        (50, True)
        >>> enough = precad.account(q=0.1, p=0.05, rounds=500, delta=1e-5, target_epsilon=2.0)
        >>> enough.one_server.epsilon_if_discarded <= 2.0
        True
    """
    from precad.deploy.guarantees import accounting
    from precad.results import Account

    given = {"sigma": sigma, "q": q, "p": p, "rounds": rounds, "delta": delta, "participation": participation}
    given |= {"record_clip": record_clip, "client_clip": client_clip, "dim": dim, "frac_bits": frac_bits}
    given |= {"records_per_person": records_per_person, "balls_in_bins": balls_in_bins}
    with arguments.named():
        raw = {} if config is None else arguments.contents(config)
        task = None if config is None else accounting.precad_task_of(raw)
        plain = {name: arguments.number(value) for name, value in given.items()}
        target = arguments.number(target_epsilon)
        report = accounting.account_of_flags(plain, task, target_epsilon=target)
        report["warnings"] += accounting.not_counted(raw)
        return Account.of(report)


@overload
def certify(
    confidences: Sequence[Sequence[float]] | NDArray[np.floating[Any]],
    labels: Sequence[int] | NDArray[np.integer[Any]],
    *,
    q: float,
    sigma: float,
    rounds: int,
    trainings: int | None = None,
    delta: float | None = None,
    threat: Literal["add", "replace"] = "add",
    method: Literal["published", "pld", "exact", "all"] = "all",
    at_most: int = 128,
    psi: float = 0.01,
) -> Certificates: ...


@overload
def certify(
    *,
    runs: Sequence[Folder],
    delta: float | None = None,
    threat: Literal["add", "replace"] = "add",
    method: Literal["published", "pld", "exact", "all"] = "all",
    at_most: int = 128,
    psi: float = 0.01,
) -> Certificates: ...


def certify(
    confidences: Any = None,
    labels: Any = None,
    *,
    runs: Sequence[Folder] | None = None,
    q: float | None = None,
    sigma: float | None = None,
    rounds: int | None = None,
    trainings: int | None = None,
    delta: float | None = None,
    threat: str = "add",
    method: str = "all",
    at_most: int = 128,
    psi: float = 0.01,
) -> Certificates:
    """Count the poisoning attackers that predictions withstand.

    Evidence is either confidences with the training's parameters, or the folders of independent runs, which hold them.

        confidences  (n samples, n classes), in [0, 1]: expected confidences, or means of `trainings` trainings
        labels       (n samples,): the right classes
        runs         folders that `precad.run` or `precad run` left, all of one configuration
        q, sigma     rate of attacking units in a round, and noise over the clip of one such unit
        rounds       T
        trainings    that the confidences are means of; None: exact
        delta        of the published method; None: 1e-5, or the runs'
        threat       attackers join ("add"), or take the place of benign units ("replace")
        method       how attackers are bounded: "exact" and "pld" are proved, "published" is a paper's formula
        at_most      where the search for more attackers stops
        psi          bounds of means, or of runs, all hold with probability 1 - psi

    Raises: ConfigError naming the argument; errors of the client for runs whose model or data cannot be loaded.
    Source: docs/explanation/certificates.md.

        >>> found = precad.certify([[0.95, 0.05], [0.3, 0.7]], [0, 1], q=1.0, sigma=4.0, rounds=1, method="exact")
        >>> found.tolerated["exact"], found.labels["exact"].value
        ([6, 2], 'bound')
    """
    from precad.deploy.guarantees.certifying import DEFAULT_DELTA, certify_folders, certify_given
    from precad.results import Certificates

    given = {"q": q, "sigma": sigma, "rounds": rounds, "trainings": trainings}
    training: dict[str, Any] = {name: arguments.number(value) for name, value in given.items()}
    with arguments.named():
        request_at = arguments.request_of(delta, threat=threat, method=method, at_most=at_most, psi=psi)
        if runs is not None:
            arguments.require_none("runs", confidences=confidences, labels=labels, **training)
            report = certify_folders(arguments.folders_of("runs", runs), request_at)
        else:
            arguments.require_all(confidences=confidences, labels=labels, q=q, sigma=sigma, rounds=rounds)
            rows, classes = arguments.evidence_of(confidences, labels)
            report = certify_given(rows, classes, request_at(DEFAULT_DELTA), **training)
    return Certificates.of(report)


def audit(run: Folder, /, *, confidence: float = 0.95) -> AuditResult:
    """Attack a run whose task has audit clients: lower figures of epsilon beside the proved ones.

    The report is written into the run's folder, where `precad report` and `precad export` find it.

        run         folder that `precad.run` left: its `folder`
        confidence  of a sound run to pass; figures of guesses in one run hold with it each by itself

    Raises: ConfigError for another folder; errors of servers and clients for files that were changed.
    Source: docs/explanation/privacy.md.

        >>> found = precad.audit("runs/audited")
        >>> seat = found.seats["clients"]
        >>> found.passed, seat.per_round < seat.printed
        (True, True)
    """
    from precad.lab.auditing.deployment import audit_run
    from precad.results import AuditResult

    with arguments.named():
        return AuditResult.of(audit_run(arguments.path_of("run", run), arguments.number(confidence)))


def verify_export(
    folder: Folder,
    *,
    authority: Folder,
    against: Folder | None = None,
    signed_by: Literal["both", "a", "b"] = "both",
) -> VerifiedExport:
    """Check an exported model: digests, signatures, roles, and that both servers state the same.

        folder     what `precad export` wrote
        authority  PEM file of the certificate authority: all that needs to be trusted
        against    the other server's export of the same model
        signed_by  whose signatures must be there, in either folder

    Raises: ExportRefusedError at the first thing amiss; ConfigError for an authority or a folder that is none.
    Source: docs/guides/export.md.

        >>> found = precad.verify_export("model", authority="runs/first/pki/ca.pem")
        >>> sorted(found.signatures), found.files["model.pt"]
        (['aggregator-a', 'aggregator-b'], ['aggregator-a', 'aggregator-b'])
    """
    from precad.deploy.errors import ConfigError
    from precad.deploy.exporting import signing, verify
    from precad.results import VerifiedExport

    wanted = {"both": signing.SIGNERS, "a": signing.SIGNERS[:1], "b": signing.SIGNERS[1:]}
    with arguments.named():
        if signed_by not in [*wanted]:  # what cannot be a key is refused, too
            raise ConfigError(f"signed_by: expected one of {', '.join(wanted)}, found {signed_by!r}")
        report = verify.verify_export(
            arguments.path_of("folder", folder),
            authority=arguments.path_of("authority", authority),
            against=None if against is None else arguments.path_of("against", against),
            wanted=wanted[signed_by],
        )
    return VerifiedExport.of(report)
