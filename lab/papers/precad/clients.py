"""`precad experiment precad-clients`: PRECAD's Figure 3, accuracy and running time by the number of clients.

All algorithms have the same sigma, so that a record has the same epsilon. That epsilon holds against one server and all
other clients in PRECAD, and against everybody in local DP. In central DP, whose server is trusted, it holds against the
other clients only. The form is that with only privacy, as in Sec. 6.2: no client clipping, no validation.

The records are dealt to n clients: 4 shards each, CIFAR-10 by Dirichlet(0.5). So a round has as many records in
expectation for every n. The running time is the median of whole rounds in one process. `PRECAD, both servers` is the
form with validation whose servers run their real program over an in-memory channel, for a few rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rich.console import Console

from precad.deploy.shown.figures import at_most
from precad.lab.papers import runner
from precad.lab.papers.runner import Case, Outcome
from precad.lab.simulation.workers import Workers

ROUNDS, QUICK_ROUNDS, EVALUATE_EVERY = 5000, 200, 50
NUMBERS: Final = (100, 200, 500, 1000)
MPC_ROUNDS: Final = 5
_UNBOUNDED: Final = {"client_clipping": False}


@dataclass(frozen=True, slots=True)
class Method:
    """An algorithm of `precad simulate`."""

    name: str
    words: str
    simulation: Mapping[str, Any]


PRECAD, LOCAL, CENTRAL, NOTHING = "PRECAD", "local DP", "central DP", "non-private"
METHODS: Final = (
    Method("precad", PRECAD, {"validation": False, **_UNBOUNDED}),
    Method("local-dp", LOCAL, {"algorithm": "local-dp", **_UNBOUNDED}),
    Method("central", CENTRAL, {"algorithm": "central-record-dp", **_UNBOUNDED}),
    Method("non-private", NOTHING, {"algorithm": "non-private", **_UNBOUNDED}),
)
BOTH_SERVERS: Final = Method("precad-mpc", "PRECAD, both servers", {"servers": "mpc"})
ALL: Final = MappingProxyType({method.name: method for method in (*METHODS, BOTH_SERVERS)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(runner.DatasetExperiment):
    """Describe what is run."""

    numbers: Sequence[int] = NUMBERS
    sigma: float = 1.0
    rounds: int = ROUNDS
    methods: Sequence[str] = ()
    """Names of `ALL`, of those that are trained; none: all."""
    model: str | None = None
    """In place of the paper's for the data set."""

    def __post_init__(self) -> None:
        runner.require_known("--method", self.methods, ALL)

    @property
    def trained(self) -> tuple[Method, ...]:
        """Return the trained algorithms in the order of the table."""
        return tuple(method for name, method in ALL.items() if name in (self.methods or ALL))

    def case(self, method: Method, n: int) -> Case:
        """Return one algorithm with n clients."""
        name = f"{method.name}-n{n}"
        return Case(
            name=name,
            labels={"method": method.words, "clients": n},
            config=runner.paper_config(
                name=name,
                rounds=min(MPC_ROUNDS, self.rounds) if method is BOTH_SERVERS else self.rounds,
                clients=n,
                sigma=self.sigma,
                clip=30.0,  # enforced for the servers' running time only
                dataset=self.dataset,
                model=self.model,
                device=self.device,
                simulation={**method.simulation, "evaluate_every": EVALUATE_EVERY},
            ),
        )


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    cases = [experiment.case(method, n) for n in experiment.numbers for method in experiment.trained]
    outcomes = runner.run_cases(cases, experiment, folder, console, workers)
    trained = [outcome for outcome in outcomes if outcome.case.labels["method"] != BOTH_SERVERS.words]
    report = runner.report_of("precad-clients", experiment, folder)
    report["cases"] = [_of_case(outcome) for outcome in outcomes]
    runner.write(folder, report, trained, paragraph(report))
    runner.save_figure(lambda axes: _draw(axes, report["cases"]), folder / "figure-3.png")
    return report


def _of_case(outcome: Outcome) -> dict[str, Any]:
    has_accuracy = outcome.case.labels["method"] != BOTH_SERVERS.words
    return {
        **outcome.case.labels,
        "accuracy": outcome.over_seeds("accuracy") if has_accuracy else None,
        "epsilon": runner.largest_epsilon(outcome),
        "ms_per_round": outcome.ms_per_round,
        "diverged": outcome.diverged,
    }


def _means(report: Mapping[str, Any], method: str) -> dict[int, float]:
    """Return accuracy by n."""
    return {
        case["clients"]: case["accuracy"]["mean"]
        for case in report["cases"]
        if case["method"] == method and case["accuracy"]["mean"] is not None
    }


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out, beside what the paper says."""
    found = [
        f"{method} " + ", ".join(f"{accuracy:.3f} (n = {n})" for n, accuracy in means.items())
        for method in (PRECAD, LOCAL, CENTRAL, NOTHING)
        if (means := _means(report, method))
    ]
    whole = "the paper's T" if report["rounds"] == ROUNDS else f"not the paper's {ROUNDS}"
    return (
        f"Accuracy on {report['dataset']} by the number of clients, sigma = {report['sigma']:g}, {report['rounds']} "
        f"rounds ({whole}), {report['seeds']} seed(s), final models: {'; '.join(found)}. "
        f"{_verdict(report)}The paper draws this and prints no numbers: non-private and PRECAD do not depend on n, "
        "local DP falls significantly. Of running times it says that PRECAD takes about 7 times as long as local DP."
    )


def _verdict(report: Mapping[str, Any]) -> str:
    """Return how much each loses from the fewest clients to the most."""
    lost = {
        method: means[min(means)] - means[max(means)]
        for method in (PRECAD, LOCAL, CENTRAL)
        if len(means := _means(report, method)) >= 2
    }
    if not lost:
        return ""
    words = ", ".join(f"{method} {points:+.3f}" for method, points in lost.items())
    return f"Lost from the fewest to the most clients: {words}. "


def _draw(axes: Any, cases: Sequence[Mapping[str, Any]]) -> None:
    left, right = axes
    words = [*(method.words for method in METHODS), BOTH_SERVERS.words]
    for colour, method in zip(runner.COLOURS, words, strict=False):
        own = [case for case in cases if case["method"] == method]
        if not own:
            continue
        if method != BOTH_SERVERS.words:
            known = [case for case in own if case["accuracy"]["mean"] is not None]
            n, bands = [case["clients"] for case in known], [case["accuracy"] for case in known]
            left.plot(n, [band["mean"] for band in bands], color=colour, marker=".", label=method)
            left.fill_between(n, [b["min"] for b in bands], [b["max"] for b in bands], color=colour, alpha=0.2)
        timed = [case for case in own if case["ms_per_round"] is not None]
        ms = [case["ms_per_round"] for case in timed]
        right.plot([case["clients"] for case in timed], ms, color=colour, marker=".", label=method)
    left.set(xlabel="clients n", ylabel="test accuracy", title="Accuracy at equal ε of a record")
    right.set(xlabel="clients n", ylabel="ms a round, one process", title="Running time", yscale="log")


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "n": lambda case: str(case["clients"]),
        "method": itemgetter("method"),
        "accuracy": lambda case: runner.written((case["accuracy"] or {}).get("mean"), "{:.4f}".format),
        "epsilon": lambda case: runner.written(case["epsilon"], at_most),
        "ms a round": lambda case: runner.written(case["ms_per_round"], "{:.0f}".format),
    }
    runner.print_table(console, report, "PRECAD, Figure 3", report["cases"], columns, words=("method",))
