"""`precad bench` end to end at the smallest sizes: real processes, the JSON's shape, peers that are not there."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import sys
from pathlib import Path

import pytest
from rich.console import Console

from precad.deploy.cli.main import app
from precad.deploy.errors import INVALID_INPUT
from precad.lab.bench import (
    adapters,
    noise,
    peer_runs,
    plots,
    proved_targets,
    scale,
    server_pair,
    startup,
    tables,
    training,
    validation,
)
from precad.lab.bench.errors import PlotUnavailableError, ProcessFailedError
from precad.lab.bench.peer_runs import OPACUS, OPENDP, SPU_CHEETAH, SPU_SEMI2K, Cell
from precad.lab.bench.workload import MEMORY_BYTES, Case
from precad.lab.commands import bench as bench_commands
from precad.mpc.parameters import DEALT_MODES
from tests.harness.command_line import CliRunner
from tests.harness.legends import require_clear_of_curves
from tests.mpc.gate_costs import ROUNDS

NOWHERE = Path("/nonexistent/python")
PEERS_PYTHON = Path(__file__).resolve().parents[3] / ".venv-peers" / "bin" / "python"
COLUMNS = {
    "implementation",
    "mode",
    "d",
    "clients",
    "ms_per_client",
    "ns_per_coordinate",
    "bytes_up",
    "bytes_link",
    "rounds",
    "sound",
}
needs_crypten = pytest.mark.skipif(importlib.util.find_spec("crypten") is None, reason="CrypTen is not installed")
needs_peers = pytest.mark.skipif(not PEERS_PYTHON.exists(), reason="make peers")


def bench(*arguments):
    """The report that a command prints with --json, and what people see."""
    done = CliRunner().invoke(app, ["bench", *arguments, "--json", "--peers-python", str(NOWHERE)])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), done.stderr


@pytest.mark.slow
def test_startup_report():
    """A row per thing that is waited for, and a first line before a first round."""
    done = CliRunner().invoke(app, ["bench", "startup", "--repetitions", "1", "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    rows = {row["what"]: row for row in report["rows"]}

    assert report["targets"][0]["measured"] == rows["import"]["warm_s"]
    assert list(rows) == ["import", "help", "config-error", "first-line", "first-round"]
    assert all(row["warm_s"] > 0 and row["cold_s"] > 0 for row in rows.values())
    assert rows["first-line"]["warm_s"] < rows["first-round"]["warm_s"]


@pytest.mark.parametrize(("seconds", "verdict"), [(0.03, "met"), (0.2, "met"), (0.21, "missed")])
def test_the_target_of_the_import_is_a_benchmarks(seconds: float, verdict: str):
    """`precad bench startup` compares the median of warm imports with it, and prints both."""
    row = {"cold_s": 1.0, "warm_s": seconds, "warm_s_q1": 0.0, "warm_s_q3": 1.0}
    rows = [row | {"what": "help", "warm_s": 9.0}, row | {"what": "import"}]
    file = io.StringIO()
    tables.print_startup(Console(file=file, width=120), {"rows": rows, "targets": [startup.target_of(rows)]})
    assert f"import, warm s: {seconds:.3g}, target at most 0.2: {verdict}" in file.getvalue()


def test_a_start_that_does_not_end_as_it_should_is_no_measurement():
    """A command that runs where an error is expected says nothing about errors."""
    with pytest.raises(ProcessFailedError, match="expected exit code 2, found 0"):
        startup._to_exit([sys.executable, "-c", "pass"], dict(os.environ), code=2)


@pytest.mark.parametrize("mode", ["masked", "proved"])
def test_threads_report(mode):
    """A row per number of threads, one first; every result was the same, or there would be none."""
    sizes = ["--dim", "300000", "--clients", "3", "--threads", "2", "--repetitions", "2"]
    done = CliRunner().invoke(app, ["bench", "threads", *sizes, "--mode", mode, "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)

    assert [(row["threads"], row["d"], row["clients"]) for row in report["rows"]] == [(1, 300_000, 3), (2, 300_000, 3)]
    assert report["rows"][0]["ratio"] == 1
    assert report["rows"][1]["ratio"] == pytest.approx(report["rows"][1]["ms"] / report["rows"][0]["ms"])


@needs_crypten
@pytest.mark.slow
def test_validation_report(tmp_path):
    """Every implementation at both sizes, except the peers that are missing; ours are sound, cheap and in time."""
    dims, clients = (64, 300), (1, 3)
    flags = [part for d in dims for part in ("--dim", str(d))] + [
        part for n in clients for part in ("--clients", str(n))
    ]
    report, seen = bench("validation", "--quick", "--repetitions", "1", "--table", str(tmp_path / "proved.txt"), *flags)
    rows = report["rows"]

    assert set(report["missing"]) == {SPU_SEMI2K, SPU_CHEETAH}
    assert "make peers" in seen
    assert report["exchange_ms"] > 0
    assert report["machine"]["cores"] >= 1
    assert all(set(row) >= COLUMNS for row in rows)
    kinds = [(gate, mode.value) for gate in ("crypten", "native") for mode in DEALT_MODES]
    kinds += [("proved", mode) for mode in ("proved", "holder", "seeded")]
    kinds += [("unsound", "masked"), ("floor", None), ("crypten-ttp", "shares")]
    for d in dims:
        for n in clients:
            here = [row for row in rows if (row["d"], row["clients"]) == (d, n)]
            assert {(row["implementation"], row["mode"]) for row in here} == set(kinds)
            assert len(here) == len(kinds)
    for row in rows:
        assert row["ms_per_client_q1"] <= row["ms_per_client"] <= row["ms_per_client_q3"]
        assert row["sound"] is {"crypten": True, "native": True, "proved": True, "floor": None}.get(
            row["implementation"], False
        )
    dealt = [row for row in rows if row["sound"] and row["implementation"] != "proved"]
    for row in dealt:
        assert row["bytes_up"] <= 8 * row["d"] + 1000
        assert row["rounds"] == ROUNDS[row["implementation"]]
        assert set(row["ratio"]) >= {"crypten-ttp", "unsound", "floor"}
    masked = [r["bytes_link"] for r in dealt if r["mode"] == "masked"]
    assert len(masked) == 2 * len(dims) * len(clients)
    assert max(masked) <= 10_000
    proved = [row for row in rows if row["mode"] == "proved"]
    assert {(row["rounds"], *sorted(row["ratio"])) for row in proved} == {
        (3, "crypten-ttp", "floor", "native", "unsound")
    }
    assert all(row["bytes_link"] <= 2_000 for row in proved)
    assert [row["d"] for row in report["proved_clients"]] == list(dims)
    assert all(row["ratio_with_rows"][name] > ratio for row in proved for name, ratio in row["ratio"].items())
    of_rows = "rows of all / a client's proof"
    assert {row["what"] for row in report["targets"]} == {"check / native", of_rows, "upload, bytes"}
    assert "target of proved" in seen
    table = (tmp_path / "proved.txt").read_text().splitlines()
    assert [line.split()[0] for line in table[1:5]] == ["64", "64", "300", "300"]
    assert not any(line.endswith(" ") for line in table)


@pytest.mark.slow
def test_scale_report_of_proofs(monkeypatch):
    """Uploads from the spool's file. A message of the check has 14 (c + 3) bytes a client, and c grows with sqrt(d)."""
    monkeypatch.setattr(scale, "MAX_MEMORY_UPLOAD", 5_000)
    (short, long), _ = scale.Plan((200, 2000), (1,), 1).cases("native", "proved")
    assert (short.memory_bytes, long.memory_bytes) == (MEMORY_BYTES, 5_000)
    report = scale.run(scale.Plan((200, 2000), (1, 4), 1), gate="native", mode="proved")
    assert {row["implementation"] for row in report["rows"]} == {"proved"}
    assert report["slopes"]["d"]["bytes_link_aggregate"] == pytest.approx(1, abs=0.05)
    assert report["slopes"]["d"]["bytes_link_batch"] < 0.6


