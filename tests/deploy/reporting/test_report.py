"""`precad report`: that the page says what the run folders say, works without a network, and runs nobody else's code.

The folder of a deployment is written by the runner's own functions from made-up records; those of simulations are
trained here. A last test looks at the page in a headless Chromium, where there is one.
"""

from __future__ import annotations

import base64
import hashlib
import io
import itertools
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from rich.console import Console
from typer.testing import Result

from precad.clients.config import ClientConfig
from precad.clients.holder_limit import HolderLimit
from precad.clients.models import networks
from precad.deploy.cli.main import app
from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.local import resolve
from precad.deploy.localhost.observing import round_metrics
from precad.deploy.localhost.summary import print_summary
from precad.deploy.reporting.certificates import RunCertificate
from precad.deploy.reporting.charts import MOST_COLUMNS, MOST_POINTS, Kind, charts_of
from precad.deploy.reporting.figures import png_files
from precad.deploy.reporting.folders import read_folders
from precad.deploy.reporting.guarantees import sentence
from precad.deploy.reporting.numbers import Format, power_of_ten, shown
from precad.deploy.reporting.settings import shown_configuration, shown_task
from precad.deploy.reporting.write import Report
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.run_files.public_quality import last_public_figures
from precad.dp.accountants.pld import PldAccountant, View, round_event
from precad.dp.ledgers.ledger import Level
from precad.dp.task_privacy import task_cost
from precad.lab.simulation import SeededRandomness
from precad.protos.precad.v1 import control_pb2
from precad.protos.task.query import Query
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.store.folder import open_ledger, open_task_store
from tests.harness import browser
from tests.harness.browser import chromium, find_chromium
from tests.harness.command_line import CliRunner
from tests.harness.harness import asynchronous, small_task

TASK: dict[str, Any] = {
    "name": "small",
    "clients": ["a", "b", "c"],
    "rounds": 3,
    "client_rate": 0.5,
    "record_rate": 0.5,
    "record_clip": 1.0,
    "client_clip": 8.0,
    "noise_multiplier": 4.0,
    "learning_rate": 1.0,
}
ATTACKED: dict[str, Any] = {
    "task": TASK
    | {"name": "attacked", "clients": 10, "rounds": 4, "client_rate": 0.4, "record_rate": 0.2, "noise_multiplier": 1.0},
    "simulation": {"evaluate_every": 2, "attack": {"kind": "pixel-backdoor", "clients": 2}},
}
ROUNDS = (
    {"accepted": ["a", "b"], "rejected": [], "missing": [], "accuracy": 0.25, "epsilons": (0.5, 0.31)},
    {"accepted": ["a"], "rejected": ["c"], "missing": [], "accuracy": 0.5, "epsilons": (0.75, 0.41)},
    {"accepted": ["b"], "rejected": ["c"], "missing": ["a"], "accuracy": 0.625, "epsilons": (1.0001, 0.6)},
)


def precad(*arguments: object) -> Result:
    """The command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments], terminal_width=200, prog_name="precad")


def deployed(root: Path, **task: Any) -> Path:
    """A run folder as `precad run` leaves it."""
    root.mkdir()
    folder = RunFolder(root)
    resolved, deployment, _ = resolve({"task": TASK | task, "client": {"attacks": {"c": "scaled"}}}, folder)
    folder.write_config(resolved)
    parameters = networks.initial_parameters("mlp", seed=1) * 50
    torch.save(networks.unflatten(torch.from_numpy(parameters), networks.build("mlp")), folder.model)
    lines = [round_metrics(_record(t), _record(t), accuracy=ROUNDS[t]["accuracy"]) for t in range(3)]
    for line in lines:
        folder.append_metrics(line)
    with open_ledger(folder.state_dir("a"), deployment.task) as ledger:
        for line in lines:
            ledger.charge(line["round"], line["participants"])
    folder.write_summary(
        {
            "rounds": 3,
            "clients": 3,
            "processes": 6,
            "accuracy": 0.625,
            "epsilon_one_server": 1.5,
            "epsilon_clients_only": 0.9,
            "epsilon_client": 61.31,
            "realised_epsilon_one_server": 1.0001,
            "realised_epsilon_clients_only": 0.6,
            "realised_epsilon_client": 45.671,
            "most_rounds_of_a_client": 33,
            "rounds_of_a_client": 2,
            "discarded_draws": 1,
            "delta": 1e-5,
            "accepted": 4,
            "rejected": 2,
            "missing": 1,
            "rejected_clients": ["c"],
            "seconds_total": 12.5,
            "seconds_per_round": 0.6,
            "bytes_client_up": 3 * (1000 + 2000),
            "bytes_server_link": 3 * 2 * 512,
            "gate": "crypten",
            "mode": "masked",
            "task": "small-0123",
            "ended": "3 rounds done",
            "output": str(root),
        }
    )
    return root


def costing_more(folder: Path) -> None:
    """Raise the figures of a folder to what its task costs, where it costs more than they say."""
    run, last = RunFolder(folder), _lines(folder)[-1]
    cost, summary = task_cost(configuration.load(run.config).task), json.loads(run.summary.read_text())
    n_most = max(Counter(client for line in _lines(folder) for client in line["participants"]).values())
    for view in View:
        last[f"epsilon_{view}"] = max(float(last[f"epsilon_{view}"]), cost.of_view(view, n_most))
        summary[f"realised_epsilon_{view}"] = last[f"epsilon_{view}"]
        summary[f"epsilon_{view}"] = max(summary[f"epsilon_{view}"], cost.view_if_discarded(view, n_most))
    summary["epsilon_client"] = max(summary["epsilon_client"], cost.level_if_discarded(Level.CLIENT))
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in [*_lines(folder)[:-1], last]))
    run.summary.write_text(json.dumps(summary))


def _record(t: int) -> control_pb2.RoundRecord:
    """Return what both servers say of a round. Phases take 0.1 (t + 1) and 0.2 s."""
    told = ROUNDS[t]
    one_server, clients_only = told["epsilons"]
    return control_pb2.RoundRecord(
        round=t,
        chosen=sorted([*told["accepted"], *told["rejected"], *told["missing"]]),
        accepted=told["accepted"],
        rejected=told["rejected"],
        missing=told["missing"],
        bytes_by_link={"from_clients": 1000 * (t + 1), "to_peer": 512, "from_dealer": 32},
        seconds={"collect": 0.1 * (t + 1), "validate": 0.2},
        epsilon_one_server=one_server,
        epsilon_clients_only=clients_only,
        model_digest=bytes([t]),
    )


def less_everywhere(run: Path) -> None:
    """Have both files that nobody signed say that nearly nothing was lost."""
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(line | {f"epsilon_{view}": 0.01 for view in View}) + "\n" for line in _lines(run))
    )
    figures = {f"{kind}epsilon_{view}": 0.01 for kind in ("", "realised_") for view in View}
    changed(run / "summary.json", **figures, epsilon_client=0.01, realised_epsilon_client=0.01)


def ran_otherwise(run: Path) -> None:
    """Have server B's log name the task, and the configuration lose fewer rounds than that."""
    folder = RunFolder(run)
    task = configuration.load(folder.config).task
    folder.state_dir("b").mkdir(exist_ok=True)
    with open_task_store(folder.state_dir("b"), task, bytes(4 * task.dim)) as store:
        store.begin("digits-0123456789abcdef", Role.AGGREGATOR_B)
    folder.config.write_text(folder.config.read_text().replace("[task]", "[task]\nlost_rounds = 1", 1))


