"""The files that deploy/ gives an operator, checked without an engine that would run them.

Failure means one of these:
- a link that docs/explanation/architecture.md does not have, or one that it has and that is closed;
- a process that is root, may become it, or writes outside its volumes;
- a secret's value in a file;
- a configuration that the program refuses or that is of another task;
- a command that the command line does not take.
"""

from __future__ import annotations

import configparser
import functools
import itertools
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from precad.clients.config import ClientConfig
from precad.deploy import errors
from precad.deploy.configuration.init import write
from precad.deploy.configuration.sections import Deployment
from precad.protos.tls.address import split_address
from precad.protos.tls.identity import Role
from precad.servers.config import AggregatorConfig
from tests.harness.command_line import require_accepted
from tests.harness.links import MONITORING, Link, architecture_links
from tests.harness.organisations import CLIENTS, ROOT, SAMPLES, SERVERS
from tests.harness.policies import Pod, is_open
from tests.harness.sites import (
    PORTS,
    PROMETHEUS,
    ROLES,
    SERVER_SITES,
    SITES,
    Site,
    manifests,
    of_kind,
    pod,
    pod_spec,
    sites,
    with_and_without,
    workload,
    written,
)

HELM = ROOT / "deploy" / "hosts" / "helm"
IDENTITIES = ROOT / "deploy" / "hosts" / "identities"
KUBERNETES = ROOT / "deploy" / "hosts" / "kubernetes"
DOCKER = ROOT / "deploy" / "hosts" / "docker"
SYSTEMD = ROOT / "deploy" / "hosts" / "systemd"


@functools.cache
def links(has_dealer: bool) -> frozenset[Link]:
    """The table's, of those that are there."""
    return frozenset(
        link for link in architecture_links() if has_dealer or Role.DEALER not in (link.source, link.target)
    )


# -- Kubernetes --------------------------------------------------------------------------------------------------------


@functools.cache
def policies(has_dealer: bool) -> list[dict[str, Any]]:
    return [policy for site in sites(has_dealer) for policy in of_kind(site, "NetworkPolicy")]


@with_and_without
def test_network_policies_open_the_links_of_the_architecture_alone(has_dealer: bool) -> None:
    """Over every pair of pods, in both directions, and every port."""
    pods = {**{site.role.value: pod(site) for site in sites(has_dealer)}, MONITORING: PROMETHEUS}
    found = {
        Link(source, target, port)
        for source, target, port in itertools.product(pods, pods, PORTS)
        if source != target and is_open(policies(has_dealer), pods[source], pods[target], port)
    }
    assert found == links(has_dealer)


def strangers(has_dealer: bool) -> Iterator[Pod]:
    """Pods that look like ours but for one thing."""
    for ours in map(pod, sites(has_dealer)):
        yield Pod("elsewhere", "default", ours.labels, {"kubernetes.io/metadata.name": "default"})
        yield Pod("monitoring elsewhere", "default", PROMETHEUS.labels, {"kubernetes.io/metadata.name": "default"})
        yield Pod("beside", ours.namespace, {"app.kubernetes.io/name": "web"}, ours.namespace_labels)
    if not has_dealer:
        yield pod(Site(Role.DEALER, True))


@with_and_without
def test_no_stranger_comes_in_and_nothing_goes_out_to_one(has_dealer: bool) -> None:
    """Neither a pod of ours' name in another namespace, nor another pod in ours; nor a dealer, where there is none."""
    closed = policies(has_dealer)
    for stranger, site, port in itertools.product(strangers(has_dealer), sites(has_dealer), PORTS):
        assert not is_open(closed, stranger, pod(site), port), (stranger, site, port)
        assert not is_open(closed, pod(site), stranger, port), (site, stranger, port)