@pytest.mark.slow
def test_scale_report():
    """Slopes of everything that was measured; what the servers exchange in the check does not grow with d."""
    report = scale.run(scale.Plan((200, 2000), (1, 4), 1), gate="native", mode="masked")

    assert [row["along"] for row in report["rows"]] == ["d", "d", "clients", "clients"]
    assert all(set(slopes) == set(scale.MEASURED) for slopes in report["slopes"].values())
    assert report["slopes"]["d"]["bytes_link_batch"] == pytest.approx(0, abs=0.01)
    assert report["slopes"]["d"]["bytes_link_aggregate"] == pytest.approx(1, abs=0.02)
    assert all(row["peak_rss_bytes"] > 1e6 for row in report["rows"])


@pytest.mark.parametrize("name", ["validation", "noise", "audit", "training", "adapters", "local-training"])
def test_the_help_has_the_repetitions_that_are_taken(name, monkeypatch):
    said = f"{repetitions_of(monkeypatch, name, '--quick')} with --quick, else {repetitions_of(monkeypatch, name)}."
    assert said in help_of(name)


@pytest.mark.parametrize("name", ["scale", "threads", "startup", "robust"])
def test_the_help_has_the_repetitions_that_are_always_taken(name, monkeypatch):
    assert f"after a warm-up. [default: {repetitions_of(monkeypatch, name)};" in help_of(name)