def changed(path: Path, **values: Any) -> None:
    """Other values in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def simulated(root: Path, raw: dict[str, Any], *, seeds: int = 1) -> Path:
    """A folder of `precad simulate`."""
    config = root.with_suffix(".toml")
    config.write_text(tomli_w.dumps(raw))
    done = precad("simulate", config, "--seeds", seeds, "--output", root)
    assert done.exit_code == 0, done.output
    return root


@pytest.fixture(scope="module")
def simulations(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """PRECAD under attack, two seeds; the same without privacy. Tests copy what they change."""
    root = tmp_path_factory.mktemp("simulations")
    plain = ATTACKED | {"simulation": ATTACKED["simulation"] | {"algorithm": "non-private"}}
    return simulated(root / "attacked", ATTACKED, seeds=2), simulated(root / "plain", plain)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return deployed(tmp_path_factory.mktemp("deployment") / "run")


@pytest.fixture
def run(deployment: Path, tmp_path: Path) -> Path:
    """One of the test's own."""
    return shutil.copytree(deployment, tmp_path / "run")


class Page(HTMLParser):
    """Hold what a browser would make of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str | None]] = []
        self.values: list[float] = []
        self.raw: dict[str, str] = {}
        self.words: list[str] = []
        self._inside = ""
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        found = dict(attrs)
        if tag == "data":
            self.values.append(float(found["value"] or "nan"))
        if tag in ("script", "style"):
            self._inside = found.get("id") or tag
            self.raw[self._inside] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[self._inside] += data
        else:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    @property
    def charts(self) -> dict[str, Any]:
        charts: dict[str, Any] = json.loads(self.raw["data"])
        return charts

    def series(self, chart: str) -> dict[str, list[tuple[float, float | None]]]:
        return {series["name"]: [tuple(p) for p in series["points"]] for series in self.charts[chart]["series"]}


def report(*folders: Path) -> Page:
    """The page, without the figures beside it, which take seconds to draw."""
    return Page(Report.of(folders).html())


# -- what it says ------------------------------------------------------------------------------------------------------


def test_the_figures_are_those_of_the_summary(run: Path) -> None:
    """Every number of the summary is in the page, to the last digit, and bounds are shown rounded up."""
    page = report(run)
    summary = json.loads((run / "summary.json").read_text())
    names = ("accuracy", "epsilon_one_server", "epsilon_clients_only", "epsilon_client", "accepted", "rejected")
    names += ("missing", "rounds", "seconds_total", "bytes_client_up", "bytes_server_link")
    assert {summary[name] for name in names} <= set(page.values)
    for text in ("≤ 1.01", "≤ 0.600", "≤ 45.7", "3 rounds done", "9 kB", "12.5 s"):
        assert text in page.text


def test_a_training_without_classes_has_its_metrics_and_no_accuracy(tmp_path: Path) -> None:
    """As `precad run` writes it where labels are numbers; the terminal's summary reads the same."""
    made = deployed(tmp_path / "run")
    changed(made / "summary.json", accuracy=None, metrics={"mse": 0.0625})
    lines = [json.loads(line) | {"accuracy": None} for line in (made / "metrics.jsonl").read_text().splitlines()]
    (made / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report(made)
    assert "test mse" in page.text
    assert 0.0625 in page.values
    assert "accuracy" not in page.charts
    said = Console(width=200, record=True, file=io.StringIO())
    summary = json.loads((made / "summary.json").read_text()) | {"output": "run"}
    print_summary(said, summary, configuration.load(made / "config.toml").task)
    assert "parameters, test mse 0.062" in said.export_text()


@pytest.mark.parametrize("trained", [0, 1])
def test_a_trainer_that_never_succeeded_is_pointed_out(tmp_path: Path, trained: int) -> None:
    """Its clients upload zeros, and the rounds and their number of accepted uploads look like success."""
    made = deployed(tmp_path / "run")
    trainer = {"name": "mine:train", "trained": trained, "clipped": 0, "failed": 9, "no_epsilon_record": "foreign code"}
    said = Console(width=200, record=True, file=io.StringIO())
    summary = json.loads((made / "summary.json").read_text()) | {"output": "run", "trainer": trainer}
    print_summary(said, summary, configuration.load(made / "config.toml").task)
    assert ("9 failed; no update but zeros was uploaded, and logs/ say why" in said.export_text()) is (trained == 0)


def measured_at(run: Path, letter: str, figures: dict[int, dict[str, float]], *, other: int | None = None) -> None:
    """Write what a server's operator measured, as the server does; of round `other`, on another model."""
    digests = {line["round"]: line["model_digest"] for line in _lines(run)}
    lines = [
        {"round": t, "model_digest": "ff" if t == other else digests[t], "figures": found}
        for t, found in figures.items()
    ]
    (run / letter / "quality.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_what_operators_measured_is_in_summary_and_report(tmp_path: Path) -> None:
    """Figures of both servers; the one of a model that is not the run's is left out, and an old one says whose it
    is."""
    made = deployed(tmp_path / "run", evaluation="public")
    task = configuration.load(made / "config.toml").task
    assert last_public_figures(RunFolder(made), task, _lines(made)) == {"public_quality": {}}
    (made / "b").mkdir(exist_ok=True)
    measured_at(made, "a", {0: {"accuracy": 0.5}, 2: {"accuracy": 0.6875, "f1": 0.03125}})
    measured_at(made, "b", {1: {"accuracy": 0.4375}, 2: {"accuracy": 0.999}}, other=2)
    found = last_public_figures(RunFolder(made), task, _lines(made))
    assert found["public_quality"] == {
        "a": {"round": 2, "is_of_final_model": True, "figures": {"accuracy": 0.6875, "f1": 0.03125}},
        "b": {"round": 1, "is_of_final_model": False, "figures": {"accuracy": 0.4375}},
    }
    changed(made / "summary.json", **found)
    page = report(made)
    assert page.series("public") == {"server A": [(1, 0.5), (3, 0.6875)], "server B": [(2, 0.4375)]}
    assert {0.6875, 0.03125, 0.4375} <= set(page.values)
    assert 0.999 not in page.values
    assert "of the model after 2 rounds" in page.text
    said = Console(width=200, record=True, file=io.StringIO())
    print_summary(said, json.loads((made / "summary.json").read_text()), task)
    text = said.export_text()
    assert "accuracy 0.6875, f1 0.03125, measured at server A" in text
    assert "accuracy 0.4375 of the model of round 1, measured at server B" in text


def asked(root: Path, kind: str, **answer: Any) -> Path:
    """A run folder as `precad query` leaves it: `deployed`, of one round, with a question and its answer."""
    query = {"kind": kind, "column": "age", "low": 0.0, "high": 30.0, **({"bins": 3} if kind == "histogram" else {})}
    made = deployed(root)
    raw = tomllib.loads((made / "config.toml").read_text())
    raw["task"] |= dict.fromkeys(("client_rate", "record_rate", "learning_rate"), 1.0)
    raw["task"] |= {"query": query, "dim": Query.model_validate(query).encoding(0).dim, "rounds": 1, "lost_rounds": 1}
    RunFolder(made).write_config(raw)
    first = _lines(made)[0]
    (made / "metrics.jsonl").write_text(json.dumps(first | {"accuracy": None}) + "\n")
    summary = json.loads((made / "summary.json").read_text())
    del summary["accuracy"]
    realised = {f"realised_{name}": first[name] for name in ("epsilon_one_server", "epsilon_clients_only")}
    counts = {name: len(first[name]) for name in ("accepted", "rejected", "missing")}
    told = {"rounds": 1, "query": query, "estimate": None, "bins": [], "level": 0.9, **counts, **realised, **answer}
    (made / "summary.json").write_text(json.dumps(summary | told))
    costing_more(made)
    return made


def test_a_query_has_a_page_with_its_answer(tmp_path: Path) -> None:
    """An estimate with its error bar; no model, no accuracy, no certificate, in page and JSON."""
    made = asked(tmp_path / "run", "mean", estimate={"value": 17.53125, "low": 16.5, "high": 18.625})
    found = Report.of([made])
    page = Page(found.html())
    assert "a query, mean of age, 3 clients" in page.text
    assert "17.5312 [16.5, 18.62]" in page.text
    assert "error bar at 90\xa0%" in page.html
    assert 17.53125 in page.values
    assert "accuracy" not in page.charts
    assert found.to_json()["runs"][0]["answer"]["estimate"] == {"value": 17.53125, "low": 16.5, "high": 18.625}
    assert precad("report", made, "--json").exit_code == 0


def of_bins(*values: float, reach: float = 1.0) -> list[dict[str, float]]:
    """Estimates with error bars of one length."""
    return [{"value": value, "low": value - reach, "high": value + reach} for value in values]


def test_a_histogram_is_drawn_with_its_error_bars(tmp_path: Path) -> None:
    """As it was estimated, below zero too; the table names each range and its error bar. One round needs no curves."""
    bins = of_bins(-0.5, 7.25, 2.0)
    made = asked(tmp_path / "run", "histogram", bins=bins)
    found = Report.of([made])
    page = Page(found.html())
    (series,) = page.charts["bins"]["series"]
    assert series["points"] == [[5.0, -0.5], [15.0, 7.25], [25.0, 2.0]]
    assert series["band"] == [[5.0, -1.5, 0.5], [15.0, 6.25, 8.25], [25.0, 1.0, 3.0]]
    assert page.charts["bins"]["categories"] == ["0 to 10", "10 to 20", "20 to 30"]
    for text in ("0 to 10 -0.5 [-1.5, 0.5]", "Error bars hold for each column by itself, at 90 %"):
        assert text in page.text
    assert found.to_json()["runs"][0]["answer"]["bins"] == bins
    assert {"epsilon", "uploads"}.isdisjoint(page.charts)


def test_many_bins_are_drawn_together(tmp_path: Path) -> None:
    """Neighbours add up, and their independent noise in squares; the last column has what is left."""
    made = asked(tmp_path / "run", "histogram", bins=of_bins(*[1.0] * 61, reach=3.0))
    page = report(made)
    (series,) = page.charts["bins"]["series"]
    assert len(series["points"]) == 31
    assert series["points"][0] == [pytest.approx(30 / 61), 2.0]
    assert series["band"][0][1:] == [pytest.approx(2 - 18**0.5), pytest.approx(2 + 18**0.5)]
    assert series["band"][-1] == [pytest.approx(30 - 15 / 61), -2.0, 4.0]
    assert "A column adds up 2 bins" in page.text


def test_a_query_is_told_nothing_about_trainings(tmp_path: Path) -> None:
    """No certificate against poisoning, no test records; an answer weighs at most C records."""
    page = report(asked(tmp_path / "run", "histogram", bins=of_bins(1.0, 2.0, 3.0)))
    for stray in ("poison", "certificate", "Poisoning", "test records", "update longer"):
        assert stray not in page.text, stray
    assert "A lie of up to C records is not excluded" in page.text


@pytest.mark.parametrize(("is_query", "found"), [(True, "expected an answer"), (False, "expected no answer")])
def test_a_summary_of_another_kind_is_refused(is_query: bool, found: str, tmp_path: Path) -> None:
    """A query without an answer, a training with one."""
    made = asked(tmp_path / "run", "mean") if is_query else deployed(tmp_path / "run")
    changed(made / "summary.json", level=None if is_query else 0.9)
    refused = precad("report", made)
    assert refused.exit_code == 2
    assert found in refused.stderr


def test_a_task_that_nobody_measures_has_nothing_of_it(run: Path) -> None:
    """Not even where a server's folder holds such a file."""
    measured_at(run, "a", {0: {"accuracy": 0.5}})
    assert last_public_figures(RunFolder(run), configuration.load(run / "config.toml").task, _lines(run)) == {}


def test_a_run_of_mode_proved_has_no_dealer_and_no_gate(tmp_path: Path) -> None:
    """Also no bar of bytes, no setting, and no coalition with a dealer. Soundness is that of the mode's theorem."""
    root = deployed(tmp_path / "run", mode="proved")
    changed(root / "summary.json", mode="proved", gate=None)
    costing_more(root)
    page = report(root)
    assert "dealer" not in page.html.lower()
    assert "task.gate" not in page.text
    assert "task.batches_ahead" not in page.text
    assert "both servers together" in page.text
    assert "or a server and" not in page.text
    assert "enters the sum with probability below 2⁻⁶³" in page.text
    masked = report(deployed(tmp_path / "masked"))
    assert "both servers together, or a server and the dealer" in masked.text
    assert "enters the sum with probability at most 2⁻⁶⁴" in masked.text
    assert "dealer to A" in masked.html


def test_the_plots_are_the_rounds(run: Path) -> None:
    """Each point of each series beside the line of metrics.jsonl that it comes from; phases and links are means."""
    page = report(run)
    assert page.series("accuracy") == {"accuracy": [(1, 0.25), (2, 0.5), (3, 0.625)]}
    assert list(page.series("epsilon").values()) == [
        [(t + 1, ROUNDS[t]["epsilons"][view]) for t in range(3)] for view in (0, 1)
    ]
    assert page.series("uploads") == {
        fate: [(t + 1, len(ROUNDS[t][fate])) for t in range(3)] for fate in ("accepted", "rejected", "missing")
    }
    assert page.charts["phases"]["categories"] == ["collect", "validate"]
    assert page.series("phases")["seconds"] == [(0, pytest.approx(0.2)), (1, pytest.approx(0.2))]
    links = dict(zip(page.charts["bytes"]["categories"], page.series("bytes")["bytes"], strict=True))
    assert links["clients to A"] == (0, 2000)
    assert links["A to B"] == (2, 512)
    assert page.tags["figure"] == len(page.charts) == 5


def test_the_sentence_says_what_is_proved_against_whom(run: Path) -> None:
    """Both views, delta, who is protected, and that one run certifies nothing. The float 0.9 is above nine tenths."""
    text = report(run).text
    assert (
        "For one record of a client that follows the protocol, added or removed, it is proved that ε ≤ 1.5 (1.01 if "
        "no draw is discarded) against one aggregation server and any other clients, draws discarded or not, and "
        "ε ≤ 0.901 (0.600 if no draw is discarded) against any other clients, no server, draws discarded or not, at "
        "δ = 10⁻⁵; against poisoning, the certificate is VACUOUS: no prediction is proved to withstand "
        "even one further attacker."
    ) in text
    assert (
        "ε ≤ 61.4 (45.7 if no draw is discarded) at δ = 10⁻⁵ for one client, added or removed; a bound this large "
        "rules out next to nothing"
    ) in text
    assert "for a client in up to 33 rounds" in text
    assert "no epsilon counts these" in text
    assert "an update longer than C = 8 enters the sum with probability at most 2⁻⁶⁴" in text
    assert "both servers together, or a server and the dealer" in text


def test_an_infinite_epsilon_is_said_and_not_drawn(run: Path) -> None:
    """Nothing is guaranteed then; JSON and plots have a gap."""
    changed(
        run / "summary.json", epsilon_one_server=math.inf, realised_epsilon_one_server=math.inf, epsilon_client="inf"
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["epsilon_one_server"] = math.inf
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = report(run)
    assert next(iter(page.series("epsilon").values()))[-1] == (3, None)
    assert "draws discarded or not, and nothing against one aggregation server" in page.text
    assert "Infinity" not in page.raw["data"]


def test_a_vacuous_certificate_is_a_line_and_no_plot(run: Path) -> None:
    """Both one run's proof and what would hold are those that `precad certify` computes from the same folder."""
    done = precad("certify", "--run", run, "--method", "exact", "--at-most", 32, "--json")
    found = json.loads(done.stdout)
    curve = found["estimate"]["certified_accuracy"]["exact"]
    most = max(k for k, share in enumerate(curve) if share > 0)
    page = report(run)

    assert max(found["tolerated"]["exact"]) == 0 < most
    assert "certificate" not in page.charts
    assert (
        "The certificate is VACUOUS and has no plot: 1 training proves nothing. If the models' confidences were the "
        f"expected ones, some predictions would withstand {most} attackers: an estimate, no guarantee."
    ) in page.text


def test_certificates_are_drawn_where_they_prove_something(run: Path) -> None:
    """Two runs beside each other: the vacuous one has no line."""
    (found,) = read_folders([run])
    some = RunCertificate(
        proved=(0.9, 0.5, 0.0),
        estimated=(0.9, 0.8, 0.2, 0.0),
        n_trainings=40,
        trainings_needed=27,
        confidence=0.99,
        n_samples=360,
    )
    none = replace(some, proved=(0.9, 0.0))
    (chart,) = (chart for chart in charts_of([found, found], [none, some]) if chart.key == "certificate")

    assert [(series.colour, series.points[:4]) for series in chart.series] == [
        (1, ((0, 0.9), (1, 0.5), (2, 0.0), (3, 0.0))),
        (1, ((0, 0.9), (1, 0.8), (2, 0.2), (3, 0.0))),
    ]
    assert "certificate" not in {chart.key for chart in charts_of([found], [none])}
    pytest.importorskip("matplotlib")
    assert chart.kind is Kind.STEPS
    assert png_files([chart])["certificate.png"].startswith(b"\x89PNG")


def test_a_certificate_that_proves_something_says_how_much(run: Path) -> None:
    """Shares rounded down, with the probability that the trainings mislead."""
    (found,) = read_folders([run])
    certificate = RunCertificate(
        proved=(0.9, 0.70051, 0.1, 0.0),
        estimated=(0.9, 0.8, 0.2, 0.0),
        n_trainings=40,
        trainings_needed=27,
        confidence=0.99,
        n_samples=360,
    )
    told = sentence(found, certificate)
    assert "with probability 0.99, a share of 0.700 of the 360 predictions withstands one further attacker" in told
    assert "and some withstand 2" in told
    assert "VACUOUS" not in told


def test_a_report_of_another_first_seed_draws_its_epsilon(tmp_path: Path) -> None:
    """Training 0 of such a folder draws from that seed: with others, the page would refuse it as contradicting."""
    folder = simulated(tmp_path / "other", ATTACKED | {"simulation": {"evaluate_every": 2, "first_seed": 12}})
    summary = json.loads((folder / "summary.json").read_text())["seeds"][0]
    (statement,) = (s for s in Report.of([folder]).runs[0].statements if s.against.startswith("one aggregation server"))
    assert statement.by_round[-1] == (4, pytest.approx(summary["guarantees"][0]["epsilon"]))


def test_a_simulations_epsilon_is_that_of_its_participation(simulations: tuple[Path, Path]) -> None:
    """By round, of the seed with the largest: rounds counted here, epsilon from the accountant."""
    page = report(simulations[0])
    ids = [f"client-{i}" for i in range(10)]
    for view, points in zip(View, page.series("epsilon").values(), strict=True):
        event = round_event(
            view, record_sampling_rate=0.2, noise_multiplier=1.0, record_clip=1.0, dim=4810, frac_bits=16
        )
        assert [x for x, _ in points] == [1, 2, 3, 4]
        for rounds, epsilon in points:
            most = max(
                max(Counter(c for t in range(int(rounds)) for c in SeededRandomness(seed).chosen(t, ids, 0.4)).values())
                for seed in (0, 1)
            )
            assert epsilon == PldAccountant().epsilon(event, most, 1e-5)


def test_a_simulation_protects_nobody_and_its_attack_is_an_estimate(simulations: tuple[Path, Path]) -> None:
    page = report(simulations[0])
    summary = json.loads((simulations[0] / "summary.json").read_text())["seeds"]
    assert np.mean([seed["accuracy"] for seed in summary]) in page.values
    assert np.mean([seed["attack_success"] for seed in summary]) in page.values
    assert page.series("attack")["attack success"][-1][1] == np.mean([seed["attack_success"] for seed in summary])
    assert "from seeds it protects nobody" in page.text
    assert "An estimate of this one attack, not a guarantee" in page.text


def test_runs_are_compared_on_the_same_axes(run: Path, simulations: tuple[Path, Path], tmp_path: Path) -> None:
    """One chart for all, a line for each run; what one run does not have stays empty; what differs stands first."""
    page = report(run, *simulations)
    assert list(page.series("accuracy")) == ["run", "attacked", "plain"]
    assert list(page.series("attack")) == ["attacked", "plain"]
    assert list(page.series("bytes")) == ["run"]
    assert "For one record nothing is guaranteed" in page.text.replace("protects nobody): for", "protects nobody): For")
    assert "certificates are of PRECAD's training, this is non-private" in page.text
    differ, same = page.text.split("The same in all of them")
    assert "task.rounds (T) 3 4 4" in differ
    assert "task.record_clip (R) 1 1 1" in same


def test_attackers_that_look_at_others_are_not_certified(simulations: tuple[Path, Path], tmp_path: Path) -> None:
    """Certify nothing where attackers' uploads change with further attackers, which the certificate excludes."""
    folder = tmp_path / "alie"
    raw = ATTACKED | {"simulation": {"evaluate_every": 2, "attack": {"kind": "alie", "clients": 2}}}
    page = report(simulated(folder, raw))
    assert "attackers of kind alie act upon what others send" in page.text
    assert "certificate" not in page.charts


def test_a_report_downloads_nothing(
    simulations: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where the configuration allows it: what needs the data set is left out, with a word."""
    monkeypatch.setenv("PRECAD_DATA", str(tmp_path / "empty"))
    folder = shutil.copytree(simulations[0], tmp_path / "mnist")
    raw = (folder / "config.toml").read_text().replace("[client]", '[client]\ndataset = "mnist"\ndownload = true')
    (folder / "config.toml").write_text(raw.replace('"mlp"', '"cnn"').replace("dim = 4810", "dim = 26010"))
    page = report(folder)
    assert "Epsilon by round is not drawn: " in page.text
    assert "No certificate: its data set, mnist, is not on this machine." in page.text
    assert str(tmp_path) not in page.html
    assert set(page.charts) == {"accuracy", "attack", "uploads", "seconds"}


def test_no_path_of_a_client_is_shown(run: Path, tmp_path: Path) -> None:
    """Every field that holds one, set; a field that comes to `[client]` is among them by its type."""
    fields = [name for name, field in ClientConfig.model_fields.items() if "Path" in str(field.annotation)]
    assert {"state_dir", "key_passphrase_file"} < set(fields)
    deployment = configuration.load(RunFolder(run).config)
    assert deployment.client is not None
    client = deployment.client.model_copy(update={name: tmp_path / name for name in fields})
    told = shown_configuration(deployment.model_copy(update={"client": client}))
    assert "client.dataset" in told
    assert not {f"client.{name}" for name in fields} & set(told)
    assert not [value for value in told.values() if str(tmp_path) in value]
    own = client.model_copy(update={"records": f"csv:{tmp_path}/patients.csv", "label": "diagnosis"})
    told = shown_configuration(deployment.model_copy(update={"client": own}))
    assert (told["client.dataset"], told["client.label"]) == ("csv:patients.csv", "diagnosis")
    assert not [value for value in told.values() if str(tmp_path) in value]
    holder = HolderLimit(ledger=tmp_path / "cohort" / "payments.jsonl", limit_epsilon=8.0)
    of_models = {"base_model": f"{tmp_path}/base.safetensors", "adapter": f"{tmp_path}/adapter.safetensors"}
    told = shown_configuration(
        deployment.model_copy(update={"client": client.model_copy(update={**of_models, "holder": holder})})
    )
    assert "limit_epsilon 8" in told["client.holder"]
    assert not [value for value in told.values() if str(tmp_path) in value]


def test_no_path_of_a_task_is_shown(tmp_path: Path) -> None:
    """The file of directions is each party's own; its digest is the task's."""
    fields = {name for name, field in Task.model_fields.items() if "Path" in str(field.annotation)}
    assert fields == {"directions"}
    directions = tmp_path / "directions.npy"
    np.save(directions, np.ones((1, 24), dtype=np.int64))
    digest = hashlib.sha256(directions.read_bytes()).hexdigest()
    told = shown_task(small_task(half_spaces=[-5.0], directions_sha256=digest, directions=directions))
    assert told["task.directions_sha256"] == digest
    assert "task.directions" not in told
    assert not [value for value in told.values() if str(tmp_path) in value]


def test_columns_and_arguments_are_shown_for_people() -> None:
    """No brackets of Python's, and nothing that a column does not have."""
    columns = [
        {"name": "age", "mean": 50.0, "std": 20.0, "min": 0.0, "max": 130.0},
        {"name": "sex", "categories": ["f", "m"]},
        {"name": "smoker"},
    ]
    told = shown_task(small_task(columns=columns, model_arguments={"width": 8, "deep": True}))
    shown = "age (mean 50, std 20, min 0, max 130), sex (f or m), smoker (mean 0, std 1)"
    assert (told["task.columns"], told["task.model_arguments"]) == (shown, "width 8, deep yes")


def test_a_configuration_shows_no_path_address_or_secret(
    run: Path, simulations: tuple[Path, Path], tmp_path: Path
) -> None:
    text = report(run).html
    for secret in ("pki", "127.0.0.1", ".pem", str(run), "state_dir"):
        assert secret not in text
    assert "aggregator" in text
    folder = shutil.copytree(simulations[0], tmp_path / "own")
    raw = (folder / "config.toml").read_text()
    own = raw.replace('kind = "pixel-backdoor"', 'kind = "their.code:Attack"')
    (folder / "config.toml").write_text(own + '\n[simulation.attack.parameters]\napi_token = "hunter2"\n')
    page = report(folder)
    assert "REDACTED" in page.text
    assert "hunter2" not in page.html
    assert "names code of its own, which reports and exports do not run" in page.text


def test_a_report_loads_no_attack_of_a_clients_section(
    simulations: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code beside a configuration may be anybody's; and what a parameter hides stays hidden."""
    folder = shutil.copytree(simulations[0], tmp_path / "own")
    (folder / "their_attack.py").write_text("raise SystemExit('loaded')\n")
    monkeypatch.syspath_prepend(str(folder))
    raw = tomllib.loads((folder / "config.toml").read_text())
    del raw["simulation"]["attack"]
    attack = {"kind": "their_attack:Attack", "parameters": {"api_token": "hunter2", "share": 0.5}}
    raw["client"] = {**raw.get("client", {}), "attacks": {sorted(raw["task"]["clients"])[0]: attack}}
    (folder / "config.toml").write_text(tomli_w.dumps(raw))
    page = report(folder)
    assert "names code of its own, which reports and exports do not run" in page.text
    assert "share = 0.5" in page.text
    assert "hunter2" not in page.html
    assert "their_attack" not in sys.modules


# -- what it is --------------------------------------------------------------------------------------------------------


def test_the_page_needs_nothing_from_anywhere(run: Path) -> None:
    """No address in it, and a policy that allows its own script and style alone, by hashes computed here."""
    page = report(run)
    fetching = ("src", "href", "srcset", "action", "poster", "data", "background", "ping", "style")
    assert not [a for a in page.attributes if a[1] in fetching or a[1].startswith("on")]
    assert page.tags["link"] == page.tags["img"] == page.tags["iframe"] == 0
    policy = next(v for _, n, v in page.attributes if n == "content" and v is not None and "default-src" in v)
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == "'none'"
    for name, element in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(page.raw[element].encode()).digest()).decode()
        assert rules.pop(name) == f"'sha256-{digest}'"
    assert set(rules.values()) == {"'none'"}
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML", page.raw["script"] + page.raw["style"])
    assert set(re.findall(r"https?://[^\"' ]*", page.html)) == {"http://www.w3.org/2000/svg"}  # a namespace
    assert len(page.html) < 100_000


HOSTILE = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{ 7 * 7 }}&lt;"


def test_text_of_a_run_folder_is_never_markup(run: Path, simulations: tuple[Path, Path], tmp_path: Path) -> None:
    """Folder, client ids, reasons, models, guarantees: the elements stay those of a harmless page."""
    harmless, hostile = report(run), deployed(tmp_path / HOSTILE.replace("/", "-"))
    changed(hostile / "summary.json", rejected_clients=[HOSTILE], ended=HOSTILE)
    page = report(hostile)
    assert page.tags == harmless.tags
    assert page.text.count(HOSTILE) == 2
    assert "49" not in page.text.split("Plots")[0]
    benign, theirs = shutil.copytree(simulations[1], tmp_path / "b"), shutil.copytree(simulations[1], tmp_path / "t")
    for folder, name in ((benign, "their.code:Algorithm"), (theirs, f"x:{HOSTILE}")):
        raw = (folder / "config.toml").read_text()
        (folder / "config.toml").write_text(raw.replace('"non-private"', json.dumps(name)))
        summary = json.loads((folder / "summary.json").read_text())
        summary["seeds"][0]["guarantees"][0] |= {"against": name, "note": name, "epsilon": 1.5}
        (folder / "summary.json").write_text(json.dumps(summary | {"algorithm": name}))
    assert report(theirs).tags == report(benign).tags
    assert HOSTILE in report(theirs).text


def test_the_same_runs_give_the_same_page(run: Path) -> None:
    assert report(run).html == report(run).html


def test_long_runs_are_thinned_and_say_so(tmp_path: Path) -> None:
    """Five thousand rounds: every so many are drawn, the last among them; columns are means of rounds."""
    run = deployed(tmp_path / "run", rounds=5000, noise_multiplier=1000.0)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    spent = [{"round": t, "epsilon_one_server": 1e-3 * t} for t in range(5000)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(lines[t % 3] | spent[t]) + "\n" for t in range(5000)))
    fates = {fate: sum(len(lines[t % 3][fate]) for t in range(5000)) for fate in ("accepted", "rejected", "missing")}
    changed(
        run / "summary.json",
        rounds=5000,
        epsilon_one_server=4.999,
        epsilon_clients_only=0.9,
        realised_epsilon_one_server=4.999,
        realised_epsilon_clients_only=0.41,
        **fates,
    )
    page = report(run)
    points = next(iter(page.series("epsilon").values()))
    assert len(points) <= MOST_POINTS
    assert points[-1] == (5000, 4.999)
    assert f"At most {MOST_POINTS} rounds of a line are drawn" in page.text
    columns = page.series("uploads")["accepted"]
    assert len(columns) <= MOST_COLUMNS
    assert columns[-1][0] == 5000
    assert all(1 <= y <= 2 for _, y in columns if y is not None)
    assert len(page.html) < 300_000


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (2.4902787, Format.EPSILON, "2.50"),
        (0.6, Format.EPSILON, "0.600"),
        (13.657, Format.EPSILON, "13.7"),
        (99.95, Format.EPSILON, "100"),
        (1234.5, Format.EPSILON, "no useful bound"),
        (0.0, Format.EPSILON, "0"),
        (0.99995, Format.SECONDS, "1 s"),
        (0.0274, Format.SECONDS, "27.4 ms"),
        (12_345.6, Format.SECONDS, "12,346 s"),
        (999_900, Format.BYTES, "1 MB"),
        (32, Format.BYTES, "32 B"),
        (1600, Format.COUNT, "1,600"),
        (2 / 3, Format.SHARE, "0.667"),
        (math.inf, Format.EPSILON, "no bound"),
    ],
)
def test_numbers_are_written_for_people(value: float, kind: Format, text: str) -> None:
    assert shown(value, kind) == text


