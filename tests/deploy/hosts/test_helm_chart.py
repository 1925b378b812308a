"""The Helm chart, deploy/hosts/helm: what it renders is what deploy/hosts/kubernetes has.

Failure means: an organisation that installs the chart runs something else than one that applies the manifests, or an
operator's value opens a port that no link of docs/explanation/architecture.md has.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from precad.deploy.configuration.init import write
from precad.protos.tls.identity import Role
from tests.harness.go_templates import UnknownTemplateError, render, render_text
from tests.harness.links import MONITORING, Link, architecture_links
from tests.harness.policies import is_open
from tests.harness.sites import PORTS, PROMETHEUS, SITES, Site, manifests, pod, sites, with_and_without, written

KEEP = {"helm.sh/resource-policy": "keep"}
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="needs the program helm")


@functools.cache
def chart(has_dealer: bool) -> dict[str, str]:
    """Return the chart's files, as `precad init` writes them."""
    files = written(has_dealer).items()
    return {name.removeprefix("helm/"): text for name, text in files if name.startswith("helm/")}


def values_of(site: Site) -> dict[str, Any]:
    """Return the values that an organisation gives: its role's file, and its configuration."""
    own: dict[str, Any] = yaml.safe_load(chart(site.has_dealer)[f"roles/{site.role}.yaml"])
    return {**own, "configuration": site.manifest("precad.toml")}


def rendered(site: Site, **given: Any) -> list[dict[str, Any]]:
    """Return the chart's documents, in the release's namespace."""
    found = render(chart(site.has_dealer), values_of(site), given)
    for document in found:
        document["metadata"]["namespace"] = pod(site).namespace
    return found


