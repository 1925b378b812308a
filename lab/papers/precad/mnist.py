"""`precad experiment precad-mnist`: PRECAD's Figure 2, privacy and accuracy by epoch on MNIST, on real data.

100 clients have 4 of 400 shards each; q = 0.1, p = 0.05, eta = 0.1, R = 2. There are T = 5000 rounds (25 epochs of 200)
of the privacy-only form: no client clipping, no validation. Each sigma has some seeds, each a run of `precad simulate`.

The update divides by the public W = q sum p N_i, not by the number of records that came. Everything else is the paper's
(Sec. 6.1, 6.2 and Appendix E), whose printed epsilons are those of its central limit. Its CNN is that of Opacus'
example, which reads standardised pixels; `model = "cnn"` is the same on pixels in [0, 1].
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from precad.deploy.shown.figures import at_most, plain
from precad.dp.accountants.pld import PldAccountant, View, round_event
from precad.dp.published.precad import gdp_mu_precad_clients_only, gdp_mu_precad_server_corrupt
from precad.lab.papers import runner
from precad.lab.papers.runner import EPOCH, Case, Outcome
from precad.lab.simulation.workers import Workers

SIGMAS: Final = (1.0, 1.5, 2.0)
PRINTED_EPSILON: Final[Mapping[float, float]] = {1.0: 6.8, 1.5: 3.5, 2.0: 2.4}
"""Epsilon that the paper prints, one server corrupted, after 25 epochs, delta = 1e-5. Its accuracies are drawn, not
printed."""
ROUNDS, QUICK_ROUNDS = 5000, 1000
N_CLIENTS, CLIENT_RATE, RECORD_RATE, DELTA = 100, 0.1, 0.05, 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment(runner.DatasetExperiment):
    """Describe what is run."""

    sigmas: Sequence[float] = SIGMAS
    rounds: int = ROUNDS
    model: str = "cnn-standardised"

    def case(self, sigma: float) -> Case:
        """Return one sigma. Raises ConfigError."""
        runner.require_positive("--sigma", sigma)
        return Case(
            name=f"sigma-{sigma:g}",
            labels={"sigma": sigma},
            config=runner.paper_config(
                name=f"precad-mnist-{sigma:g}",
                rounds=self.rounds,
                clients=N_CLIENTS,
                sigma=sigma,  # the default C is enforced by nobody here
                dataset=self.dataset,
                model=self.model,
                device=self.device,
                simulation={"validation": False, "client_clipping": False},
            ),
        )


def run(experiment: Experiment, folder: Path, console: Console, workers: Workers | None = None) -> dict[str, Any]:
    """Run all trainings, draw the figure and return the report. Continue what the folder holds. Raises ConfigError,
    DataError."""
    return runner.reported(
        "precad-mnist",
        experiment,
        [experiment.case(sigma) for sigma in experiment.sigmas],
        folder,
        console,
        workers,
        found=lambda outcomes: {
            "clients": N_CLIENTS,
            "delta": DELTA,
            "evaluations": runner.what_is_reported(outcomes),
            "sigmas": [_of_sigma(outcome, rounds=experiment.rounds) for outcome in outcomes],
        },
        paragraph=paragraph,
        draw=lambda outcomes, _: runner.save_figure(lambda axes: _draw(axes, outcomes), folder / "figure-2.png"),
    )


def _of_sigma(outcome: Outcome, *, rounds: int) -> dict[str, Any]:
    """Summarise over the seeds: accuracy and its spread; epsilons realised, for the expected participation, and
    published."""
    sigma = outcome.case.labels["sigma"]
    accuracies = [statistics.fmean(accuracy for accuracy, _ in of_seed) for of_seed in outcome.reported()]
    expected = round(CLIENT_RATE * rounds)
    from_limit = {
        View.ONE_SERVER: gdp_mu_precad_server_corrupt(RECORD_RATE, sigma, expected),
        View.CLIENTS_ONLY: gdp_mu_precad_clients_only(CLIENT_RATE, RECORD_RATE, sigma, rounds),
    }
    return {
        "sigma": sigma,
        **{f"accuracy_{which}": value for which, value in runner.spread(accuracies).items()},
        "accuracies": accuracies,
        "epsilon_realised": {view.value: runner.largest_epsilon(outcome, i) for i, view in enumerate(View)},
        "epsilon_expected_participation": {
            view.value: plain(proved_epsilon(view, sigma, expected, outcome.dim)) for view in View
        },
        "mu_published": {view.value: mu for view, mu in from_limit.items()},
        "epsilon_printed": PRINTED_EPSILON.get(sigma) if rounds == ROUNDS else None,
        "ms_per_round": outcome.ms_per_round,
    }


def proved_epsilon(view: View, sigma: float, participation: int, dim: int) -> float:
    """Bound the epsilon of a record whose client was in so many rounds."""
    event = round_event(
        view, record_sampling_rate=RECORD_RATE, noise_multiplier=sigma, record_clip=2.0, dim=dim, frac_bits=16
    )
    return PldAccountant().epsilon(event, participation, DELTA)


def paragraph(report: Mapping[str, Any]) -> str:
    """Say what came out, beside what the paper says."""
    found = []
    for row in report["sigmas"]:
        printed = "" if row["epsilon_printed"] is None else f" (the paper prints {row['epsilon_printed']})"
        found.append(
            f"sigma = {row['sigma']:g}: accuracy {row['accuracy_mean']:.3f} "
            f"(from {row['accuracy_min']:.3f} to {row['accuracy_max']:.3f}), proved epsilon against one server "
            f"{at_most(row['epsilon_expected_participation']['one_server'])} for a client that is in the expected "
            f"number of rounds{printed}, {at_most(row['epsilon_realised']['one_server'])} for the one that was in "
            "most"
        )
    is_whole = report["rounds"] == ROUNDS
    whole = "the paper's T" if is_whole else f"not the paper's {ROUNDS}: accuracies are those of a shorter training"
    ordered = [row["accuracy_mean"] for row in sorted(report["sigmas"], key=lambda row: float(row["sigma"]))]
    falls = all(a >= b for a, b in itertools.pairwise(ordered))
    trend = "falls with sigma, as in Figure 2" if falls else "does not fall with sigma here, unlike in Figure 2"
    compared = f"Accuracy {trend}. " if len(ordered) > 1 else ""
    return (
        f"PRECAD on {report['dataset']}, model {report['model']}, privacy-only form, {report['clients']} clients of 4 "
        f"shards each, {report['rounds']} rounds ({whole}), {report['seeds']} seed(s); accuracy is "
        f"{report['evaluations']}, with one evaluation an epoch of {EPOCH} rounds. " + "; ".join(found) + ". "
        f"{compared}The paper draws its accuracies and prints no numbers for them. Its epsilons come "
        "from a central limit and are no bounds: at the same noise what is proved is larger, so a claim at the paper's "
        "epsilon would take more noise than the paper's sigma."
    )


def _draw(axes: Any, outcomes: Sequence[Outcome]) -> None:
    """Draw two panels: epsilon and accuracy by epoch."""
    left, right = axes
    for colour, outcome in zip(itertools.cycle(runner.COLOURS), outcomes, strict=False):
        sigma = outcome.case.labels["sigma"]
        epochs = sorted({row["epoch"] for row in outcome.rows})
        for view, style, words in ((View.ONE_SERVER, "-", "one server"), (View.CLIENTS_ONLY, "--", "clients only")):
            curve = [proved_epsilon(view, sigma, round(CLIENT_RATE * EPOCH * e), outcome.dim) for e in epochs]
            left.plot(epochs, curve, color=colour, linestyle=style, marker=".", label=f"σ = {sigma:g}, {words}")
        if (printed := PRINTED_EPSILON.get(sigma)) is not None:
            runner.mark_paper(left, [(ROUNDS / EPOCH, printed)], colour=colour, label=f"σ = {sigma:g}, the paper")
        runner.draw_curves(right, outcome.rows, "accuracy", colour=colour, label=f"σ = {sigma:g}")
    seeds = len(outcomes[0].runs)
    left.set(xlabel="epoch (200 rounds)", ylabel="ε at δ = 10⁻⁵", title="Proved ε, expected participation")
    right.set(xlabel="epoch (200 rounds)", ylabel="test accuracy", title=f"Accuracy, {seeds} seed(s)")


def print_report(console: Console, report: Mapping[str, Any]) -> None:
    """Print the report for people."""
    expected = "epsilon_expected_participation"
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "sigma": lambda row: f"{row['sigma']:g}",
        "accuracy": lambda row: f"{row['accuracy_mean']:.4f}",
        "ε one server": lambda row: at_most(row[expected]["one_server"]),
        "ε clients only": lambda row: at_most(row[expected]["clients_only"]),
        "ε printed": lambda row: runner.written(row["epsilon_printed"], "{:g}".format),
        "ms a round": lambda row: f"{row['ms_per_round']:.1f}",
    }
    caption = f"accuracy: {report['evaluations']}"
    runner.print_table(console, report, "PRECAD, Figure 2", report["sigmas"], columns, caption=caption)
