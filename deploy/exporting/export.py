"""`precad export`: the model of a finished task, and what is stated of it, signed by the server whose folder it is.

    model.pt, model.*        the model's files                                   `formats`
    adapter_*                of an adapted model, for `peft`                     `adapters`
    certificate.json         what the certificate is computed from, on request    `evidence`
    audit.json               what an attack on the training showed, if there was one    `audits`
    statement.json           what both servers state alike                       `statement`
    <role>.json .sig .pem    what this server adds, its signature, its certificates    `signing`

The other server's operator exports as well, and gets the same statement.json; with its three files beside ours, the
folder has both signatures.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from precad.clients.models.adapter_files import Constants
from precad.clients.models.adapters import adapted
from precad.clients.own_code import look_in
from precad.deploy.configuration import sections as configuration
from precad.deploy.configuration.sections import Deployment
from precad.deploy.errors import ConfigError, ExportRefusedError, refusing
from precad.deploy.exporting import formats, signing
from precad.deploy.exporting.adapters import remarks
from precad.deploy.exporting.audits import AUDIT, audit_for
from precad.deploy.exporting.evidence import EVIDENCE, Evidence, evidence_for
from precad.deploy.exporting.finished import ROLES, FinishedTask, read_finished
from precad.deploy.exporting.statement import ExportStatement, difference, file_sha256, sha256, statement_of
from precad.deploy.files.whole import appearing
from precad.deploy.reporting.certificates import RunCertificate, certificate_of
from precad.deploy.reporting.run_folder import read_deployed
from precad.deploy.run_files.folder import RunFolder, require_deployed
from precad.deploy.run_files.spent import cost_in
from precad.protos.task.model_update import has_diverged
from precad.protos.tls.files import TlsMaterial
from precad.servers.config import AggregatorConfig, require_own_role
from precad.servers.store.folder import ledger_path

STATEMENT: Final = "statement.json"
_NO_CERTIFICATE: Final = "a server has no test records: certificates are made from run folders (--certificate)"


@dataclass(frozen=True, slots=True)
class Source:
    """Hold what is exported, and who signs it."""

    deployment: Deployment
    servers: tuple[tuple[Path, TlsMaterial], ...]
    """The folder and the key of each server that signs."""
    run: Path | None
    """The folder of a run, whose model can be tested; a server has no test records."""


def source_of(folder: Path, config: Path | None, letter: str | None) -> Source:
    """Return the source: a run folder, whose servers both sign unless `letter` names one. Or it is a server's state_dir
    or a copy of it, with its configuration. Raises ConfigError, TransportError."""
    run = RunFolder(folder)
    if config is None:
        require_deployed(folder, str(folder), "the folder of `precad run`, whose servers sign")
    if config is None and not run.config.is_file():
        raise ConfigError(
            f"{folder}: expected the folder of a run, or --config FILE beside a state_dir, found no {run.config.name}"
        )
    deployment = configuration.load(run.config if config is None else config)
    if deployment.client is None:
        look_in(run.config.parent if config is None else config.parent)
    else:
        deployment.client.look_around()
    sections = {"a": deployment.aggregator.a, "b": deployment.aggregator.b}
    wanted = [name for name, section in sections.items() if section is not None] if letter is None else [letter]
    if config is None:
        servers = [_signer(name, sections[name], run.state_dir(name)) for name in wanted]
        return Source(deployment, tuple(servers), folder)
    if len(wanted) != 1:
        raise ConfigError(f"--role: expected a or b, of which {folder} is, found {len(wanted)} sections in {config}")
    return Source(deployment, (_signer(wanted[0], sections[wanted[0]], folder),), None)


def _signer(letter: str, section: AggregatorConfig | None, state_dir: Path) -> tuple[Path, TlsMaterial]:
    own = configuration.section(section, f"aggregator.{letter}")
    require_own_role(own.tls, ROLES[letter])
    return state_dir, own.tls.load()


def export(
    source: Source,
    out: Path,
    *,
    kinds: Sequence[formats.Format] = (),
    certificate: Sequence[Path] = (),
    audit: Path | None = None,
    date: str | None = None,
    today: dt.date | None = None,
) -> dict[str, Any]:
    """Write the folder, which appears complete or not at all, and say what is in it.

    certificate: run folders to certify from, or another export's evidence. date: goes into the statement, like
    the certificate. Both must be the same at both servers. audit: a file of `precad audit privacy`. None: that of the
    run's folder, if there is one. today: the day of the signature, for tests.
    Raises: ConfigError, ExportRefusedError when two servers of a run state different things, and what `read_finished`
    raises.
    """
    task = source.deployment.task
    _require_new(out)
    _require_date(date)
    formats.require_writable(task.model, kinds)
    finished = [read_finished(state_dir, task, tls.identity.role) for state_dir, tls in source.servers]
    constants = Constants(adapter=task.adapter_sha256)  # the base is not written
    module = formats.module_of(task.model, finished[0].parameters, task.model_arguments, constants)
    names = [name for name, _ in module.named_parameters()]
    costs = [cost_in(ledger_path(state_dir), task) for state_dir, _ in source.servers]
    evidence = evidence_for(task, costs, certificate) if certificate else None
    certified, audited = _certificate(source, evidence), audit_for(task, audit, source.run)
    statement = _agreed([statement_of(found, names, certified, date=date) for found in finished])
    with refusing(OSError, f"--out: expected a folder to write to, found {out}"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with appearing(out, mode=0o755) as staging:
            written = formats.write_files(staging, task.model, module, tuple(dict.fromkeys(kinds)))
            if evidence is not None:
                (staging / EVIDENCE).write_bytes(evidence.canonical())
                written.append(EVIDENCE)
            if audited is not None:
                (staging / AUDIT).write_bytes(audited)
                written.append(AUDIT)
            files = {name: file_sha256(staging / name) for name in written}
            (staging / STATEMENT).write_bytes(statement.canonical())
            for found, (_, tls) in zip(finished, source.servers, strict=True):
                _sign(staging, found, tls, statement, files, today or dt.datetime.now(dt.UTC).date())
    return {
        "out": str(out),
        "statement_sha256": sha256(statement.canonical()),
        "files": files,
        "remarks": [*_of_divergence(finished[0]), *remarks(files, adapted(module))],
        "signed_by": [tls.identity.role.value for _, tls in source.servers],
        "statement": statement.model_dump(mode="json"),
    }


def _certificate(source: Source, evidence: Evidence | None) -> RunCertificate | str:
    """Return the certificate that the evidence proves. Without evidence, return that of the exported run by itself, or
    why there is none."""
    if evidence is not None:
        return evidence.certificate()
    return _NO_CERTIFICATE if source.run is None else certificate_of(read_deployed(source.run))


def _sign(
    folder: Path, found: FinishedTask, tls: TlsMaterial, statement: ExportStatement, files: dict[str, str], day: dt.date
) -> None:
    said = signing.endorsement_of(found, tls.identity, statement.canonical(), files, today=day)
    signing.write_signature(folder, said, tls)


def _of_divergence(found: FinishedTask) -> list[str]:
    """Return that the model is of no use, where it is of none: its numbers stay what both servers released."""
    return ["the training diverged: the model's squared norm is not finite"] if has_diverged(found.parameters) else []


def _require_new(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out: expected a new or empty folder, found {out}, which is never overwritten")


def _require_date(date: str | None) -> None:
    try:
        is_date = date is None or dt.date.fromisoformat(date).isoformat() == date
    except ValueError:
        is_date = False
    if not is_date:
        raise ConfigError(f"--date: expected YYYY-MM-DD, found {date!r}")


def _agreed(statements: Sequence[ExportStatement]) -> ExportStatement:
    for other in statements[1:]:
        if (found := difference(statements[0], other)) is not None:
            raise ExportRefusedError(f"the servers state different things: {found}")
    return statements[0]
