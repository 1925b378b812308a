"""`precad provision`: certificates for the participants' requests, and a kit for each of them.

    <out>/<participant>/<participant>.toml   the role's configuration: includes task.toml, then own.toml if there is one
    <out>/<participant>/task.toml            [task] and [network], the same in every kit
    <out>/<participant>/cert.pem, ca.pem     its certificate, and the authority's
    <out>/<participant>/peers/<server>.pem   the servers' certificates that it pins
    <out>/<participant>/initial.npy          aggregators: the model that the task starts from
    <out>/<participant>/adapter.safetensors  aggregators, clients: constants of the adapters, if the task has any
    <out>/<participant>/project.json, ..     the manifest under the seal (`precad.deploy.provisioning.manifest`)

No kit holds a private key: a participant's key was made by `precad pki request` where it will be used, and stays there.
"""

from __future__ import annotations

import datetime as dt
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tomli_w

from precad.deploy.authority import pki
from precad.deploy.configuration.sections import parse
from precad.deploy.errors import ConfigError, refusing
from precad.deploy.files.whole import appearing
from precad.deploy.provisioning.manifest import (
    ADAPTER,
    AUTHORITY,
    CERTIFICATE,
    INITIAL_MODEL,
    TASK,
    Manifest,
    seal,
    sha256,
)
from precad.deploy.provisioning.own_code import with_digest
from precad.deploy.provisioning.project import SECTIONS, Project, servers_of
from precad.protos.task.task import Task
from precad.protos.tls.identity import AGGREGATORS, Identity, Role, fingerprint, parse_certificate
from precad.servers.store.folder import load_initial_model

AUTHORITY_DAYS: Final = 400
"""How long the certificate of an authority is valid that is made here."""
OWN: Final = "own.toml"
REVOKED: Final = "revoked.txt"
"""Where an aggregator's operator lists clients' certificates, also while it runs; `join` makes it, and keeps it."""
OPERATIONS_TOKEN: Final = "operations-token"  # noqa: S105  # a file's name
KEY: Final = "key.pem"


@dataclass(frozen=True)
class Kits:
    """Hold the result."""

    folder: Path
    participants: tuple[str, ...]
    digest: str
    """The project's digest, which the operators of A and B read out."""
    authority: str
    """SHA-256 of the authority's certificate."""
    model_digest: str | None
    """Which model and loss of the organisations' own the task means."""
    strangers: tuple[str, ...]
    """Requests of nobody in the task, which were left out."""


def provision(project: Project, out: Path, *, passphrase: bytes | None = None) -> Kits:
    """Make the kits of a project in `out`, all of them or none. passphrase: what opens, or seals, ca.key.

    Raises: ConfigError for a project or request that is not right; PkiError, SetupError; ClientError for code of the
    organisations' own.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out: expected a new or empty folder, found {out}: nothing is overwritten")
    requests = _requests(project)
    project = with_digest(project)
    initial, adapter = _initial_model(project), _adapter(project)
    texts = {who: _configuration(project, who) for who in project.participants}
    authority = project.own.authority
    if not (authority / "ca.pem").exists():
        pki.create_authority(authority, days=AUTHORITY_DAYS, passphrase=passphrase)
    certificates = {who: _certified(project, who, asked, passphrase) for who, asked in requests.items()}
    kits = {who: _kit(project, who, texts[who], certificates, initial, adapter) for who in project.participants}
    manifest = _manifest(project, kits)
    shared = seal(manifest, authority, days=project.own.days, passphrase=passphrase)
    _write(out, {who.name: {**files, **shared} for who, files in kits.items()})
    names = tuple(who.name for who in kits)
    digest, ca = sha256(manifest.canonical()), fingerprint((authority / "ca.pem").read_bytes())
    return Kits(out, names, digest, ca, project.task.model_digest, _strangers(project))


def _requests(project: Project) -> dict[Identity, Path]:
    """Return everybody's request. Raises ConfigError, naming all that are missing; PkiError for one of another."""
    paths = {who: project.own.requests / f"{who.name}.pem" for who in project.participants}
    if missing := [path.name for path in paths.values() if not path.is_file()]:
        raise ConfigError(f"project.requests: expected {', '.join(missing)} in {project.own.requests}, found none")
    for who, path in paths.items():
        pki.requested_key(path.read_bytes(), str(path), who)
    return paths


def _strangers(project: Project) -> tuple[str, ...]:
    """Return the files of requests that are of no participant's name."""
    names = {who.name for who in project.participants}
    return tuple(sorted(path.name for path in project.own.requests.glob("*.pem") if path.stem not in names))


def _certified(project: Project, who: Identity, request: Path, passphrase: bytes | None) -> bytes:
    """Return a participant's certificate. One that exists is taken if it is of the request's key.

    Raises PkiError, ConfigError.
    """
    path = project.own.authority / who.name / "cert.pem"
    if not path.exists():
        pki.sign(project.own.authority, request, who, days=project.own.days, authority_passphrase=passphrase)
    pem = path.read_bytes()
    if parse_certificate(pem).public_key() != pki.requested_key(request.read_bytes(), str(request), who):
        wanted = f"the key that {path} certifies"
        raise ConfigError(f"{request}: expected {wanted}, found another one: precad pki renew --request certifies it")
    return pem


