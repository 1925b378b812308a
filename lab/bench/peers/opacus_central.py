"""Opacus trains adapters centrally, by DP-SGD of one party that holds all records. Imports nothing of ours.

.venv-peers/bin/python lab/bench/peers/opacus_central.py JOB.npz RESULT.json

JOB holds texts (n, 32) and labels, those of the test half, the adapted model's constants and parameters by name and the
adapters' names. It also has settings: rounds, sample_rate, clip_norm, noise_multiplier, learning_rate, delta,
norm_epsilon, seed and threads. Each step draws every record with probability sample_rate. RESULT gets the accuracy on
the test half and epsilon by Opacus' own accountant. It also gets how far the logits at the start are from those of the
job.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from opacus import PrivacyEngine
from opacus_adapters import model
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BATCH = 256


def logits(net: nn.Module, texts: Tensor) -> Tensor:
    """Return the outputs for all texts, (n, 2)."""
    with torch.no_grad():
        return torch.cat([net(part) for part in torch.split(texts, BATCH)])


def trained(net: nn.Module, job: Any, texts: Tensor, labels: Tensor) -> float:
    """Train the adapters in place. Return epsilon at the job's delta."""
    parameters = [parameter for parameter in net.parameters() if parameter.requires_grad]
    n_batches = round(1 / float(job["sample_rate"]))
    loader = DataLoader(TensorDataset(texts, labels), batch_size=len(texts) // n_batches)
    engine = PrivacyEngine()
    private, optimizer, sampled = engine.make_private(
        module=net,
        optimizer=torch.optim.SGD(parameters, lr=float(job["learning_rate"])),
        data_loader=loader,
        noise_multiplier=float(job["noise_multiplier"]),
        max_grad_norm=float(job["clip_norm"]),
        poisson_sampling=True,
    )
    left = int(job["rounds"])
    while left:
        for some, expected in sampled:
            optimizer.zero_grad()
            loss: Any = nn.functional.cross_entropy(private(some), expected)
            loss.backward()
            optimizer.step()
            left -= 1
            if not left:
                break
    return float(engine.get_epsilon(float(job["delta"])))


def main() -> None:
    """Train, and write the result."""
    warnings.filterwarnings("ignore")
    job = np.load(sys.argv[1])
    torch.set_num_threads(int(job["threads"]))
    torch.manual_seed(int(job["seed"]))
    net = model(job)
    for layer in net.modules():
        if isinstance(layer, nn.LayerNorm):
            layer.eps = float(job["norm_epsilon"])
    test, labels = torch.from_numpy(job["test_features"]), torch.from_numpy(job["test_labels"])
    given = torch.from_numpy(job["logits"])
    apart = float((logits(net, test[: len(given)]) - given).abs().max())
    epsilon = trained(net, job, torch.from_numpy(job["features"]), torch.from_numpy(job["labels"]))
    accuracy = float((logits(net, test).argmax(dim=1) == labels).double().mean())
    Path(sys.argv[2]).write_text(json.dumps({"accuracy": accuracy, "epsilon": epsilon, "apart": apart}))


if __name__ == "__main__":
    main()
