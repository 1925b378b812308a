"""Servers that are killed, frozen and cut off at random moments, on good networks and on bad ones.

What counts as failure is in `tests.faults.deployment`, and a task that does not come to its end. The numbers of kills
and rounds of the long run are PRECAD_CHAOS_KILLS and PRECAD_CHAOS_ROUNDS.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from precad.protos.tls.identity import Role
from precad.protos.tls.transport import CLIENT_PING_TIMEOUT_S, PING_TIME_S, PING_TIMEOUT_S
from precad.servers.store import audit_log
from precad.servers.store.folder import store_path
from tests.faults.chaos import N_LEFT, is_ahead, run
from tests.faults.deployment import Processes, assert_nothing_wrong
from tests.harness.harness import small_task
from tests.harness.pki import AGGREGATORS

N_KILLS = int(os.environ.get("PRECAD_CHAOS_KILLS", "500"))
N_ROUNDS = int(os.environ.get("PRECAD_CHAOS_ROUNDS", "1000"))
BAD_LINES = {
    "delayed and lossy": "netem delay 5ms 3ms loss 1%",
    "narrow, with a short queue": "tbf rate 2mbit burst 4kb latency 15ms",
}
"""Queueing disciplines of Linux's tc: both delay, and drop what comes at the wrong moment."""
A, B = AGGREGATORS


def test_a_few_random_kills(tmp_path: Path) -> None:
    """Run the program below with few kills, in the default suite."""
    assert int(run(tmp_path, n_rounds=60, n_kills=4, limit_s=240.0)["kills"]) >= 3


@pytest.mark.slow
def test_a_few_random_kills_in_mode_proved(tmp_path: Path) -> None:
    """Likewise; no proof is opened twice, whatever dies when."""
    assert int(run(tmp_path, n_rounds=24, n_kills=3, limit_s=240.0, mode="proved")["kills"]) >= 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", ["masked", "proved"])
def test_hundreds_of_random_kills(mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every invariant is checked from the databases, ledgers and audit logs of both servers."""
    done = run(tmp_path, n_rounds=N_ROUNDS, n_kills=N_KILLS, limit_s=3500.0, mode=mode)
    with capsys.disabled():
        print(f"\n{json.dumps(done)}")
    assert int(done["kills"]) >= N_KILLS


@pytest.mark.parametrize(("kills", "rounds"), [(4, 60), (3, 24), (500, 600), (500, 1000), (20, 60)])
def test_the_kills_are_over_before_the_last_rounds(kills: int, rounds: int) -> None:
    """Though what comes after a round that waits kills no server. A run of 600 rounds once ended with 498 kills."""
    n_killed = n_committed = 0
    while n_killed < kills and n_committed < rounds - N_LEFT:
        if is_ahead(n_killed, kills, n_committed, rounds):
            n_committed += 1
        else:
            n_killed += 1
    assert n_killed == kills


def inside_a_network(line: str, command: list[str]) -> list[str]:
    """The command, in a network of its own that has only loopback, and that with this queueing discipline."""
    setup = f"ip link set lo up mtu 1500 && tc qdisc add dev lo root {line} && exec {shlex.join(command)}"
    return ["unshare", "--map-root-user", "--net", "sh", "-c", setup]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES.keys())
def test_kills_on_a_bad_line(line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Between all processes, clients included."""
    try:
        probe = subprocess.run(inside_a_network(line, ["true"]), capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        pytest.skip(f"no network namespaces here: {error}")
    if probe.returncode != 0:
        pytest.skip(f"no `tc qdisc ... {line}` in a network namespace here: {probe.stderr.strip()}")
    chaos = [sys.executable, "-m", "tests.faults.chaos", str(tmp_path / "run"), "--kills=20", "--rounds=60"]
    done = subprocess.run(
        inside_a_network(line, [*chaos, "--limit-s=1700"]),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-6000:]
    with capsys.disabled():
        print(f"\n{line}: {done.stdout.splitlines()[-1]}")


OF_DIALER_S = 2.0 * (PING_TIME_S + PING_TIMEOUT_S)
OF_LISTENER_S = 2.0 * CLIENT_PING_TIMEOUT_S + PING_TIMEOUT_S
"""Longer than it takes the end of a link that dialled, or the other one, to find the peer dead."""


@pytest.mark.slow
@pytest.mark.parametrize(("victim", "asleep_s"), [(A, OF_LISTENER_S), (B, OF_DIALER_S), (Role.DEALER, OF_DIALER_S)])
def test_a_server_that_sleeps_for_longer_than_its_links_live(tmp_path: Path, victim: Role, asleep_s: float) -> None:
    """The others take it for lost. When it wakes up, in the middle of whatever it was in, the task goes on.

    No server dials A, so that its loss is noticed later.
    """
    task = small_task(("alice", "bob"), rounds=40, client_rate=0.8, gate="native", submit_timeout_s=1.0)
    processes = Processes(tmp_path, task, training_s=0.05)

    async def sleeps() -> None:
        processes.start(*processes.addresses)
        async with processes.clients():
            await processes.until_next_round(limit_s=60.0)
            processes.signal(signal.SIGSTOP, victim)
            await asyncio.sleep(asleep_s)
            processes.signal(signal.SIGCONT, victim)
            await processes.finish()

    try:
        asyncio.run(asyncio.wait_for(sleeps(), 240.0))
        assert_nothing_wrong(processes)
    finally:
        processes.close()
    logs = [audit_log.read(store_path(tmp_path / role)) for role in AGGREGATORS]
    assert all(any(entry.kind == "interrupted" for entry in log) for log in logs)
