"""Hosts on this machine: Linux network namespaces, each with a cable to one router that forwards some links alone.

The router has no memory. It forwards a link from its source to the port of its target, and back from that port. It
answers all else with "prohibited". It needs root and `ip`, and no packet filter: policy routing decides.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tests.harness.links import Link


class HostsUnavailableError(Exception):
    """This machine does not let us make hosts."""


@dataclass(frozen=True)
class Hosts:
    """By name; at most 200 of them."""

    addresses: Mapping[str, str]
    _prefix: str

    def command(self, host: str, *command: str) -> list[str]:
        """`command` as it is run on a host."""
        return ["ip", "netns", "exec", f"{self._prefix}-{host}", *command]


@contextlib.contextmanager
def hosts(names: Iterable[str], links: Iterable[Link]) -> Iterator[Hosts]:
    """Hosts between which these links are open; gone when the block ends. Raises HostsUnavailableError."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise HostsUnavailableError("needs root and the program `ip`")
    prefix = f"precad-{os.getpid()}"
    made = Hosts({name: f"10.77.{i}.2" for i, name in enumerate(names, start=1)}, prefix)
    with contextlib.ExitStack() as stack:
        _namespace(stack, f"{prefix}-router")
        for setting in ("ip_forward=1", "icmp_ratelimit=0"):  # every refusal is told, so that nobody waits for one
            _run("ip", "netns", "exec", f"{prefix}-router", "sysctl", "-qw", f"net.ipv4.{setting}")
        for i, name in enumerate(made.addresses, start=1):
            _cable(stack, prefix, name, i)
        for link in links:
            _forward(prefix, made.addresses, link)
        yield made


def _namespace(stack: contextlib.ExitStack, name: str) -> None:
    _run("ip", "netns", "add", name)
    stack.callback(subprocess.run, ["ip", "netns", "delete", name], check=False)
    _run("ip", "-n", name, "link", "set", "lo", "up")


def _cable(stack: contextlib.ExitStack, prefix: str, host: str, i: int) -> None:
    """Host i has 10.77.i.2, the router 10.77.i.1 on an interface that it takes nothing from unless a link says so."""
    own, router = f"{prefix}-{host}", f"{prefix}-router"
    _namespace(stack, own)
    _run("ip", "link", "add", "eth0", "netns", own, "type", "veth", "peer", "name", f"port{i}", "netns", router)
    for namespace, interface, address in ((own, "eth0", f"10.77.{i}.2"), (router, f"port{i}", f"10.77.{i}.1")):
        _run("ip", "-n", namespace, "address", "add", f"{address}/24", "dev", interface)
        _run("ip", "-n", namespace, "link", "set", interface, "up")
    _run("ip", "-n", own, "route", "add", "default", "via", f"10.77.{i}.1")
    _run("ip", "-n", router, "rule", "add", "pref", "20000", "iif", f"port{i}", "prohibit")


def _forward(prefix: str, addresses: Mapping[str, str], link: Link) -> None:
    there, back = addresses[link.source], addresses[link.target]
    for source, target, side in ((there, back, "dport"), (back, there, "sport")):
        rule = ("from", source, "to", target, "ipproto", "tcp", side, str(link.port), "lookup", "main")
        _run("ip", "-n", f"{prefix}-router", "rule", "add", "pref", "10000", *rule)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise HostsUnavailableError(f"{' '.join(command)}: {done.stderr.strip()}")
