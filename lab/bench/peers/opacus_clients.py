"""Opacus' per-sample gradient hooks, client by client: seconds per round. Imports nothing of ours.

.venv-peers/bin/python lab/bench/peers/opacus_clients.py JOB.npz RESULT.npz

JOB holds features (clients, records, 1, 28, 28), labels, parameters (d,), clip_norm, repetitions, threads and device.
RESULT gets `seconds` (2, repetitions), of the wall and of the processor. It also gets the clipped sums (clients, d), so
that both sides can be compared.
"""

from __future__ import annotations

import sys
import time
import warnings
from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import nn


def model() -> nn.Module:
    """Return SampleConvNet of Opacus' MNIST example: 26 010 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def main() -> None:
    """Run two warm-ups, then the repetitions."""
    warnings.filterwarnings("ignore")
    job = np.load(sys.argv[1])
    torch.set_num_threads(int(job["threads"]))
    device = torch.device(str(job["device"]))
    plain = model().to(device)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(job["parameters"]).to(device), plain.parameters())
    hooked: Any = GradSampleModule(plain, loss_reduction="sum")
    optimizer: Any = DPOptimizer(
        torch.optim.SGD(hooked.parameters(), lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=float(job["clip_norm"]),
        expected_batch_size=1,
        loss_reduction="sum",
    )
    features = torch.from_numpy(job["features"]).to(device)
    labels = torch.from_numpy(job["labels"]).to(device)
    seconds: list[float] = []
    cpu_seconds: list[float] = []
    sums: list[torch.Tensor] = []
    for _ in range(2 + int(job["repetitions"])):
        start, cpu_start = time.perf_counter(), time.process_time()
        sums = []
        for own, expected in zip(features, labels, strict=True):
            optimizer.zero_grad()
            loss: Any = nn.functional.cross_entropy(hooked(own), expected, reduction="sum")
            loss.backward()
            optimizer.clip_and_accumulate()
            sums.append(torch.cat([p.summed_grad.reshape(-1) for p in hooked.parameters()]).cpu())
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
    np.savez(
        sys.argv[2],
        seconds=np.array([seconds[2:], cpu_seconds[2:]]),
        sums=torch.stack(sums).numpy(),
    )


if __name__ == "__main__":
    main()