def repetitions_of(monkeypatch, *arguments):
    """Return what a command hands to its benchmark, which is not run."""
    asked = []
    monkeypatch.setattr(bench_commands, "measure", lambda run, *_, **__: asked.append(run))
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 0, done.output
    (run,) = asked
    return run.keywords["repetitions"] if "repetitions" in run.keywords else run.args[0].repetitions


def help_of(name):
    return " ".join(CliRunner().invoke(app, ["bench", name, "--help"], terminal_width=200).stdout.split())


def test_samplers_of_one_process_take_turns(monkeypatch):
    drawn = []
    monkeypatch.setattr(noise.rounded_gaussian, "sample", lambda *_: drawn.append("ours"))
    monkeypatch.setattr(noise.CanonneSampler, "sample", lambda *_: drawn.append("theirs"))
    noise.run(size=10, repetitions=3, peers_python=NOWHERE)
    assert drawn == ["ours", "theirs"] * 5


def test_no_model_is_built_while_a_training_is_timed(monkeypatch):
    """Ours has its engine before the clock starts, so the baselines have their model."""
    built = []
    build = training.networks.build
    monkeypatch.setattr(training.networks, "build", lambda *given, **named: built.append(1) or build(*given, **named))

    def clocked(ways, repetitions):
        built.clear()
        found = {name: work() for name, work in ways.items()}
        return {name: [(1.0, 1.0)] for name in ways}, found

    monkeypatch.setattr(training, "in_turns", clocked)
    training.run(training.Plan(clients=2, records=3, repetitions=1), peers_python=NOWHERE)
    assert built == []


def test_noise_report():
    """Both of ours, OpenDP missing."""
    report, seen = bench("noise", "--quick", "--size", "2000", "--repetitions", "1")

    assert [row["sampler"] for row in report["rows"]] == ["precad", "canonne-vectorised"]
    assert set(report["missing"]) == {OPENDP}
    assert report["rows"][0]["ratio"] == 1
    assert "opendp is not installed" in seen


def test_the_table_of_proofs_has_a_line_per_size():
    """With its ratios where there is something to compare with, and what was missed."""
    common = {"d": 26_010, "clients": 1, "bytes_link": 1_500.0}
    rows = [
        common
        | {"implementation": "proved", "mode": "proved", "ms_per_client": 0.8, "ratio": {"crypten-ttp": 1 / 50}}
        | {"rows_ms_per_client": 0.2, "ratio_with_rows": {"crypten-ttp": 1 / 40}},
        common | {"implementation": "proved", "mode": "holder", "ms_per_client": 0.6},
        common | {"implementation": "proved", "mode": "seeded", "ms_per_client": 0.7},
        common | {"implementation": "native", "mode": "masked", "ms_per_client": 1.0},
    ]
    targets = proved_targets.compared(rows[:1], [])
    shown = tables.text_of(tables.print_proved, {"rows": rows, "proved_clients": [], "targets": targets})
    assert [line.split() for line in shown.splitlines()[1:2]] == [
        ["26,010", "1", "0.8", "0.6", "0.7", "1", "1/50", "0.2", "1/40", "1,500"]
    ]
    assert shown.splitlines()[-1].split()[-3:] == ["0.01667", "0.02", "missed"]


