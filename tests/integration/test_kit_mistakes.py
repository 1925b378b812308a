"""Mistakes of the runbook's table that only running servers can make, made by organisations that joined by kits.

Every organisation is a process of this machine with a folder of its own. Failure means: a mistake that is not refused,
or another last line or exit code than docs/guides/runbook.md has for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from precad.deploy.cli.main import app
from precad.deploy.configuration.sections import load
from precad.deploy.errors import REFUSED, UNREACHABLE
from precad.mpc.proved.submission import seeded_of
from precad.protos.precad.v1 import aggregator_pb2_grpc
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.transport import bind_server
from tests.harness.classical import classical_context, classical_server, relayed
from tests.harness.command_line import CliRunner
from tests.harness.harness import free_addresses
from tests.harness.kits import PARTICIPANTS, SERVERS, Project
from tests.harness.organisations import ROOT
from tests.integration.test_client_restarts import HangingUp

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

A, B = SERVERS
CLIENT = "hospital-1"
TIMEOUT_S = 600.0
COMMAND = (sys.executable, "-P", "-m", "precad.deploy.cli.main")


def precad(*arguments: object) -> str:
    """In this process."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="precad")
    assert done.exit_code == 0, done.output
    return done.output


def new_project(root: Path, task: Mapping[str, str]) -> tuple[Project, str]:
    """Make kits of a task with these changes; return them and what the operators of A and B read out."""
    project = Project(root, precad)
    project.begin(dict(zip((*SERVERS, "lane"), free_addresses(3), strict=True)))
    Project.replace(project.start / "task.toml", task)
    project.request()
    digest = project.provision()
    project.give_records()
    return project, digest


class Started:
    """Organisations that joined and started. A process that is started again goes on with its log."""

    def __init__(self, project: Project, digest: str, participants: Iterable[str]) -> None:
        self._project, self._digest = project, digest
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.start(*participants)

    def log(self, name: str) -> Path:
        return self._project.root / f"{name}.log"

    def start(self, *participants: str) -> None:
        for name in participants:
            command = [*COMMAND, *self._project.join(name, self._digest)]
            with self.log(name).open("ab") as log:
                self._running[name] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def stop(self, *participants: str) -> None:
        """Stop them as an operator does, and wait until they have ended."""
        for name in participants:
            self._running[name].terminate()
        self.codes(*participants)

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def codes(self, *participants: str) -> dict[str, int]:
        """Wait for the ends of these, or of all."""
        deadline = time.monotonic() + TIMEOUT_S
        names = participants or tuple(self._running)
        return {name: self._running[name].wait(max(0.1, deadline - time.monotonic())) for name in names}

    def said(self) -> dict[str, str]:
        return {name: self.log(name).read_text()[-2000:] for name in self._running}

    def require_end(self, words: str, code: int, *participants: str) -> None:
        """Require that these end with a code, and with words that the runbook's table has for it."""
        require_in_the_table(words, code)
        assert self.codes(*participants) == dict.fromkeys(participants, code), self.said()
        for name in participants:
            assert words in self.said()[name].splitlines()[-1], self.said()
            assert "Traceback" not in self.log(name).read_text()

    def fill_disk(self, name: str, n_bytes: int) -> None:
        """Let no file of a process grow beyond so many bytes."""
        resource.prlimit(self._running[name].pid, resource.RLIMIT_FSIZE, (n_bytes, n_bytes))

    def until_rounds(self, n: int) -> None:
        """Wait until B has committed n rounds."""
        file, deadline = self._project.home(B) / B / "state" / "rounds.jsonl", time.monotonic() + TIMEOUT_S
        while not file.exists() or len(file.read_bytes().splitlines()) < n:
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)


def require_in_the_table(words: str, code: int) -> None:
    table = (ROOT / "docs/reference/endings.md").read_text()
    assert (words, str(code)) in re.findall(r"^\| `([^`]+)` \| (\d) \|", table, re.MULTILINE)


def tls_of(project: Project, name: str) -> TlsFiles:
    """Return what a participant shows and trusts, once it has joined; a server before that, from its kit."""
    home, kit = project.home(name) / name, project.kit(name)
    return TlsFiles(certificate=kit / "cert.pem", key=home / "key.pem", authority=kit / "ca.pem")


def of_one_s_own(who: str, text: str) -> Callable[[Project], object]:
    return lambda project: (project.home(who) / who / "own.toml").write_text(text)


WITHOUT_CLIENTS = {
    "no client": ({"registration_timeout_s = 120.0": "registration_timeout_s = 3.0"}, None),
    "one strict server": ({}, of_one_s_own(A, "[aggregator.a]\nrequire_pqc = true\n")),
    "a closed lane": (
        {},
        lambda project: (
            of_one_s_own(A, "[aggregator.a]\nconnect_timeout_s = 5.0\n")(project),
            of_one_s_own(B, '[aggregator.b]\nlane_listen = "127.0.0.2:0"\nconnect_timeout_s = 30.0\n')(project),
        ),
    ),
}


