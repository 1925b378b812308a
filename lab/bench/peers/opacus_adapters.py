"""Opacus on adapters, client by client: one round for each line of standard input. Imports nothing of ours.

.venv-peers/bin/python lab/bench/peers/opacus_adapters.py JOB.npz RESULT.npz

JOB holds features (clients, records, 32), labels, the adapted model's constants and parameters by name, the adapters'
names, clip_norm and threads. Every round answers with a line: its seconds of the wall and of the processor. At the end
of input, RESULT gets the clipped sums (clients, d), so that both sides can be compared.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from adapted_transformer import Transformer
from opacus import GradSampleModule
from opacus.optimizers import DPOptimizer
from torch import Tensor, nn


class AdaptedLayer(nn.Module):
    """Add B A x to a constant layer; of B every record has a gradient."""

    def __init__(self, base: Any, a: Tensor) -> None:
        super().__init__()
        self.base = base
        self.register_buffer("A", a)
        self.B = nn.Linear(len(a), base.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (.., inputs) to (.., outputs)."""
        assert isinstance(self.A, Tensor)
        out: Tensor = self.base(x) + self.B(nn.functional.linear(x, self.A))
        return out


def model(job: Any) -> nn.Module:
    """Return the job's model: all constants but the B."""
    root: nn.Module = Transformer(len(job["tensor:words.weight"])).requires_grad_(requires_grad=False)
    for name in job["adapters"]:
        parent, _, child = str(name).rpartition(".")
        layer = AdaptedLayer(root.get_submodule(str(name)), torch.from_numpy(job[f"tensor:{name}.A"]))
        setattr(root.get_submodule(parent), child, layer)
    tensors = {key.removeprefix("tensor:"): torch.from_numpy(job[key]) for key in job if key.startswith("tensor:")}
    root.load_state_dict(tensors)
    return root


def by_hooks(plain: nn.Module, clip_norm: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Take gradients of single records by Opacus' hooks, then clip and sum them."""
    hooked: Any = GradSampleModule(plain, loss_reduction="sum")
    trained = [parameter for parameter in hooked.parameters() if parameter.requires_grad]
    optimizer: Any = DPOptimizer(
        torch.optim.SGD(trained, lr=1.0),
        noise_multiplier=0.0,
        max_grad_norm=clip_norm,
        expected_batch_size=1,
        loss_reduction="sum",
    )

    def clipped(texts: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Any = nn.functional.cross_entropy(hooked(texts), labels, reduction="sum")
        loss.backward()
        optimizer.clip_and_accumulate()
        return torch.cat([parameter.summed_grad.reshape(-1) for parameter in trained])

    return clipped


def main() -> None:
    """Answer lines until there are no more."""
    warnings.filterwarnings("ignore")
    job = np.load(sys.argv[1])
    torch.set_num_threads(int(job["threads"]))
    way = by_hooks(model(job), float(job["clip_norm"]))
    features, labels = torch.from_numpy(job["features"]), torch.from_numpy(job["labels"])
    sums: list[Tensor] = []
    for _ in sys.stdin:
        start, cpu_start = time.perf_counter(), time.process_time()
        sums = [way(own, expected) for own, expected in zip(features, labels, strict=True)]
        print(time.perf_counter() - start, time.process_time() - cpu_start, flush=True)
    np.savez(sys.argv[2], sums=torch.stack(sums).numpy())


if __name__ == "__main__":
    main()
