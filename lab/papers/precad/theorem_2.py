"""`precad experiment precad-theorem-2`: PRECAD's Theorem 2 as printed, on the loss under K malicious clients.

The paper prints no number for it. The formula is `precad.dp.published.precad.precad_theorem2_bounds`: a central limit
with group privacy, and so no bound. `precad certify` has the bounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from precad.deploy.errors import refusing
from precad.deploy.shown.figures import plain
from precad.deploy.shown.tables import titled
from precad.dp.accountants.pld import Label
from precad.dp.published.precad import client_level_mu, precad_theorem2_bounds
from precad.lab.papers import runner


@dataclass(frozen=True, kw_only=True)
class Question:
    """Say which training is attacked, and what its loss is. Sec. 6.1 of the paper gives the defaults."""

    loss: float = 0.1
    """L, the expected loss without attackers."""
    largest_loss: float = 1.0
    """B."""
    attackers: Sequence[int] = (1, 3, 5, 10)
    sigmas: Sequence[float] = (1.0, 1.5, 2.0)
    client_clips: Sequence[float] = (20.0, 30.0)
    record_clip: float = 2.0
    client_rate: float = 0.1
    rounds: int = 5000


def theorem_2(question: Question) -> dict[str, Any]:
    """Return a row for each sigma, C and K: mu, the lowest and highest loss. Raises ConfigError."""
    rows = []
    with refusing(ValueError):
        for sigma in question.sigmas:
            for clip in question.client_clips:
                mu = client_level_mu(question.client_rate, question.rounds, sigma, question.record_clip, clip)
                rows += [_row(question, sigma, clip, mu, k) for k in question.attackers]
    return {
        "experiment": "precad-theorem-2",
        "label": Label.PUBLISHED_REPRODUCTION.value,
        "loss": question.loss,
        "largest_loss": question.largest_loss,
        "rounds": question.rounds,
        "client_rate": question.client_rate,
        "record_clip": question.record_clip,
        "vacuous": sum(row["is_vacuous"] for row in rows),
        "rows": rows,
    }


def _row(question: Question, sigma: float, clip: float, mu: float, k: int) -> dict[str, Any]:
    lowest, highest = precad_theorem2_bounds(question.loss, question.largest_loss, mu, k)
    is_vacuous = lowest <= 0.0 and highest >= question.largest_loss
    return {
        "sigma": sigma,
        "client_clip": clip,
        "attackers": k,
        "mu": plain(mu),
        "lowest": lowest,
        "highest": highest,
        "is_vacuous": is_vacuous,
    }


def print_theorem_2(console: Console, report: dict[str, Any]) -> None:
    """Print the report for people."""
    title = f"PRECAD, Theorem 2 as printed: a loss of {report['loss']:g} in [0, {report['largest_loss']:g}]"
    table = titled(title, "sigma", "C", "K", "mu", "at least", "at most", "", words=("",))
    for row in report["rows"]:
        table.add_row(
            f"{row['sigma']:g}",
            f"{row['client_clip']:g}",
            str(row["attackers"]),
            f"{float(row['mu']):.3g}",
            f"{row['lowest']:.4f}",
            f"{row['highest']:.4f}",
            "VACUOUS" if row["is_vacuous"] else "",
        )
    console.print(table, highlight=False)
    console.print(
        f"published reproduction, no bound: a central limit with group privacy. Of {len(report['rows'])} rows "
        f"{report['vacuous']} say nothing. `precad certify` has the bounds.",
        highlight=False,
    )


def save(report: dict[str, Any], folder: Path) -> None:
    """Draw the lowest and the highest loss by K, a panel for each sigma. Raises ConfigError without matplotlib."""
    sigmas = list(dict.fromkeys(row["sigma"] for row in report["rows"]))
    runner.save_figure(lambda axes: _draw(axes, report, sigmas), folder / "theorem-2.png", panels=len(sigmas))


def _draw(panels: Any, report: dict[str, Any], sigmas: Sequence[float]) -> None:
    clips = list(dict.fromkeys(row["client_clip"] for row in report["rows"]))
    for axes, sigma in zip(panels, sigmas, strict=True):
        for i, clip in enumerate(clips):
            own = [row for row in report["rows"] if (row["sigma"], row["client_clip"]) == (sigma, clip)]
            looks = runner.nested_markers(len(clips))[i] | {"color": runner.COLOURS[i % len(runner.COLOURS)]}
            for name, style, words in (("highest", "-", "at most"), ("lowest", "--", "at least")):
                curve = [row[name] for row in own]
                axes.plot(
                    [row["attackers"] for row in own], curve, linestyle=style, label=f"C = {clip:g}, {words}", **looks
                )
        axes.axhline(report["loss"], color="grey", linewidth=1, label="without attackers")
        axes.set(xlabel="K malicious clients", ylabel="expected loss", title=f"σ = {sigma:g}, as printed, no bound")
