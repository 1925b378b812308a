"""OpenDP's discrete Gaussian, ns per coordinate as JSON on standard output. Imports nothing of ours.

.venv-peers/bin/python lab/bench/peers/opendp_gaussian.py STD SIZE REPETITIONS
"""

from __future__ import annotations

import json
import sys
import time

import opendp.prelude as dp


def main() -> None:
    """Draw one warm-up, then REPETITIONS vectors of SIZE coordinates."""
    std, size, repetitions = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    dp.enable_features("contrib")
    space = dp.vector_domain(dp.atom_domain(T="i64")), dp.l2_distance(T="i64")
    mechanism = dp.m.make_gaussian(*space, scale=std)
    zeros, seconds = [0] * size, []
    for _ in range(1 + repetitions):
        start = time.perf_counter()
        mechanism(zeros)
        seconds.append(time.perf_counter() - start)
    sys.stdout.write(json.dumps([1e9 * s / size for s in seconds[1:]]))


if __name__ == "__main__":
    main()
