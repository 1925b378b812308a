"""Faults that are planted into a process of a local run, by name: the product's code, with one part replaced.

A process with a fault is an interpreter of its own. It replaces the part, and then runs the command line as it stands.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from rich.console import Console

from precad.deploy.localhost.deployment import LocalRun
from precad.deploy.localhost.forks import Forks
from precad.deploy.localhost.processes import Child, Children, isolated_python

ROUNDS: Final = 3
CONFIG: Final[dict[str, Any]] = {
    "task": {
        "name": "audited",
        "clients": ["one", "own", "watch", "witness"],
        "audit_clients": ["watch", "witness"],
        "real_audit_clients": ["own"],
        "rounds": ROUNDS,
        "client_rate": 1.0,
        "record_rate": 0.5,
        "record_clip": 0.3,
        "client_clip": 4.8,
        "noise_multiplier": 1.0,
        "learning_rate": 0.5,
        "model": "mlp",
        "gate": "native",
        "delta": 1e-5,
    },
    "client": {"dataset": "digits"},
    "localhost": {"clients_per_process": 4},
    "aggregator": {"a": {"keep_canary_noise": True}},
}
_NOISE: Final = """
import numpy as np
from precad.dp.noise import rounded_gaussian
sample, kept = rounded_gaussian.sample, []
def faulty(std, dim, draw):
    {body}
rounded_gaussian.sample = faulty
"""
KERNELS: Final = """
import torch
from torch.nn import functional
linear = functional.linear
def by_rows(x, weight, bias=None):
    ulp = torch.finfo(x.dtype).eps * linear(x.detach().abs(), weight.detach().abs())
    return linear(x, weight, bias) + (ulp if len(x) % 2 else -ulp)
functional.linear = by_rows
"""
"""Kernels that round up or down by the number of rows, within what an order of additions may change. A machine's own
may do so or not, and not at every kink."""
FAULTS: Final = {
    "silent": _NOISE.format(body="return np.zeros(dim, dtype=np.int64)"),
    "noise": _NOISE.format(body="return sample(0.97 * std, dim, draw)"),
    "repeated": _NOISE.format(
        body="kept.append(sample(std, dim, draw) if len(kept) % 2 == 0 else kept[-1])\n    return kept[-1].copy()"
    ),
    "tiled": _NOISE.format(body="return np.resize(sample(std, 50, draw), dim)"),
    "clip": """
from precad.clients.gradients.record_clipping import RecordClip
from precad.clients.training import round_update
round_update.record_clip = lambda task: RecordClip(1.5 * task.record_clip)
""",
    "sampling": """
import numpy as np
from precad.clients.training import local_update
local_update.sample_records = lambda n, rate, draw=None: np.arange(n, dtype=np.int64)
""",
    "contiguous": """
import numpy as np
from precad.clients.training import local_update
def block(n, rate, draw=None):
    fresh = np.random.default_rng()
    return np.sort((fresh.integers(max(n, 1)) + np.arange(fresh.binomial(n, rate))) % max(n, 1))
local_update.sample_records = block
""",
    "kernels": KERNELS,  # none by itself: where padding is on, all passes have as many rows
    "padding": KERNELS
    + """
import torch
from precad.clients.gradients import engine
def of_own_size(records, chosen, n_rows):
    return torch.from_numpy(records.features[chosen]), torch.from_numpy(records.labels[chosen])
engine._padded = of_own_size
""",
}
_COMMAND: Final = "\nfrom precad.deploy.cli.main import app\napp()\n"


def run(raw: Mapping[str, Any], folder: Path, faults: Mapping[str, str]) -> None:
    """Run a whole deployment, of whose processes these have a fault, by name, or two of them ("clip+sampling").

    Without a fault its processes are forks, as those of `precad run`: half of the processor time.
    """
    start, forks = Children.start, None if faults else Forks(raw["task"]["gate"])

    def faulty_start(self: Children, name: str, *arguments: str) -> Child:
        if name not in faults:
            return start(self, name, *arguments)
        planted = "".join(FAULTS[fault] for fault in faults[name].split("+"))
        return self.start_program(name, *isolated_python(), "-c", planted + _COMMAND, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Children, "start", faulty_start)
        asyncio.run(LocalRun(raw, folder, Console(file=io.StringIO()), forks=forks, measured_every=0).run())