def test_rows_are_compared_with_the_proofs_that_hide_them():
    """Eight rows of 0.2 ms take longer than the one proof of 1.5 ms that clients make at once."""
    check = {"implementation": "proved", "mode": "proved", "d": 300, "ratio": {}, "rows_ms_per_client": 0.2}
    client = {"d": 300, "proof_ms": 1.5, "bytes_up": 1}
    found = proved_targets.compared([check | {"clients": n} for n in (1, 8)], [client])
    of_rows = [(row["clients"], row["met"]) for row in found if row["what"] == "rows of all / a client's proof"]
    assert of_rows == [(1, True), (8, False)]


def test_training_report():
    """Everything of ours against the float64 twin; Opacus missing."""
    report, seen = bench("training", "--quick", "--repetitions", "1", "--clients", "2", "--records", "3")
    rows = {row["implementation"]: row for row in report["rows"]}

    assert set(rows) == {"precad", "precad-per-client", "vmap-per-client", "plain", "plain-batch"}
    assert set(report["missing"]) == {OPACUS}
    assert "opacus is not installed" in seen
    for name in ("precad", "precad-per-client", "vmap-per-client"):
        assert rows[name]["relative_error"] <= 1e-5
    assert all(row["samples_per_s"] > 0 for row in report["rows"])
    assert rows["plain-batch"]["ratio"]["plain-batch"] == 1


ADAPTERS = adapters.Plan(clients=2, records=(3,), repetitions=1, rounds=0)


def test_ways_to_gradients_of_adapters_take_turns():
    """Ours against the float64 twin, without the peer."""
    ours, plain = adapters._rows(ADAPTERS, 3, None)

    assert (ours["implementation"], plain["implementation"], ours["d"]) == ("precad", "plain", 32 * (4 * 64 + 64 + 2))
    assert ours["relative_error"] <= 1e-5
    assert ours["ratio"]["plain"] * plain["ratio"]["precad"] == pytest.approx(1)


@pytest.mark.slow
def test_adapters_report(tmp_path):
    """Memory by fresh processes, the bytes of an upload, and a target that was not measured is not listed."""
    table = tmp_path / "adapters.txt"
    sizes = ("--quick", "--repetitions", "1", "--clients", "2", "--records", "3", "--table", str(table))
    report, seen = bench("adapters", *sizes)

    assert set(report["missing"]) == {OPACUS}
    assert "opacus is not installed" in seen
    of_process, of_pass = ([row[name] for row in report["memory"]] for name in ("model_bytes", "pass_bytes"))
    assert min(of_process) > 50e6 > max(of_pass) > min(of_pass) > 0
    targets = {row["what"]: row for row in report["targets"]}
    d = report["rows"][0]["d"]
    assert targets["bytes of an upload, masked"]["measured"] <= 8 * d + 1000
    assert targets["bytes of an upload, proved"]["measured"] <= 7.1 * d + 60e3
    assert [row["met"] for row in report["targets"]][1:] == [True, True]
    assert len(targets) == 3
    assert "bytes of an upload, proved" in table.read_text()


@needs_peers
def test_opacus_has_our_sums_of_adapters():
    """Its own code, in an environment of its own, and the constants that it was given."""
    rows = {row["implementation"]: row for row in adapters._rows(ADAPTERS, 3, PEERS_PYTHON)}

    assert rows["opacus"]["relative_error"] <= 1e-5
    assert rows["precad"]["ratio"]["opacus"] > 0