@pytest.mark.parametrize("site", SITES, ids=str)
def test_names_are_looked_up_by_those_who_dial(site: Site) -> None:
    """DNS, and of kube-system nothing else."""
    labels = {"kubernetes.io/metadata.name": "kube-system"}
    dns = Pod("dns", "kube-system", {"k8s-app": "kube-dns"}, labels)
    other = Pod("other", "kube-system", {"k8s-app": "metrics"}, labels)
    dials = site.role in {link.source for link in links(site.has_dealer)}
    for protocol in ("UDP", "TCP"):
        opened = policies(site.has_dealer)
        assert [port for port in PORTS if is_open(opened, pod(site), dns, port, protocol)] == [53] * dials
        assert not any(is_open(opened, pod(site), other, port, protocol) for port in PORTS)


@with_and_without
def test_every_operator_has_a_namespace_that_refuses_privileges(has_dealer: bool) -> None:
    pods = [pod(site) for site in sites(has_dealer)]
    assert len({found.namespace for found in pods}) == len(pods)
    assert {found.namespace_labels["pod-security.kubernetes.io/enforce"] for found in pods} == {"restricted"}


@pytest.mark.parametrize("site", SITES, ids=str)
def test_pods_are_restricted(site: Site) -> None:
    """Not root, nothing to become it by, no file but its volumes, no token, limits of memory, no floating tag."""
    spec = pod_spec(site)
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    context = spec["securityContext"]
    assert context["runAsNonRoot"] is True
    assert min(context["runAsUser"], context["runAsGroup"]) > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys()
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "env" not in container
    assert "envFrom" not in container
    assert re.fullmatch(r"registry\.example/[a-z-]+:\d+\.\d+\.\d+", container["image"])
    assert {"memory"} == container["resources"]["limits"].keys()
    require_accepted(container["args"])


@pytest.mark.parametrize("site", SERVER_SITES, ids=str)
def test_a_server_is_one_pod_that_nobody_evicts(site: Site) -> None:
    """With a volume that no second pod can have, and that outlives it."""
    spec = workload(site)["spec"]
    assert (spec["replicas"], spec["updateStrategy"]) == (1, {"type": "OnDelete"})
    assert set(spec["persistentVolumeClaimRetentionPolicy"].values()) == {"Retain"}
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOncePod"]
    (budget,) = of_kind(site, "PodDisruptionBudget")
    assert budget["spec"]["maxUnavailable"] == 0
    assert budget["spec"]["selector"]["matchLabels"].items() <= pod(site).labels.items()
    assert spec["selector"]["matchLabels"].items() <= pod(site).labels.items()


@pytest.mark.parametrize("site", SERVER_SITES, ids=str)
def test_a_server_is_reached_and_probed_where_it_listens(site: Site) -> None:
    """Container ports, the service's and the addresses of everybody's [network] are one."""
    deployment = site.in_kubernetes()
    own = own_section(deployment, site.role)
    listening = {split_address(own.listen)[1]}
    if isinstance(own, AggregatorConfig) and own.lane_listen is not None:
        listening.add(split_address(own.lane_listen)[1])
    assert own.operations_tls is True
    listening.add(split_address(own.operations_listen)[1])
    (container,) = pod_spec(site)["containers"]
    (service,) = of_kind(site, "Service")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (
        set(ports.values()) == listening == {link.port for link in links(site.has_dealer) if link.target == site.role}
    )
    assert {port["targetPort"]: port["port"] for port in service["spec"]["ports"]} == ports
    assert service["spec"]["selector"].items() <= pod(site).labels.items()
    assert service["spec"]["publishNotReadyAddresses"] is True
    host, port = split_address(getattr(deployment.network, site.role.replace("-", "_")))
    assert host == f"{service['metadata']['name']}.{pod(site).namespace}.svc"
    assert port == ports["grpc"]
    for probe in ("startupProbe", "livenessProbe"):
        assert container[probe]["httpGet"] == {"path": "/healthz", "port": "operations", "scheme": "HTTPS"}
    assert container["readinessProbe"]["tcpSocket"] == {"port": "grpc"}


