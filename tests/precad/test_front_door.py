"""The front door: `import precad`, and its functions.

What counts as failure:
- importing `precad` loads one of its parts, or a part imports the front door;
- a function says something else than its command, or than a closed form;
- an error ends the caller's process, has a flag's name, or something is printed that nobody asked for;
- a run needs the main thread, an idle event loop, or a clean folder.
"""

from __future__ import annotations

import asyncio
import doctest
import functools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from rich.console import Console
from scipy import optimize, stats

import precad
from precad import arguments
from precad.clients.models import networks
from precad.deploy.cli.main import app
from precad.deploy.errors import InterruptedRunError
from precad.deploy.exporting.export import export, source_of
from precad.deploy.localhost import resuming
from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.localhost.fork_server import CLIENTS
from precad.deploy.localhost.forks import Forks
from precad.deploy.localhost.whole import complete, prepare
from precad.dp.accountants.pld import Label, View
from tests.deploy.exporting.test_export import LETTERS, ROLES, write_state
from tests.harness.command_line import CliRunner
from tests.harness.pki import Pki
from tests.harness.run_folders import deployed
from tests.test_structure import imported, sources

ROOT = Path(__file__).resolve().parents[2]
TASK = {
    "name": "digits",
    "clients": ["anna", "boris", "chloe"],
    "rounds": 3,
    "model": "mlp",
    "delta": 1e-5,
    "client_rate": 1.0,
    "record_rate": 0.5,
    "record_clip": 1.0,
    "client_clip": 16.0,
    "noise_multiplier": 4.6,
    "learning_rate": 3.0,
    "gate": "native",
}
CONFIG: dict[str, Any] = {"task": TASK, "client": {"dataset": "digits"}}
FUNCTIONS = ("account", "audit", "certify", "run", "simulate", "verify_export")


def printed(*arguments: object) -> Any:
    """Return what the command prints with `--json`, in this process."""
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"], prog_name="precad")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def python(code: str, **options: Any) -> str:
    """Return what a program prints, in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=250, **options
    )
    return done.stdout


# -- the door ----------------------------------------------------------------------------------------------------------


def test_importing_precad_loads_none_of_its_parts() -> None:
    """Nor does naming a function, but for the errors that it raises: only a call does."""
    code = (
        "import sys, precad\n"
        "print(sorted(m for m in sys.modules if m.startswith('precad')))\n"
        f"for name in {FUNCTIONS}: getattr(precad, name)\n"
        "print([m for m in ('torch', 'numpy', 'grpc', 'scipy', 'pydantic', 'rich') if m in sys.modules])\n"
        "print(sorted(m for m in sys.modules if m.startswith('precad')))\n"
    )
    alone, heavy, used = python(code).splitlines()

    assert alone == "['precad']"
    assert heavy == "[]"
    assert used == "['precad', 'precad.arguments', 'precad.deploy', 'precad.deploy.errors', 'precad.front_door']"


def test_importing_precad_loads_nothing_but_python() -> None:
    """No package of anybody's, so that it takes a small part of the 0.2 s that `precad bench startup` allows it."""
    code = (
        "import sys\n"
        "before = {*sys.modules}\n"
        "import precad\n"
        "print(sorted({m.split('.')[0] for m in {*sys.modules} - before} - sys.stdlib_module_names))\n"
    )
    assert python(code).strip() == "['precad']"


def test_every_name_of_the_front_door_is_there() -> None:
    assert {*FUNCTIONS, "__version__"} < set(precad.__all__) <= set(dir(precad))
    assert [name for name in precad.__all__ if getattr(precad, name, None) is None] == []
    assert printed_version() == precad.__version__
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        precad.nothing  # noqa: B018


def printed_version() -> str:
    return CliRunner().invoke(app, ["--version"]).output.split(",")[0].removeprefix("precad ")


def through_the_door(texts: Mapping[str, str]) -> list[str]:
    """Files that import `precad` itself, one of its functions or results, or their modules."""
    names = {"precad", *(f"precad.{name}" for name in (*precad.__all__, "front_door", "arguments", "results", "tasks"))}
    modules = ("precad.front_door.", "precad.arguments.", "precad.results.", "precad.tasks.")
    found = {path: imported(text) for path, text in texts.items()}
    return [
        path for path, names_of in found.items() if names_of & names or any(n.startswith(modules) for n in names_of)
    ]


