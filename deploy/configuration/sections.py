"""One TOML file per deployment: `[task]`, `[network]`, and one section for every role that this file's owner runs.

The file is validated as a whole before anything starts. Unknown keys are refused; every fault is reported with its
field, what was expected and what was found.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from precad.clients.config import ClientConfig, require_source
from precad.clients.own_code import leave_out_current_folder
from precad.clients.upload_limit import require_covered
from precad.deploy.configuration.faults import faults_of, toml_fault
from precad.deploy.errors import ConfigError, refusing
from precad.deploy.shown.found import found_shown
from precad.protos.config_path import ConfigPath
from precad.protos.messages.spoken import shown
from precad.protos.task.convex_fields import DIRECTIONS_FILE
from precad.protos.task.proved_fields import MODE as PROVED
from precad.protos.task.task import Task
from precad.protos.tls.files import TlsFiles
from precad.servers.config import Address, AggregatorConfig, DealerConfig

SHARED: Final = frozenset({"task", "network"})
"""Sections that are the same for all organisations."""
IDENTITY_FIELDS: Final = frozenset(
    {
        "certificate",
        "certificates",
        "authority",
        "peer_certificate",
        "dealer_certificate",
        "aggregator_a_certificate",
        "aggregator_b_certificate",
        "initial_model",
    }
)
"""Fields that say who a role is, whom it trusts, and what it starts from: a kit's alone."""
CONSENTS: Final = frozenset({"attacks", "queries", "sum_function", "uploads_per_model", "folder", "evaluation_folder"})
"""Fields by which an operator agrees to more than a role does otherwise, or says where its code is. Where a kit is
joined, they are `own`'s alone."""
T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Network(_Section):
    """Where the servers are reached: HOST:PORT each."""

    aggregator_a: Address
    aggregator_b: Address
    dealer: Address | None = None
    """None in a task of mode `proved`, which has no dealer."""

    @model_validator(mode="after")
    def _check_distinct(self) -> Self:
        given = [address for address in (self.aggregator_a, self.aggregator_b, self.dealer) if address is not None]
        if len(set(given)) < len(given):
            number = "three" if self.dealer else "two"
            raise ValueError(f"expected {number} different addresses, found {', '.join(given)}")
        return self


class Aggregators(_Section):
    """`[aggregator.a]` and `[aggregator.b]`; a deployment's file holds the one that its owner runs."""

    a: AggregatorConfig | None = None
    b: AggregatorConfig | None = None


class OperatorConfig(_Section):
    """Describe the operator, who may watch the servers."""

    certificate: ConfigPath
    key: ConfigPath
    authority: ConfigPath
    key_passphrase_file: ConfigPath | None = None
    """As a server's."""

    @property
    def tls(self) -> TlsFiles:
        """Return the files that the operator's tools show and trust."""
        return TlsFiles(
            certificate=self.certificate,
            key=self.key,
            authority=self.authority,
            key_passphrase_file=self.key_passphrase_file,
        )


class LocalhostConfig(_Section):
    """`precad run`: how the roles become processes of one machine."""

    clients_per_process: Annotated[int, Field(ge=1)] = 1
    """Virtual clients, each with its own certificate and connections, per client process. Attackers and honest clients
    never share one."""
    attackers_per_process: Annotated[int, Field(ge=1)] | None = None
    """Attackers per process; None: as `clients_per_process`."""
    initial_model: Annotated[str, Field(min_length=1)] | None = None
    """A `.npy` file beside this one: the public model that training starts from, in place of the one that
    `task.model_seed` draws. As for servers, it is flat float32, (d,). Both servers get these bytes."""
    initial_model_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None
    """Digest of its values as they travel; a run folder's configuration has it, so that another model is refused
    there."""

    @model_validator(mode="after")
    def _check_initial_model(self) -> Self:
        if self.initial_model_sha256 is not None and self.initial_model is None:
            raise ValueError("initial_model_sha256 needs initial_model, found none")
        return self


