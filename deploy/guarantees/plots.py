"""Draw what `--plot` of `precad account` and `precad certify` asks for. matplotlib is an extra (`bench`), loaded to
draw only.

The legend says of every line whether it is a proved bound, and of every other that it is not a guarantee.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.certificates_shown import against
from precad.deploy.shown.drawing import load_pyplot
from precad.deploy.shown.figures import at_most, rounded_up
from precad.dp.accountants.pld import VIEW_WORDS, Label, Unit, View, unit_words
from precad.dp.certificates.planner import LEAST_MULTIPLIER

SIZE: Final = (9.6, 5.0)  # inches; with DPI, 1200 pixels wide
DPI: Final = 125
_LINE_INCHES: Final = 0.5
"""Height of a picture that is one line of text."""


# Okabe and Ito's, which colour-blind readers tell apart; the orange is darker, to be read as text.
_BLUE, _ORANGE, _RED, _GREEN = "#0072B2", "#C98B00", "#D55E00", "#009E73"

_UNTIL_REALISED: Final = {
    View.ONE_SERVER: "one server corrupted; the client is in ⌈q t⌉ rounds",
    View.CLIENTS_ONLY: "only clients corrupted; they see who is in a round",
}

CURVES: Final = {
    "bound": ("proved bound (loss distributions)", "proved", {"color": _BLUE, "linestyle": "-", "linewidth": 2.2}),
    "approximation": (
        "approximation: central limit, not a guarantee",
        "limit",
        {"color": _ORANGE, "linestyle": "-", "linewidth": 4, "alpha": 0.5},
    ),
    "published": (
        "published: PRECAD's Theorem 1, not a guarantee",
        "published",
        {"color": _RED, "linestyle": "--", "linewidth": 1.6},
    ),
}
METHODS: Final = {
    "exact": ("exact: law of k sampled units, proved bound", {"color": _BLUE, "linestyle": "-", "marker": "o"}),
    "pld": ("pld: all of the privacy curve, proved bound", {"color": _GREEN, "linestyle": "-", "marker": "s"}),
    "published": ("published: one (ε, δ), not a guarantee", {"color": _RED, "linestyle": "--", "marker": "^"}),
}


_ESTIMATED: Final = {"linestyle": ":", "markerfacecolor": "white"}


def require_plot(path: Path) -> None:
    """Refuse, before anything is computed, what cannot be drawn. Raises ConfigError."""
    _pyplot()
    if not path.parent.is_dir():
        raise ConfigError(f"--plot: expected a file in an existing folder, found {path}")


def plot_account(report: Mapping[str, Any], path: Path) -> None:
    """Draw epsilon by round, a panel for each view: what is proved, the limit, and PRECAD's formula."""
    found = report["by_round"]
    ends = {view: {name: _number(found[view.value][name][-1]) for name in CURVES} for view in VIEW_WORDS}
    xlabel = "rounds that the client took part in" if found["is_realised"] else "rounds t"
    with figure_in(path, columns=len(VIEW_WORDS), sharey=True) as (figure, axes):
        for axis, (view, who) in zip(axes, VIEW_WORDS.items(), strict=True):
            for name, (label, _, style) in CURVES.items():
                axis.plot(found["rounds"], [_number(value) for value in found[view.value][name]], label=label, **style)
            if (target := report.get("calibrated")) is not None:
                axis.axhline(target["target_epsilon"], color="0.4", linestyle=":", linewidth=1, label="target")
            title = who if found["is_realised"] else _UNTIL_REALISED[view]
            axis.set(title=title, xlabel=xlabel, xlim=(0, max(found["rounds"][-1], 1)))
            axis.grid(visible=True, alpha=0.25)
        axes[0].set_ylim(bottom=0)
        for axis, view in zip(axes, VIEW_WORDS, strict=True):
            _name_ends(axis, ends[view])
        if all(math.isnan(value) for of_view in ends.values() for value in of_view.values()):
            axes[0].set_yticks([])
        axes[0].set_ylabel(
            f"ε of {unit_words(Unit.RECORD, report.get('records_per_person', 1))} at δ = {report['delta']:g}"
        )
        said = [
            textwrap.fill(f"{VIEW_WORDS[View(view)]}: {why}", 130) for view, why in report.get("rests_on", {}).items()
        ]
        rates = f"σ = {report['sigma']:.4g}, client rate q = {report['q']:g}, record rate p = {report['p']:g}"
        figure.suptitle("\n".join([rates, *said]), fontsize=8 if said else 11)
        look = {"loc": "outside lower center", "ncols": 2, "fontsize": 9, "frameon": False}
        figure.legend(*axes[0].get_legend_handles_labels(), **look)