@pytest.mark.parametrize("site", SERVER_SITES, ids=str)
def test_a_pod_may_take_what_its_server_was_given(site: Site) -> None:
    """The limit is at least `memory_budget_mb`; requested is what is limited, so that no neighbour takes it."""
    (container,) = pod_spec(site)["containers"]
    limit = container["resources"]["limits"]["memory"]
    assert container["resources"]["requests"]["memory"] == limit
    own = own_section(site.in_kubernetes(), site.role)
    if isinstance(own, AggregatorConfig):
        assert int(limit.removesuffix("Mi")) >= own.memory_budget_mb


def own_section(deployment: Deployment, role: Role) -> Any:
    return {
        Role.AGGREGATOR_A: deployment.aggregator.a,
        Role.AGGREGATOR_B: deployment.aggregator.b,
        Role.DEALER: deployment.dealer,
        Role.CLIENT: deployment.client,
    }[role]


@pytest.mark.parametrize("site", SITES, ids=str)
def test_a_pods_configuration_is_the_samples(site: Site) -> None:
    """But for addresses, paths and an operations port beyond loopback; every path lies in a volume that is mounted."""
    found, sample = site.in_kubernetes(), site.sample()
    assert found.task.digest() == sample.task.digest()
    ours, theirs = own_section(found, site.role), own_section(sample, site.role)
    paths = {name for name, value in ours if isinstance(value, Path)}
    others = paths | {"operations_listen", "operations_tls"}
    assert ours.model_dump(exclude=others) == theirs.model_dump(exclude=others)
    if isinstance(ours, ClientConfig):  # where the file itself lies: in the pod, the volume `config`
        assert ours.folder == Path("/etc/precad/config")
        paths.remove("folder")
    (container,) = pod_spec(site)["containers"]
    mounts = [Path(mount["mountPath"]) for mount in container["volumeMounts"]]
    for name in paths:
        value = getattr(ours, name)
        assert any(mount in (value, *value.parents) or value in mount.parents for mount in mounts), name
    kustomization = yaml.safe_load(site.manifest("kustomization.yaml"))
    assert kustomization["configMapGenerator"] == [{"name": "precad-config", "files": ["precad.toml"]}]


@pytest.mark.parametrize("site", SITES, ids=str)
def test_volumes_are_mounted_and_keys_are_closed_to_others(site: Site) -> None:
    """Secrets come with a mode that `precad.protos.tls.transport` takes: nothing for other users."""
    (container,) = pod_spec(site)["containers"]
    volumes = {volume["name"]: volume for volume in pod_spec(site)["volumes"]}
    claims = {claim["metadata"]["name"] for claim in workload(site)["spec"].get("volumeClaimTemplates", [])}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes.keys() | claims
    secrets = [volume["secret"] for volume in volumes.values() if "secret" in volume]
    assert secrets
    assert all(secret["defaultMode"] & 0o007 == 0 for secret in secrets)


@pytest.mark.parametrize("site", SITES, ids=str)
def test_manifests_are_valid(site: Site) -> None:
    """By the schemas of the Kubernetes API, strictly."""
    validate = pytest.importorskip("kubernetes_validate", reason="needs the package kubernetes-validate")
    for document in manifests(site):
        validate.validate(document, validate.latest_version(), strict=True)


@pytest.mark.parametrize("site", SITES, ids=str)
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs the program kubectl")
def test_kustomize_builds_the_folder(site: Site, tmp_path: Path) -> None:
    """Everything lands in the operator's namespace."""
    write(written(site.has_dealer), tmp_path / "start")
    command = ["kubectl", "kustomize", tmp_path / "start" / site.role / "kubernetes"]
    built = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    documents = list(yaml.safe_load_all(built))
    assert {d["metadata"].get("namespace", d["metadata"]["name"]) for d in documents} == {pod(site).namespace}
    assert len(documents) == len(manifests(site)) + 1  # the configuration


# -- Compose -----------------------------------------------------------------------------------------------------------


@functools.cache
def compose(has_dealer: bool) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(written(has_dealer)["one-machine/compose.yaml"])
    return document


