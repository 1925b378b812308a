"""`precad join`: put a kit beside the key that stays at home, once everything in it is what was agreed on.

Nothing of the kit is used before seven checks. The digest of its manifest is the one that the operator was told. Every
file is the manifest's. The configuration has the shared task and network, and the pins that the kit brings. The
certificate is of the key that `precad pki request` made here. A server's `database_url` is one. An aggregator's
`state_dir` is of the kit's task: another task's would lose the configuration that exports it. The folder holds no other
task's kit that a client was started for, or that another authority vouches for. Whoever runs there reads its pins
again. Files that the manifest does not name stay where they are.

The same kit may be joined again and again. Certificates and pins that its operator renewed meanwhile stay. The kit's
own would bring back a pin that was taken out because its key was stolen.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from precad.deploy.authority import pki
from precad.deploy.configuration.sections import CONSENTS, IDENTITY_FIELDS, Deployment, load
from precad.deploy.errors import ConfigError, refusing
from precad.deploy.provisioning.kits import KEY, OPERATIONS_TOKEN, OWN, REVOKED, usual_fields, vouched_fields
from precad.deploy.provisioning.manifest import (
    ADAPTER,
    AUTHORITY,
    CERTIFICATE,
    INITIAL_MODEL,
    MANIFEST,
    SEAL,
    SIGNATURE,
    TASK,
    Manifest,
    differences,
    digest_of,
    renewed_in,
    sha256,
    verify,
)
from precad.deploy.provisioning.project import SECTIONS
from precad.protos.task.task import Task
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import AGGREGATORS, Identity, IdentityError, Role, parse_certificates
from precad.servers.config import AggregatorConfig
from precad.servers.database.replicas import require_url, url_of
from precad.servers.errors import SetupError
from precad.servers.store.folder import load_initial_model, read_earlier
from precad.servers.store.rehearsal import require_aggregator_opens

_REVOKED_HEAD: Final = b"# SHA-256 fingerprints of clients' certificates that are no longer accepted, one a line\n"

_NOT_SETTINGS: Final = IDENTITY_FIELDS | CONSENTS
_SCRATCH: Final = ".precad-kit-"


@dataclass(frozen=True)
class Joined:
    """A kit in its place."""

    identity: Identity
    config: Path
    """The role's configuration, for `precad check`, `serve` and `client`."""
    replaced: tuple[str, ...]
    """Files of a kit that had been edited here, and are this kit's now."""
    settings: tuple[str, ...]
    """Fields that the maker of the kit has set for this role, which nobody else sees."""


def join(kit: Path, directory: Path, agreed: str) -> Joined:
    """Install the kit in `directory`/<participant>, where its key is, and return what was installed.

    agreed: the project's digest, as the operators of A and B read it out. Raises ConfigError, TlsFileError, and
    StoreError or DpError for a damaged `state_dir`. Then nothing was written.

    Every file of the kit is read once. Where somebody else may write, it could be another one after its check.
    """
    with _room_for_a_kit(directory) as scratch:
        _take(kit, Path(scratch))
        try:
            return _join(Path(scratch), directory, agreed)
        except Exception as error:
            error.args = tuple(a.replace(scratch, str(kit)) if isinstance(a, str) else a for a in error.args)
            raise


def _room_for_a_kit(directory: Path) -> tempfile.TemporaryDirectory[str]:
    """Return a folder of ours alone: beside where the kit goes, or where this user may write. Raises ConfigError."""
    with suppress(OSError):
        return tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=directory)
    with refusing(OSError, f"{tempfile.gettempdir()}: expected room for a copy of the kit, found"):
        return tempfile.TemporaryDirectory(prefix=_SCRATCH)


def _take(kit: Path, own: Path) -> None:
    """Copy what a kit may hold. Raises ConfigError."""
    named = (TASK, AUTHORITY, CERTIFICATE, INITIAL_MODEL, ADAPTER, SEAL, SIGNATURE, MANIFEST)
    paths = {*(kit / name for name in named), *kit.glob("*.toml"), *kit.glob("peers/*.pem")}
    for path in (path for path in paths if path.is_file()):
        with refusing(OSError, f"{path}: expected a file of the kit, found"):
            target = own / path.relative_to(kit)
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, target)


