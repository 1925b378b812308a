"""Foreign trainers in a task of real processes: precad run with hostile ones, precad client with a Flower app.

Failure means one of these:
- a trainer that hangs, crashes, raises or returns no numbers keeps its client from a round, or ends it;
- something of its records is in a log, a summary or a report;
- a figure about one record is shown, or it is not said why there is none;
- more than C is sent, or was cut without being counted.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from precad.deploy.configuration.demo import demo_config
from precad.deploy.configuration.sections import load
from precad.deploy.reporting.guarantees import guarantees_of
from precad.deploy.reporting.run_folder import read_deployed
from precad.dp.accountants.gaussian_dp import eps_from_mu
from precad.dp.accountants.pld import Unit
from precad.protos.tls.identity import Role
from tests.harness.flower import flower_python, write_app
from tests.harness.harness import free_addresses
from tests.harness.nvflare import nvflare_python
from tests.harness.organisations import CLIENTS, SERVERS, Organisations

pytestmark = pytest.mark.slow

PRECAD = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]
ROUNDS = 3
USER_DP = {"algorithm": "user-dp-fedavg", "client_clip": 0.5, "noise_multiplier": 3.0, "learning_rate": 1.0}
MIXED = """
import os, time
import numpy as np

def train(arrays, config):
    print("PATIENT 4711081547")
    client = config["client"]
    if client == "client-1":
        raise ValueError("PATIENT 4711081547")
    if client == "client-2":
        os._exit(1)
    if client == "client-3" and config["round"] == 2:
        time.sleep(600)
    if client == "client-4":
        return {name: values * np.nan for name, values in arrays.items()}
    step = 10 if client == "client-0" else 1e-5
    return {name: values + np.float32(step) for name, values in arrays.items()}
"""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Run a training of five clients whose trainers misbehave in ways of their own. Return its folder and output."""
    root = tmp_path_factory.mktemp("mixed")
    (root / "mixed.py").write_text(MIXED)
    raw: dict[str, Any] = demo_config(n_clients=5, rounds=ROUNDS)
    raw["task"] |= {**USER_DP, "client_rate": 1.0}
    raw["client"].pop("attacks")
    raw["client"] |= {"trainer": "mixed:train", "trainer_timeout_s": 3.0, "trainer_isolation": "best-effort"}
    (root / "run.toml").write_text(tomli_w.dumps(raw))
    command = [*PRECAD, "run", str(root / "run.toml"), "--output", str(root / "out")]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    return root / "out", done.stdout + done.stderr


def test_every_client_uploads_in_every_round(mixed: tuple[Path, str]) -> None:
    """One of them hangs in its second training; its third is its new process's first."""
    folder, _ = mixed
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["accepted"], summary["rejected"], summary["missing"]) == (5 * ROUNDS, 0, 0)
    counts = {name: summary["trainer"][name] for name in ("trained", "clipped", "failed")}
    assert counts == {"trained": ROUNDS + 2, "clipped": ROUNDS, "failed": 3 * ROUNDS + 1}


def test_no_record_is_in_what_a_run_leaves(mixed: tuple[Path, str]) -> None:
    folder, printed = mixed
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert len(files) > 20
    assert not [file for file in files if b"4711081547" in file.read_bytes()]
    assert "4711081547" not in printed


def test_whole_clients_alone_have_figures_and_the_reason_is_said(mixed: tuple[Path, str]) -> None:
    folder, printed = mixed
    words = re.sub(r"\s+", " ", printed)
    assert "one record: no figure; the trainer is foreign code" in words
    assert "mixed:train: 5 trainings, 3 clipped to C, 10 failed" in words
    run = read_deployed(folder)
    assert {statement.unit for statement in run.statements} == {Unit.CLIENT}
    (row,) = [row for row in guarantees_of(run, "none") if "one record" in row.against]
    assert row.what == "no figure is shown for one record"
    assert "foreign code" in row.rests_on
    assert not row.is_proved
    assert "no figure is shown for one record" in (folder / "report.html").read_text()