def pairs_of_the_architecture(has_dealer: bool) -> set[frozenset[str]]:
    """Return the pairs that have a link, whatever the port, with all clients of the samples."""
    return {
        frozenset((source, link.target))
        for link in links(has_dealer)
        for source in (CLIENTS if link.source == Role.CLIENT else (link.source,))
        if link.source != MONITORING  # a port of loopback, here
    }


@with_and_without
def test_compose_networks_are_the_links_of_the_architecture(has_dealer: bool) -> None:
    """Two services share a network exactly where one dials the other; no network leads outside, no port is open."""
    services = compose(has_dealer)["services"]
    shared = {
        frozenset(pair)
        for pair in itertools.combinations(services, 2)
        if set(services[pair[0]]["networks"]) & set(services[pair[1]]["networks"])
    }
    assert shared == pairs_of_the_architecture(has_dealer)
    assert all(network == {"internal": True} for network in compose(has_dealer)["networks"].values())
    assert not any({"ports", "network_mode", "links", "extra_hosts"} & service.keys() for service in services.values())


@with_and_without
def test_compose_services_are_hardened(has_dealer: bool) -> None:
    services = compose(has_dealer)["services"]
    assert set(services) == {*(site.role for site in sites(has_dealer)), *CLIENTS} - {Role.CLIENT}
    for name, service in services.items():
        assert service["read_only"] is True, name
        assert service["user"] == "10001:10001"
        assert service["cap_drop"] == ["ALL"]
        assert "cap_add" not in service
        assert "privileged" not in service
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["mem_limit"]
        assert service["restart"].startswith("on-failure")
        assert "environment" not in service
        assert re.fullmatch(r"\$\{PRECAD(_SERVER)?_IMAGE:-precad(-server)?:\d+\.\d+\.\d+}", service["image"])
        require_accepted(service["command"])


@with_and_without
def test_compose_gives_every_service_what_its_configuration_names(has_dealer: bool) -> None:
    """Every path of the sample is mounted; keys are secrets, each of one service; names are those that are dialled."""
    used: list[str] = []
    for name, service in compose(has_dealer)["services"].items():
        site = Site(Role(name) if name in set(SERVERS) else Role.CLIENT, has_dealer)
        mounted = [Path(mount["target"]) for kind in ("configs", "secrets") for mount in service[kind]]
        mounted += [Path(mount["target"]) for mount in service.get("volumes", [])]
        assert Path(f"/etc/precad/{site.role}.toml") in mounted
        section = own_section(site.sample(), site.role)
        for field, path in ((f, v) for f, v in section if isinstance(v, Path)):
            assert any(path == mount or path in mount.parents for mount in mounted), (name, field, path)
        keys = [mount["source"] for mount in service["secrets"]]
        assert keys == [f"{name}-key", f"{name}-operations"][: 1 + (site.role is not Role.CLIENT)]
        used += keys
    assert sorted(used) == sorted(compose(has_dealer)["secrets"])


@with_and_without
def test_compose_gives_every_client_its_own_records_alone(has_dealer: bool) -> None:
    """A folder for each, read-only, where the sample looks for the table; no server has one."""
    records = Path(str(own_section(Site(Role.CLIENT, has_dealer).sample(), Role.CLIENT).records).partition(":")[2])
    for name, service in compose(has_dealer)["services"].items():
        found = [mount for mount in service["volumes"] if Path(mount["target"]) == records.parent]
        own = {"type": "bind", "source": f"./site/{name}/records", "target": str(records.parent), "read_only": True}
        assert found == ([own] if name in CLIENTS else []), name


@pytest.mark.parametrize("has_dealer", [True, False])
def test_a_pod_of_a_client_has_its_records_read_only(has_dealer: bool) -> None:
    site = Site(Role.CLIENT, has_dealer)
    (container,) = pod_spec(site)["containers"]
    records = Path(str(own_section(site.in_kubernetes(), site.role).records).partition(":")[2])
    (mount,) = (mount for mount in container["volumeMounts"] if Path(mount["mountPath"]) == records.parent)
    (volume,) = (volume for volume in pod_spec(site)["volumes"] if volume["name"] == mount["name"])
    assert (mount["readOnly"], volume["persistentVolumeClaim"]["readOnly"]) == (True, True)