class Deployment(_Section):
    """The whole file."""

    task: Task
    network: Network
    aggregator: Aggregators = Aggregators()
    dealer: DealerConfig | None = None
    client: ClientConfig | None = None
    operator: OperatorConfig | None = None
    localhost: LocalhostConfig = LocalhostConfig()

    @model_validator(mode="before")
    @classmethod
    def _refuse_dealer(cls, sections: Any) -> Any:
        """Refuse what is a dealer's in a mode that has none, before anybody is asked for the rest of it."""
        if isinstance(sections, Mapping) and _value(sections, "task", "mode") == PROVED:
            pins = (("aggregator", letter, "dealer_certificate") for letter in "ab")
            for path in (("network", "dealer"), ("dealer",), *pins):
                if _value(sections, *path) is not None:
                    name = ".".join(path)
                    raise ValueError(f"{name}: expected none in mode 'proved', which has no dealer, found a value")
        return sections

    @model_validator(mode="after")
    def _check_dealer(self) -> Self:
        """Require a dealer's address where the mode has a dealer."""
        if not self.task.is_proved and self.network.dealer is None:
            raise ValueError("network.dealer: expected a value, found none")
        return self

    @model_validator(mode="after")
    def _check_evaluation(self) -> Self:
        """Require that the task knows of the measuring, and that what is measured on is named as records are."""
        for letter, own in (("a", self.aggregator.a), ("b", self.aggregator.b)):
            if own is None or own.evaluation_records is None:
                continue
            field = f"aggregator.{letter}.evaluation_records"
            if self.task.evaluation != "public":
                raise ValueError(f"{field}: expected task.evaluation = 'public' beside it, found 'none'")
            try:
                require_source(own.evaluation_records)
            except ValueError as error:
                raise ValueError(f"{field}: {error}") from None
        return self

    @model_validator(mode="after")
    def _check_canary_noise(self) -> Self:
        """Require canaries where a server keeps its noise for them."""
        for letter, own in (("a", self.aggregator.a), ("b", self.aggregator.b)):
            if own is not None and own.keep_canary_noise and not self.task.audit_clients:
                raise ValueError(
                    f"aggregator.{letter}.keep_canary_noise: expected task.audit_clients beside it, found none"
                )
        return self

    @model_validator(mode="after")
    def _check_uploads(self) -> Self:
        if self.client is not None:
            require_covered(self.task, self.client.uploads_per_model)
        return self


