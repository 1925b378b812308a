"""Import and compile what every server needs, in a process that only forks (`tests.harness.forked`).

Libraries start no threads there: a fork would lose them, and not the locks that they held.
"""

from __future__ import annotations

import gc
import os


def _load() -> None:
    for library in ("OMP", "OPENBLAS", "MKL", "NUMBA"):
        os.environ[f"{library}_NUM_THREADS"] = "1"
    import precad.servers.aggregator
    import precad.servers.dealer  # noqa: F401 - imported for the forks
    from precad.dp.accountants import pld
    from precad.mpc.gate_names import make_gate
    from precad.mpc.kernels import loading
    from precad.mpc.local.engines import CPU
    from precad.protos.task.task import Task

    Task.model_rebuild()  # its validator, which every fork would build for itself
    for warm_up in (CPU.warm_up, loading.warm_up, pld.warm_up):
        warm_up()
    make_gate("native")


gc.disable()
_load()
gc.freeze()  # no collection of a fork walks the modules, whose pages it would have to copy
gc.enable()