def comparable(documents: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    """Return documents by kind and name. The configuration's name is without its digest."""
    text = re.sub(r"precad-config-[0-9a-f]{10}\b", "precad-config", json.dumps(documents))
    return {(d["kind"], d["metadata"]["name"]): d for d in json.loads(text)}


@pytest.mark.parametrize("site", SITES, ids=str)
def test_the_chart_renders_the_manifests(site: Site) -> None:
    """All of them, field by field, but for the namespace, which exists before; and nothing else.

    The ConfigMap is what kustomize makes of the folder's precad.toml. A client's count of uploads outlives a release.
    """
    expected = comparable([document for document in manifests(site) if document["kind"] != "Namespace"])
    found = comparable(rendered(site))
    configuration = found.pop(("ConfigMap", "precad-config"))
    assert (configuration["data"], configuration["immutable"]) == ({"precad.toml": site.manifest("precad.toml")}, True)
    assert configuration["metadata"]["annotations"] == KEEP, "a running pod names it until it is replaced"
    if site.role is Role.CLIENT:
        assert found["PersistentVolumeClaim", "hospital-1-state"]["metadata"].pop("annotations") == KEEP
    assert found == expected


@pytest.mark.parametrize("site", SITES, ids=str)
def test_a_pod_gets_the_configuration_that_it_was_made_for(site: Site) -> None:
    """A changed text has another name: a running pod that starts again does not read it."""

    def names(**given: Any) -> tuple[str, str]:
        found = {document["kind"]: document for document in rendered(site, **given)}
        workload = found["Job" if site.role is Role.CLIENT else "StatefulSet"]
        volumes = {volume["name"]: volume for volume in workload["spec"]["template"]["spec"]["volumes"]}
        return found["ConfigMap"]["metadata"]["name"], volumes["config"]["configMap"]["name"]

    before, after = names(), names(configuration="[task]\n")
    assert before[0] == before[1] != after[0] == after[1]


@pytest.mark.parametrize("name", ["123", "true", "null", "1e3"])
def test_a_client_may_have_a_name_that_yaml_takes_for_something_else(name: str) -> None:
    client = next(site for site in SITES if site.role is Role.CLIENT)
    for document in rendered(client, name=name):
        assert isinstance(document["metadata"]["name"], str)
        if document["kind"] == "Job":
            assert document["metadata"]["name"] == name


def opened(has_dealer: bool, **given: Any) -> set[Link]:
    """Return the links between the pods of a deployment, monitoring and a stranger, whose charts have these values."""
    documents = [document for site in sites(has_dealer) for document in rendered(site, **given)]
    policies = [document for document in documents if document["kind"] == "NetworkPolicy"]
    for policy in policies:  # the API reads null as no rules
        policy["spec"] |= {way: policy["spec"].get(way) or [] for way in ("ingress", "egress")}
    ours = {site.role.value: pod(site) for site in sites(has_dealer)}
    stranger = replace(PROMETHEUS, namespace="default", namespace_labels={})
    pods = {**ours, MONITORING: PROMETHEUS, "stranger": stranger}
    return {
        Link(source, target, port)
        for source, target, port in itertools.product(pods, pods, PORTS)
        if source != target and {source, target} & ours.keys() and is_open(policies, pods[source], pods[target], port)
    }


OTHERS = {"aggregatorA": "aggregator-a", "aggregatorB": "aggregator-b", "clients": "client", "dealer": "dealer"}


@with_and_without
@pytest.mark.parametrize("closed", [*OTHERS, MONITORING, "names"])
def test_an_empty_list_of_peers_closes_its_links(has_dealer: bool, closed: str) -> None:
    """A rule of Kubernetes without peers would let everybody in."""
    usual = {link for link in architecture_links() if has_dealer or Role.DEALER not in (link.source, link.target)}
    assert opened(has_dealer) == usual
    if closed == MONITORING:
        gone = {link for link in usual if link.source == MONITORING}
    else:  # a list of its own says who monitors a server
        other = OTHERS.get(closed)
        gone = {link for link in usual if other in (link.source, link.target) and link.source != MONITORING}
    assert opened(has_dealer, networkPolicies={closed: []}) == usual - gone


def test_policies_are_left_out_where_a_cluster_has_its_own() -> None:
    assert not [d for d in rendered(SITES[0], networkPolicies={"enabled": False}) if d["kind"] == "NetworkPolicy"]


def test_a_peer_in_another_cluster_is_an_address() -> None:
    block = [{"ipBlock": {"cidr": "192.0.2.10/32"}}]
    found = comparable(rendered(Site(Role.AGGREGATOR_A, False), networkPolicies={"aggregatorB": block}))
    (rule,) = found["NetworkPolicy", "links"]["spec"]["egress"]
    assert (rule["to"], [port["port"] for port in rule["ports"]]) == (block, [7002, 7003])


@pytest.mark.parametrize("site", sites(True), ids=str)
def test_a_secret_of_cert_manager_is_mounted_under_our_names(site: Site) -> None:
    """Every path of the configuration is there, as with a Secret of our own names."""
    keys = {"certificate": "tls.crt", "key": "tls.key", "authority": "ca.crt"}
    (workload,) = (d for d in rendered(site, secretKeys=keys) if d["kind"] in ("Job", "StatefulSet"))
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    secrets = [volume["secret"] for volume in volumes if "items" in volume.get("secret", {})]
    mounted = {item["path"]: item["key"] for secret in secrets for item in secret["items"]}
    assert mounted == {"cert.pem": "tls.crt", "key.pem": "tls.key", "ca.pem": "ca.crt"}


@pytest.mark.parametrize(
    "template",
    [
        "{{ .Values.none }}",
        "{{ .Release.Name }}",
        "{{ range .Values.a }}x{{ end }}",
        "{{ include .Values.a }}",
        "{{ if .Values.a }}",
        "{{ if eq .Values.a }}{{ end }}{{ end }}",
        "{{ (.Values.a }}",
        "{{ .Values.a | quote }}",
        "{{ with .Values.a }}x{{ end }}",
        "{{ .Values.a .Values.a }}",
        "{{ `a` }}",
    ],
)
def test_the_renderer_refuses_what_it_does_not_know(template: str) -> None:
    with pytest.raises((UnknownTemplateError, TypeError)):
        render_text(template, {"Values": {"a": "b"}})


# -- by Helm itself ----------------------------------------------------------------------------------------------------


def helm(site: Site, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `helm template` on what `precad init` writes."""
    start = folder / "start"
    if not start.exists():
        write(written(site.has_dealer), start)
    values = ["--values", start / "helm" / "roles" / f"{site.role}.yaml"]
    configuration = ["--set-file", f"configuration={start / site.role / 'kubernetes' / 'precad.toml'}"]
    command = ["helm", "template", "precad", start / "helm", *values, *configuration, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@needs_helm
@pytest.mark.parametrize("site", SITES, ids=str)
def test_helm_renders_what_the_renderer_of_these_tests_does(site: Site, tmp_path: Path) -> None:
    """Documents are the same, digests in names included."""
    done = helm(site, tmp_path)
    assert done.returncode == 0, done.stderr
    found = [document for document in yaml.safe_load_all(done.stdout) if document is not None]
    for document in found:
        document["metadata"]["namespace"] = pod(site).namespace

    def key(document: dict[str, Any]) -> str:
        return json.dumps(document, sort_keys=True)

    assert sorted(map(key, found)) == sorted(map(key, rendered(site)))


@needs_helm
@pytest.mark.parametrize(
    ("role", "given", "words"),
    [
        (Role.CLIENT, "name=dealer", "name"),
        (Role.CLIENT, "name=x: y", "name"),
        (Role.CLIENT, "records=", "records"),
        (Role.AGGREGATOR_A, "name=aggregator-b", "name"),
        (Role.AGGREGATOR_A, "role=auditor", "role"),
        (Role.AGGREGATOR_A, "mode=clear", "mode"),
        (Role.AGGREGATOR_A, "replicas=2", "replicas"),
        (Role.AGGREGATOR_A, "ports.lane=0", "lane"),
        (Role.AGGREGATOR_A, "resources.memory=much", "memory"),
        (Role.AGGREGATOR_A, "networkPolicies.clients={any}", "clients"),
        (Role.AGGREGATOR_B, "secrets.operations=", "operations"),
        (Role.DEALER, "mode=proved", "mode"),
    ],
)
def test_helm_refuses_a_wrong_value_and_names_it(role: Role, given: str, words: str, tmp_path: Path) -> None:
    """By values.schema.json."""
    done = helm(Site(role, True), tmp_path, "--set", given)
    assert (done.returncode != 0, words in done.stderr) == (True, True), done.stderr


@needs_helm
def test_helm_refuses_the_chart_without_a_role_s_values(tmp_path: Path) -> None:
    """Every missing value is named."""
    write(written(False), tmp_path / "start")
    command = ["helm", "template", tmp_path / "start" / "helm"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    for name in ("role", "name", "image", "configuration", "storage", "memory", "tls"):
        assert re.search(rf"'(/\w+)*/{name}'", done.stderr), (name, done.stderr)
