"""`precad report`: that the page says what the run folders say.

The folder of a deployment is written by the runner's own functions from made-up records; those of simulations are
trained here.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import shutil
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tomli_w
from rich.console import Console

from precad.clients.config import ClientConfig
from precad.clients.holder_limit import HolderLimit
from precad.deploy.configuration import sections as configuration
from precad.deploy.localhost.summary import print_summary
from precad.deploy.reporting.certificates import RunCertificate
from precad.deploy.reporting.charts import Kind, charts_of
from precad.deploy.reporting.figures import png_files
from precad.deploy.reporting.folders import read_folders
from precad.deploy.reporting.guarantees import sentence
from precad.deploy.reporting.settings import shown_configuration, shown_task
from precad.deploy.reporting.write import Report
from precad.deploy.run_files.folder import RunFolder
from precad.deploy.run_files.public_quality import last_public_figures
from precad.dp.accountants.pld import PldAccountant, View, round_event
from precad.lab.simulation import SeededRandomness
from precad.protos.messages.phases import PHASES
from precad.protos.task.task import Task
from tests.harness.command_line import precad
from tests.harness.harness import small_task
from tests.harness.report_page import report
from tests.harness.run_folders import (
    ATTACKED,
    ROUNDS,
    changed,
    costing_more,
    deployed,
    lines_of,
    simulated,
)


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
    digests = {line["round"]: line["model_digest"] for line in lines_of(run)}
    lines = [
        {"round": t, "model_digest": "ff" if t == other else digests[t], "figures": found}
        for t, found in figures.items()
    ]
    (run / letter / "quality.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_what_operators_measured_is_in_summary_and_report(tmp_path: Path) -> None:
    """Figures of both servers; the one of a model that is not the run's is left out, and an old one says whose it
    is."""
    made = deployed(tmp_path / "run", evaluation="public")
    task = configuration.load(made / "config.toml").task
    assert last_public_figures(RunFolder(made), task, lines_of(made)) == {"public_quality": {}}
    (made / "b").mkdir(exist_ok=True)
    measured_at(made, "a", {0: {"accuracy": 0.5}, 2: {"accuracy": 0.6875, "f1": 0.03125}})
    measured_at(made, "b", {1: {"accuracy": 0.4375}, 2: {"accuracy": 0.999}}, other=2)
    found = last_public_figures(RunFolder(made), task, lines_of(made))
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


def test_a_task_that_nobody_measures_has_nothing_of_it(run: Path) -> None:
    """Not even where a server's folder holds such a file."""
    measured_at(run, "a", {0: {"accuracy": 0.5}})
    assert last_public_figures(RunFolder(run), configuration.load(run / "config.toml").task, lines_of(run)) == {}


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


def test_phases_stand_in_the_order_of_a_round(run: Path) -> None:
    """Those of mode `proved` among them, however lines name them; one of another version comes last."""
    lines = [line | {"seconds": {"later": 0.1, **dict.fromkeys(reversed(PHASES), 0.1)}} for line in lines_of(run)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert report(run).charts["phases"]["categories"] == [*PHASES, "later"]


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
        rests_on=("which rounds are lost depends on nobody's draw",),
    )
    none = replace(some, proved=(0.9, 0.0))
    (chart,) = (chart for chart in charts_of([found, found], [none, some]) if chart.key == "certificate")

    assert [(series.colour, series.points[:4]) for series in chart.series] == [
        (1, ((0, 0.9), (1, 0.5), (2, 0.0), (3, 0.0))),
        (1, ((0, 0.9), (1, 0.8), (2, 0.2), (3, 0.0))),
    ]
    assert "whatever they send, if which rounds are lost depends on nobody's draw. Solid" in chart.note
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
        rests_on=("which rounds are lost depends on nobody's draw",),
    )
    told = sentence(found, certificate)
    assert "with probability 0.99, a share of 0.700 of the 360 predictions withstands one further attacker" in told
    assert "and some withstand 2, if which rounds are lost depends on nobody's draw." in told
    assert "if which rounds" not in sentence(found, replace(certificate, proved=(0.9, 0.0)))
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
