"""`precad run` with attackers in processes of their own: parameters, code of one's own, a folder that colluders share.

The run measures the attackers' success in every round, and says it live, in its summary and in its report.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from precad.clients.attacks import PixelBackdoor
from precad.clients.records import digits
from precad.deploy.configuration.demo import demo_config
from precad.deploy.errors import ConfigError
from precad.deploy.guarantees.run_evidence import read_runs
from precad.deploy.reporting.certificates import certificate_of
from precad.deploy.reporting.run_folder import read_deployed

PRECAD = [sys.executable, "-P", "-m", "precad.deploy.cli.main"]
N_ROUNDS = 4
ATTACKS: dict[str, Any] = {
    "client-2": {"kind": "pixel-backdoor", "parameters": {"side": 3, "gamma": 2.0, "target": 7}},
    "client-3": {"kind": "own_attack:Lazy", "parameters": {"share": 0.25}},
    "client-4": {"kind": "alie", "parameters": {"sees": "colluders"}},
    "client-5": {"kind": "alie", "parameters": {"sees": "colluders"}},
}
CRAFTING = ("client-2", "client-4", "client-5")
OWN_ATTACK = """
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from precad.clients.attacks import Attack

(Path(__file__).parent / f"loaded-{__import__('os').getpid()}").touch()


@dataclass(frozen=True, slots=True)
class Lazy(Attack):
    name: ClassVar[str] = "lazy"
    share: float = 0.5

    def on_update(self, update):
        kept = update.copy()
        kept[int(self.share * len(kept)) :] = 0.0
        return kept
"""


@dataclass(frozen=True)
class Attacked:
    """A run that is over."""

    home: Path
    folder: Path
    stdout: str
    stderr: str

    @property
    def summary(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.stdout)
        return found


def run(home: Path, attacks: dict[str, Any]) -> Attacked:
    """Run a small deployment to its good end, each client a process."""
    raw = demo_config(n_clients=6, rounds=N_ROUNDS)
    raw["task"] |= {"client_rate": 1.0, "gate": "native"}  # which starts sooner
    raw["client"] = {**raw["client"], "attacks": attacks}
    (home / "own_attack.py").write_text(OWN_ATTACK)
    (home / "attacked.toml").write_text(tomli_w.dumps(raw))
    command = [*PRECAD, "run", "attacked.toml", "--output", str(home / "run"), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=home, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return Attacked(home, home / "run", done.stdout, done.stderr)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Attacked:
    """One run for all tests below."""
    return run(tmp_path_factory.mktemp("attacked"), ATTACKS)


def test_everybody_is_accepted_and_nobody_stays_silent(attacked: Attacked) -> None:
    """Attackers of this kind stay within the ball, so that the norm check has nothing to say of them."""
    assert attacked.summary["rounds"] == N_ROUNDS
    assert attacked.summary["accepted"] == 6 * N_ROUNDS
    assert attacked.summary["rejected_clients"] == []


def test_the_attackers_success_is_measured_every_round_and_told(attacked: Attacked) -> None:
    """On the stamped test records of the attacker that aims at something, with its own parameters."""
    lines = [json.loads(line) for line in (attacked.folder / "metrics.jsonl").read_text().splitlines()]
    found = [line["attack_success"] for line in lines]
    assert len(found) == N_ROUNDS
    assert all(0 <= share <= 1 for share in found)
    assert attacked.summary["attack_success"] == found[-1]
    wanted = PixelBackdoor(side=3, gamma=2.0, target=7).success_records(digits().test)
    assert wanted is not None
    for share in found:
        assert share * len(wanted) == pytest.approx(round(share * len(wanted)), abs=1e-6)
    assert "attack" in attacked.stderr
    training = read_deployed(attacked.folder).trainings[0]
    assert training.attack_success == attacked.summary["attack_success"]
    assert [line.attack_success for line in training.rounds] == found


def test_the_folder_holds_what_colluders_wrote_and_nobody_else_may_read_it(attacked: Attacked) -> None:
    """The last two rounds of the three that craft; nothing of the honest clients, nor of the one with its own code."""
    folder = attacked.folder / "colluders"
    updates = list(folder.rglob("*.update"))
    assert len(list(folder.iterdir())) == 2
    assert len(updates) == 2 * len(CRAFTING)
    assert len({path.name for path in updates}) == len(CRAFTING)
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    for log in (attacked.folder / "logs").glob("*.log"):
        assert "colluder_is_silent" not in log.read_text()
        assert "colluders_unreachable" not in log.read_text()


def test_nothing_is_certified_beside_colluders_and_code_of_ones_own(attacked: Attacked) -> None:
    """As what they send may depend on what a further attacker sends, which no certificate counts."""
    with pytest.raises(ConfigError, match=r"without attackers who act upon what others send.*'pixel-backdoor'"):
        read_runs([attacked.folder])
    said = certificate_of(read_deployed(attacked.folder))
    assert isinstance(said, str)
    assert "act upon what others send" in said
    assert attacked.summary["certificate"] == f"none: {said}"
    assert json.loads((attacked.folder / "summary.json").read_text()) == attacked.summary
    assert f"certificate       none: {said}" in attacked.stderr


def test_no_honest_clients_process_loads_the_attackers_code(attacked: Attacked) -> None:
    """The runner and the four attackers do."""
    loaded = {int(path.name.removeprefix("loaded-")) for path in attacked.home.glob("loaded-*")}
    assert 0 < len(loaded) <= 1 + len(ATTACKS)