@pytest.mark.parametrize("site", SERVER_SITES, ids=str)
def test_compose_reaches_and_probes_a_server_where_it_listens(site: Site) -> None:
    host, port = split_address(getattr(site.sample().network, site.role.replace("-", "_")))
    service = compose(site.has_dealer)["services"][site.role]
    assert {tuple(network["aliases"]) for network in service["networks"].values()} == {(host,)}
    own = own_section(site.sample(), site.role)
    assert split_address(own.listen)[1] == port
    assert f"http://{own.operations_listen}/healthz" in service["healthcheck"]["test"][-1]


@pytest.mark.parametrize("site", SERVER_SITES, ids=str)
def test_whoever_stops_a_server_waits_longer_than_it_drains(site: Site) -> None:
    """And half a minute for the goodbyes: a link's, the clients', the port's, of at most 10 s each."""
    enough_s = own_section(site.sample(), site.role).drain_timeout_s + 30
    assert pod_spec(site)["terminationGracePeriodSeconds"] >= enough_s
    service = compose(site.has_dealer)["services"][site.role]
    assert int(service["stop_grace_period"].removesuffix("s")) >= enough_s
    assert int(unit(SYSTEMD / f"precad-{site.role}.service")["Service"]["TimeoutStopSec"]) >= enough_s


@with_and_without
def test_compose_files_that_are_ours_exist_and_the_others_are_the_operators(has_dealer: bool) -> None:
    document = compose(has_dealer)
    for entry in (*document["configs"].values(), *document["secrets"].values()):
        assert entry.keys() == {"file"}
        path = entry["file"]
        assert path.startswith("./site/") or path.removeprefix("../") in written(has_dealer), path
    raw = (DOCKER / "compose.yaml").read_text()
    assert all((DOCKER / path).is_file() for path in re.findall(r"file: (\.\./\S+)}", raw))
    ignored = (ROOT / ".gitignore").read_text().split()
    assert "deploy/hosts/docker/site/" in ignored


@pytest.mark.skipif(
    shutil.which("docker") is None
    or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0,
    reason="needs docker with its compose plugin",
)
def test_compose_is_taken_by_docker() -> None:
    subprocess.run(["docker", "compose", "-f", DOCKER / "compose.yaml", "config", "--quiet"], check=True, timeout=60)


# -- images ------------------------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, str]]:
    """(instruction, its arguments), continued lines joined."""
    text = re.sub(r"\\\n", " ", (DOCKER / "Dockerfile").read_text())
    lines = (line.strip() for line in text.splitlines())
    return [(line.partition(" ")[0], line.partition(" ")[2].strip()) for line in lines if line and line[0] != "#"]


def stages() -> dict[str, list[tuple[str, str]]]:
    """The instructions of each stage, from its FROM on."""
    found: dict[str, list[tuple[str, str]]] = {}
    for instruction, arguments in instructions():
        if instruction == "FROM":
            found[arguments.split(" AS ")[1]] = []
        if found:
            list(found.values())[-1].append((instruction, arguments))
    return found


def ancestry(stage: str) -> list[tuple[str, str]]:
    """A stage's instructions after those of the stages that it is made from."""
    own = stages()[stage]
    base = own[0][1].split(" AS ")[0]
    return [*(ancestry(base) if base in stages() else []), *own]


def test_the_base_image_is_pinned_by_version() -> None:
    """By a full version, never a floating tag; the digest goes into the same argument."""
    declared = [arguments.partition("=") for name, arguments in instructions() if name == "ARG"]
    (image,) = (default for name, _, default in declared if name == "PYTHON_IMAGE")
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+", image)
    assert {arguments.split(" AS ")[0] for name, arguments in instructions() if name == "FROM"} == {
        "${PYTHON_IMAGE}",
        "build",
        "base",
    }


