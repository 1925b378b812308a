"""Which clients of a run share a process: attackers and honest ones never do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from precad.deploy.configuration.demo import demo_config
from precad.deploy.configuration.local import resolve
from precad.deploy.localhost.grouping import client_groups
from precad.deploy.run_files.folder import RunFolder

ATTACKS = {"client-1": "sign-flip", "client-3": "sign-flip", "client-6": "none"}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, [[0], [2], [4], [5], [6], [1], [3]]),
        ({"clients_per_process": 3}, [[0, 2, 4], [5, 6], [1, 3]]),
        ({"clients_per_process": 9, "attackers_per_process": 1}, [[0, 2, 4, 5, 6], [1], [3]]),
        ({"attackers_per_process": 2}, [[0], [2], [4], [5], [6], [1, 3]]),
    ],
)
def test_attackers_and_honest_clients_share_no_process(
    sizes: dict[str, Any], expected: list[list[int]], tmp_path: Path
) -> None:
    raw = {**demo_config(n_clients=7), "localhost": sizes}
    raw["client"] = {**raw["client"], "attacks": ATTACKS}
    _, deployment, _ = resolve(raw, RunFolder(tmp_path))
    assert client_groups(deployment) == [[f"client-{i}" for i in group] for group in expected]
