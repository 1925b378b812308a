"""The organisations of a deployment as `precad init` writes their files, and their pods in Kubernetes."""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from precad.deploy.configuration.init import deployment_files
from precad.deploy.configuration.sections import Deployment, parse
from precad.protos.tls.identity import Role
from tests.harness.links import MONITORING
from tests.harness.organisations import SERVERS
from tests.harness.policies import Pod

ROLES = [*SERVERS, Role.CLIENT]


@dataclass(frozen=True)
class Site:
    """Name an organisation by its role, with a dealer or without one. Its files are those that `precad init` writes."""

    role: Role
    has_dealer: bool

    def __str__(self) -> str:
        return f"{self.role}-{'with' if self.has_dealer else 'without'}-a-dealer"

    def text(self, name: str) -> str:
        """Return a file of its folder."""
        return written(self.has_dealer)[f"{self.role}/{name}"]

    def manifest(self, name: str) -> str:
        """Return a file of its Kubernetes folder."""
        return self.text(f"kubernetes/{name}")

    def in_kubernetes(self) -> Deployment:
        """Return the configuration that a pod has."""
        return parse(tomllib.loads(self.manifest("precad.toml")), base=Path("/etc/precad/config"))

    def sample(self) -> Deployment:
        """Return the sample, as read from /etc/precad."""
        return parse(tomllib.loads(self.text(f"{self.role}.toml")), base=Path("/etc/precad"))


@functools.cache
def written(has_dealer: bool) -> dict[str, str]:
    """Return all files of a deployment."""
    return deployment_files(has_dealer=has_dealer)


@functools.cache
def sites(has_dealer: bool) -> list[Site]:
    """Return the organisations of a deployment."""
    return [Site(role, has_dealer) for role in ROLES if has_dealer or role is not Role.DEALER]


SITES = [*sites(True), *sites(False)]
SERVER_SITES = [site for site in SITES if site.role is not Role.CLIENT]
with_and_without = pytest.mark.parametrize("has_dealer", [True, False], ids=["with-a-dealer", "without"])
PORTS = (22, 53, 80, 443, 7001, 7002, 7003, 7004, 7005, 8080, 9464)
"""Where the graphs are compared: the architecture's, and some that nobody has any business with."""
PROMETHEUS = Pod(
    MONITORING,
    "monitoring",
    {"app.kubernetes.io/name": "prometheus"},
    {"kubernetes.io/metadata.name": "monitoring"},
)


@functools.cache
def manifests(site: Site) -> list[dict[str, Any]]:
    """Return what the folder's kustomization lists, with the namespace that it sets."""
    kustomization = yaml.safe_load(site.manifest("kustomization.yaml"))
    found = []
    for name in kustomization["resources"]:
        for document in yaml.safe_load_all(site.manifest(name)):
            if document["kind"] != "Namespace":
                document["metadata"]["namespace"] = kustomization["namespace"]
            found.append(document)
    return found


def of_kind(site: Site, kind: str) -> list[dict[str, Any]]:
    """Return a site's manifests of one kind."""
    return [document for document in manifests(site) if document["kind"] == kind]


def workload(site: Site) -> dict[str, Any]:
    """Return what makes a site's pod."""
    (found,) = of_kind(site, "Job" if site.role is Role.CLIENT else "StatefulSet")
    return found


def pod_spec(site: Site) -> dict[str, Any]:
    """Return how a site's pod is made."""
    spec: dict[str, Any] = workload(site)["spec"]["template"]["spec"]
    return spec


def pod(site: Site) -> Pod:
    """Return a site's pod, as policies know it."""
    (namespace,) = of_kind(site, "Namespace")
    name = namespace["metadata"]["name"]
    labels = {**namespace["metadata"]["labels"], "kubernetes.io/metadata.name": name}  # which Kubernetes adds
    return Pod(site.role, name, workload(site)["spec"]["template"]["metadata"]["labels"], labels)