def _join(kit: Path, directory: Path, agreed: str) -> Joined:
    found = digest_of(kit)
    if found != agreed.strip().lower().replace(":", "").replace(" ", ""):  # which is not said: it would be copied
        raise ConfigError(
            f"--agreed: expected the digest of this kit's project, found another one, {agreed:.80}: do not start"
        )
    verified = verify(kit)
    name, files = verified.participant, verified.manifest.of(verified.participant)
    own = Identity.from_certificate((kit / CERTIFICATE).read_bytes())
    folder = directory / name
    is_again = (folder / MANIFEST).exists() and digest_of(folder) == found
    renewed = renewed_in(folder, files, own) if is_again else ()
    _require_own_key(folder, own, *(folder / n if n in renewed else kit / n for n in (CERTIFICATE, AUTHORITY)))
    deployment = _as_installed(kit, folder, name)
    section = _section_of_form(kit / f"{name}.toml", own.role, deployment.task)
    _require_no_other_task(verified.manifest, kit, folder, deployment)
    _require_url(deployment)
    if (server := _aggregator(deployment, own.role)) is not None:
        _require_own_state(deployment.task, server, own.role, kit / INITIAL_MODEL)
    replaced = _edited(folder, own)
    if not is_again:
        (folder / MANIFEST).unlink(missing_ok=True)  # with half of each, it is neither the old kit nor the new one
    for path in (*files, SEAL, SIGNATURE, MANIFEST):  # the manifest last: until then it is no kit
        if path not in renewed:
            (folder / path).parent.mkdir(exist_ok=True)
            pki.replace_file(folder / path, (kit / path).read_bytes())
    if own.role.is_server and not (folder / OPERATIONS_TOKEN).exists():
        pki.replace_file(folder / OPERATIONS_TOKEN, f"{secrets.token_urlsafe(32)}\n".encode(), mode=0o600)
    if server is not None and server.revoked == folder.absolute() / REVOKED and not server.revoked.exists():
        pki.replace_file(server.revoked, _REVOKED_HEAD)
    return Joined(own, folder / f"{name}.toml", replaced, _settings(section, own.role))


def _edited(folder: Path, own: Identity) -> tuple[str, ...]:
    """Return the installed kit's files that are no longer its own, renewed ones apart; none where no kit is whole."""
    try:
        files = Manifest.parse((folder / MANIFEST).read_bytes(), folder / MANIFEST).of(own.name)
        renewed = renewed_in(folder, files, own)
        there = {name: digest for name, digest in files.items() if (folder / name).is_file()}
        return tuple(
            name
            for name, digest in sorted(there.items())
            if name not in renewed and sha256((folder / name).read_bytes()) != digest
        )
    except (OSError, ConfigError):
        return ()


def _as_installed(kit: Path, folder: Path, name: str) -> Deployment:
    """Return the configuration as it will be read in `folder`, with settings of one's own there. Raises ConfigError."""
    config, own = f"{name}.toml", folder / OWN
    with tempfile.TemporaryDirectory(prefix="precad-join-") as scratch:
        for path in (kit / config, kit / TASK, own):
            if path.exists():
                with refusing(OSError, f"{path}: expected a readable file, found"):
                    (Path(scratch) / path.name).write_bytes(path.read_bytes())
        try:
            return load(Path(scratch) / config, base=folder.absolute())
        except ConfigError as error:
            text = str(error).replace(str(Path(scratch) / OWN), str(own))
            raise ConfigError(text.replace(scratch, str(kit))) from None


def _settings(section: Mapping[str, Any], role: Role) -> tuple[str, ...]:
    """Return what a kit's maker has set in a role's section, by field, beyond what every kit says."""
    where, usual = ".".join(SECTIONS[role]), usual_fields(role, section)
    return tuple(
        f"{where}.{name} = {json.dumps(value, default=str)}"
        for name, value in sorted(section.items())
        if name not in IDENTITY_FIELDS and usual.get(name) != value
    )