def test_a_peer_that_fails_ends_the_benchmark_of_adapters():
    with pytest.raises(ProcessFailedError, match="opacus ended: "):
        adapters._rows(ADAPTERS, 3, Path(sys.executable))


def test_local_training_report():
    """Both ways for both models and kinds of steps, against the float64 twin; one way of each pair is chosen."""
    flags = ["--quick", "--repetitions", "1", "--clients", "2", "--records", "3", "--steps", "2", "--json"]
    done = CliRunner().invoke(app, ["bench", "local-training", *flags])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    pairs = [(row["model"], row["kind"], row["implementation"]) for row in rows]

    assert pairs == [(m, k, w) for m in ("mlp", "cnn") for k in ("descent", "dp-sgd") for w in ("loop", "stacked")]
    assert [row["is_chosen"] for row in rows] == [False, True, False, True, True, False, True, False]
    assert all(row["relative_error"] <= 1e-5 for row in rows)
    assert all(row["ratio"]["loop"] == 1 for row in rows if row["implementation"] == "loop")


def test_simulation_report():
    """A row for each size along both axes; what is not gradients is part of the round."""
    sizes = ["--drawn", "3", "--drawn", "6", "--registered", "100", "--records", "3", "--rounds", "2"]
    done = CliRunner().invoke(app, ["bench", "simulation", "--quick", *sizes, "--json"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout)
    rows = report["rows"]

    assert [(row["along"], row["registered"], row["records"]) for row in rows] == [
        ("drawn", 30, 9.0),
        ("drawn", 60, 18.0),
        ("registered", 100, 300.0),
    ]
    assert all(0 < row["gradients_ms"] <= row["ms_per_round_q3"] and row["rest_ms"] > 0 for row in rows)
    assert isinstance(report["slope"], float)


@pytest.mark.slow
def test_opacus_computes_the_same_sums():
    """The peer's clipped sums, against our float64 twin."""
    if (why := peer_runs.missing(OPACUS, PEERS_PYTHON)) is not None:
        pytest.skip(why)
    report = training.run(training.Plan(clients=2, records=3, repetitions=1), peers_python=PEERS_PYTHON)

    assert {row["implementation"]: row["relative_error"] for row in report["rows"]}["opacus"] <= 1e-4


@needs_peers
@pytest.mark.parametrize("peer", [SPU_SEMI2K, SPU_CHEETAH])
def test_spu_rejects_the_one_that_is_too_long(peer):
    """The peer's program stops on a wrong verdict; its log tells bytes and messages."""
    assert peer_runs.missing(peer, PEERS_PYTHON) is None
    (result,) = peer_runs.run_peer(peer, [Cell(128, 2, 1)], PEERS_PYTHON)

    assert result.check.median > 0
    assert result.bytes_link > 0
    assert result.rounds > 0


@needs_peers
def test_opendp_is_measured():
    """Nanoseconds per coordinate."""
    assert peer_runs.run_opendp(1 << 17, 50, 1, PEERS_PYTHON).median > 0


def test_an_environment_without_the_package_is_named(tmp_path):
    """`make peers` may have been interrupted."""
    broken = tmp_path / "bin" / "python"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)

    assert peer_runs.missing(OPENDP, broken) == f"opendp is not installed in {tmp_path}: make peers"


def test_a_process_that_fails_ends_the_benchmark():
    """With its last words, and the other process is stopped."""
    case = Case(implementation="nonsense", mode="masked", dim=8, clients=1, repetitions=1)

    with pytest.raises(ProcessFailedError, match=r"server-[ab] ended with code 1: .*nonsense"):
        server_pair.measure([case])


