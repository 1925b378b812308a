"""Starts the peers and reads their results. A peer that is not installed gives None and a line that says so."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from precad.deploy.localhost.processes import Children, isolated_python
from precad.lab.bench.errors import ProcessFailedError
from precad.lab.bench.server_pair import free_ports, wait_for_all
from precad.lab.bench.statistics import Spread
from precad.lab.bench.workload import CLIP_NORM

CRYPTEN_TTP, SPU_SEMI2K, SPU_CHEETAH, OPENDP = "crypten-ttp", "spu-semi2k", "spu-cheetah", "opendp"
OPACUS = "opacus"
SCRIPTS = Path(__file__).parent / "peers"
TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One size at which a peer is measured."""

    dim: int
    clients: int
    repetitions: int

    def fields(self) -> dict[str, int]:
        """Return the fields for a peer's job file."""
        return {"dim": self.dim, "clients": self.clients, "repetitions": self.repetitions}


@dataclass(frozen=True, slots=True)
class PeerResult:
    """One peer at one size."""

    cell: Cell
    check: Spread
    """Seconds for the whole batch, at the slower server."""
    bytes_link: float
    """By one server, for the whole batch."""
    rounds: int


def missing(peer: str, peers_python: Path) -> str | None:
    """Return why a peer cannot run, in one line; None when it can."""
    if peer == CRYPTEN_TTP:
        if importlib.util.find_spec("crypten") is None:
            return "CrypTen is not installed: pip install --no-deps crypten==0.4.1"
        return None
    package = peer if peer in (OPENDP, OPACUS) else "spu"
    if not peers_python.exists():
        return f"{package} is not installed: no {peers_python}; make peers"
    probe = f"import importlib.util as u, sys; sys.exit(u.find_spec({package!r}) is None)"
    if peer == OPACUS:
        probe = "import opacus"  # its torch may be there and lack its libraries
    if subprocess.run([str(peers_python), "-P", "-c", probe], check=False, capture_output=True).returncode:
        return f"{package} is not installed in {peers_python.parent.parent}: make peers"
    return None


def run_peer(peer: str, cells: Sequence[Cell], peers_python: Path) -> list[PeerResult]:
    """Run every size in one start of the peer's processes. Raises ProcessFailedError."""
    if peer == CRYPTEN_TTP:
        return _run_parties(
            peer, cells, [*isolated_python(), "-m", "precad.lab.bench.peers.crypten_ttp"], 3, _crypten_traffic
        )
    command = [str(peers_python.absolute()), str(SCRIPTS / "spu_norm.py")]
    return _run_parties(peer, cells, command, 2, _spu_traffic)


def run_opendp(std: float, size: int, repetitions: int, peers_python: Path) -> Spread:
    """Return nanoseconds per coordinate. Raises ProcessFailedError."""
    command = [str(peers_python), str(SCRIPTS / "opendp_gaussian.py"), str(std), str(size), str(repetitions)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode:
        raise ProcessFailedError(f"{OPENDP} ended with code {done.returncode}: {done.stderr.strip()[-400:]}")
    return Spread.of(json.loads(done.stdout))


Traffic = Callable[[Path, list[dict[str, Any]]], list[tuple[float, int]]]
"""(folder, results of server B) to (bytes sent by one server, rounds) of every size."""


def _run_parties(
    peer: str, cells: Sequence[Cell], command: list[str], n_processes: int, traffic: Traffic
) -> list[PeerResult]:
    with tempfile.TemporaryDirectory(prefix=f"precad-{peer}-") as folder:
        job = Path(folder) / "job.json"
        fields = {
            "cells": [cell.fields() for cell in cells],
            "clip_norm": CLIP_NORM,
            "ports": free_ports(2),
            "protocol": peer.rpartition("-")[2].upper(),
        }
        job.write_text(json.dumps(fields))
        children = Children(Path(folder))
        try:
            started = [
                children.start_program(f"{peer}-{rank}", *command, str(job), str(rank)) for rank in range(n_processes)
            ]
            wait_for_all(started, TIMEOUT_S)
        finally:
            children.close()
        a, b = (json.loads(job.with_name(f"result-{rank}.json").read_text()) for rank in (0, 1))
        seconds = ((at_a["seconds"], at_b["seconds"]) for at_a, at_b in zip(a, b, strict=True))
        return [
            PeerResult(cell, Spread.of([max(pair) for pair in zip(*both, strict=True)]), n_bytes, rounds)
            for cell, both, (n_bytes, rounds) in zip(cells, seconds, traffic(Path(folder), b), strict=True)
        ]


def _crypten_traffic(folder: Path, results: list[dict[str, Any]]) -> list[tuple[float, int]]:
    return [(result["bytes"], result["rounds"]) for result in results]


def _spu_traffic(folder: Path, results: list[dict[str, Any]]) -> list[tuple[float, int]]:
    """Read the traffic from the profile that SPU logs after the first run of every size."""
    log = next(folder.glob("spu-*-1.log")).read_text(errors="replace")
    lines = re.findall(r"Link details: total send bytes (\d+), recv bytes \d+, send actions (\d+)", log)
    if len(lines) != len(results):
        raise ProcessFailedError(f"SPU's log has {len(lines)} profiles for {len(results)} sizes")
    return [(float(n_bytes), int(actions)) for n_bytes, actions in lines]