def _configuration(project: Project, who: Identity) -> str:
    """Return a role's configuration, once it is a valid one. Raises ConfigError."""
    given = {**project.sections[who.role]}
    if who.role is Role.CLIENT:
        given.pop("adapter", None)  # the kit has the file, under the name that is looked for
    section: dict[str, Any] = {**vouched_fields(who.role, project.task), **usual_fields(who.role, given), **given}
    for name in reversed(SECTIONS[who.role]):
        section = {name: section}
    parse({**project.shared, **section}, base=Path())
    head = f"# {who.uri}: of a kit, signed. Settings of your own go into {OWN} beside it, in the same section.\n"
    return head + tomli_w.dumps({"include": TASK, "own": OWN, **section})


def usual_fields(role: Role, given: Mapping[str, Any]) -> dict[str, str]:
    """Return where files and folders of a role lie beside its kit, unless the project says otherwise.

    given: the role's section, or what the project has of it.
    """
    if role is Role.CLIENT:
        return {"state_dir": "client-state"}
    token = {"operations_token": OPERATIONS_TOKEN} if "operations_listen" in given else {}
    revoked = {"revoked": REVOKED} if role in AGGREGATORS else {}
    return {"key": KEY, "state_dir": "state", **token, **revoked}


def vouched_fields(role: Role, task: Task) -> dict[str, str]:
    """Return who a role is, whom it trusts and what it starts from (`IDENTITY_FIELDS`), as every kit of a task says."""
    own = {"certificates": ".."} if role is Role.CLIENT else {"certificate": CERTIFICATE}
    found = {"authority": AUTHORITY, **own}
    if role in AGGREGATORS:
        found["initial_model"] = INITIAL_MODEL
    for server in _pinned(task, role):
        is_peer = role in AGGREGATORS and server is not Role.DEALER
        field = "peer" if is_peer else server.value.replace("-", "_")
        found[f"{field}_certificate"] = f"peers/{server}.pem"
    return found


def _pinned(task: Task, role: Role) -> tuple[Role, ...]:
    """Return the servers that a role pins: servers each other, clients the aggregators."""
    found = AGGREGATORS if role is Role.CLIENT else servers_of(task)
    return tuple(server for server in found if server is not role)


def _kit(
    project: Project,
    who: Identity,
    text: str,
    certificates: Mapping[Identity, bytes],
    initial: bytes,
    adapter: bytes | None,
) -> dict[str, bytes]:
    """Return the files of a participant's kit, but for the manifest."""
    files = {
        f"{who.name}.toml": text.encode(),
        TASK: project.shared_text,
        AUTHORITY: (project.own.authority / "ca.pem").read_bytes(),
        CERTIFICATE: certificates[who],
    }
    for server in _pinned(project.task, who.role):
        files[f"peers/{server}.pem"] = certificates[Identity(server, server.value)]
    if who.role in AGGREGATORS:
        files[INITIAL_MODEL] = initial
    if adapter is not None and who.role is not Role.DEALER:
        files[ADAPTER] = adapter
    return files


def _manifest(project: Project, kits: Mapping[Identity, Mapping[str, bytes]]) -> Manifest:
    return Manifest(
        task_digest=project.task.digest().hex(),
        task=json.loads(project.task.canonical()),
        network=project.network.model_dump(exclude_none=True),
        sealed_on=f"{dt.datetime.now(dt.UTC):%Y-%m-%d}",
        files={f"{who.name}/{name}": sha256(content) for who, kit in kits.items() for name, content in kit.items()},
    )


def _initial_model(project: Project) -> bytes:
    """Return the initial model's file, given or made. Raises SetupError, ConfigError."""
    path = project.own.initial_model
    if path is not None:
        load_initial_model(path, project.task)
        return path.read_bytes()
    from precad.clients.models.networks import initial_vector
    from precad.clients.own_code import look_in

    look_in(project.base)
    parameters = initial_vector(project.task)
    if parameters.size != project.task.dim:
        raise ConfigError(f"task.dim: expected {parameters.size}, found {project.task.dim}")
    content = io.BytesIO()
    np.save(content, parameters)
    return content.getvalue()


def _adapter(project: Project) -> bytes | None:
    """Return the file of `task.adapter_sha256`, if the task has adapters. Raises AdapterError."""
    if project.task.adapter_sha256 is None:
        return None
    from precad.clients.models.adapter_files import adapter_bytes

    return adapter_bytes(project.task.adapter_sha256)


def _write(out: Path, kits: Mapping[str, Mapping[str, bytes]]) -> None:
    with refusing(OSError, f"--out: expected a folder to write to, found {out}"):
        out.absolute().parent.mkdir(parents=True, exist_ok=True)
        with appearing(out.absolute(), mode=0o755) as staging:
            for participant, files in kits.items():
                for name, content in files.items():
                    path = staging / participant / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content)