def test_deltas_are_powers_of_ten() -> None:
    assert [power_of_ten(delta) for delta in (1e-5, 0.0029, 1.0)] == ["10⁻⁵", "2.9·10⁻³", "10⁰"]


# -- figures -----------------------------------------------------------------------------------------------------------


def test_every_chart_is_a_png_too(run: Path, simulations: tuple[Path, Path], tmp_path: Path) -> None:
    """In figures/ beside the page, or where --figures says; 1200 pixels wide, as their headers say."""
    pytest.importorskip("matplotlib")
    done = precad("report", run, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    page = Page(Path(told["page"]).read_text())
    assert told["page"] == str(run / "report.html")
    assert told["charts"] == page.charts
    assert sorted(told["figures"]) == sorted(str(path) for path in (run / "figures").iterdir())
    assert {path.stem for path in (run / "figures").iterdir()} == set(page.charts)
    where, charts = tmp_path / "all" / "figures", report(run, *simulations).charts
    done = precad("report", run, *simulations, "--output", tmp_path / "page.html", "--figures", where)
    assert done.exit_code == 0, done.output
    assert {chart["kind"] for chart in charts.values()} == {Kind.LINES, Kind.BARS}
    for name in charts:
        header = (where / f"{name}.png").read_bytes()[:24]
        assert header.startswith(b"\x89PNG")
        assert int.from_bytes(header[16:20], "big") == 1200


def test_without_matplotlib_there_is_a_page_and_a_word(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for figures, the command refuses instead, and writes nothing."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused = precad("report", run, "--figures", run / "figures")
    assert refused.exit_code == 2
    assert "--figures needs matplotlib: install 'precad[bench]' from where precad came from" in refused.stderr
    assert not (run / "report.html").exists()
    done = precad("report", run)
    assert done.exit_code == 0
    assert "no PNG figures" in done.stderr
    assert (run / "report.html").exists()


@pytest.mark.slow
def test_the_locale_changes_nothing(run: Path, tmp_path: Path) -> None:
    """The page's bytes are those of this process, whose texts are UTF-8, in a locale that has ASCII alone."""
    here, there = tmp_path / "here.html", tmp_path / "there.html"
    assert precad("report", run, "--output", here).exit_code == 0
    ascii_only = {**os.environ, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "POSIX"}
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main", "report", run, "--output", there]
    subprocess.run(command, env=ascii_only, check=True, capture_output=True, timeout=120)
    assert there.read_bytes() == here.read_bytes()


# -- what it refuses ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "config.toml").unlink(), "found no config.toml in"),
        (
            lambda run: (run / "config.toml").rename(run / "task.sqlite"),
            "a server's state_dir, which precad status, audit log and export read",
        ),
        (lambda run: (run / "config.toml").write_text("[task"), "expected TOML"),
        (lambda run: (run / "config.toml").write_bytes(b"\xff"), "expected TOML"),
        (lambda run: (run / "metrics.jsonl").unlink(), "found neither metrics.jsonl nor seed-N.jsonl"),
        (lambda run: (run / "metrics.jsonl").write_text(""), "expected a line for every round, found none"),
        (lambda run: (run / "metrics.jsonl").write_bytes(b"\xff\xfe"), "expected text"),
        (lambda run: (run / "metrics.jsonl").open("a").write('{"round": 3, "acc'), "line 4: expected JSON"),
        (lambda run: (run / "metrics.jsonl").write_text("{}\n"), "line 1.round: expected a value, found none"),
        (lambda run: (run / "metrics.jsonl").write_text("[" * 99_999), "line 1: expected JSON"),
        (lambda run: (run / "summary.json").unlink(), "summary.json: expected a file of a finished run"),
        (lambda run: (run / "summary.json").write_text("null"), "summary.json"),
        (lambda run: changed(run / "summary.json", accuracy=math.nan), "summary.json.accuracy: expected"),
        (lambda run: changed(run / "summary.json", rounds=2), "rounds: expected 2 of summary.json, found 3"),
        (lambda run: changed(run / "summary.json", accepted=5), "accepted: expected 5 of summary.json, found 4"),
        (lambda run: changed(run / "summary.json", realised_epsilon_one_server=0.1), "one_server: expected 0.1"),
        (lambda run: changed(run / "summary.json", epsilon_one_server=0.1), "one_server: expected at least 1.28"),
        (lambda run: changed(run / "summary.json", epsilon_client=1.0), "epsilon_client: expected at least 16.9"),
        (less_everywhere, "realised_epsilon_one_server: expected at least 0.9"),
        (lambda run: changed(run / "summary.json", realised_epsilon_client=0.01), "realised_epsilon_client: expected "),
        (lambda run: changed(run / "summary.json", epsilon_client=-1.0), "epsilon_client"),
        (lambda run: changed(run / "summary.json", bytes_client_up=10**400), "summary.json.bytes_client_up: expected"),
        (lambda run: changed(run / "summary.json", ended="\ud800"), "json: expected text in Unicode, found half of a"),
        (lambda run: changed(run / "summary.json", **{"\udfff": 1}), "json: expected text in Unicode, found half of a"),
        (lambda run: (run / "model.pt").write_bytes(b"no model"), "expected parameters of the model 'mlp'"),
        (ran_otherwise, ": expected the task "),
    ],
)
def test_a_folder_that_is_no_finished_run_is_refused(run: Path, spoil: Any, message: str) -> None:
    """Exit code 2, what was expected, and nothing written."""
    spoil(run)
    before = sorted(path.name for path in run.iterdir())
    done = precad("report", run)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert sorted(path.name for path in run.iterdir()) == before


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run: (run / "summary.json").unlink(), "summary.json: expected a file of a finished run"),
        (lambda run: (run / "seed-1.jsonl").write_text(""), "expected a line for every round"),
        (lambda run: (run / "seed-1.jsonl").unlink(), "seed-1.jsonl: expected a file"),
        (
            lambda run: (run / "seed-0.jsonl").write_text((run / "seed-1.jsonl").read_text().rpartition('{"round"')[0]),
            "expected the 4 rounds of summary.json, found 3 lines",
        ),
        (lambda run: (run / "seed-0.npz").write_bytes(b"PK"), "expected the model of a finished training"),
        (lambda run: (run / "seed-0.npz").unlink(), "expected the model of a finished training"),
        (
            lambda run: (run / "config.toml").write_text(
                (run / "config.toml").read_text().replace("noise_multiplier = 1.0", "noise_multiplier = 2.0")
            ),
            "as its configuration and seeds say, found",
        ),
        (lambda run: changed(run / "summary.json", algorithm="local-dp"), "algorithm: expected 'precad'"),
        (lambda run: changed(run / "summary.json", seeds=[]), "seeds"),
        (
            lambda run: changed(
                run / "summary.json", seeds=json.loads((run / "summary.json").read_text())["seeds"][:1] * 2
            ),
            "seeds: expected different ones, found 0 2 times",
        ),
    ],
)
def test_a_simulation_that_contradicts_itself_is_refused(
    simulations: tuple[Path, Path], tmp_path: Path, spoil: Any, message: str
) -> None:
    """An epsilon that configuration and seeds do not give is a contradiction, too."""
    folder = shutil.copytree(simulations[0], tmp_path / "spoilt")
    spoil(folder)
    done = precad("report", folder)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert not (folder / "report.html").exists()


