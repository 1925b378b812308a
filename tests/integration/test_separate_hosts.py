"""The commands and sample configurations of a deployment, on hosts of their own behind a firewall.

Failure means one of these:
- a link of docs/explanation/architecture.md that the firewall needs and the table lacks (the task would not end);
- a link that the firewall lets through and the table does not hold;
- a process that does not end with exit code 0;
- servers whose logs contradict one another.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from precad.protos.tls.identity import Role
from tests.harness.hosts import Hosts, HostsUnavailableError, hosts
from tests.harness.links import MONITORING, Link, architecture_links
from tests.harness.organisations import CLIENTS, NAMES, ROOT, SERVERS, Organisations

pytestmark = pytest.mark.slow

ROUNDS = 3
TIMEOUT_S = 240.0
PORTS = (7001, 7002, 7003, 7004, 9464)
SHORTER = {
    "rounds = 10": f"rounds = {ROUNDS}",
    "3600.0": "120.0",  # whoever waits in vain should not do so for an hour
}
LISTEN = """
import selectors, socket
listening = [socket.create_server(("0.0.0.0", port)) for port in {ports}]
selector = selectors.DefaultSelector()
for one in listening: selector.register(one, selectors.EVENT_READ)
print("up", flush=True)
while True:
    for key, _ in selector.select(): key.fileobj.accept()[0].close()
"""
KNOCK = """
import json, socket
from concurrent.futures import ThreadPoolExecutor
def is_open(address):
    try: socket.create_connection(address, timeout=5).close()
    except OSError: return False
    return True
targets = {targets}
with ThreadPoolExecutor(len(targets)) as threads: answers = list(threads.map(is_open, targets))
print(json.dumps([target for target, answer in zip(targets, answers) if answer]))
"""


def links_between_hosts(has_dealer: bool) -> frozenset[Link]:
    """The table, with a host for each client."""
    links = [link for link in architecture_links() if has_dealer or Role.DEALER not in link[:2]]
    return frozenset(
        Link(source, link.target, link.port)
        for link in links
        for source in (CLIENTS if link.source == Role.CLIENT else (link.source,))
    )


@pytest.fixture(params=[True, False], ids=["with-a-dealer", "without"])
def has_dealer(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def network(has_dealer: bool) -> Iterator[Hosts]:
    servers = SERVERS if has_dealer else SERVERS[:2]
    try:
        with hosts((*servers, *CLIENTS, MONITORING), links_between_hosts(has_dealer)) as made:
            yield made
    except HostsUnavailableError as error:
        pytest.skip(f"no network namespaces here: {error}")


def test_the_firewall_opens_the_links_of_the_architecture_alone(network: Hosts, has_dealer: bool) -> None:
    """Something listens on every port of every host; everybody knocks everywhere."""
    listening = []
    try:
        for host in network.addresses:
            command = network.command(host, sys.executable, "-c", LISTEN.format(ports=PORTS))
            listening.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        for process in listening:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
        found = set()
        of_address = {address: host for host, address in network.addresses.items()}
        for host in network.addresses:
            targets = [(a, port) for a, port in itertools.product(of_address, PORTS) if of_address[a] != host]
            command = network.command(host, sys.executable, "-c", KNOCK.format(targets=targets))
            answer = subprocess.run(command, capture_output=True, check=True, timeout=120)
            found |= {Link(host, of_address[address], port) for address, port in json.loads(answer.stdout)}
    finally:
        for process in listening:
            process.kill()
            process.communicate()
    assert found == links_between_hosts(has_dealer)


def prepared(root: Path, network: Hosts, has_dealer: bool) -> Organisations:
    """Keys, samples, records and models, by the steps of the runbook."""
    organisations = Organisations.create(root, has_dealer=has_dealer)
    ports = {role: address.rpartition(":")[2] for role, address in NAMES.items()}
    organisations.write_configs(
        {role: f"{network.addresses[role]}:{ports[role]}" for role in organisations.servers}, SHORTER
    )
    for role in (Role.AGGREGATOR_A, Role.AGGREGATOR_B):
        precad("initial-model", str(organisations.config(role)), str(organisations.folder(role) / "initial.npy"))
    for role in (*organisations.servers, Role.CLIENT):
        precad("check", str(organisations.config(role)))
    return organisations


def precad(*arguments: str) -> str:
    """Here, to its end."""
    command = [sys.executable, "-P", "-m", "precad.deploy.cli.main", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=120).stdout


def test_a_task_across_hosts(network: Hosts, has_dealer: bool, tmp_path: Path) -> None:
    """Every process ends with exit code 0, and both servers wrote down the same releases."""
    organisations = prepared(tmp_path, network, has_dealer)
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for host, arguments in organisations.commands():
            with (tmp_path / f"{host}.log").open("wb") as log:
                command = network.command(host, sys.executable, "-P", "-m", "precad.deploy.cli.main", *arguments)
                running[host] = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        deadline = time.monotonic() + TIMEOUT_S
        codes = {host: process.wait(max(0.1, deadline - time.monotonic())) for host, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()
    logs = {host: (tmp_path / f"{host}.log").read_text()[-2000:] for host in running}
    assert set(codes.values()) == {0}, (codes, logs)
    a, b = (str(organisations.folder(role) / "state") for role in (Role.AGGREGATOR_A, Role.AGGREGATOR_B))
    report = json.loads(precad("audit", "log", a, "--against", b, "--json"))
    assert (report["releases"], report["agreed_releases"], report["interruptions"]) == (ROUNDS, ROUNDS, 0)