@pytest.mark.parametrize("target", ["server", "full"])
def test_an_image_is_nobodys_root_and_has_no_tools(target: str) -> None:
    """The last USER is not root; nothing is installed in it, and pip is taken out."""
    told = ancestry(target)
    assert [arguments for name, arguments in told if name == "USER"][-1] == "10001:10001"
    assert [arguments for name, arguments in told if name == "ENTRYPOINT"] == ['["precad"]']
    assert [arguments for name, arguments in told if name == "STOPSIGNAL"] == ["SIGTERM"]
    runs = "; ".join(arguments for name, arguments in told if name == "RUN")
    assert "pip uninstall --quiet --yes setuptools wheel pip" in runs
    assert not re.search(r"\binstall (?!--directory)|apt|curl|wget|gcc", runs)
    assert [arguments for name, arguments in told if name == "COPY"] == [
        f"--from=build-{target} /opt/precad /opt/precad"
    ]
    assert not {"ADD", "HEALTHCHECK", "VOLUME", "EXPOSE"} & {name for name, _ in told}


def test_what_is_installed_is_locked() -> None:
    """Every `pip install` checks hashes, but for our own package, which brings nothing along."""
    commands = re.findall(r"bin/pip install ([^;&]+)", "; ".join(a for name, a in instructions() if name == "RUN"))
    assert len(commands) == 4
    for command in commands:
        assert "--no-deps" in command
        assert "--require-hashes -r requirements" in command or command.split()[-1] == "."


def test_an_image_is_made_of_what_git_holds_and_no_keys() -> None:
    """The context starts empty; what it takes in exists; keys are left out last."""
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and line[0] != "#"]
    assert lines[0] == "*"
    taken = [line[1:] for line in lines if line.startswith("!")]
    assert all((ROOT / name).exists() for name in taken)
    left_out = lines[1 + len(taken) :]
    assert {"**/*.pem", "**/*.key", "deploy/hosts/docker/site"} <= set(left_out)
    copied = {name for i, a in instructions() if i == "COPY" and "--from" not in a for name in a.split()[:-1]}
    assert copied - {"."} <= set(taken)


SERVER_PROGRAM = """
import importlib.abc, json, sys
from importlib import metadata
sys.path.insert(0, {docker!r})
from prune import needed
kept = needed({roots!r}, without={without!r})
canonical = lambda name: name.lower().replace("_", "-")
modules = {{m for m, d in metadata.packages_distributions().items() if not {{canonical(n) for n in d}} & kept}}
modules -= set({ours!r})
class Gone(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in modules:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Gone())
for name in [n for n in sys.modules if n.partition(".")[0] in modules]: del sys.modules[name]
{program}
print(json.dumps(sorted(kept)))
"""
OURS = ("precad", "prune")
SERVING = """
import precad.deploy.cli.main, precad.servers.dealer, precad.servers.aggregator
from precad.mpc.local import engines
from precad.mpc.gate_names import make_gate
make_gate("native")
engines.make_engine("cpu").warm_up()
"""
TRAINING = (
    SERVING
    + """
import precad.clients.process
from precad.clients.models import networks as models
models.initial_parameters("mlp", seed=0)
make_gate("crypten")
"""
)


