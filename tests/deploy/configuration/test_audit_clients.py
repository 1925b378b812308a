"""Audit clients in a configuration: what a local run supplies, what the check says, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from precad.deploy.configuration.check_records import local_records
from precad.deploy.configuration.local import resolve
from precad.deploy.errors import ConfigError
from precad.deploy.run_files.folder import RunFolder
from precad.lab.simulation.simulate import resolve as resolve_simulation

TASK: dict[str, Any] = {
    "clients": ["one", "two", "watch"],
    "audit_clients": ["watch"],
    "rounds": 2,
    "client_rate": 1.0,
    "record_rate": 0.5,
    "record_clip": 1.0,
    "client_clip": 16.0,
    "noise_multiplier": 1.0,
    "learning_rate": 0.5,
    "model": "mlp",
}
CONFIG: dict[str, Any] = {"task": TASK, "client": {"dataset": "digits"}}


def resolved(tmp_path: Path, **task: Any) -> Any:
    return resolve(CONFIG | {"task": TASK | task}, RunFolder(tmp_path))[1].task


def test_a_local_run_deals_the_records_to_the_others_and_gives_as_many_canaries_as_are_allowed(tmp_path: Path) -> None:
    """96 of 4810 parameters; fewer where C holds fewer, or where the file says so. Two share them."""
    plain = resolved(tmp_path, clients=["one", "two"], audit_clients=[])
    found = resolved(tmp_path)
    assert found.clients == plain.clients | {"watch": 96}
    assert (found.dim, found.n_parameters, found.divisor) == (4810 + 96, 4810, plain.divisor)
    assert resolved(tmp_path, client_clip=3.0).clients["watch"] == 9
    declared = plain.clients | {"watch": 20}
    assert resolved(tmp_path, clients=declared).dim == 4830
    shared = resolved(tmp_path, clients=["one", "watch", "witness"], audit_clients=["watch", "witness"])
    assert [shared.clients[name] for name in shared.audit_clients] == [48, 48]


def test_a_real_audit_client_declares_the_first_records_of_its_part_and_no_more_than_can_be_told_apart(
    tmp_path: Path,
) -> None:
    plain = resolved(tmp_path)
    real = resolved(tmp_path, real_audit_clients=["two"])
    assert real.clients == plain.clients | {"two": 64}
    assert (real.dim, real.n_canaries) == (plain.dim, 96)
    assert resolved(tmp_path, real_audit_clients=["two"], client_clip=3.0).clients["two"] == 9


def test_the_check_says_who_audits(tmp_path: Path) -> None:
    found = local_records(CONFIG, tmp_path)
    assert found["audit"] == "96 canaries of watch"
    assert found["records"].startswith("1437 ")
    real = local_records({**CONFIG, "task": TASK | {"real_audit_clients": ["two"]}}, tmp_path)
    assert real["audit"] == "96 canaries of watch; real records of two"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task": {"client_clip": 0.5}}, r"client_clip: expected at least record_clip \* sqrt\(1\)"),
        ({"task": {"client_clip": math.inf}}, r"task\.client_clip: expected a finite number, found inf"),
        ({"task": {"client_clip": math.nan}}, r"task\.client_clip: expected a finite number, found nan"),
        ({"task": {"client_clip": 1e300}}, "client_clip"),
        ({"task": {"client_clip": math.inf, "audit_clients": []}}, r"task\.client_clip: expected a finite number"),
        ({"task": {"client_clip": 1e300, "audit_clients": []}}, "client_clip"),
        ({"task": {"record_clip": math.nan}}, r"task\.record_clip: expected a finite number, found nan"),
        ({"task": {"record_clip": 1e-300}}, "noise_multiplier|client_clip|record_clip"),
        ({"task": {"dim": 4810}}, r"task\.dim: expected 4906, the dimension of 'mlp' and the canaries, found 4810"),
        ({"task": {"audit_clients": "watch"}}, r"task\.audit_clients: expected a list of ids, found 'watch'"),
        ({"task": {"audit_clients": ["nobody"]}}, "audit_clients: expected enrolled clients, found 'nobody'"),
        ({"client": {"attacks": {"watch": "scaled"}}}, r"client\.attacks\.watch: expected none of an audit client"),
        ({"task": {"real_audit_clients": "two"}}, r"task\.real_audit_clients: expected a list of ids, found 'two'"),
        (
            {"task": {"real_audit_clients": ["two"]}, "client": {"attacks": {"two": "scaled"}}},
            r"client\.attacks\.two: expected none of an audit client",
        ),
        (
            {"task": {"audit_clients": []}, "aggregator": {"b": {"keep_canary_noise": True}}},
            r"aggregator\.b\.keep_canary_noise: expected task\.audit_clients beside it, found none",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, change: dict[str, dict[str, Any]], message: str) -> None:
    raw = {name: CONFIG.get(name, {}) | change.get(name, {}) for name in {*CONFIG, *change}}
    with pytest.raises(ConfigError, match=message):
        resolve(raw, RunFolder(tmp_path))


def test_a_simulation_names_the_command_that_audits() -> None:
    with pytest.raises(ConfigError, match=r"expected none in a simulation.*`precad audit privacy`"):
        resolve_simulation(CONFIG)
    real = {**CONFIG, "task": TASK | {"audit_clients": [], "real_audit_clients": ["two"]}}
    with pytest.raises(ConfigError, match=r"real_audit_clients: expected none in a simulation"):
        resolve_simulation(real)