def _section_of_form(path: Path, role: Role, task: Task) -> dict[str, Any]:
    """Return a role's section of a kit's configuration, which must have the shared task, and the pins of the kit.

    All kits share those, and nobody else sees this file. Its maker could name other servers in it, pin none, or agree
    in the operator's place. Raises ConfigError where it has more, or less.
    """
    found = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    section: Any = found
    for name in SECTIONS[role]:
        section = section.get(name, {})
    vouched = vouched_fields(role, task)
    wanted: Any = {name: value for name, value in section.items() if name not in _NOT_SETTINGS} | vouched
    for name in reversed(SECTIONS[role]):
        wanted = {name: wanted}
    wanted |= {"include": TASK, "own": OWN}
    names = sorted(found.keys() | wanted.keys())
    if faults := [line for name in names for line in differences(name, wanted.get(name), found.get(name))]:
        raise ConfigError("\n".join(f"{path}: {line}" for line in faults))
    return dict(section)


def _aggregator(deployment: Deployment, role: Role) -> AggregatorConfig | None:
    """Return the settings of an aggregator; None for every other role."""
    each = deployment.aggregator
    return dict(zip(AGGREGATORS, (each.a, each.b), strict=True)).get(role)


def _require_url(deployment: Deployment) -> None:
    """Require a URL of PostgreSQL where a server has a database. Connects to nothing. Raises ConfigError."""
    for server in (deployment.aggregator.a, deployment.aggregator.b, deployment.dealer):
        if server is not None and (url := url_of(server.database_url)) is not None:
            with refusing(SetupError):
                require_url(url)


def _require_own_state(task: Task, server: AggregatorConfig, role: Role, initial_model: Path) -> None:
    """Require that what is in an aggregator's `state_dir` is of this task. Raises ConfigError, StoreError, DpError."""
    try:
        initial = load_initial_model(initial_model, task)
        has_database = url_of(server.database_url) is not None
        earlier = read_earlier(server, role)
        require_aggregator_opens(server.state_dir, task, role, initial, earlier, has_database=has_database)
    except SetupError as error:
        raise ConfigError(f"{error}; nothing was installed") from None


def _require_no_other_task(ours: Manifest, kit: Path, folder: Path, deployment: Deployment) -> None:
    """Refuse a folder with another task's kit, unless it is an earlier form of this project. Raises ConfigError.

    That is one of the same authority, for which no client was started here. What joined by halves is no kit.
    """
    try:
        theirs = Manifest.parse((folder / MANIFEST).read_bytes(), folder / MANIFEST)
        issuers = [set(parse_certificates((place / AUTHORITY).read_bytes())) for place in (folder, kit)]
    except (OSError, ConfigError, IdentityError):
        return
    client = deployment.client
    has_begun = client is not None and any(client.state_dir.glob(f"{folder.name}.*"))
    if ours.task_digest == theirs.task_digest or not (has_begun or issuers[0].isdisjoint(issuers[1])):
        return
    known, found = (f"{one.task.get('name')!r} (digest {one.task_digest[:16]})" for one in (theirs, ours))
    raise ConfigError(
        f"DIR: expected a kit of the task in {folder}, {known}, found one of {found}: join it in another DIR, "
        f"with copies of {KEY} and own.toml, whose client.holder.ledger must stay the same file; nothing was installed"
    )


def _require_own_key(folder: Path, own: Identity, certificate: Path, authority: Path) -> None:
    """Require that the certificate is of the key that was made here: nobody else's request came in its place."""
    key = folder / KEY
    if not key.is_file():
        raise ConfigError(f"DIR: expected {key}, of precad pki request {folder.parent}, found none")
    TlsFiles(certificate=certificate, key=key, authority=authority, holder=own).load()


def kit_facts(config: Path) -> dict[str, str]:
    """Return what `precad check` shows of a configuration that came in a kit; nothing of any other.

    Raises ConfigError if a file of the kit is missing or was changed, other than certificates and pins.
    """
    folder = config.parent
    if not any((folder / name).exists() for name in (SIGNATURE, SEAL)):
        return {}
    kit = verify(folder, is_installed=True)
    said = f"unchanged but for {', '.join(kit.renewed)}, renewed since" if kit.renewed else "unchanged"
    if not kit.is_vouched:
        said += "; no authority here has certified its seal: compare the project digest"
    return {"kit": f"of {kit.participant}, {said}", "project_digest": digest_of(folder)}
