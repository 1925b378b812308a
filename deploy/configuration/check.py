"""`precad check`: what can be known of a configuration before anything starts, and what operators tell one another.

The check reads what a server or client would read at its start, a client's records included. It refuses what a server
or client would refuse. It shows what the organisations have to compare by another channel: the digest of the task, the
certificates' fingerprints, the initial model's digest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding

from precad.clients.config import ClientConfig
from precad.clients.upload_limit import require_writable
from precad.deploy.configuration.apps import load_with_app, read_local_with_app
from precad.deploy.configuration.check_earlier import named_earlier, with_tasks
from precad.deploy.configuration.check_privacy import privacy_facts
from precad.deploy.configuration.local import draft
from precad.deploy.configuration.sections import Deployment, is_local, read_toml
from precad.deploy.errors import ConfigError
from precad.deploy.run_files.folder import RunFolder
from precad.dp.ledgers.earlier import counted_in
from precad.mpc.gate_names import require_gate, usual_gate
from precad.mpc.local.engines import make_engine
from precad.mpc.sharing import Party
from precad.protos.messages import convert
from precad.protos.task.function_fields import function_claim
from precad.protos.task.task import Task
from precad.protos.task.validation_fields import UNCHECKED
from precad.protos.tls.files import PinFile
from precad.protos.tls.identity import AGGREGATORS, Identity, Role, fingerprint, parse_certificate, parse_certificates
from precad.servers.config import AggregatorConfig, DealerConfig, ServerConfig, require_own_role
from precad.servers.database.replicas import connect, url_of
from precad.servers.door.revocation import Revocations
from precad.servers.links.credentials import require_dealer
from precad.servers.operations.access import load_token
from precad.servers.rounds import memory
from precad.servers.rounds.dealt_form import require_set
from precad.servers.rounds.sum_function import require_function
from precad.servers.store.folder import ledger_path, load_initial_model, read_earlier
from precad.servers.store.rehearsal import require_aggregator_opens, require_dealer_opens


def check_file(path: Path, app: str | None = None, n_clients: int | None = None) -> dict[str, Any]:
    """Return what `check` does of a deployment's file, or what a local run of this file would take.

    n_clients: of a local run whose file names none. Raises what the run or the process itself would.
    """
    if not is_local(read_toml(path)):
        if n_clients is not None:
            raise ConfigError(f"--clients: expected none with a deployment's file, found {n_clients}")
        return check(load_with_app(path, app))
    from precad.deploy.configuration.check_records import local_records

    raw = read_local_with_app(path, app, n_clients)
    if (early := draft(raw, RunFolder(path.parent.absolute()))) is not None:
        require_gate(early.task.gate if "gate" in raw["task"] else usual_gate())
    return local_records(raw, path.parent.absolute())


def check(deployment: Deployment) -> dict[str, Any]:
    """Return by section that the file has: certificates with fingerprint and expiry; the task's digest. Changes
    nothing.

    Raises what the process itself would: ConfigError, TransportError, SetupError, GateUnavailableError,
    EngineUnavailableError, ClientError.
    """
    task = deployment.task
    report: dict[str, Any] = {"task": task.name, "task_digest": task.digest().hex(), **privacy_facts(task)}
    if task.accept_weak_wire_form:
        weak = task.fixed_word or task.mode
        report["wire_form"] = f"{weak}: a server that deviates reads coordinates (docs/explanation/threat-model.md)"
    if not task.checks_norms:
        report["validation"] = UNCHECKED
    if task.sum_function is not None:
        memory_said = "what it takes of memory_budget_mb is counted when a server starts"  # a dry run would run it here
        report["sum_function"] = f"{task.sum_function}; {function_claim(task)}; {memory_said}"
    dealer = deployment.network.dealer
    if task.servers_follow_protocol:
        report["servers"] = "must follow the protocol: no noise protects one client's update from one that deviates"
    if (own := deployment.aggregator.a) is not None:
        report["aggregator_a"] = _aggregator(task, own, 0, dealer) | _public_records(task, "a", own)
    if (own := deployment.aggregator.b) is not None:
        report["aggregator_b"] = _aggregator(task, own, 1, dealer) | _public_records(task, "b", own)
    if deployment.dealer is not None:
        report["dealer"] = _dealer(deployment.dealer)
    if deployment.client is not None:
        from precad.deploy.configuration.check_records import records_here

        report["clients"] = _clients(task, deployment.client)
        if deployment.client.holder is not None:
            from precad.deploy.configuration.check_holder import room_of

            report["clients"]["holder"] = room_of(task, deployment.client, _here(task, deployment.client))
        report["clients"]["records"] = records_here(task, deployment.client, _here(task, deployment.client))
    return report


def _require_usable_server(config: ServerConfig, role: Role) -> None:
    require_own_role(config.tls, role)
    if config.operations_listen is not None:
        load_token(config.operations_token)
    if (url := url_of(config.database_url)) is not None:
        connect(url, role).close()


def _aggregator(task: Task, config: AggregatorConfig, party: Party, dealer: str | None) -> dict[str, Any]:
    """Return an aggregator's part of the report. dealer: its address."""
    role, peer = AGGREGATORS[party], AGGREGATORS[1 - party]
    require_dealer(task, config, dealer)
    require_function(task, config)
    _require_usable_server(config, role)
    if not task.is_proved:
        require_gate(task.gate)
    require_set(task)
    revoked = Revocations(config.revoked)
    make_engine(config.engine)
    initial = load_initial_model(config.initial_model, task)
    has_database = url_of(config.database_url) is not None
    earlier = read_earlier(config, role)
    require_aggregator_opens(config.state_dir, task, role, initial, earlier, has_database=has_database)
    counted = counted_in(ledger_path(config.state_dir)) if earlier is None else earlier
    return {
        "certificate": _shown(config.certificate.read_bytes()),
        "trusts": [
            *_pinned(config.peer_certificate, peer),
            *([] if config.dealer_certificate is None else _pinned(config.dealer_certificate, Role.DEALER)),
        ],
        "authority": _authorities(config.authority),
        "revoked": "no file is named" if config.revoked is None else f"certificates of clients: {len(revoked)}",
        "initial_model": convert.sha256(convert.model_to_bytes(initial)).hex(),
        "post_quantum": "required, on the lane by a key of the link" if config.require_pqc else "where offered",
        "mib_for_uploads": memory.of_server(config, task, role) // memory.MIB,
        **named_earlier(counted),
        **with_tasks(task, counted),
    }


