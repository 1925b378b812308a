"""A stranger's app gives the same final bytes in a notebook, in local processes, and by separate organisations.

Each place is started as a user starts it, in folders that also hold `clients/`, `mpc/` and others of our names. The
places are a script with `precad.simulate`, one with `precad.run`, and the commands of organisations that share no
folder.
Processes draw records and noise from one seed (tests/harness/seeded). Quick twins are in test_own_training.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from precad.protos.tls.identity import Role
from tests.harness.harness import AGGREGATORS, Pki, free_addresses
from tests.harness.hospital import OURS
from tests.integration.test_own_training import write_doses, write_scans, write_table

ROOT = Path(__file__).resolve().parents[2]
SEED = 7
SITES = ("anna", "boris", "chloe")
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "harness" / "seeded"), str(ROOT)]),
    "PRECAD_SEED": str(SEED),
}
COMMAND = (sys.executable, "-P", "-m", "precad.deploy.cli.main")
TIMEOUT_S = 240.0
TABLE = """
import precad, torch
from torch import nn
from torch.nn import functional

def net():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))

def missed_diagnoses_cost_more(model, record):
    features, label = record
    weight = torch.tensor([1.0, 3.0], dtype=features.dtype)
    return functional.cross_entropy(model(features), label, weight=weight, reduction="sum")

app = precad.App(model=net, records="csv:{client}/patients.csv", label="sick", loss=missed_diagnoses_cost_more)
"""
SCANS = """
import precad
from torch import nn

def net():
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 6, 2)
    return precad.fix(nn.Sequential(*layers))

app = precad.App(model=net, records="folder:{client}/scans")
"""
DOSES = """
import precad
import numpy as np
from torch import nn

def net():
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))

def within_a_half(outputs, labels):
    return float(np.mean(np.abs(outputs.reshape(labels.shape) - labels) < 0.5))

app = precad.App(
    model=net, records="csv:{client}/patients.csv", label="dose", loss="mse",
    metrics=["mae", within_a_half], test="csv:public.csv",
)
"""
TASK = """
[task]
name = "ward"
clients = ["anna", "boris", "chloe"]
rounds = 3
client_rate = 1.0
record_rate = 0.5
record_clip = 1.0
client_clip = 8.0
noise_multiplier = 0.5
learning_rate = 1.0
MODE
"""
MEASURED = 'evaluation_records = "hospital:app"\n'
"""At B, whose operator has the app and public records beside its configuration."""
SCRIPTS = {
    "notebook": """
import precad
from hospital import app

found = precad.simulate("task.toml", clients=dict.fromkeys(("anna", "boris", "chloe"), app), seeds=[7], folder="seen")
""",
    "local": """
import precad

