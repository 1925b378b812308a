"""`precad bench noise`: our sampler beside OpenDP's discrete Gaussian and a vectorised Canonne-Kamath-Steinke.

All are exact: ours for the rounded Gaussian, theirs for the discrete one. The two laws agree to 1 / (24 std^2). A
standard deviation of 2^17 on the grid is sigma R = 2 at 16 fractional bits. `ratio` is the sampler's time over ours.
One thread each. Ours and Canonne's take turns in this process; OpenDP's follows in one of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from precad.dp.noise import rounded_gaussian
from precad.lab.bench import machine, peer_runs
from precad.lab.bench.canonne import CanonneSampler
from precad.lab.bench.peer_runs import OPENDP
from precad.lab.bench.statistics import Spread, in_turns
from precad.mpc.prg import expanded_bytes

STD = 1 << 17
OPENDP_SIZE = 5_000
"""Coordinates per measurement: OpenDP takes microseconds for one."""

OURS, CANONNE = "precad", "canonne-vectorised"


def run(
    *, size: int, repetitions: int, peers_python: Path, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Return the report: `{"rows": [...], "machine": {...}, "missing": {...}}`. Raises ProcessFailedError."""
    facts, canonne = machine.facts(), CanonneSampler(STD)
    say(f"{OURS} and {CANONNE}, {size:,} coordinates")
    samplers: dict[str, Callable[[], object]] = {
        OURS: lambda: rounded_gaussian.sample(float(STD), size, expanded_bytes()),
        CANONNE: lambda: canonne.sample(size),
    }
    seconds, _ = in_turns(samplers, repetitions)
    spreads = {name: Spread.of([wall for wall, _ in seconds[name]]).scaled(1e9 / size) for name in samplers}
    ours = spreads[OURS]
    rows = [_row(name, size, spread, ours) for name, spread in spreads.items()]
    absent: dict[str, str] = {}
    if (why_not := peer_runs.missing(OPENDP, peers_python)) is not None:
        say(f"{OPENDP}: left out: {why_not}")
        absent[OPENDP] = why_not
    else:
        say(f"{OPENDP}, {OPENDP_SIZE:,} coordinates")
        rows.append(_row(OPENDP, OPENDP_SIZE, peer_runs.run_opendp(STD, OPENDP_SIZE, repetitions, peers_python), ours))
    return {"rows": rows, "machine": facts, "missing": absent}


def _row(sampler: str, size: int, spread: Spread, ours: Spread) -> dict[str, Any]:
    return {
        "sampler": sampler,
        "exact": True,
        "std": STD,
        "size": size,
        **spread.fields("ns_per_coordinate"),
        "ratio": spread.median / ours.median,
    }
