"""SecretFlow SPU's norm check, `sum(x * x, axis=1) <= T` on int64, two parties over brpc: one of the two processes.

    .venv-peers/bin/python lab/bench/peers/spu_norm.py JOB RANK

Integers, because SPU is faster on them than on its fixed point: no truncation. SEMI2K takes its tuples from party 0
(the package's default, "trusted first party", which shows that party the update); CHEETAH needs no dealer. Unsound in
both: the sum is taken modulo 2^64. Imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from spu import api, libspu
from spu.utils import frontend

FRAC_BITS = 16


def main() -> None:
    """Measure every cell of the job; write its result beside the job."""
    path, rank = Path(sys.argv[1]), int(sys.argv[2])
    watch_lifeline()
    jax.config.update("jax_enable_x64", True)
    job = json.loads(path.read_text())
    description = libspu.link.Desc()
    description.recv_timeout_ms = 600_000
    for i, port in enumerate(job["ports"]):
        description.add_party(f"party-{i}", f"127.0.0.1:{port}")
    link = libspu.link.create_brpc(description, rank)
    config = libspu.RuntimeConfig(protocol=getattr(libspu.ProtocolKind, job["protocol"]), field=libspu.FieldType.FM64)
    counting = libspu.RuntimeConfig(config)
    counting.enable_pphlo_profile = True  # its last log line counts bytes and messages; `peer_runs` reads it
    results = []
    for i, cell in enumerate(job["cells"]):
        runtimes = (api.Runtime(link.spawn(), counting), api.Runtime(link.spawn(), config))
        results.append(measure(link, runtimes, rank, path.with_name(f"cell-{i}"), config, job["clip_norm"], **cell))
    path.with_name(f"result-{rank}.json").write_text(json.dumps(results))
    link.stop_link()


def watch_lifeline() -> None:
    """Exit when the process that started this one is gone (as `precad.deploy.localhost.processes.watch_lifeline`)."""
    descriptor = os.environ.get("PRECAD_LIFELINE_FD", "")
    if descriptor.isdigit():
        threading.Thread(target=lambda: (os.read(int(descriptor), 1), os._exit(1)), daemon=True).start()


def measure(
    link: Any,
    runtimes: tuple[api.Runtime, api.Runtime],
    rank: int,
    exchange: Path,
    config: libspu.RuntimeConfig,
    clip_norm: float,
    *,
    dim: int,
    clients: int,
    repetitions: int,
) -> dict[str, Any]:
    """Return seconds per batch. The first run counts bytes and warms up the machine, the second the measured
    runtime."""
    x, too_long = batch(dim, clients, clip_norm)
    threshold = np.int64((int(clip_norm) << FRAC_BITS) ** 2)
    executable, _ = frontend.compile(
        frontend.Kind.JAX,
        lambda x: jnp.sum(x * x, axis=1) <= threshold,
        [x],
        {},
        ["x"],
        [libspu.Visibility.VIS_SECRET],
        lambda outputs: [f"verdict-{i}" for i in range(len(outputs))],
    )
    io = api.Io(2, config)
    share = hand_over(io.make_shares(x, libspu.Visibility.VIS_SECRET) if rank == 0 else None, link, exchange)
    for runtime in runtimes:
        runtime.set_var("x", share)
    seconds: list[float] = []
    for runtime in (*runtimes, *[runtimes[1]] * repetitions):
        link.barrier()
        start = time.perf_counter()
        runtime.run(executable)
        verdict = runtime.get_var("verdict-0")
        seconds.append(time.perf_counter() - start)
    shares = gather(verdict, link, exchange, rank)
    verdicts = [bool(v) for v in io.reconstruct(shares)] if rank == 0 else None
    if verdicts is not None and verdicts != [i != too_long for i in range(clients)]:
        raise SystemExit(f"SPU's verdicts are wrong: {verdicts}")
    return {"seconds": seconds[2:]}


def batch(dim: int, clients: int, clip_norm: float) -> tuple[np.ndarray, int]:
    """Return encoded updates of norm 0.9 C, but for one of norm 1.8 C where there are several; and which one that
    is."""
    x = np.random.default_rng(dim).standard_normal(dim)
    x *= 0.9 * clip_norm / np.linalg.norm(x)
    rows = np.tile(x, (clients, 1))
    too_long = clients // 2 if clients > 1 else -1
    if too_long >= 0:
        rows[too_long] *= 2
    return np.trunc(rows * 2**FRAC_BITS).astype(np.int64), too_long


def hand_over(shares: list[Any] | None, link: Any, exchange: Path) -> Any:
    """Hand over the shares. Party 0 made both, as a client would; party 1 takes its own from a file."""
    if shares is not None:
        write_share(shares[1], exchange.with_suffix(".input"))
    link.barrier()
    return shares[0] if shares is not None else read_share(exchange.with_suffix(".input"))


def gather(share: Any, link: Any, exchange: Path, rank: int) -> list[Any]:
    """Return both shares of the verdicts, to check them."""
    write_share(share, exchange.with_suffix(f".{rank}"))
    link.barrier()
    return [read_share(exchange.with_suffix(f".{i}")) for i in (0, 1)]


def write_share(share: Any, path: Path) -> None:
    """Write a share as a file of this run's own folder."""
    path.write_bytes(pickle.dumps((share.meta, list(share.share_chunks))))


def read_share(path: Path) -> Any:
    """Read what `write_share` wrote."""
    share = libspu.Share()
    share.meta, share.share_chunks = pickle.loads(path.read_bytes())  # noqa: S301 - our own file
    return share


if __name__ == "__main__":
    main()
