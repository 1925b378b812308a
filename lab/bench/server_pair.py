"""Two server processes over loopback gRPC with mutual TLS, started for a list of cases and joined to their results."""

from __future__ import annotations

import json
import socket
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from precad.deploy.authority import pki
from precad.deploy.localhost.processes import Child, Children
from precad.lab.bench.errors import ProcessFailedError
from precad.lab.bench.measured import Measured
from precad.lab.bench.server import Job
from precad.lab.bench.statistics import Spread
from precad.lab.bench.workload import Case
from precad.protos.tls.identity import AGGREGATORS, Identity

POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class PairResult:
    """Both servers' view of one case. A step takes as long as the slower of the two."""

    case: Case
    check: Spread
    """Seconds for the whole batch."""
    aggregate: Spread | None
    dealer: Spread | None
    bytes_link: int
    """Bytes of the check, by the server that sends more."""
    bytes_link_total: int
    """Bytes of the check, both directions."""
    aggregate_bytes_link: int
    rounds: int
    peak_rss: int
    parts: dict[str, float]
    """Medians of the floor's parts, seconds."""
    computing: tuple[Spread, Spread] | None
    """Seconds of the check at A and at B, without exchanges. Mode `proved` alone."""
    rows: Spread | None
    """Seconds of the row values, before the check. Mode `proved` alone."""

    @classmethod
    def join(cls, case: Case, a: Measured, b: Measured) -> PairResult:
        """Join both servers' measurements of the same repetitions, in step."""

        def slower(name: str) -> Spread | None:
            pairs = list(zip(getattr(a, name), getattr(b, name), strict=True))
            return Spread.of([max(pair) for pair in pairs]) if pairs else None

        check = slower("check_s")
        assert check is not None  # every case has at least one repetition
        return cls(
            case=case,
            check=check,
            aggregate=slower("aggregate_s"),
            dealer=slower("dealer_s"),
            bytes_link=max(a.bytes_sent, b.bytes_sent),
            bytes_link_total=a.bytes_sent + b.bytes_sent,
            aggregate_bytes_link=max(a.aggregate_bytes_sent, b.aggregate_bytes_sent),
            rounds=a.rounds,
            peak_rss=max(a.peak_rss, b.peak_rss),
            parts={name: Spread.of(seconds).median for name, seconds in a.parts.items()},
            computing=(Spread.of(a.computing_s), Spread.of(b.computing_s)) if a.computing_s else None,
            rows=slower("rows_s"),
        )


def measure(cases: Sequence[Case], *, timeout_s: float = 7200.0) -> list[PairResult]:
    """Run every case in one pair of processes. Raises ProcessFailedError with their last words."""
    with tempfile.TemporaryDirectory(prefix="precad-bench-") as folder:
        root = Path(folder)
        pki.create_authority(root / "pki", name="precad benchmark")
        for role in AGGREGATORS:
            pki.issue(root / "pki", Identity(role, role.value))
        job, result = root / "job.json", {letter: root / f"{letter}.json" for letter in ("a", "b")}
        Job(f"127.0.0.1:{free_ports(1)[0]}", str(root / "pki"), tuple(cases)).write(job)
        children = Children(root)
        try:
            started = [
                children.start(f"server-{letter}", "bench", "server", str(job), str(path), "--party", letter)
                for letter, path in result.items()
            ]
            wait_for_all(started, timeout_s)
        finally:
            children.close()
        a, b = ([Measured(**fields) for fields in json.loads(path.read_text())] for path in result.values())
    return [PairResult.join(*joined) for joined in zip(cases, a, b, strict=True)]


def wait_for_all(children: Sequence[Child], timeout_s: float) -> None:
    """Return when all have ended well. Raises ProcessFailedError soon after one has not, or at the deadline."""
    deadline = time.monotonic() + timeout_s
    while any(child.exit_code is None for child in children):
        if any(child.exit_code not in (None, 0) for child in children):
            time.sleep(1.0)  # the one that ends first is not always the one that says why
            break
        if time.monotonic() > deadline:
            raise ProcessFailedError(f"{', '.join(c.name for c in children)} did not end within {timeout_s:g} s")
        time.sleep(POLL_S)
    _require_well(children)


def _require_well(children: Sequence[Child]) -> None:
    ended = [child for child in children if child.exit_code not in (None, 0)]
    if ended:
        raise ProcessFailedError(
            "\n".join(f"{child.name} ended with code {child.exit_code}: {child.last_words()}" for child in ended)
        )


def free_ports(n: int) -> list[int]:
    """Return free ports of the loopback interface. Another process might take one before we do; then it is reported."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(n)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports
