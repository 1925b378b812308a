"""The report as one HTML page: nothing is loaded from anywhere, and nothing but its own script and style may run.

Everything from a run folder is text of whoever wrote the folder. The template escapes all of it, and the charts' data
are JSON without `<`, `>` and `&`. The page's content security policy allows one script and one style, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata, resources
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from precad.deploy.reporting.certificates import RunCertificate
from precad.deploy.reporting.charts import Chart
from precad.deploy.reporting.guarantees import guarantees_of, sentence
from precad.deploy.reporting.key_figures import key_figures
from precad.deploy.reporting.runs import Run

GENERATOR: Final = "precad report"
"""By which a page of ours is known; another file is never overwritten."""


def render(runs: Sequence[Run], certificates: Sequence[RunCertificate | str], charts: Sequence[Chart]) -> str:
    """Return the page."""
    style, script = asset("report.css"), asset("report.js")
    environment = templates("precad.deploy.reporting")
    settings = _rows([run.configuration for run in runs])
    return environment.get_template("report.html.j2").render(
        generator=GENERATOR,
        version=metadata.version("precad"),
        policy=_policy(style, script),
        style=Markup(style),  # noqa: S704 - a file of this package
        script=Markup(script),  # noqa: S704 - a file of this package
        title=runs[0].label if len(runs) == 1 else f"{len(runs)} runs compared",
        runs=[_of_run(run, found) for run, found in zip(runs, certificates, strict=True)],
        figures=_figures(runs),
        settings=settings,
        sections=_sections(settings),
        charts=charts,
        data={chart.key: chart.to_json() for chart in charts},
    )


@cache
def templates(package: str) -> Environment:
    """Return the templates in a package's folder `assets`, which escape all that they are given."""
    environment = Environment(
        loader=PackageLoader(package, "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    return environment


def asset(name: str) -> str:
    """Return a file of the report's own assets."""
    return resources.files("precad.deploy.reporting").joinpath("assets", name).read_text(encoding="utf-8")


def source_of(text: str) -> str:
    """Return the source of a content security policy that allows this script or style alone."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _of_run(run: Run, certificate: RunCertificate | str) -> dict[str, Any]:
    servers = "two servers" if run.task.is_proved else "two servers, a dealer"
    what = "simulated in one process" if run.is_simulation else f"{servers} and clients as processes"
    seeds = f", {len(run.trainings)} seeds" if len(run.trainings) > 1 else ""
    trained = f"{run.task.model} with {run.task.n_parameters:,} parameters on {run.client.data_name}"
    done = trained if run.answer is None else f"a query, {run.answer.name}"
    return {
        "label": run.label,
        "about": f"{run.algorithm}{seeds}, {what}: {done}, {len(run.task.clients):,} clients",
        "sentence": _capital(sentence(run, certificate)),
        "guarantees": guarantees_of(run, certificate),
        "notes": run.notes,
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


Row = tuple[str, list[Any], bool]
"""(name, a value for each column or None, whether columns differ)."""


def _figures(runs: Sequence[Run]) -> list[Row]:
    rows = _rows([{figure.name: figure for figure in key_figures(run)} for run in runs])
    return sorted(rows, key=lambda row: next(figure.group for figure in row[1] if figure is not None))


def _sections(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return settings by the section that their names begin with, which is left out of the names."""
    found: dict[str, list[Row]] = {}
    for name, values, differs in rows:
        section, _, field = name.partition(".")
        found.setdefault(section, []).append((field, values, differs))
    return found


def _rows(columns: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Names in the order of their first column."""
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [(name, [column.get(name) for column in columns]) for name in names]
    return [(name, values, any(value != values[0] for value in values)) for name, values in rows]


def _policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; script-src '{source_of(script)}'; style-src '{source_of(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
