"""Kubernetes NetworkPolicies: compute what a set of them lets through, as the API's documentation defines it.

A pod is isolated for a direction as soon as one policy of its namespace selects it for that direction. Then what some
rule of such a policy names is let through, and nothing else. A connection needs both ends' consent. Source: Kubernetes,
"Network Policies", sections "The two sorts of pod isolation" and "Behavior of `to` and `from`".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Pod:
    """Hold what policies know a pod by."""

    name: str
    namespace: str
    labels: Mapping[str, str]
    namespace_labels: Mapping[str, str]


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """An empty selector selects everything. Raises ValueError for what this does not know."""
    if unknown := selector.keys() - {"matchLabels"}:
        raise ValueError(f"selector: expected matchLabels, found {sorted(unknown)}")
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def _is_peer(peer: Mapping[str, Any], pod: Pod, policy_namespace: str) -> bool:
    if unknown := peer.keys() - {"namespaceSelector", "podSelector"}:
        raise ValueError(f"peer: expected selectors, found {sorted(unknown)}")
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], pod.namespace_labels):
            return False
    elif pod.namespace != policy_namespace:
        return False
    return selects(peer.get("podSelector", {}), pod.labels)


def _permits(rule: Mapping[str, Any], peers: str, pod: Pod, namespace: str, port: int, protocol: str) -> bool:
    """No list of peers, or of ports, means all of them."""
    if peers in rule and not any(_is_peer(peer, pod, namespace) for peer in rule[peers]):
        return False
    ports = rule.get("ports")
    return ports is None or any((p.get("protocol", "TCP"), p.get("port", port)) == (protocol, port) for p in ports)


def is_open(policies: Iterable[Mapping[str, Any]], source: Pod, target: Pod, port: int, protocol: str = "TCP") -> bool:
    """Whether `source` may open a connection to the port of `target`."""
    everything = list(policies)
    return _consents(everything, "Egress", source, target, port, protocol) and _consents(
        everything, "Ingress", target, source, port, protocol
    )


def _consents(
    policies: list[Mapping[str, Any]],
    direction: Literal["Ingress", "Egress"],
    pod: Pod,
    other: Pod,
    port: int,
    protocol: str,
) -> bool:
    mine = [
        policy
        for policy in policies
        if policy["metadata"]["namespace"] == pod.namespace
        and direction in policy["spec"]["policyTypes"]
        and selects(policy["spec"]["podSelector"], pod.labels)
    ]
    rules = [rule for policy in mine for rule in policy["spec"].get(direction.lower(), [])]
    peers = "from" if direction == "Ingress" else "to"
    return not mine or any(_permits(rule, peers, other, pod.namespace, port, protocol) for rule in rules)