def test_a_budget_that_earlier_tasks_share_leaves_fewer_rounds(tmp_path: Path) -> None:
    """So the most that a client can lose is less than the task by itself may cost. Without them it was edited."""
    run = deployed(tmp_path / "run", epsilon_budget_one_server=3.0)
    changed(run / "summary.json", epsilon_one_server=1.2, epsilon_clients_only=0.7)
    assert "one_server: expected at least 1.28" in precad("report", run).stderr
    config = tomllib.loads((run / "config.toml").read_text())
    for own in config["aggregator"].values():
        own["earlier_ledgers"] = [{"path": str(tmp_path / "ledger.jsonl"), "most_rounds": 5}]
    RunFolder(run).write_config(config)
    assert precad("report", run).exit_code == 0
    changed(run / "summary.json", realised_epsilon_one_server=0.1)
    assert "one_server: expected 0.1 of summary.json" in precad("report", run).stderr


def test_only_what_can_be_compared_is(run: Path, tmp_path: Path) -> None:
    """One data set, one delta, different folders, few enough, a place for the page."""
    page = tmp_path / "page.html"
    for arguments, message in (
        ((run, deployed(tmp_path / "delta", delta=1e-6), "--output", page), "found 1e-06 in"),
        ((run, run, "--output", page), "expected different folders"),
        ((*(tmp_path / str(i) for i in range(7)), "--output", page), "expected at most 6 runs"),
        ((run, tmp_path / "other"), "--output: expected a file for a report of several runs"),
        ((tmp_path / "nowhere",), "RUN: expected the folder of precad demo, run or simulate, found no config.toml"),
        ((run, "--output", tmp_path / "nowhere" / "page.html"), "--output: expected a file in an existing folder"),
        ((run, "--output", tmp_path), "--output: expected a file"),
        ((run, "--output", run / "config.toml"), "found another file"),
        ((run, "--figures", run / "config.toml"), "--figures: expected a folder"),
    ):
        changed(tmp_path / "delta" / "summary.json", delta=1e-6)
        costing_more(tmp_path / "delta")
        done = precad("report", *arguments)
        assert done.exit_code == 2, done.output
        assert message in done.stderr
    assert not page.exists()
    assert not (run / "report.html").exists()


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        deployed(tmp_path / name / "run")
    runs = read_folders([tmp_path / "one" / "run", tmp_path / "two" / "run"])
    assert [found.label for found in runs] == ["run (1)", "run (2)"]
    assert [series.name for series in charts_of(runs, ["none", "none"])[0].series] == ["run (1)", "run (2)"]