def _public_records(task: Task, letter: str, config: AggregatorConfig) -> dict[str, Any]:
    """Say what models are measured on, if they are. Raises ConfigError."""
    if config.evaluation_records is None:
        return {}
    from precad.deploy.configuration.check_records import shown_measure
    from precad.deploy.configuration.public_records import load_of_server

    found = load_of_server(task, letter, config)
    return {} if found is None else {"measures_on": shown_measure(found)}


def _dealer(config: DealerConfig) -> dict[str, Any]:
    from precad.servers.dealer import LEDGER_NAME

    _require_usable_server(config, Role.DEALER)
    require_dealer_opens(config.state_dir, LEDGER_NAME, has_database=url_of(config.database_url) is not None)
    return {
        "certificate": _shown(config.certificate.read_bytes()),
        "trusts": [
            *_pinned(config.aggregator_a_certificate, Role.AGGREGATOR_A),
            *_pinned(config.aggregator_b_certificate, Role.AGGREGATOR_B),
        ],
        "authority": _authorities(config.authority),
    }


def _clients(task: Task, config: ClientConfig) -> dict[str, Any]:
    """Return those of the task's clients whose folder is here. They trust the pinned aggregators; any of the
    authority's where none is pinned."""
    require_set(task)
    certificates, here = config.certificates, _here(task, config)
    require_writable(config.state_dir)
    for client in here:
        if (found := config.tls(client).load().identity) != Identity(Role.CLIENT, client):
            raise ConfigError(f"client.certificates: expected the certificate of {client!r}, found one of {found.uri}")
    return {
        "certificates": [_shown((certificates / client / "cert.pem").read_bytes()) for client in here],
        "trusts": [
            shown
            for path, role in zip(config.pins, AGGREGATORS, strict=True)
            if path is not None
            for shown in _pinned(path, role)
        ],
        "authority": _authorities(config.authority),
    }


def _here(task: Task, config: ClientConfig) -> list[str]:
    """Return the clients whose certificate is here."""
    if not (found := config.certified(task.clients)):
        where = config.certificates
        raise ConfigError(f"client.certificates: expected cert.pem in a folder of one of the task's, found {where}")
    return found


def _pinned(path: Path, role: Role) -> list[dict[str, str]]:
    """Return the certificates in a pin file."""
    return [_shown(pem) for pem in PinFile(path, role).load().certificates]


def _shown(pem: bytes) -> dict[str, str]:
    return {"of": Identity.from_certificate(pem).uri, **_expiry(pem)}


def _authorities(path: Path) -> list[dict[str, str]]:
    """Return the authorities: one, or two while a new one takes the old one's place."""
    return [_expiry(c.public_bytes(Encoding.PEM)) for c in parse_certificates(path.read_bytes())]


def _expiry(pem: bytes) -> dict[str, str]:
    return {"sha256": fingerprint(pem), "until": f"{parse_certificate(pem).not_valid_after_utc:%Y-%m-%d}"}


def lines(report: dict[str, Any], indent: str = "") -> list[str]:
    """Return the report for people, a fact a line."""
    shown: list[str] = []
    for name, value in report.items():
        label = f"{indent}{name.replace('_', ' ').replace('mib', 'MiB')}"
        if isinstance(value, list):
            facts = ["  ".join(map(str, item.values())) for item in value] or ["whatever the authority signs"]
            shown.extend(f"{label:<16}  {fact}" for fact in facts)
        elif value == {}:  # such as the links of a server that dials nobody
            shown.append(f"{label:<16}  none")
        elif isinstance(value, dict) and "sha256" not in value:
            shown += [label, *lines(value, indent + "  ")]
        else:
            shown.append(f"{label:<16}  {'  '.join(value.values()) if isinstance(value, dict) else value}")
    return shown