def test_no_part_imports_the_front_door() -> None:
    assert through_the_door(sources()) == []


@pytest.mark.parametrize(
    "line", ["import precad", "from precad import simulate", "def f():\n    from precad.results import Account"]
)
def test_a_planted_import_of_the_front_door_is_found(line: str) -> None:
    assert through_the_door({"deploy/planted.py": line}) == ["deploy/planted.py"]


# -- account and certify -----------------------------------------------------------------------------------------------


def gaussian_epsilon(multiplier: float, rounds: int, delta: float) -> float:
    """Exact, of so many releases with Gaussian noise and no sampling (Balle and Wang 2018, theorem 8)."""
    mu = math.sqrt(rounds) / multiplier

    def excess(epsilon: float) -> float:
        tail = stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return float(stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + tail) - delta)

    return float(optimize.brentq(excess, 0.0, 100.0, xtol=1e-9))


def test_account_is_exact_where_nothing_is_sampled() -> None:
    """One server's noise against a server, both servers' against clients: bounds, hardly above the closed form."""
    found = precad.account(sigma=8.0, q=1.0, p=1.0, rounds=20, delta=1e-5, participation=20)
    for view, multiplier in ((found.one_server, 8.0), (found.clients_only, math.sqrt(2) * 8.0)):
        exact = gaussian_epsilon(multiplier, 20, 1e-5)
        assert exact - 1e-9 <= view.epsilon <= exact * 1.001
        assert view.accountants["pld"].label is Label.BOUND
        assert view.accountants["pld"].value == view.epsilon
        assert view.epsilon_if_discarded == pytest.approx(
            gaussian_epsilon(multiplier, view.most_rounds, 1e-5), rel=1e-3
        )


def test_account_says_what_its_command_says(tmp_path: Path) -> None:
    """From a file, from a mapping and from arguments."""
    path = tmp_path / "task.toml"
    path.write_text(tomli_w.dumps(CONFIG))
    expected = printed("account", path, "--rounds", 5, "--calibrate", 3)

    found = precad.account(CONFIG, rounds=5, target_epsilon=3.0)
    assert found.report == expected
    assert precad.account(path, rounds=5).one_server == found.one_server
    assert found.one_server.epsilon_if_discarded == expected["one_server"]["if_discarded"]["epsilon"]
    assert found.calibrated is not None
    assert (
        found.calibrated[View.CLIENTS_ONLY].smallest_sigma == expected["calibrated"]["clients_only"]["smallest_sigma"]
    )
    assert found.client_level is not None
    assert found.client_level.epsilon == expected["client_level"]["bound"]


def test_numbers_of_numpy_are_numbers() -> None:
    """An array's entry is what a loop over plans hands in."""
    given = {"sigma": 1.0, "q": 0.1, "p": 0.05, "rounds": 5, "delta": 1e-5}
    of_numpy = {name: (np.float64 if isinstance(value, float) else np.int64)(value) for name, value in given.items()}
    assert precad.account(**of_numpy).report == precad.account(**given).report  # type: ignore[arg-type]
    assert json.dumps(precad.account(**of_numpy).report)  # type: ignore[arg-type]
    assert arguments.count_of("rounds", np.int32(7)) == 7
    for wrong in (np.float64(7), np.bool_(True), True, np.int64(0)):
        with pytest.raises(precad.ConfigError, match=r"^rounds: expected an integer of at least 1, found "):
            arguments.count_of("rounds", wrong)


def test_certify_is_exact_where_nothing_is_sampled() -> None:
    """One Gaussian release: k attackers change a prediction once k / sigma is half the lead in quantiles."""
    rows = np.array([[0.95, 0.05], [0.3, 0.7], [0.1, 0.6]])
    found = precad.certify(rows, np.array([0, 1, 0]), q=1.0, sigma=4.0, rounds=1, method="exact")

    leads = [stats.norm.ppf(max(row)) - stats.norm.ppf(min(row)) for row in rows]
    assert found.tolerated == {"exact": [math.ceil(4.0 * lead / 2) - 1 for lead in leads]}
    assert found.accuracy == pytest.approx(2 / 3)
    assert found.certified_accuracy["exact"][3] == pytest.approx(1 / 3)
    assert (found.labels["exact"], found.confidence) == (Label.BOUND, None)