def _value(sections: Mapping[str, Any], *path: str) -> Any:
    """Return what is there in sections that are not validated yet, None where there is nothing."""
    found: Any = sections
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def section_of(raw: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section that is not validated yet, empty where there is none. Raises ConfigError."""
    found = raw.get(name, {})
    if not isinstance(found, Mapping):
        raise ConfigError(f"{name}: expected a section, found {found!r:.60}")
    return dict(found)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the file's raw contents, with those that it includes. Raises ConfigError, also for an empty file.

    `include` names a file with `[task]` and `[network]`, which then stand nowhere else. `own` names a file, which need
    not be there, with settings of this organisation's. They take the place of those in the sections of this file.
    """
    found, own = _without_own(path)
    return found if own is None else _with_own(found, own)


def _without_own(path: Path) -> tuple[dict[str, Any], Path | None]:
    """Return the contents without settings of this organisation's, and the file that has some. Raises ConfigError."""
    found = _toml(path)
    include, own = found.pop("include", None), found.pop("own", None)
    if include is not None:
        found = {**_included(path, include, found), **found}
    if own is not None:  # as kits have: their maker names modules, and packs the folder that they come in
        leave_out_current_folder()
    own_path = None if own is None else _beside(path, "own", own)
    with refusing(OSError, f"{path}: own: expected the name of a file, found"):
        return found, own_path if own_path is not None and own_path.exists() else None


def shared_text(path: Path) -> bytes | None:
    """Return the text of the file that this one includes; None where it includes none. Raises ConfigError."""
    value = _toml(path).get("include")
    return None if value is None else _beside(path, "include", value).read_bytes()


def _toml(path: Path, *, may_be_empty: bool = False) -> dict[str, Any]:
    """Return a file's contents, which may begin with a byte order mark."""
    text = ""
    try:
        text = path.read_bytes().decode("utf-8-sig")
        found = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: expected a readable file, found: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: expected TOML, found: {toml_fault(error, text)}") from None
    if not found and not may_be_empty:
        raise ConfigError(f"{path}: expected a configuration with a section [task], found an empty file")
    return found


def _beside(path: Path, field: str, value: object) -> Path:
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{field}: expected the name of a file, found {found_shown(value, field)}")
    return path.parent / value


def _included(path: Path, value: object, including: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections that all organisations share."""
    shared_path = _beside(path, "include", value)
    shared = _toml(shared_path)
    if unknown := sorted(shared.keys() - SHARED):
        raise ConfigError(f"{shared_path}: expected [task] and [network] alone, found {', '.join(unknown)}")
    if twice := sorted(SHARED & including.keys()):
        raise ConfigError(f"{path}: expected [{twice[0]}] in {value} alone, found it in both")
    return shared


def _with_own(raw: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the contents with an organisation's own settings, in sections that are there, of no identity or pin."""
    found, faults = copy.deepcopy(raw), list[str]()
    for section_path, field, value in _settings(_toml(path, may_be_empty=True)):
        section = _value(found, *section_path)
        if not section_path or not isinstance(section, dict) or field in IDENTITY_FIELDS:
            at, text = shown(".".join((*section_path, field))), found_shown(value, field)
            faults.append(f"{path}: {at}: expected settings of this organisation's own roles, found {text}")
        else:
            section[field] = value
    if faults:
        raise ConfigError("\n".join(faults))
    return found


def _settings(raw: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str, Any]]:
    """Yield section, field and value of all roles' settings; other things without a section."""
    for name, value in raw.items():
        parts: dict[tuple[str, ...], Any] = {(name,): value}
        if name == "aggregator" and isinstance(value, Mapping):
            parts = {(name, letter): part for letter, part in value.items()}
        for section_path, part in parts.items():
            if name in SHARED or not isinstance(part, Mapping):
                yield (), ".".join(section_path), part
            else:
                yield from ((section_path, field, setting) for field, setting in part.items())


def read_local(path: Path) -> dict[str, Any]:
    """Return the contents of a local run's file. Raises ConfigError.

    Where it names modules, records, directions or a model of the user's own, they are looked for in its folder, which
    is then added.
    """
    return with_folder(read_toml(path), path.parent.absolute())


_OF_TRAINERS: Final = ("trainer_python", "trainer_output")
_BESIDE: Final = (("task", DIRECTIONS_FILE), ("localhost", "initial_model"), ("client", "holder", "ledger"))
"""Fields of a local run with a file beside its own. Its clients pay from one ledger, so that the next run counts it."""


def with_folder(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a local run's configuration that says where modules or records of the user's own are, if it names any."""
    task, client = raw.get("task"), raw.get("client", {})
    if isinstance(task, Mapping) and isinstance(client, Mapping):
        names = [str(task.get(name, "")) for name in ("model", "loss")]
        names += [str(client.get(name, "")) for name in ("records", "trainer")]
        names += _attack_kinds(client.get("attacks"))
        if any(":" in name for name in names):
            beside = {"folder": "", **{name: client[name] for name in _OF_TRAINERS if name in client}}
            paths = {name: _path_beside(folder, str(client.get(name, place))) for name, place in beside.items()}
            raw = {**raw, "client": {**client, **paths}}
    for path in _BESIDE:
        raw = _placed(raw, folder, *path)
    return _with_evaluation_folder(raw, folder)


def _placed(raw: Mapping[str, Any], folder: Path, *path: str) -> dict[str, Any]:
    """Return a configuration whose file in a field, if there is one, is looked for in a folder."""
    (first, *rest), file = path, _value(raw, *path)
    if not isinstance(file, str | Path) or not file:
        return dict(raw)
    return {**raw, first: _placed(raw[first], folder, *rest) if rest else _path_beside(folder, file)}


def _attack_kinds(attacks: object) -> list[str]:
    """Return the kinds of attacks of a section that may have faults."""
    each = attacks.values() if isinstance(attacks, Mapping) else ()
    return [str(one.get("kind", "")) if isinstance(one, Mapping) else str(one) for one in each]


def _with_evaluation_folder(raw: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return a local run's configuration whose aggregators look for public records beside it."""
    aggregators = raw.get("aggregator")
    if not isinstance(aggregators, Mapping):
        return dict(raw)
    each = dict(aggregators)
    for letter, own in aggregators.items():
        if isinstance(own, Mapping) and "evaluation_records" in own:
            each[letter] = {**own, "evaluation_folder": _path_beside(folder, own.get("evaluation_folder", ""))}
    return {**raw, "aggregator": each}


def _path_beside(folder: Path, file: str | Path) -> str:
    """Return the path of a file in a configuration's folder. Raises ConfigError for one that TOML cannot hold."""
    try:
        str(folder).encode()
    except UnicodeEncodeError:
        expected = "a configuration in a folder whose path is text in this locale"
        raise ConfigError(f"CONFIG: expected {expected}, found other bytes in it") from None
    return str(folder / file)


def is_local(raw: Mapping[str, Any]) -> bool:
    """Tell whether a file is a local run's: it has neither the addresses nor the certificates of a deployment's."""
    parts = [raw.get(name, {}) for name in ("dealer", "client", "operator")]
    aggregators = raw.get("aggregator", {})
    parts += list(aggregators.values()) if isinstance(aggregators, Mapping) else []
    files = {"certificate", "certificates", "authority"}
    return "network" not in raw and not any(isinstance(part, Mapping) and files & part.keys() for part in parts)


def parse(raw: Mapping[str, Any], *, base: Path) -> Deployment:
    """Return the validated configuration; relative paths are taken from `base`. Raises ConfigError with every fault."""
    try:
        return Deployment.model_validate(raw, context={"base": base})
    except ValidationError as error:
        raise ConfigError("\n".join(faults_of(error, Deployment))) from None


def parse_section(kind: type[M], raw: object, name: str, *, base: Path) -> M:
    """Return one section, validated by itself. Raises ConfigError with every fault."""
    try:
        return kind.model_validate(raw, context={"base": base})
    except ValidationError as error:
        raise ConfigError("\n".join(faults_of(error, kind, name))) from None


def load(path: Path, *, base: Path | None = None) -> Deployment:
    """Read and validate a file. Relative paths are taken from `base`, or else from the file's folder.

    Raises ConfigError. A fault that the file alone does not have is named with the file of `own` that brings it.
    """
    folder = path.parent.absolute() if base is None else base
    raw, own = _without_own(path)
    if own is None:
        return parse(raw, base=folder)
    merged = _with_own(raw, own)
    try:
        return parse(merged, base=folder)
    except ConfigError as error:
        shared = _faults(raw, folder)
        lines = [line if line in shared else f"{own}: {line}" for line in str(error).splitlines()]
    raise ConfigError("\n".join(lines))


def _faults(raw: Mapping[str, Any], base: Path) -> list[str]:
    """Return a line a fault, none where there is none."""
    try:
        parse(raw, base=base)
    except ConfigError as error:
        return str(error).splitlines()
    return []


def section(value: T | None, name: str) -> T:
    """Return a section that a command needs. Raises ConfigError when the file lacks it."""
    if value is None:
        raise ConfigError(f"[{name}]: expected this section for this command, found none")
    return value