def test_a_plot_without_matplotlib_is_refused_before_anything_is_measured(monkeypatch, tmp_path):
    """Exit code 2 and the line that helps."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = CliRunner().invoke(app, ["bench", "validation", "--plot", str(tmp_path / "x.png")])

    assert done.exit_code == INVALID_INPUT
    assert "precad[bench]" in done.stderr
    with pytest.raises(PlotUnavailableError):
        plots.require_matplotlib()


def test_plots_are_drawn(tmp_path, monkeypatch):
    """One file per benchmark, no legend over its curves."""
    pytest.importorskip("matplotlib")
    save = plots._save

    def save_and_look(pyplot, figure, path):
        save(pyplot, figure, path)
        require_clear_of_curves(figure)

    monkeypatch.setattr(plots, "_save", save_and_look)
    common = {"ms_per_client": 2.0, "ms_per_client_q1": 1.0, "ms_per_client_q3": 3.0, "clients": 1}
    rows = [{"implementation": name, "mode": "masked", "d": 10, **common} for name in ("native", "floor")]
    plots.plot_validation({"rows": rows}, tmp_path / "validation.png")
    plots.plot_noise({"rows": [{"sampler": "precad", "ns_per_coordinate": 30.0}]}, tmp_path / "noise.png")
    measured = {f"{name}{q}": 1.0 for name in ("validate_s", "aggregate_s") for q in ("", "_q1", "_q3")}
    sizes = [{"along": along, "d": 10, "clients": 2, **measured} for along in ("d", "clients")]
    slopes = {along: {"validate_s": 1.0, "aggregate_s": None} for along in ("d", "clients")}
    plots.plot_scale({"rows": sizes, "slopes": slopes}, tmp_path / "scale.png")

    settings = [
        {"setting": "precad", "gate": "native", "phases_s": {"collect": 1.0, "validate": 1.0}},
        {"setting": "local-dp", "gate": None, "phases_s": {"collect": 1.0, "update": 1.0}},
    ]
    plots.plot_overhead({"rows": settings}, tmp_path / "overhead.png")
    engines = [{"implementation": name, "samples_per_s": 1000.0} for name in ("precad", "opacus")]
    plots.plot_training({"rows": engines}, tmp_path / "training.png")
    stacks = [row | {"model": "mlp", "kind": "descent", "clients": 10} for row in engines]
    plots.plot_local_training({"rows": stacks}, tmp_path / "local-training.png")
    parts = {"gradients_ms": 2.0, "rest_ms": 1.0, **{f"ms_per_round{q}": 3.0 for q in ("", "_q1", "_q3")}}
    rounds = [{"along": along, "records": 300.0, "registered": 100, **parts} for along in ("drawn", "registered")]
    plots.plot_simulation({"rows": rounds}, tmp_path / "simulation.png")

    assert {path.stat().st_size > 1000 for path in tmp_path.iterdir()} == {True}
    assert len(list(tmp_path.iterdir())) == 7


@pytest.mark.parametrize("mode", DEALT_MODES)
@pytest.mark.parametrize("dim", [3, 26_010, 1_000_000])
def test_upload_is_eight_bytes_a_coordinate(mode, dim):
    """And at most 1 kB beside that."""
    assert 8 * dim < validation.bytes_up(mode, dim) <= 8 * dim + 1000


@pytest.mark.slow
def test_trimmed_sums_are_measured_beside_the_plain_check(tmp_path):
    """Over two real processes: eight messages more for the test, six for the trim, twelve for Krum instead.

    The dealer sends 8d bytes more a client for the trim.
    """
    shown = tmp_path / "table.txt"
    given = ["--dim", "50", "--clients", "8", "--repetitions", "1", "--table", str(shown), "--json"]
    done = CliRunner().invoke(app, ["bench", "robust", *given])
    assert done.exit_code == 0, done.output
    rows = {row["implementation"]: row for row in json.loads(done.stdout)["rows"]}
    compared = 1  # the verdicts, before anything is opened
    rounds = {name: row["rounds"] - ROUNDS["native"] for name, row in rows.items()}
    assert rounds == {"native": 0, "tested": compared + 8, "trimmed": compared + 8 + 6, "krum": compared + 12}
    assert rows["trimmed"]["bytes_dealer"] - rows["native"]["bytes_dealer"] > 8 * 8 * 51
    assert "trimmed" in shown.read_text()
    done = CliRunner().invoke(app, ["bench", "robust", "--only", "krum", *given])
    assert [row["implementation"] for row in json.loads(done.stdout)["rows"]] == ["native", "krum"]
