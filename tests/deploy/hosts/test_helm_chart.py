"""The Helm chart, deploy/hosts/helm: what it renders is what deploy/hosts/kubernetes has.

What counts as failure:
- an organisation that installs the chart runs something else than one that applies the manifests;
- an operator's value opens a port that no link of docs/explanation/architecture.md has.
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
from tests.harness.go_templates import UnknownTemplateError, merged, render, render_text
from tests.harness.links import MONITORING, Link, architecture_links
from tests.harness.policies import is_open
from tests.harness.sites import PORTS, PROMETHEUS, SITES, Site, manifests, pod, sites, with_and_without, written
from tests.harness.values_schema import UnknownKeywordError, faults

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
    """Return documents by kind and name: a configuration without its digest, a policy without the release's name.

    A namespace of the manifests has one organisation; of releases it may have several.
    """
    text = re.sub(r"[a-z0-9-]+-config-[0-9a-f]{10}\b", "precad-config", json.dumps(documents))
    found = json.loads(text)
    for policy in (document for document in found if document["kind"] == "NetworkPolicy"):
        policy["metadata"]["name"] = re.search(r"(default-deny|links|names)$", policy["metadata"]["name"])[0]
    return {(d["kind"], d["metadata"]["name"]): d for d in found}


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


@with_and_without
def test_releases_of_one_namespace_share_no_name(has_dealer: bool) -> None:
    """Two clients with the same configuration, or all roles: each has documents of its own, and the same links."""
    given = {"configuration": "[task]\n"}
    client = Site(Role.CLIENT, has_dealer)
    releases = [rendered(site, **given) for site in sites(has_dealer)] + [rendered(client, name="hospital-2", **given)]
    names = [(d["kind"], d["metadata"]["name"]) for documents in releases for d in documents]
    assert len(names) == len(set(names)) > 15


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
    for name, usual in (("certificate", "cert.pem"), ("key", "key.pem"), ("authority", "ca.pem")):
        assert mounted_keys(site, {name: keys[name]})[usual] == keys[name]  # one alone is mounted too
    assert mounted_keys(site, keys) == {"cert.pem": "tls.crt", "key.pem": "tls.key", "ca.pem": "ca.crt"}


def mounted_keys(site: Site, keys: dict[str, str]) -> dict[str, str]:
    """Return the key of the Secret that is mounted under each name."""
    (workload,) = (d for d in rendered(site, secretKeys=keys) if d["kind"] in ("Job", "StatefulSet"))
    volumes = workload["spec"]["template"]["spec"]["volumes"]
    secrets = [volume["secret"] for volume in volumes if "items" in volume.get("secret", {})]
    return {item["path"]: item["key"] for secret in secrets for item in secret["items"]}


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


# -- values.schema.json ------------------------------------------------------------------------------------------------

WRONG = (
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
    (Role.AGGREGATOR_B, "secretKeys.certificate=", "certificate"),
    (Role.AGGREGATOR_B, "secretKeys.key=../key.pem", "key"),
    (Role.AGGREGATOR_B, "secretKeys.chain=ca.pem", "chain"),
    (Role.DEALER, "mode=proved", "mode"),
)
WRONG_PEERS: tuple[dict[str, Any], ...] = (
    {},
    {"ipBlock": {}},
    {"ipBlock": {"cidr": "192.0.2.10"}},
    {"ipBlock": {"cidr": "everybody/0"}},
    {"ipBlock": {"cidr": "192.0.2.10/32", "expect": []}},
    {"ipBlock": {"cidr": "192.0.2.10/32"}, "podSelector": {"matchLabels": {"a": "b"}}},
    {"podSelector": {}},
    {"podSelector": {"matchLabels": {}}},
    {"podSelector": {"matchLabel": {"a": "b"}}},
    {"podSelector": {"matchLabels": {"a": 1}}},
    {"podSelector": {"matchExpressions": []}},
    {"podSelector": {"matchExpressions": [{"key": "a", "operator": "Is"}]}},
    {"podsSelector": {"matchLabels": {"a": "b"}}},
)
"""Peers that the API refuses, drops in silence or, an empty selector, takes for everybody."""
RIGHT_PEERS: tuple[dict[str, Any], ...] = (
    {"ipBlock": {"cidr": "2001:db8::/32", "except": ["2001:db8:1::/48"]}},
    {"podSelector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}},
)


def refused(site: Site, given: dict[str, Any]) -> list[str]:
    """Return what the schema has against these values, over the chart's and the role's."""
    files = chart(site.has_dealer)
    whole = functools.reduce(merged, [yaml.safe_load(files["values.yaml"]), values_of(site), given])
    return faults(json.loads(files["values.schema.json"]), whole)


@pytest.mark.parametrize("site", SITES, ids=str)
def test_the_schema_takes_every_role_s_values(site: Site) -> None:
    assert refused(site, {}) == []
    keys = {"certificate": "tls.crt", "key": "TLS_key", "authority": "ca.crt"}
    assert refused(site, {"secretKeys": keys, "networkPolicies": {"clients": list(RIGHT_PEERS)}}) == []


@pytest.mark.parametrize(("role", "given", "words"), WRONG)
def test_the_schema_refuses_a_wrong_value_and_names_it(role: Role, given: str, words: str) -> None:
    """Without Helm, by a checker of the draft's keywords."""
    path, _, text = given.partition("=")
    value: Any = [text.strip("{}")] if text.startswith("{") else int(text) if text.isdecimal() else text
    for name in reversed(path.split(".")):
        value = {name: value}
    found = refused(Site(role, has_dealer=True), value)
    forms = role is not Role.CLIENT and words in ("name", "mode") and text != "clear"  # of name and mode together
    assert any(words in fault for fault in found) or (forms and found == [": expected one of the forms"]), found


@pytest.mark.parametrize("peer", WRONG_PEERS, ids=json.dumps)
def test_the_schema_refuses_peers_that_would_open_or_close_more_than_is_meant(peer: dict[str, Any]) -> None:
    found = refused(Site(Role.AGGREGATOR_A, has_dealer=True), {"networkPolicies": {"aggregatorB": [peer]}})
    assert [fault.partition(":")[0] for fault in found] == ["/networkPolicies/aggregatorB/0"]


def test_the_checker_refuses_what_it_does_not_know() -> None:
    with pytest.raises(UnknownKeywordError):
        faults({"format": "date"}, "x")


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
@pytest.mark.parametrize(("role", "given", "words"), WRONG)
def test_helm_refuses_a_wrong_value_and_names_it(role: Role, given: str, words: str, tmp_path: Path) -> None:
    """As the schema's checker of these tests does."""
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