def test_a_page_of_ours_is_replaced_in_one_step(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the last step fails, the earlier page stays, and nothing half-written beside it."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert precad("report", run).exit_code == 0
    first = (run / "report.html").read_text()
    changed(run / "summary.json", ended="ended early")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        done = precad("report", run)
    assert done.exit_code == 2
    assert "No space left on device" in done.stderr
    assert (run / "report.html").read_text() == first
    assert not [path for path in run.iterdir() if path.name.startswith(".")]
    assert precad("report", run).exit_code == 0
    assert "ended early" in (run / "report.html").read_text()


# -- in a browser ------------------------------------------------------------------------------------------------------


CHROMIUM = find_chromium()
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium in PATH, and PRECAD_CHROMIUM names none")
OVERLAPPING = """[...document.querySelectorAll('.plot svg')].flatMap((svg) => {
  const texts = [...svg.querySelectorAll('text')];
  const boxes = texts.map((text) => [text.textContent, text.getBoundingClientRect()]);
  const edge = svg.getBoundingClientRect();
  const hit = (a, b) => a.left < b.right && b.left < a.right && a.top + 2 < b.bottom && b.top + 2 < a.bottom;
  return boxes.flatMap(([name, box], i) => [
    ...(box.left < edge.left - 1 || box.right > edge.right + 1 ? [name] : []),
    ...boxes.slice(i + 1).filter(([, other]) => hit(box, other)).map(([other]) => `${name} on ${other}`),
  ]);
})"""
OF_FIGURE = """((figure) => {
  const texts = (selector) => [...figure.querySelectorAll(selector)].map((node) => node.textContent);
  const last = [...figure.querySelectorAll('tbody tr')].pop();
  return {
    values: texts('.value'), tips: texts('.tip b'), title: texts('.tip p')[0] ?? '', body: texts('tbody td'),
    cells: [...last.querySelectorAll('th, td')].map((node) => node.textContent),
  };
})"""


async def require_drawn(page: browser.Page, n_least: int = 7) -> None:
    """Plots are drawn, within their edges and the screen's, and say in numbers what their tables say."""
    width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    assert await page.evaluate(width) == 0
    n_figures = await page.evaluate("document.querySelectorAll('figure').length")
    assert await page.evaluate("document.querySelectorAll('.plot svg').length") == n_figures >= n_least
    assert await page.evaluate(OVERLAPPING) == []
    for i in range(n_figures):
        figure = f"document.querySelectorAll('figure')[{i}]"
        found = await page.evaluate(f"{OF_FIGURE}({figure})")
        if found["values"]:
            assert sorted(found["values"]) == sorted(found["body"])
            continue
        await page.evaluate(f"{figure}.querySelector('.plot').focus()")
        await page.press("End")
        found = await page.evaluate(f"{OF_FIGURE}({figure})")
        assert sorted(found["tips"]) == sorted(cell for cell in found["cells"][1:] if cell)
        assert found["title"].endswith(f" {found['cells'][0]}")


@in_a_browser
@asynchronous
async def test_a_browser_shows_the_page(run: Path, simulations: tuple[Path, Path], tmp_path: Path) -> None:
    """Nothing is requested, nothing complains, nothing hangs over the edge; plots are drawn and answer."""
    assert CHROMIUM is not None
    path = tmp_path / "page.html"
    path.write_text(report(run, *simulations).html)
    async with chromium(CHROMIUM, tmp_path / "browser") as page:
        for width, scheme in itertools.product((1280, 390), ("light", "dark")):
            await page.look_like(width, 900, scheme)
            await page.call("Emulation.setTouchEmulationEnabled", enabled=width < 500)
            await page.goto(path.as_uri())
            await page.until("document.querySelector('.plot svg') !== null")
            await require_drawn(page)
            if width < 500:
                await page.tap("#uploads .plot")
                await page.until("document.querySelector('#uploads .tip').checkVisibility()")
            button = "document.querySelector('#accuracy .legend button')"
            await page.evaluate(f"{button}.click()")
            assert await page.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
            if (folder := os.environ.get("PRECAD_SCREENSHOTS")) is not None:
                Path(folder, f"report-{width}-{scheme}.png").write_bytes(await page.screenshot())
        assert set(page.requests) == {path.as_uri()}
        assert page.complaints == []


@in_a_browser
@asynchronous
async def test_a_browser_draws_error_bars(tmp_path: Path) -> None:
    """Show two queries within the edges, each bar from its low to its high end."""
    assert CHROMIUM is not None
    one = asked(tmp_path / "one", "histogram", bins=of_bins(-4.0, 70.25, 2.0, reach=6.5))
    other = asked(tmp_path / "other", "histogram", bins=of_bins(*range(61), reach=3.0))
    path = tmp_path / "page.html"
    path.write_text(report(one, other).html)
    async with chromium(CHROMIUM, tmp_path / "browser") as page:
        for width, scheme in ((1280, "dark"), (390, "light")):
            await page.look_like(width, 900, scheme)
            await page.goto(path.as_uri())
            await page.until("document.querySelector('.plot svg') !== null")
            await require_drawn(page, n_least=3)
            heights = "[...document.querySelectorAll('#bins .bar')].map((bar) => bar.getBBox().height)"
            found = await page.evaluate(heights)
            assert len(found) == 3 + 31
            assert found[:3] == pytest.approx([found[0]] * 3, abs=0.1)
            assert found[3] / found[0] == pytest.approx(18**0.5 / 6.5, abs=0.02)
        assert page.complaints == []


@in_a_browser
@asynchronous
async def test_a_browser_runs_nothing_of_a_hostile_folder(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    hostile = deployed(tmp_path / HOSTILE.replace("/", "-"))
    changed(hostile / "summary.json", rejected_clients=[HOSTILE], ended=HOSTILE)
    path = tmp_path / "page.html"
    path.write_text(report(hostile).html)
    async with chromium(CHROMIUM, tmp_path / "browser") as page:
        await page.goto(path.as_uri())
        await page.until("document.querySelector('.plot svg') !== null")
        assert page.requests == [path.as_uri()]
        assert page.complaints == []
        assert await page.evaluate("document.querySelectorAll('img').length") == 0