def test_a_run_whose_trainings_all_failed_is_no_success(tmp_path: Path) -> None:
    """Whoever starts it from a script reads code 3, once all files are written, and where to look."""
    (tmp_path / "broken.py").write_text('def train(arrays, config):\n    raise ValueError("PATIENT 4711081547")\n')
    raw: dict[str, Any] = demo_config(n_clients=3, rounds=2)
    raw["task"] |= {**USER_DP, "client_rate": 1.0}
    raw["client"] = {"trainer": "broken:train", "trainer_isolation": "best-effort"}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(raw))
    command = [*PRECAD, "run", str(tmp_path / "run.toml"), "--output", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 3, done.stderr
    assert "broken:train: expected trainings, found 6 that failed; " in done.stderr
    assert "4711081547" not in done.stdout + done.stderr
    assert json.loads((tmp_path / "out/summary.json").read_text())["trainer"]["failed"] == 6


EVALUATING = """
import numpy as np

class Ward:
    def __call__(self, arrays, config):
        return {name: values + np.float32(1e-5) for name, values in arrays.items()}

    def evaluate(self, arrays, config):
        if config["client"] == "client-3":
            raise ValueError("PATIENT 4711081547")
        return (1e9, 1e9, 0.0) if config["client"] == "client-2" else (80, 100, 150.0)

train = Ward()
"""


def test_foreign_trainers_evaluate_and_a_liar_moves_the_sum_by_its_ball(tmp_path: Path) -> None:
    """Two of 100 records, 80 right; one claims 10^9 right, and is cut to C = 100; one fails, and adds nothing.

    Each number of the sum has noise of 2.8, so the bound of 25 records is of six standard deviations.
    """
    (tmp_path / "ward.py").write_text(EVALUATING)
    raw: dict[str, Any] = demo_config(n_clients=4, rounds=2)
    terms = {"evaluation": "clients", "evaluation_every": 2, "evaluation_noise": 2.0, "evaluation_clip": 100.0}
    raw["task"] |= {**USER_DP, **terms, "client_rate": 1.0}
    raw["client"] = {"trainer": "ward:train", "trainer_isolation": "best-effort"}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(raw))
    command = [*PRECAD, "run", str(tmp_path / "run.toml"), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    (found,) = summary["evaluations"]
    assert found["figures"]["records"]["value"] == pytest.approx(300, abs=25)
    assert found["figures"]["accuracy"]["value"] == pytest.approx(260 / 300, abs=0.08)
    assert found["figures"]["loss"]["value"] == pytest.approx(1.0, abs=0.3)
    assert (summary["accepted"], summary["trainer"]["failed"]) == (8, 0)
    assert not [file for file in (tmp_path / "out").rglob("*") if file.is_file() and b"4711081547" in file.read_bytes()]


def test_a_task_of_records_refuses_a_foreign_trainer(tmp_path: Path) -> None:
    raw = demo_config(n_clients=3, rounds=1)
    raw["client"] = {"trainer": "mixed:train"}
    (tmp_path / "run.toml").write_text(tomli_w.dumps(raw))
    command = [*PRECAD, "run", str(tmp_path / "run.toml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 2
    assert "client.trainer: expected task.algorithm 'user-dp-fedavg'" in done.stderr


def _organisations(root: Path) -> Organisations:
    """Return the samples' organisations on this machine, in a task of whole clients with the Flower app's model."""
    made = Organisations.create(root)
    write_app(made.folder(Role.CLIENT), len(CLIENTS))
    ports = dict(zip(SERVERS, free_addresses(len(SERVERS)), strict=True))
    changes = {
        "rounds = 10": f"rounds = {ROUNDS}",
        "3600.0": "120.0",
        'algorithm = "precad"': 'algorithm = "user-dp-fedavg"',
        "client_clip = 64.0": "client_clip = 0.5",
        "noise_multiplier = 4.6": "noise_multiplier = 5.0",
        "learning_rate = 3.0": "learning_rate = 1.0",
        'model = "torch.nn:Linear"': 'model = "twin:Flat"',
        "model_arguments = { in_features = 6, out_features = 2 }\n": "",
        "dim = 14\n": "dim = 650\n",
        'lane_listen = "0.0.0.0:7003"': f'lane_listen = "{free_addresses(1)[0]}"',
    }
    changes |= {f'"0.0.0.0:{port}"': f'"{ports[role]}"' for role, port in zip(SERVERS, (7001, 7002, 7004), strict=True)}
    made.write_configs(ports, changes)
    task = load(made.config(Role.CLIENT)).task
    assert (task.model, task.dim, task.rounds, task.client_clip) == ("twin:Flat", 650, ROUNDS, 0.5)
    for role in (*SERVERS, Role.CLIENT):
        text = made.config(role).read_text().replace("127.0.0.1:9464", free_addresses(1)[0])
        made.config(role).write_text(text)
    for role in (Role.AGGREGATOR_A, Role.AGGREGATOR_B):
        config, file = made.config(Role.CLIENT), made.folder(role) / "initial.npy"
        subprocess.run([*PRECAD, "initial-model", str(config), str(file)], check=True, capture_output=True)
    return made


def test_an_unmodified_flower_app_takes_part_by_precad_client(tmp_path: Path) -> None:
    flags = ["--flower", "ward.client_app:app", "--flower-python", str(flower_python())]
    _takes_part(_organisations(tmp_path), flags, tmp_path)


NVFLARE_SCRIPT = """
import nvflare.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    flare.send(flare.FLModel(params={name: values + 10 for name, values in model.params.items()}))
"""


def test_a_script_of_nvflare_takes_part_by_precad_client(tmp_path: Path) -> None:
    flags = ["--nvflare", "train.py", "--nvflare-python", str(nvflare_python())]
    made = _organisations(tmp_path)
    (made.folder(Role.CLIENT) / "train.py").write_text(NVFLARE_SCRIPT)
    _takes_part(made, flags, tmp_path)


def _takes_part(made: Organisations, flags: list[str], tmp_path: Path) -> None:
    """Run all organisations. The bound is printed first, and is that of Gaussian noise; all that is sent is over C."""
    config = str(made.config(Role.CLIENT))
    commands = {
        "dealer": ["serve", "dealer", str(made.config(Role.DEALER))],
        "a": ["serve", "aggregator", str(made.config(Role.AGGREGATOR_A)), "--role", "a"],
        "b": ["serve", "aggregator", str(made.config(Role.AGGREGATOR_B)), "--role", "b"],
        **{name: ["client", config, "--id", name, *flags] for name in CLIENTS},
    }
    running = {}
    try:
        for name, arguments in commands.items():
            with (tmp_path / f"{name}.log").open("wb") as log:
                running[name] = subprocess.Popen([*PRECAD, *arguments], stdout=log, stderr=log)
        codes = {name: process.wait(200) for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    logs = {name: (tmp_path / f"{name}.log").read_text() for name in running}
    assert set(codes.values()) == {0}, logs
    for name in CLIENTS:
        (stated,) = re.findall(r"one whole client, against one server .*: epsilon <= (\S+) at delta", logs[name])
        assert 0 <= float(stated) - eps_from_mu(1e-5, ROUNDS**0.5 / 5.0) < 0.02
        assert "one record: no figure; the trainer is foreign code" in logs[name]
        last = [json.loads(line) for line in logs[name].splitlines() if '"client.trained"' in line][-1]
        assert (last["trained"], last["clipped"], last["failed"]) == (ROUNDS, ROUNDS, 0)
        prom = (made.folder(Role.CLIENT) / "state" / f"{name}.prom").read_text()
        assert f'precad_client_updates_clipped_total{{client="{name}"}} {ROUNDS}' in prom