@pytest.mark.parametrize(
    ("mistake", "words", "code"),
    [
        ("no client", "min_clients: expected", REFUSED),
        ("one strict server", "require_pqc differs between the servers", REFUSED),
        ("a closed lane", "must be open to us", UNREACHABLE),
    ],
)
def test_servers_that_cannot_begin_say_why(mistake: str, words: str, code: int, tmp_path: Path) -> None:
    """At A, in its last line."""
    task, change = WITHOUT_CLIENTS[mistake]
    project, digest = new_project(tmp_path, task)
    if change is not None:
        change(project)
    with Started(project, digest, SERVERS) as started:
        started.require_end(words, code, A)


UNLIMITED = {"epsilon_budget_one_server = 3.0\n": "", "epsilon_budget_clients_only = 2.0\n": ""}
LONG = {**UNLIMITED, "\nrounds = 3\n": "\nrounds = 2000\n"}
"""Longer than any scenario."""


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ({"epsilon_budget_one_server = 3.0": "epsilon_budget_one_server = 1e-3"}, "the task ended without a round"),
        ({**UNLIMITED, "learning_rate = 3.0": "learning_rate = 1e38"}, "the training diverged"),
    ],
    ids=["a budget for no round", "steps without end"],
)
def test_a_task_that_comes_to_nothing_ends_its_servers(task: Mapping[str, str], words: str, tmp_path: Path) -> None:
    """All five organisations took part."""
    project, digest = new_project(tmp_path, task)
    with Started(project, digest, PARTICIPANTS) as started:
        started.require_end(words, REFUSED, A, B)


def test_folders_that_are_lost_or_of_an_earlier_day_end_both_servers(tmp_path: Path) -> None:
    """A's, while B's is as it was left. Before that, a stop and a start of A's own cost nothing."""
    project, digest = new_project(tmp_path, LONG)
    state, backup = project.home(A) / A / "state", tmp_path / "backup"
    with Started(project, digest, PARTICIPANTS) as started:
        started.until_rounds(2)
        started.stop(A)
        shutil.copytree(state, backup)
        started.start(A)
        started.until_rounds(8)
        started.stop(A, B)
        shutil.rmtree(state)
        shutil.copytree(backup, state)
        started.start(A, B)
        started.require_end("was a server given back an old state_dir?", REFUSED, A, B)
        shutil.rmtree(state)
        started.start(A, B)
        started.require_end("has a server lost its state_dir?", REFUSED, A, B)


def test_a_disk_that_is_full_ends_its_server(tmp_path: Path) -> None:
    """From then on no file of A's grows beyond its database, which wants to."""
    project, digest = new_project(tmp_path, LONG)
    with Started(project, digest, PARTICIPANTS) as started:
        started.until_rounds(2)
        started.fill_disk(A, max(file.stat().st_size for file in (project.home(A) / A / "state").glob("task.sqlite*")))
        started.require_end("nothing was recorded", REFUSED, A)


def test_a_client_that_is_started_again_and_again_stops(tmp_path: Path) -> None:
    """Its servers commit nothing, and ask for one model each time; they have the keys of A and B."""
    project, digest = new_project(tmp_path, {})
    of_one_s_own(CLIENT, "[client]\nuploads_per_model = 1\n")(project)
    asyncio.run(asyncio.wait_for(_started_twice(project, digest), 2 * TIMEOUT_S))


async def _started_twice(project: Project, digest: str) -> None:
    precad(*project.join(CLIENT, digest), "--no-start")
    deployment = load(project.home(CLIENT) / CLIENT / f"{CLIENT}.toml")
    task, addresses = deployment.task, (deployment.network.aggregator_a, deployment.network.aggregator_b)
    servers = [
        HangingUp(bytes(4 * task.dim), task.dim, gives_seed=party == seeded_of(0), task_id=f"{task.name}-1")
        for party in (0, 1)
    ]
    async with contextlib.AsyncExitStack() as stack:
        for name, address, servicer in zip(SERVERS, addresses, servers, strict=True):
            server, _ = bind_server(address, tls_of(project, name))
            aggregator_pb2_grpc.add_AggregatorServicer_to_server(servicer, server)
            await server.start()
            stack.push_async_callback(server.stop, None)
        with Started(project, digest, [CLIENT]) as started:
            await servers[1 - seeded_of(0)].begins.wait()
            await asyncio.to_thread(started.stop, CLIENT)
            started.start(CLIENT)
            await asyncio.to_thread(started.require_end, "stops: expected at most", REFUSED, CLIENT)


def test_a_proxy_without_the_post_quantum_group_is_refused(tmp_path: Path) -> None:
    """Both servers require it. A client's organisation reaches A by a proxy, which has its key and A's, with P-256."""
    project, digest = new_project(tmp_path, {})
    for name in (*SERVERS, CLIENT):
        precad(*project.join(name, digest), "--no-start")
    network = load(project.home(CLIENT) / CLIENT / f"{CLIENT}.toml").network
    (behind,) = free_addresses(1)
    of_one_s_own(A, f'[aggregator.a]\nrequire_pqc = true\nlisten = "{behind}"\n')(project)
    of_one_s_own(B, "[aggregator.b]\nrequire_pqc = true\n")(project)
    of_one_s_own(CLIENT, "[client]\nconnect_timeout_s = 20.0\n")(project)
    contexts = classical_server(tls_of(project, A)), classical_context(tls_of(project, CLIENT))
    with relayed(network.aggregator_a, behind, *contexts), Started(project, digest, (*SERVERS, CLIENT)) as started:
        started.require_end("require_pqc: expected", REFUSED, CLIENT)