found = precad.run("task.toml", "run", app="hospital:app")
""",
}
CASES: dict[str, tuple[str, Callable[[Path, int], None], str]] = {
    "table": (TABLE, write_table, 'gate = "native"'),
    "scans": (SCANS, write_scans, 'mode = "proved"'),
    "doses": (DOSES, write_doses, f'mode = "proved"\nevaluation = "public"\n\n[aggregator.b]\n{MEASURED}'),
}


def hostile(folder: Path) -> Path:
    """Make a folder of a user's, with programs that have our packages' names."""
    for name in OURS:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text("raise SystemExit('hostile')\n")
    return folder


@dataclass
class Organisations:
    """Folders of the servers and the clients, each with what its own organisation has."""

    root: Path
    case: str
    pki: Pki
    task: dict[str, Any]
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def servers(self) -> tuple[Role, ...]:
        """Return the roles of the servers that there are."""
        return AGGREGATORS if self.task.get("mode") == "proved" else (Role.DEALER, *AGGREGATORS)

    def prepare(self) -> None:
        """Write everybody's files. A client makes the initial model, as servers have none of the app's code."""
        addresses = dict(zip((*self.servers, "lane"), free_addresses(4), strict=False))
        network = {str(role).replace("-", "_"): addresses[role] for role in self.servers}
        for role in self.servers:
            self._write(role, {"task": self.task, "network": network, **self._server(role, addresses)})
        for seed, site in enumerate(SITES):
            own = {"certificates": "tls", "authority": "tls/ca.pem", "connect_timeout_s": TIMEOUT_S}
            folder = self._write(site, {"task": self.task, "network": network, "client": own})
            CASES[self.case][1](folder / site, seed)
            (folder / "hospital.py").write_text(CASES[self.case][0])
        self.precad(SITES[0], "initial-model", "precad.toml", "initial.npy")
        for role in AGGREGATORS:
            shutil.copy(self.root / SITES[0] / "initial.npy", self.root / role)
        for name in (*self.servers, *SITES):
            app = ("--app", "hospital:app") if name in SITES else ()
            self.precad(name, "check", "precad.toml", *app)

    def _write(self, name: str, config: dict[str, Any]) -> Path:
        """Fill one organisation's folder, and return it."""
        folder = hostile(self.root / name)
        (folder / "tls").mkdir()
        shutil.copytree(self.pki.directory / name, folder / "tls" / name)
        shutil.copy(self.pki.authority, folder / "tls")
        for role in self.servers:
            shutil.copy(self.pki.tls(role).certificate, folder / "tls" / f"{role}.pem")
        (folder / "precad.toml").write_text(tomli_w.dumps(config))
        return folder

    def _server(self, role: Role, addresses: dict[str, str]) -> dict[str, Any]:
        own = {
            "listen": addresses[role],
            "certificate": f"tls/{role}/cert.pem",
            "key": f"tls/{role}/key.pem",
            "authority": "tls/ca.pem",
            "state_dir": "state",
            "connect_timeout_s": TIMEOUT_S,
        }
        if role is Role.DEALER:
            pins = {f"aggregator_{letter}_certificate": f"tls/aggregator-{letter}.pem" for letter in "ab"}
            return {"dealer": own | pins}
        (other,) = {*AGGREGATORS} - {role}
        own |= {"peer_certificate": f"tls/{other}.pem", "initial_model": "initial.npy"}
        own |= {"dealer_certificate": "tls/dealer.pem"} if Role.DEALER in self.servers else {}
        own |= {"lane_listen": addresses["lane"]} if role is Role.AGGREGATOR_B else {}
        if self.task.get("evaluation") == "public" and role is Role.AGGREGATOR_B:
            own |= tomllib.loads(MEASURED)
            self._give_public_records(self.root / role)
        return {"aggregator": {role[-1]: own}}

    def _give_public_records(self, folder: Path) -> None:
        """Give an operator the app, and the records that all three places measure on."""
        CASES[self.case][1](folder, len(SITES))
        (folder / "patients.csv").rename(folder / "public.csv")
        (folder / "hospital.py").write_text(CASES[self.case][0])

    def precad(self, name: str, *arguments: str) -> None:
        """Run a command in one organisation's folder, to its end."""
        done = subprocess.run(
            [*COMMAND, *arguments], cwd=self.root / name, env=ENVIRONMENT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    @contextlib.contextmanager
    def started(self) -> Iterator[None]:
        """Start every organisation's process."""
        commands = {role: ("serve", "aggregator", "precad.toml", "--role", role[-1]) for role in AGGREGATORS}
        if Role.DEALER in self.servers:
            commands[Role.DEALER] = ("serve", "dealer", "precad.toml")
        commands |= {site: ("client", "precad.toml", "--id", site, "--app", "hospital:app") for site in SITES}
        try:
            for name, arguments in commands.items():
                with (self.root / f"{name}.log").open("wb") as log:
                    self.running[name] = subprocess.Popen(
                        [*COMMAND, *arguments], cwd=self.root / name, env=ENVIRONMENT, stdout=log, stderr=log
                    )
            yield
        finally:
            for process in self.running.values():
                process.kill()
                process.wait()

    def train(self) -> None:
        """Run the task to its end."""
        with self.started():
            codes = {name: process.wait(TIMEOUT_S) for name, process in self.running.items()}
        said = {name: (self.root / f"{name}.log").read_text()[-2000:] for name in codes if codes[name]}
        assert set(codes.values()) == {0}, said


def in_one_folder(folder: Path, case: str, script: str) -> None:
    """Run a script beside the app and everybody's records."""
    (folder / f"{script}.py").write_text(SCRIPTS[script])
    done = subprocess.run(
        [sys.executable, f"{script}.py"], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len((CASES[case][0] + SCRIPTS[script]).strip().splitlines()) <= 25


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_an_app_gives_the_same_bytes_in_three_places(case: str, tmp_path: Path) -> None:
    """The organisations' task is the one that the local run resolved."""
    code, write, mode = CASES[case]
    here = hostile(tmp_path / "here")
    (here / "hospital.py").write_text(code)
    (here / "task.toml").write_text(TASK.replace("MODE", mode))
    for seed, name in enumerate((*SITES, ".")):
        write(here / name, seed)
    if case == "doses":
        (here / "patients.csv").rename(here / "public.csv")
    in_one_folder(here, case, "notebook")
    in_one_folder(here, case, "local")
    with np.load(here / "seen" / f"seed-{SEED}.npz") as saved:
        final = saved["parameters"].astype(np.float32).tobytes()
    assert [(here / "run" / letter / "model.npy").read_bytes()[-len(final) :] for letter in "ab"] == [final, final]

    task = tomllib.loads((here / "run" / "config.toml").read_text())["task"]
    organisations = Organisations(tmp_path / "apart", case, Pki.create(tmp_path / "pki", SITES), task)
    organisations.prepare()
    organisations.train()
    states = [organisations.root / role / "state" for role in AGGREGATORS]
    assert [np.load(state / "model.npy").tobytes() for state in states] == [final, final]
    rounds = [json.loads(line) for line in (states[0] / "rounds.jsonl").read_text().splitlines()]
    assert [record["accepted"] for record in rounds] == [list(SITES)] * 3
    if case == "doses":
        require_equal_figures(here, states[1])


def require_equal_figures(here: Path, state: Path) -> None:
    """Require the same mean error, and the same metric of the app's own, of the final model in all three places."""
    summary, simulated = (json.loads((here / run / "summary.json").read_text()) for run in ("run", "seen"))
    measured = json.loads((state / "quality.jsonl").read_text().splitlines()[-1])["figures"]
    places = [simulated["seeds"][0]["metrics"], summary["metrics"], summary["public_quality"]["b"]["figures"], measured]
    assert set(measured) == {"mae", "within_a_half"}
    assert places == [pytest.approx(measured, rel=1e-6)] * 4
