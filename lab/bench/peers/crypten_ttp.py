"""CrypTen's own norm check, `x.square().sum() <= C^2`, with its trusted third party, over gloo: one of three processes.

    python -m precad.lab.bench.peers.crypten_ttp JOB RANK

Ranks 0 and 1 are the servers, 2 is CrypTen's TTP server. The provider makes its tuples while the check runs; CrypTen
has no way to deal ahead. Unsound: the sum is taken modulo 2^64, and each square is truncated with an error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from precad.deploy.localhost.processes import watch_lifeline

FRAC_BITS = 16
TTP_RANK = 2


def main() -> None:
    """Run one rank; ranks 0 and 1 write their result beside the job."""
    path, rank = Path(sys.argv[1]), int(sys.argv[2])
    watch_lifeline()
    os.environ |= {
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "RENDEZVOUS": f"file://{path.with_name('rendezvous')}",
        "DISTRIBUTED_BACKEND": "gloo",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    crypten = load_crypten()
    crypten.cfg.mpc.provider = "TTP"
    crypten.init()
    if rank == TTP_RANK:
        crypten.mpc.provider.TTPServer()  # serves until rank 0 shuts down
        return
    job = json.loads(path.read_text())
    results = [measure(crypten, rank, job["clip_norm"], **cell) for cell in job["cells"]]
    path.with_name(f"result-{rank}.json").write_text(json.dumps(results))
    crypten.uninit()


def load_crypten() -> Any:
    """Return CrypTen, with the module that moved in torch 2.9 under its old name (see
    `precad.mpc.crypten.crypten_gate`)."""
    old = "torch.onnx._internal.registration"
    try:
        importlib.import_module(old)
    except ImportError:
        sys.modules[old] = importlib.import_module("torch.onnx._internal.torchscript_exporter.registration")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module("crypten")


def measure(crypten: Any, rank: int, clip_norm: float, *, dim: int, clients: int, repetitions: int) -> dict[str, Any]:
    """Return seconds per batch, and what this rank sent. The first run does not count in time: it counts the bytes."""
    plain, too_long = batch(dim, clients, clip_norm)
    x = crypten.mpc.MPCTensor.from_shares(share(plain, rank), precision=FRAC_BITS)
    communicator = crypten.communicator.get()
    seconds: list[float] = []
    for repetition in range(1 + repetitions):
        crypten.cfg.communicator.verbose = repetition == 0
        communicator.barrier()
        communicator.reset_communication_stats()
        start = time.perf_counter()
        opened = x.square().sum(dim=1).le(clip_norm**2).get_plain_text()
        seconds.append(time.perf_counter() - start)
        if repetition == 0:
            stats = communicator.get_communication_stats()
        verdicts = [bool(v) for v in opened.tolist()]
        if verdicts != [i != too_long for i in range(clients)]:
            raise SystemExit(f"CrypTen's verdicts are wrong: {verdicts}")
    # CrypTen counts an all-reduce in both directions. Rank 1 never speaks with the TTP, so its count is the link's.
    return {"seconds": seconds[1:], "bytes": stats["bytes"] / 2, "rounds": stats["rounds"]}


def batch(dim: int, clients: int, clip_norm: float) -> tuple[torch.Tensor, int]:
    """Return encoded updates of norm 0.9 C, but for one of norm 1.8 C where there are several; and which one that
    is."""
    x = torch.randn(dim, dtype=torch.float64, generator=torch.Generator().manual_seed(dim))
    x *= 0.9 * clip_norm / x.norm()
    rows = x.repeat(clients, 1)
    too_long = clients // 2 if clients > 1 else -1
    if too_long >= 0:
        rows[too_long] *= 2
    return (rows * 2**FRAC_BITS).trunc().to(torch.int64), too_long


def share(plain: torch.Tensor, rank: int) -> torch.Tensor:
    """Return one server's additive share; both draw the same mask."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.randint(-(2**63), 2**63 - 1, plain.shape, dtype=torch.int64, generator=generator)
    return plain - mask if rank == 0 else mask


if __name__ == "__main__":
    main()