@pytest.mark.parametrize(
    ("roots", "without", "program", "is_there", "is_gone"),
    [
        (["precad"], ["torch", "scikit-learn"], SERVING, {"grpcio", "numba"}, {"torch", "crypten", "pytest"}),
        pytest.param(
            *(["precad[crypten-runtime]", "crypten"], [], TRAINING, {"torch", "crypten"}, {"pytest", "mypy", "ruff"}),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["server", "full"],
)
def test_what_is_left_in_an_image_is_enough(roots, without, program, is_there, is_gone) -> None:
    """With everything else refused at import: a server's modules, gate and compiled engine; a client's."""
    code = SERVER_PROGRAM.format(docker=str(DOCKER), roots=roots, without=without, ours=OURS, program=program)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    kept = set(yaml.safe_load(done.stdout.splitlines()[-1]))
    assert is_there <= kept
    assert not is_gone & kept


# -- systemd -----------------------------------------------------------------------------------------------------------

UNITS = sorted(SYSTEMD.glob("*.service"))


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


def test_there_is_a_unit_for_every_role() -> None:
    names = [path.name for path in UNITS]
    assert names == [
        "precad-aggregator-a.service",
        "precad-aggregator-b.service",
        "precad-client@.service",
        "precad-dealer.service",
    ]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_hardened_and_do_not_repeat_a_refusal(path: Path) -> None:
    service = unit(path)["Service"]
    assert service["Restart"] == "on-failure"
    not_again = {int(code) for code in service["RestartPreventExitStatus"].split()}
    assert not_again == {errors.INVALID_INPUT, errors.REFUSED}
    assert "ExecStartPre" not in service  # its exit code would not be looked at
    assert (service["User"], service["ProtectSystem"], service["NoNewPrivileges"]) == ("precad", "strict", "yes")
    assert (service["CapabilityBoundingSet"], service["LimitCORE"], service["UMask"]) == ("", "0", "0077")
    assert service["StateDirectory"] == "precad"
    program, *arguments = shlex.split(service["ExecStart"])
    assert program == "/opt/precad/bin/precad"
    require_accepted(arguments)


@pytest.mark.parametrize("role", ROLES)
def test_a_units_state_is_where_the_sample_keeps_it(role: Role) -> None:
    service = unit(SYSTEMD / f"precad-{role}{'@' if role is Role.CLIENT else ''}.service")["Service"]
    own = own_section(Site(role, True).sample(), role)
    assert own.state_dir == Path("/var/lib") / service["StateDirectory"]
    assert f"/etc/precad/{role}.toml" in service["ExecStart"]
    if isinstance(own, AggregatorConfig):
        assert int(service["MemoryMax"].removesuffix("M")) >= own.memory_budget_mb


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs the program systemd-analyze")
def test_systemd_knows_every_line(tmp_path: Path) -> None:
    """With a program in the place of ours that exists here. It warns of what it does not know, and goes on."""
    for path in UNITS:
        (tmp_path / path.name).write_text(path.read_text().replace("/opt/precad/bin/precad", "/bin/true"))
    command = ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "Failed to" in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()}")
    assert (done.returncode, done.stderr) == (0, "")


# -- secrets -----------------------------------------------------------------------------------------------------------

SECRET = re.compile(
    r"""-----BEGIN | (?!0{64}\b) [A-Za-z0-9+/]{64,}={0,2}
    | (password|passwd|token|secret)\w* [ \t]*[:=][ \t]* ["']? (?=[^\s\d]*\d) [A-Za-z0-9+/=_-]{16,}""",
    re.IGNORECASE | re.VERBOSE,
)
"""A marker of PEM; a text as long as a key, but for zeros in its place.

Also what is called a secret, is long, and has a digit, unlike a name."""


def test_no_file_of_a_deployment_holds_a_secret() -> None:
    """No key, no token, no long text that could be one; no manifest of kind Secret."""
    folders = (SAMPLES, DOCKER, KUBERNETES, HELM, IDENTITIES, SYSTEMD)
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    files = [path for path in files if not {"__pycache__", "site"} & set(path.relative_to(ROOT).parts)]
    assert len(files) > 25
    for path in files:
        assert not (match := SECRET.search(path.read_text())), f"{path}: {match and match[0][:20]}"
    assert not any(of_kind(site, "Secret") for site in SITES)


@pytest.mark.parametrize(
    "text", ["-----BEGIN EC PRIVATE KEY-----", "operations_token: 'c2VjcmV0c2VjcmV0c2VjcmV0'", "A" * 64 + "=="]
)
def test_the_search_for_secrets_finds_some(text: str) -> None:
    assert SECRET.search(text)