def plot_certificates(report: Mapping[str, Any], path: Path) -> None:
    """Draw certified accuracy by number of attackers, one line per method. The planner's frontier is beside it if
    planned. If computed, so is what attackers can do to the expected confidence in the true class.

    What proves nothing has no panel: one line says that it is VACUOUS, and why.
    """
    is_vacuous = not any(map(any, report["tolerated"].values()))
    panels = [] if is_vacuous else [_draw_certified_accuracy]
    panels += [_draw_frontier] if "plan" in report else []
    panels += [_draw_attack_cost] if "attack_cost" in report and not _is_unbounded(report["attack_cost"]) else []
    rows, columns = (2, 2) if len(panels) > 2 else (1, max(1, len(panels)))
    with figure_in(path, rows, columns) as (figure, axes):
        for axis, draw in zip(axes, panels, strict=False):
            draw(axis, report)
        for axis in axes[len(panels) :]:
            axis.remove()
        if not panels:
            figure.set_size_inches(SIZE[0], _LINE_INCHES)
            figure.text(0.5, 0.5, _why_vacuous(report), ha="center", va="center")
        elif is_vacuous:
            figure.suptitle(_why_vacuous(report), fontsize=10)


def _is_unbounded(cost: Mapping[str, Any]) -> bool:
    """Return whether J is known to be in [0, 1] alone, as any is."""
    return bool(cost["known_to_be_in"] == [0, 1])


def _why_vacuous(report: Mapping[str, Any]) -> str:
    """Say that a certificate is vacuous, and why: too few trainings, or too weak predictions."""
    run = report.get("run")
    if run is not None and len(run["folders"]) < run["runs_needed"]:
        of = f"nothing can follow from fewer than {run['runs_needed']} trainings, found {len(run['folders'])}"
    else:
        of = "no prediction survives even one attacker"
    return f"The certificate is VACUOUS: {of}"


def _draw_certified_accuracy(axis: Any, report: Mapping[str, Any]) -> None:
    curves, estimate = report["certified_accuracy"], report.get("estimate")
    estimated = {} if estimate is None else estimate["certified_accuracy"]
    longest = max(map(len, [*curves.values(), *estimated.values()]))
    last = min(longest - 1, report["at_most"])
    for name, (label, style) in METHODS.items():
        if name not in curves:
            continue
        values = curves[name][: last + 1]  # beyond the end of the search a curve says nothing
        axis.plot(range(len(values)), values, label=label, drawstyle="steps-post", markersize=4, clip_on=False, **style)
    for name, curve in estimated.items():
        values, style = curve[: last + 1], METHODS[name][1] | _ESTIMATED
        label = f"{name}: estimate, not a guarantee"
        axis.plot(range(len(values)), values, label=label, drawstyle="steps-post", markersize=4, clip_on=False, **style)
    found = [*report["tolerated"].values(), *({} if estimate is None else estimate["tolerated"]).values()]
    if any(max(tolerated) == report["at_most"] for tolerated in found):
        axis.axvline(last, color="0.4", linestyle=":", linewidth=1, label="more attackers are not looked for")
    axis.set(
        title=f"Certified against poisoning\n{_given(report['confidence'])}",
        xlabel=f"k attackers, who {_WORDS[report['threat']]}",
        ylabel=f"certified accuracy on {len(report['correct'])} samples",
        xlim=(0, max(last, 1) + 0.5),
        ylim=(0, 1.02),
    )
    axis.xaxis.get_major_locator().set_params(integer=True)
    _finish(axis)


def _given(confidence: float | None) -> str:
    if confidence is None:
        return "confidences taken as exact"
    return f"bounds on confidences hold with probability {confidence:g}"


def _draw_attack_cost(axis: Any, report: Mapping[str, Any]) -> None:
    """Draw attack inefficacy: the interval that J cannot leave, by number of attackers, weakest method outermost."""
    cost = report["attack_cost"]
    ks: list[int] = []
    for name, (label, style) in reversed(METHODS.items()):
        if name not in cost["bounds"]:
            continue
        low, high = zip(*cost["bounds"][name], strict=True)
        ks = list(range(len(low)))
        line = style | {"markersize": 4, "clip_on": False}
        axis.plot(ks, low, label=label, **line)
        axis.plot(ks, high, **line)
        axis.fill_between(ks, low, high, color=style["color"], alpha=0.06)
    axis.axhline(cost["J"], color="0.3", linewidth=1, linestyle="-.", label=f"without attackers: J = {cost['J']:.3f}")
    axis.set(
        title=f"What attackers can do to J\n{_given(cost['confidence'])}",
        xlabel=f"k attackers, who {_WORDS[report['threat']]}",
        ylabel="J, expected confidence in the true class",
        xlim=(0, max(ks[-1], 1)),
        ylim=(0, 1),
    )
    axis.xaxis.get_major_locator().set_params(integer=True)
    _finish(axis)


