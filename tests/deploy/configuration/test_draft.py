"""Faults of a configuration are named before PyTorch is imported, and nothing that may be right is refused."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from precad.deploy.configuration.demo import demo_config
from precad.deploy.configuration.local import draft, resolve
from precad.deploy.errors import ConfigError
from precad.deploy.run_files.folder import RunFolder
from precad.lab.simulation import simulate as simulation
from precad.protos.task.task import Task

FOLDER = RunFolder(Path("/nowhere/run"))
FAULTY = """
import sys
from precad.deploy.cli.main import main
sys.argv[1:] = ["run", sys.argv[1]]
try:
    main()
except SystemExit as end:
    print(end.code, [name for name in ("torch", "scipy", "sklearn", "structlog") if name in sys.modules])
"""


def config(**task: Any) -> dict[str, Any]:
    raw = demo_config(n_clients=4)
    raw["task"] |= task
    return raw


def test_every_fault_is_named_at_once_with_the_numbers_of_the_file() -> None:
    with pytest.raises(ConfigError) as refused:
        draft(config(rounds=0, delta=2.0) | {"colour": {}}, FOLDER)
    assert str(refused.value).splitlines() == [
        "task.rounds: expected greater than or equal to 1, found 0",
        "task.delta: expected less than 1, found 2.0",
        "colour: expected no such key, found {}",
    ]


def test_more_uploads_than_mode_proved_covers_are_refused_before_anything_starts(tmp_path: Path) -> None:
    """Rule C3, also of a local run, whose clients would refuse it one by one."""
    raw = demo_config(n_clients=4, mode="proved")
    raw["client"] = {**raw.get("client", {}), "uploads_per_model": 4}
    with pytest.raises(ConfigError, match=r"client\.uploads_per_model: expected at most 3 in mode 'proved', found 4"):
        resolve(raw, RunFolder(tmp_path))


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"dealer": {}}, "dealer"),
        ({"network": {"dealer": "127.0.0.1:1"}}, "network.dealer"),
        ({"aggregator": {"b": {"dealer_certificate": "d.pem"}}}, "aggregator.b.dealer_certificate"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_dealer_of_mode_proved_is_refused_by_one_line(tmp_path: Path, section: dict[str, Any], field: str) -> None:
    """And nobody is asked for the rest of a dealer that the mode has not."""
    raw = demo_config(n_clients=4, mode="proved") | section
    with pytest.raises(ConfigError) as refused:
        resolve(raw, RunFolder(tmp_path))
    assert str(refused.value) == f"{field}: expected none in mode 'proved', which has no dealer, found a value"


@pytest.mark.parametrize("kind", ["false-proof", "inconsistent-proof", "replayed-proof", "out-of-range"])
def test_attacks_on_proofs_are_of_mode_proved_only(tmp_path: Path, kind: str) -> None:
    """Attacks on uploads are of every mode."""
    for mode, refuses in (("masked", True), ("proved", False)):
        raw = demo_config(n_clients=4, mode=mode)
        raw["client"] = {**raw["client"], "attacks": {"client-3": kind, "client-2": "replay"}}
        if refuses:
            with pytest.raises(ConfigError, match=f"client.attacks.client-3: expected an attack of mode .*'{kind}'"):
                resolve(raw, RunFolder(tmp_path))
        else:
            assert resolve(raw, RunFolder(tmp_path))[1].client is not None


def test_a_draft_is_the_task_but_for_what_is_found_out_later() -> None:
    """The dimension and the numbers of records; the caller's mapping stays as it is."""
    raw = config()
    before = copy.deepcopy(raw)
    found = draft(raw, FOLDER)
    assert raw == before
    assert found is not None
    _, true, _ = resolve(raw, FOLDER)
    same = {"exclude": {"dim", "clients", "gate"}}
    assert found.task.model_dump(**same) == true.task.model_dump(**same)
    assert list(found.task.clients) == list(true.task.clients)


def test_a_target_is_resolved_once_and_the_processes_read_the_noise() -> None:
    """Compare with a simulation, whose folder goes on from the resolved file."""
    raw = config(target_epsilon=3.0)
    del raw["task"]["noise_multiplier"]
    assert draft(raw, FOLDER) is not None
    resolved, found, _ = resolve(raw, FOLDER)
    assert "target_epsilon" not in resolved["task"]
    assert resolved["task"]["noise_multiplier"] == found.task.noise_multiplier
    assert Task.model_validate(resolved["task"]).digest() == found.task.digest()
    simulated = simulation.resolve(raw)
    assert simulated.task.noise_multiplier == found.task.noise_multiplier
    assert "target_epsilon" not in simulated.raw["task"]


@pytest.mark.parametrize(
    ("task", "is_certain"),
    [
        ({"algorithm": "distributed-dp", "noise_multiplier": 1.0, "client_clip": 12.0}, False),
        ({"algorithm": "distributed-dp", "noise_multiplier": 1.0, "client_clip": 1.0}, False),
        ({"noise_multiplier": 1e-7}, True),
        ({"mode": "shares"}, True),
        ({"min_clients": 5}, True),
    ],
)
def test_a_fault_that_depends_on_the_dimension_is_left_for_later(task: dict[str, Any], is_certain: bool) -> None:
    """Its message holds a number that is wrong for any other dimension than the true one."""
    if is_certain:
        with pytest.raises(ConfigError, match="task: "):
            draft(config(**task), FOLDER)
    else:
        draft(config(**task), FOLDER)


@pytest.mark.parametrize("client", ["", '[client]\nrecords = "csv:patients.csv"\nlabel = "ill"\n'], ids=["", "own"])
def test_a_faulty_file_is_refused_without_pytorch(tmp_path: Path, client: str) -> None:
    path = tmp_path / "faulty.toml"
    path.write_text(f'[task]\nname = "faulty"\nclients = ["a", "b"]\nrounds = 0\n{client}')
    done = subprocess.run([sys.executable, "-c", FAULTY, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "2 []\n"
    assert "precad: task.rounds: expected greater than or equal to 1, found 0" in done.stderr