def test_certify_says_what_its_command_says(tmp_path: Path) -> None:
    rows, labels = [[0.95, 0.05], [0.2, 0.45, 0.35]], [0, 2]
    path = tmp_path / "confidences.json"
    path.write_text(json.dumps({"confidences": rows, "labels": labels}))
    flags = ["-q", 0.1, "--sigma", 1.8, "--rounds", 3, "--delta", 0.0029, "--trainings", 4000, "--threat", "replace"]

    found = precad.certify(
        rows, labels, q=0.1, sigma=1.8, rounds=3, delta=0.0029, trainings=4000, threat="replace", method="all"
    )
    assert found.report == printed("certify", "--confidences", path, *flags)
    tensors = precad.certify(
        torch.tensor(rows[0]).double()[None], torch.tensor([0]), q=0.1, sigma=1.8, rounds=3, method="exact"
    )
    assert len(tensors.tolerated["exact"]) == 1


# -- an export, and runs as evidence -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run, with what both servers keep."""
    root = tmp_path_factory.mktemp("door") / "run"
    deployed(root)
    shutil.rmtree(root / "a")
    Pki.create(root / "pki", ("a",))
    from precad.deploy.configuration.sections import load

    for letter in LETTERS:
        write_state(root / letter, load(root / "config.toml").task, ROLES[letter])
    return root


@pytest.fixture
def exported(finished: Path, tmp_path: Path) -> Path:
    export(source_of(finished, None, None), tmp_path / "model")
    return tmp_path / "model"


def test_certify_of_runs_says_what_its_command_says(finished: Path) -> None:
    found = precad.certify(runs=[finished], method="pld")

    assert found.report == printed("certify", "--run", finished, "--method", "pld")
    assert found.estimate is not None
    assert found.confidence == 0.99


def test_verify_export_says_what_its_command_says(exported: Path, finished: Path) -> None:
    authority = finished / "pki" / "ca.pem"
    found = precad.verify_export(exported, authority=authority)

    assert found.report == printed("verify-export", exported, "--authority", authority)
    assert sorted(found.signatures) == ["aggregator-a", "aggregator-b"]
    assert found.signatures["aggregator-a"].certificate_sha256 != found.signatures["aggregator-b"].certificate_sha256


