"""Complete the sections of a local run's servers: free addresses, and waits that suit processes of one machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from precad.deploy.errors import ConfigError
from precad.deploy.run_files.folder import RunFolder
from precad.protos.task.proved_fields import MODE as PROVED

REJOIN_TIMEOUT_S = 60.0
"""How long a run that is continued waits for the clients that start with it."""
LINGER_S = 604_800.0
"""How long dashboards stay that somebody at a terminal closes."""
_SERVERS = (
    (("aggregator", "a"), "aggregator_a"),
    (("aggregator", "b"), "aggregator_b"),
    (("dealer",), "dealer"),
)


def is_proved(raw: Mapping[str, Any]) -> bool:
    """Return whether a configuration is of mode `proved`, which has no dealer."""
    task = raw.get("task")
    return isinstance(task, Mapping) and task.get("mode") == PROVED


def _servers(raw: Mapping[str, Any]) -> tuple[tuple[tuple[str, ...], str], ...]:
    """Return the section and the name of each server that a configuration has."""
    return _SERVERS[:2] if is_proved(raw) else _SERVERS


def supply_addresses(resolved: dict[str, Any], folder: RunFolder) -> None:
    """Write addresses, and what follows from nobody starting a process again, where the user wrote none."""
    if not resolved["network"]:
        resolved["network"] = _free_addresses(resolved)
    for section_of_server, name in _servers(resolved):
        server = resolved
        for key in section_of_server:
            server = server[key]
        if name in resolved["network"]:
            server.setdefault("listen", resolved["network"][name])
        server.setdefault("reconnect_timeout_s", 0.0)  # nobody starts one process of this run again
        if name != "dealer":
            server.setdefault("rejoin_timeout_s", REJOIN_TIMEOUT_S)  # but all of them, to continue the run
        server.setdefault("drain_timeout_s", 0.0)  # nor is there anybody to finish a round for
        if "operations_listen" in server:
            server.setdefault("operations_token", folder.operations_token.name)
    resolved["client"].setdefault("reconnect_timeout_s", 0.0)


def with_operations(raw: Mapping[str, Any], *, stays: bool = False) -> dict[str, Any]:
    """Return the configuration with an operations port for every server that has none. Raises ConfigError.

    stays: whether the ports stay open when the task is over.
    """
    wished = dict(raw)
    for (keys, _), address in zip(_servers(raw), _free_addresses(raw).values(), strict=True):
        section = wished
        for key in keys:
            if not isinstance(inner := section.get(key, {}), Mapping):
                raise ConfigError(f"{'.'.join(keys)}: expected a section, found {inner!r}")
            section[key] = dict(inner)
            section = section[key]
        section.setdefault("operations_listen", address)
        if stays:
            section["operations_linger_s"] = LINGER_S
    return wished


def _free_addresses(raw: Mapping[str, Any]) -> dict[str, str]:
    """Return a free port of the loopback interface for each server. Another process might take one before we do; then
    it is reported."""
    names = [name for _, name in _servers(raw)]
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in names]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return {name: f"127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