def plot_wish(report: Mapping[str, Any], path: Path) -> None:
    """Draw noise over signal by attackers, best plans only; beside it the least sigma of every choice of T and C."""
    with figure_in(path, columns=2) as (_, (left, right)):
        _draw_best_plans(left, report)
        _draw_choices(right, report)


def _draw_best_plans(axis: Any, report: Mapping[str, Any]) -> None:
    wish = report["wish"]
    drawn = [
        (row["attackers"], row["plan"]["noise_to_signal"])
        for row in report["frontier"]
        if row["plan"] is not None and not isinstance(row["plan"]["noise_to_signal"], str)
    ]
    axis.set(
        title=f"The frontier at ε ≤ {wish['epsilon']:g}\nfor {wish['FA']:.3f} against {wish['FB']:.3f}",
        xlabel=f"attackers, who {_WORDS[wish['threat']]}",
        ylabel="noise over the largest signal, at least",
    )
    if not drawn:
        axis.text(0.5, 0.5, "no noise reaches one attacker", ha="center", transform=axis.transAxes)
        return
    ks, ratios = zip(*drawn, strict=True)
    limit = wish["most_noise_to_signal"]
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.plot(ks, ratios, color=_BLUE, marker="o", label="best σ, C and T (proved bound, if confidences hold)")
    for k, ratio in drawn:
        if k == wish["attackers"]:
            axis.plot([k], [ratio], "D", color=_ORANGE, markersize=9, zorder=3, label="the wish")
    axis.axhline(limit, color=_RED, linestyle="--", linewidth=1.6, label=f"out of reach above {limit:g}")
    axis.set_xlim(ks[0] / 1.2, ks[-1] * 1.2)
    axis.set_xticks(ks, [str(k) for k in ks])
    _decades(axis)
    _finish(axis)


def _decades(axis: Any) -> None:
    """Set ticks at 1, 2, 5 of every power of ten, in plain digits."""
    axis.yaxis.get_major_locator().set_params(subs=(1.0, 2.0, 5.0))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.minorticks_off()


def _draw_choices(axis: Any, report: Mapping[str, Any]) -> None:
    """Draw least sigma by C, one line for each T; by T alone where there is no C to choose. Hollow: out of reach."""
    wish, plans = report["wish"], report["plans"]
    axis.set(
        title=f"Least σ for {wish['attackers']} attackers\neach choice of T and C",
        ylabel="σ, noise of one server over R" if "record_clip" in report["task"] else "σ, noise over S",
    )
    if not plans:
        axis.text(0.5, 0.5, "none does", ha="center", transform=axis.transAxes)
        return
    has_clip = plans[0]["client_clip"] is not None
    axis.set_xlabel("C, clip of a client's update" if has_clip else "T, rounds")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    lines = sorted({plan["rounds"] for plan in plans}, reverse=True) if has_clip else [None]
    for rounds, color in zip(lines, (_BLUE, _GREEN, _ORANGE, _RED, "0.4"), strict=False):
        chosen = [plan for plan in plans if rounds in (None, plan["rounds"])]
        x = "client_clip" if has_clip else "rounds"
        chosen.sort(key=lambda plan: float(plan[x]))
        axis.plot(
            [plan[x] for plan in chosen],
            [plan["sigma"] for plan in chosen],
            color=color,
            label="least σ" if rounds is None else f"T = {rounds}",
        )
        for plan in chosen:
            face = color if plan["reaches"] else "white"
            axis.plot([plan[x]], [plan["sigma"]], "o", color=color, markerfacecolor=face)
    if not all(plan["reaches"] for plan in plans):
        axis.plot([], [], "o", color="0.3", markerfacecolor="white", label="out of reach")
    axis.xaxis.set_major_formatter("{x:g}")
    _decades(axis)
    _finish(axis, columns=2)


_WORDS: Final = {"add": "join", "replace": "replace benign units"}