@pytest.mark.parametrize("name", ["model.pt", "statement.json", "aggregator-a.json", "aggregator-b.sig"])
def test_a_tampered_export_is_refused(exported: Path, finished: Path, name: str) -> None:
    """One bit in the middle of any file."""
    content = bytearray((exported / name).read_bytes())
    content[len(content) // 2] ^= 1
    (exported / name).write_bytes(content)

    with pytest.raises(precad.ExportRefusedError):
        precad.verify_export(exported, authority=finished / "pki" / "ca.pem")


def test_an_export_without_a_wanted_signature_is_refused(exported: Path, finished: Path) -> None:
    authority = finished / "pki" / "ca.pem"
    for path in exported.glob("aggregator-b.*"):
        path.unlink()

    assert list(precad.verify_export(exported, authority=authority, signed_by="a").signatures) == ["aggregator-a"]
    with pytest.raises(precad.ExportRefusedError, match="expected the signature of aggregator-b"):
        precad.verify_export(exported, authority=authority)


# -- simulate ----------------------------------------------------------------------------------------------------------


def test_simulate_trains_what_its_command_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The models have the same bits. The caller may change folders in between."""
    path = tmp_path / "task.toml"
    path.write_text(tomli_w.dumps(CONFIG))
    expected = printed("simulate", path, "--seeds", 2, "--output", tmp_path / "command")
    capfd.readouterr()
    monkeypatch.chdir(tmp_path)
    found = precad.simulate(CONFIG, seeds=[0, 1], folder="library")
    monkeypatch.chdir(ROOT)

    assert capfd.readouterr() == ("", "")
    assert [one.accuracy for one in found.seeds] == [one["accuracy"] for one in expected["seeds"]]
    for one in found.seeds:
        with np.load(tmp_path / "command" / f"seed-{one.seed}.npz") as saved:
            assert np.array_equal(one.parameters(), saved["parameters"])
        assert np.array_equal(networks.flatten(one.load_model()), one.parameters())
        assert [line["round"] for line in one.metrics()] == [0, 1, 2]
        assert "epsilon <=" in one.guarantees[0]
    assert not np.array_equal(found.seeds[0].parameters(), found.seeds[1].parameters())
    found.require_fulfilled()


def test_a_result_hands_out_no_model_that_its_guarantees_are_not_about(tmp_path: Path) -> None:
    """Continue the folder for more rounds: the model there costs more than the first result says."""
    few = precad.simulate(CONFIG, rounds=2, folder=tmp_path / "few").seeds[0]
    first = few.parameters()
    precad.simulate(CONFIG, rounds=2, folder=tmp_path / "few")
    assert np.array_equal(few.parameters(), first)
    more = precad.simulate(CONFIG, rounds=3, folder=tmp_path / "few").seeds[0]
    for read in (few.parameters, few.load_model):
        with pytest.raises(precad.ConfigError, match=r"seed-0\.npz: expected the model of 2 rounds, found one of 3$"):
            read()
    assert [len(one.metrics()) for one in (few, more)] == [2, 3]
    assert more.load_model()


def test_a_simulation_that_diverges_is_a_result(tmp_path: Path) -> None:
    """All seeds come back; who wants an error asks for it."""
    diverging = {**CONFIG, "task": {**TASK, "learning_rate": 1e38}}
    found = precad.simulate(diverging, folder=tmp_path / "run")

    assert found.seeds[0].rounds < 3 or not found.seeds[0].model_is_finite
    with pytest.raises(precad.UnfulfilledError, match="seed 0"):
        found.require_fulfilled()


# -- errors ------------------------------------------------------------------------------------------------------------


def nested(depth: int) -> dict[str, Any]:
    """Return a section in a section, and so on."""
    return functools.reduce(lambda inner, _: {"a": inner}, range(depth), dict[str, Any]())


OWN: Any = precad.App(model="mlp")
CERTIFIED: dict[str, Any] = {"q": 0.1, "sigma": 1.0, "rounds": 3}
REFUSED: list[tuple[str, Callable[[], object], str]] = [
    ("no such file", lambda: precad.simulate("nowhere.toml"), r"nowhere\.toml: expected a readable file"),
    ("empty", lambda: precad.run({}), "config: expected a configuration with a section task"),
    ("no mapping", lambda: precad.run(7), "config: expected a path or a mapping, found 7"),  # type: ignore[arg-type]
    ("no TOML", lambda: precad.run({"task": {"name": None}}), "config: expected names with values that TOML has"),
    ("no bottom", lambda: precad.run({"task": nested(5000)}), "config: expected names with values that TOML has"),
    ("field", lambda: precad.simulate({"task": {**TASK, "delta": 2.0}, "client": {}}), r"task\.delta: .*found 2"),
    ("unknown key", lambda: precad.run({"task": {**TASK, "speed": 1}}), r"task\.speed"),
    ("seeds", lambda: precad.simulate(CONFIG, seeds=0), "seeds: expected distinct integers"),
    ("seeds beyond number", lambda: precad.simulate(CONFIG, seeds=2**70), "^seeds: expected a number of seeds"),
    ("seeds twice", lambda: precad.simulate(CONFIG, seeds=[1, 1]), "seeds: expected distinct integers"),
    ("negative seed", lambda: precad.simulate(CONFIG, seeds=[-1]), "seeds: expected distinct integers"),
    ("no seed", lambda: precad.simulate(CONFIG, seeds=["a"]), "seeds: expected"),  # type: ignore[list-item]
    ("rounds", lambda: precad.simulate(CONFIG, rounds=0), "rounds: expected an integer of at least 1, found 0"),
    ("workers", lambda: precad.simulate(CONFIG, workers=0), "workers: expected an integer of at least 1, found 0"),
    (
        "workers of apps",
        lambda: precad.simulate(CONFIG, clients=[OWN, OWN], workers=2),
        "^workers: expected none beside clients, found 2$",
    ),
    ("no apps", lambda: precad.simulate(CONFIG, clients=[]), "^clients: expected two apps at least, .* found 0$"),
    (
        "clients twice",
        lambda: precad.run(CONFIG, clients=3),
        r"^clients: expected none .* found 3$",
    ),
    (
        "clients of a run",
        lambda: precad.run(CONFIG, clients=["a", "b"]),  # type: ignore[arg-type]
        r"^clients: expected an integer of at least 1, found \['a', 'b'\]; names of clients belong in task\.clients$",
    ),
    ("clients beyond number", lambda: precad.run(CONFIG, clients=1_000_001), "^clients: expected at most 1000000"),
    ("a full folder", lambda: precad.simulate(CONFIG, folder=ROOT), "^folder: expected a new or empty folder"),
    ("a full run folder", lambda: precad.run(CONFIG, ROOT), "^folder: expected a new or empty folder"),
    ("missing", lambda: precad.account(sigma=1.0, q=0.1, rounds=3), "^p: expected a value.*\ndelta: expected a value"),
    ("range", lambda: precad.account(sigma=-1.0, q=0.1, p=0.1, rounds=3, delta=1e-5), "sigma: expected"),
    ("other algorithm", lambda: precad.account({"task": {"algorithm": "local-dp"}}), r"task\.algorithm: expected"),
    ("no evidence", lambda: precad.certify(**CERTIFIED), "^confidences: expected a value.*\nlabels: expected"),
    ("both", lambda: precad.certify([[1.0, 0.0]], [0], runs=["x"]), "^confidences: expected none beside runs"),  # type: ignore[call-overload]
    ("no runs", lambda: precad.certify(runs=[]), "^runs: expected a list of folders"),
    ("one string", lambda: precad.certify(runs="runs/x"), "^runs: expected a list of folders"),
    ("no run", lambda: precad.certify(runs=["nowhere"]), r"nowhere/config\.toml: expected a readable file"),
    ("shape", lambda: precad.certify([[0.4]], [0], **CERTIFIED), "^confidences: expected at least two numbers"),
    ("threat", lambda: precad.certify([[1.0, 0.0]], [0], threat="x", **CERTIFIED), "^threat: expected one of add"),  # type: ignore[call-overload]
    ("a run that is a number", lambda: precad.certify(runs=5), "^runs: expected a list of folders, .* found 5$"),  # type: ignore[arg-type]
    ("bytes for runs", lambda: precad.certify(runs=b"x"), "^runs: expected a list of folders, .* found b'x'$"),  # type: ignore[arg-type]
    ("psi", lambda: precad.certify([[1.0, 0.0]], [0], psi=2.0, **CERTIFIED), "psi"),
    ("search", lambda: precad.certify([[1.0, 0.0]], [0], at_most=2**63, **CERTIFIED), "^at_most: expected at most"),
    ("authority", lambda: precad.verify_export(ROOT / "docs", authority="no.pem"), "^authority: expected a readable"),
    ("no export", lambda: precad.verify_export("nowhere", authority="no.pem"), "^folder: expected a folder"),
    (
        "a long name",
        lambda: precad.run(CONFIG, "a" * 300),
        "^folder: expected a path that .* found a name",
    ),
    ("a NUL", lambda: precad.simulate("a\0.toml"), "^config: expected a path that the system takes, found a NUL"),
    ("no path", lambda: precad.simulate(CONFIG, folder=3), "^folder: expected a path, found a int"),  # type: ignore[arg-type]
    ("no path of an export", lambda: precad.verify_export(3, authority="x"), "^folder: expected a path, found a int"),  # type: ignore[arg-type]
    ("no path of a run", lambda: precad.audit(3), "^run: expected a path, found a int"),  # type: ignore[arg-type]
    ("signers", lambda: precad.verify_export("x", authority="y", signed_by=["a"]), "^signed_by: expected one of both"),  # type: ignore[arg-type]
    ("signer", lambda: precad.verify_export("x", authority="y", signed_by="c"), "^signed_by: expected one of both"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "said"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_wrong_argument_is_named(
    call: Callable[[], object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    """With what was expected and found. Nothing is printed, and no folder is made."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(precad.ConfigError) as raised:
        call()

    assert re.search(said, str(raised.value)), raised.value
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_a_simulation_in_the_place_of_a_run_is_named(tmp_path: Path) -> None:
    """By the function's argument, not the command's flag; nothing asks for servers that it cannot have."""
    (tmp_path / "config.toml").write_text("[task]\n[simulation]\n")
    (tmp_path / "seed-0.jsonl").touch()
    expected = f"{tmp_path}: expected a folder of `precad run`, found one of `precad simulate`"
    with pytest.raises(precad.ConfigError, match=f"^runs {expected}$"):
        precad.certify(runs=[tmp_path])
    with pytest.raises(precad.ConfigError, match=f"^{expected}$"):
        precad.audit(tmp_path)


def test_unknown_names_and_data_are_value_errors(tmp_path: Path) -> None:
    """As the client raises them."""
    attacked = {**CONFIG, "simulation": {"attack": {"kind": "nothing", "clients": 1}}}
    with pytest.raises(ValueError, match="unknown attack 'nothing'"):
        precad.simulate(attacked, folder=tmp_path / "run")


def test_a_mapping_is_left_as_it_was(tmp_path: Path) -> None:
    """It is taken as the file that it would be, so that nothing of it is changed or kept."""
    given = {"task": {**TASK, "clients": tuple(TASK["clients"])}}  # type: ignore[arg-type]
    taken = arguments.contents(given)
    taken["task"]["clients"].append("dora")

    assert given["task"]["clients"] == ("anna", "boris", "chloe")
    assert arguments.contents(CONFIG) == CONFIG


# -- run ---------------------------------------------------------------------------------------------------------------


def test_a_run_below_an_event_loop_can_be_interrupted(tmp_path: Path) -> None:
    """As in a notebook: the run is in another thread, which gets no signals. No process is left."""
    local = prepare(CONFIG, tmp_path / "run", Console(quiet=True))
    local.interrupt()

    async def cell() -> None:
        complete(local)

    with pytest.raises(InterruptedRunError):
        asyncio.run(cell())
    assert all(child.exit_code is not None for child in local._children.all)


def test_a_run_whose_servers_never_leave_has_ended_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pages stay open, yet a ledger stays held, too: the servers are stopped, and what was trained is kept."""
    monkeypatch.setattr(resuming, "CLOSING_S", 0.0)
    monkeypatch.setattr(resuming, "is_open", lambda path: True)
    local = prepare(CONFIG, tmp_path / "run", Console(quiet=True), dashboard=True, stays=True)
    summary = complete(local, stays=True)
    assert summary["rounds"] == CONFIG["task"]["rounds"]
    assert all(child.exit_code is not None for child in local._children.all)


def test_a_run_can_be_interrupted_while_a_process_starts(tmp_path: Path) -> None:
    """Starting one may take as long as loading code. Here it takes for ever, as the fork server is stopped."""
    forks = Forks("native")
    os.kill(forks._process.pid, signal.SIGSTOP)
    forks._stages.add(CLIENTS)
    local = LocalRun(CONFIG, tmp_path / "run", Console(quiet=True), forks=forks)
    raised: list[BaseException] = []

    def script() -> None:
        with pytest.raises(InterruptedRunError) as caught:
            asyncio.run(local.run())
        raised.append(caught.value)

    running = threading.Thread(target=script, daemon=True)
    running.start()
    deadline = time.monotonic() + 60.0
    while not forks._one_start.locked():
        assert time.monotonic() < deadline, "the run starts no process"
        time.sleep(0.02)
    local.interrupt()
    running.join(60)
    forks._process.kill()  # a run that hangs must not outlive the test
    (said,) = (str(error) for error in raised)
    assert said.startswith("interrupted; every process was stopped; no round was done: ")
    assert [(child.name, child.exit_code is None) for child in local._children.all] == [("anna", False)]


def test_a_run_ends_on_sigterm_while_it_starts_and_gives_the_callers_handlers_back(tmp_path: Path) -> None:
    """A program that has its own way to stop keeps it. No process is left."""
    is_over = threading.Event()

    def own(*_: object) -> None:
        """Stop in a way of one's own."""

    def terminate() -> None:
        while not is_over.wait(0.01):
            if signal.getsignal(signal.SIGTERM) is not own:
                os.kill(os.getpid(), signal.SIGTERM)
                return

    kept = signal.signal(signal.SIGTERM, own)
    terminating = threading.Thread(target=terminate)
    terminating.start()
    try:
        local = prepare(CONFIG, tmp_path / "run", Console(quiet=True))
        with pytest.raises(InterruptedRunError):
            complete(local)
        assert signal.getsignal(signal.SIGTERM) is own
        assert all(child.exit_code is not None for child in local._children.all)
    finally:
        is_over.set()
        terminating.join()
        signal.signal(signal.SIGTERM, kept)


SCRIPT = f"""
import json, sys
import precad
found = precad.run({CONFIG!r}, "run")
print(json.dumps({{"rounds": found.rounds, "summary": dict(found.summary), "metrics": len(found.metrics())}}))
found.load_model()
"""
HOSTILE = ("mpc", "dp", "clients", "servers", "protos", "deploy", "lab", "benchmarks")
CHILDREN_ONLY = ("aiohttp", "prometheus_client", "typer")
"""Libraries that the servers import and `precad.run` does not: a script's own folder comes first for the script."""


def test_a_run_imports_no_library_that_its_children_alone_need(tmp_path: Path) -> None:
    """A script's folder may hold something else of that name; and imports are what a run's start waits for."""
    code = "import precad.deploy.localhost.deployment, sys\nprint([m for m in %r if m in sys.modules])"
    assert python(code % (CHILDREN_ONLY,)).strip() == "[]"


@pytest.mark.slow
def test_run_works_from_a_script_in_a_hostile_folder(tmp_path: Path) -> None:
    """Folders with our folders' names lie beside it, and some with names of libraries that only children import."""
    for name in (*HOSTILE, *CHILDREN_ONLY):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('hostile')\n")
    (tmp_path / "script.py").write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["summary"] == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (said["rounds"], said["metrics"], said["summary"]["accepted"]) == (3, 3, 9)
    assert said["summary"]["processes"] == 6


# -- examples ----------------------------------------------------------------------------------------------------------

CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGE, RUNS = (ROOT / "docs" / "tutorial" / "library.md").read_text().split("## A deployment on this machine")


def test_the_pages_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run docs/tutorial/library.md in its order, up to real processes."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    blocks = CODE.findall(PAGE)
    for block in blocks:
        exec(block, names)

    assert len(blocks) >= 5
    assert len(names["curve"]) >= 2


@pytest.mark.slow
def test_the_pages_code_runs_over_real_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the page, below a running event loop, as in a notebook; the example of `verify_export` with it."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"precad": precad, "task": dict(TASK)}
    running, verifying = CODE.findall(RUNS)

    async def cell() -> None:
        exec(running, names)

    asyncio.run(cell())
    export(source_of(Path("runs/first"), None, None), Path("model"))
    exec(verifying, names)
    require_examples("verify_export")


@pytest.mark.parametrize("name", ["account", "certify", "fix", "lora", "simulate"])
def test_the_example_of_a_function_is_true(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    require_examples(name)


@pytest.mark.slow
def test_the_example_of_run_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    require_examples("run")


def require_examples(name: str) -> None:
    """Run the examples of a function's docstring."""
    example = doctest.DocTestParser().get_doctest(
        getattr(precad, name).__doc__, {"precad": precad}, name, "precad/front_door.py", 0
    )
    result = doctest.DocTestRunner().run(example)
    assert result.attempted >= 2
    assert result.failed == 0


# -- types -------------------------------------------------------------------------------------------------------------

USER = """
import precad

account = precad.account(sigma=1.0, q=0.1, p=0.1, rounds=3, delta=1e-5)
reveal_type(account.one_server.epsilon)
reveal_type(precad.certify([[0.9, 0.1]], [0], q=0.1, sigma=1.0, rounds=3).tolerated)
reveal_type(precad.certify(runs=["a"]))
reveal_type(precad.simulate("task.toml", seeds=3).seeds[0].accuracy)
reveal_type(precad.run({"task": {}}, "folder").folder)
reveal_type(precad.verify_export("model", authority="ca.pem").signatures["a"].signed_on)
reveal_type(precad.__version__)
precad.simulate(3)
precad.certify([[0.9, 0.1]], [0])
precad.nothing
"""


@pytest.mark.slow
def test_a_users_type_checker_sees_the_types(tmp_path: Path) -> None:
    """And refuses a wrong argument, evidence without its parameters, and a name that is not there."""
    (tmp_path / "user.py").write_text(USER)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "user.py"]
    environment = {**os.environ, "MYPYPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    revealed = re.findall(r'Revealed type is "([^"]+)"', done.stdout.replace("builtins.", ""))
    assert revealed == [
        "float",
        "typing.Mapping[str, typing.Sequence[int]]",
        "precad.results.Certificates",
        "float | None",
        "pathlib.Path",
        "str",
        "str",
    ], done.stdout
    faults = re.findall(r"user\.py:\d+: error: .*\[([\w-]+)\]", done.stdout)
    assert faults == ["arg-type", "call-overload", "attr-defined"], done.stdout