def _draw_frontier(axis: Any, report: Mapping[str, Any]) -> None:
    """Draw least sigma by number of attackers, each point with the epsilon of one unit there."""
    plan = report["plan"]
    reached = [row for row in plan["frontier"] if row["least_sigma"] is not None]
    FA, FB = plan["lead"]
    axis.set(
        title=f"Least noise for the median prediction\n{FA:.3f} against {FB:.3f}",
        xlabel=f"attackers, who {_WORDS[report['threat']]}",
        ylabel="σ, noise over the clip of one unit",
    )
    if not reached:
        axis.text(0.5, 0.5, "no noise reaches one attacker", ha="center", transform=axis.transAxes)
        return
    ks, sigmas = [row["attackers"] for row in reached], [row["least_sigma"] for row in reached]
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    kind = "proved bound" if plan["label"] == Label.BOUND else "estimate, no guarantee"
    label = f"least σ ({kind}), one unit's ε at δ = {report['delta']:g},\n{against(plan)}"
    axis.plot(ks, sigmas, color=_BLUE, marker="o", label=label)
    if (start := [k for k, sigma in zip(ks, sigmas, strict=True) if sigma == LEAST_MULTIPLIER]) != []:
        less = f"σ = {LEAST_MULTIPLIER:g} is enough; less is not looked for"
        axis.plot(start, [LEAST_MULTIPLIER] * len(start), "o", color=_BLUE, markerfacecolor="white", label=less)
    axis.fill_between(ks, sigmas, max(sigmas) * 3, color=_BLUE, alpha=0.08, label="that many are tolerated")
    for row in reached:
        epsilon = row["epsilon_of_one_unit"]
        text = "ε = ∞" if isinstance(epsilon, str) else at_most(epsilon).replace("<=", "ε ≤")
        axis.annotate(
            text, (row["attackers"], row["least_sigma"]), (5, -11), textcoords="offset points", fontsize=8, color="0.25"
        )
    axis.set(xlim=(ks[0] / 1.2, ks[-1] * 2), ylim=(min(sigmas) / 1.8, max(sigmas) * 3))
    axis.set_xticks(ks, [str(k) for k in ks])
    axis.minorticks_off()
    axis.yaxis.set_major_formatter("{x:g}")
    _finish(axis)


def _finish(axis: Any, columns: int = 1) -> None:
    """Draw the grid, and the legend where it covers no curve."""
    axis.grid(visible=True, alpha=0.25)
    axis.legend(fontsize=9, frameon=False, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.12))


def _name_ends(axis: Any, ends: Mapping[str, float]) -> None:
    """Name and value beside the end of each line; infinite ones, which have no line, in the corner."""
    if infinite := [CURVES[name][1] for name, value in ends.items() if math.isnan(value)]:
        axis.text(0.03, 0.95, f"ε = ∞, no guarantee: {', '.join(infinite)}", transform=axis.transAxes, va="top")
    finite = sorted((name for name in ends if not math.isnan(ends[name])), key=lambda name: ends[name])
    for name, y in zip(finite, _apart([ends[name] for name in finite], 0.09 * axis.get_ylim()[1]), strict=True):
        _, word, style = CURVES[name]
        axis.annotate(
            f"{word}\n{rounded_up(ends[name]) if name == 'bound' else format(ends[name], '.2f')}",
            (axis.get_xlim()[1], y),
            (5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=style["color"],
            annotation_clip=False,
        )


def _apart(ascending: list[float], gap: float) -> list[float]:
    """Return heights at least `gap` from the next: moved down from the highest, but the i-th not below i gaps."""
    placed, above = list[float](), math.inf
    for i, value in reversed(list(enumerate(ascending))):
        above = max(min(value, above - gap), i * gap)
        placed.append(above)
    return placed[::-1]


def _number(value: float | str) -> float:
    """Return the report's infinite epsilon, which has no place on a linear axis, as a gap."""
    return math.nan if isinstance(value, str) else value


def _pyplot() -> Any:
    """Return matplotlib's pyplot, drawing to files. Raises ConfigError."""
    return load_pyplot(ConfigError("--plot needs matplotlib: install 'precad[bench]' from where precad came from"))


@contextmanager
def figure_in(path: Path, rows: int = 1, columns: int = 1, **looks: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a figure and its panels, row by row, which the file holds when the block has ended."""
    pyplot = _pyplot()
    with pyplot.rc_context({"axes.titlesize": 10}):
        size = (SIZE[0], SIZE[1] * rows)
        figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **looks)
        yield figure, axes.flat
        _save(pyplot, figure, path)


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=DPI, format="png")
    except OSError as error:
        raise ConfigError(f"--plot: expected a file that can be written, found {path}: {error.strerror}") from None
    finally:
        pyplot.close(figure)
