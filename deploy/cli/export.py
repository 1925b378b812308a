"""`precad export` and `precad verify-export`: a trained model for others, and what it may be believed to be."""

from __future__ import annotations

import importlib.util
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from precad.deploy.cli.common import AggregatorLetter, Json, exit_codes, tell, write_json
from precad.deploy.errors import ConfigError
from precad.protos.messages.spoken import shown


class FormatName(StrEnum):
    """Formats that may stand beside the state_dict."""

    TORCHSCRIPT = "torchscript"
    ONNX = "onnx"
    TORCH_EXPORT = "torch-export"


class SignedBy(StrEnum):
    """Servers whose signatures an export must have."""

    BOTH = "both"
    A = "a"
    B = "b"


@exit_codes()
def export(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_STATE_DIR",
            help="Export from the folder of a finished run, a server's state_dir, or a copy.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Write to this folder, new or empty.")],
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="Read the configuration of the server whose state_dir this is."),
    ] = None,
    role: Annotated[
        AggregatorLetter | None, typer.Option(help="Sign as this server; of a run both do unless one is named.")
    ] = None,
    kinds: Annotated[
        list[FormatName] | None,
        typer.Option("--format", help="Write this form beside the state_dict; repeat for several."),
    ] = None,
    certificate: Annotated[
        list[Path] | None,
        typer.Option(
            "--certificate",
            metavar="RUN",
            help="Certify predictions from this folder of an independent run, or certificate.json; repeat.",
        ),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(metavar="FILE.json", help="Export this audit of the training too; of a run, its own by default."),
    ] = None,
    date: Annotated[
        str | None,
        typer.Option(metavar="YYYY-MM-DD", help="Write this date into the statement; take the same at both servers."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a finished task's model, and a signed statement of what was spent and what is guaranteed."""
    _require_torch()
    from precad.deploy.exporting import export as exporting
    from precad.deploy.exporting.formats import Format

    report = exporting.export(
        exporting.source_of(source, config, None if role is None else role.value),
        out,
        kinds=[Format(kind) for kind in kinds or ()],
        certificate=certificate or (),
        audit=audit,
        date=date,
    )
    if as_json:
        write_json(report, allow_nan=False)
        return
    tell(f"{report['out']}: {', '.join(report['files'])}; signed by {' and '.join(report['signed_by'])}")
    for remark in report["remarks"]:
        tell(remark)
    _tell_statement(report)


@exit_codes()
def verify_export(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Check this folder, which `precad export` wrote.")],
    authority: Annotated[Path, typer.Option(metavar="FILE.pem", help="Trust this certificate of the authority.")],
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="DIR", help="Compare with the other server's export of the same model."),
    ] = None,
    signed_by: Annotated[SignedBy, typer.Option(help="Require the signatures of these servers.")] = SignedBy.BOTH,
    as_json: Json = False,
) -> None:
    """Check an exported model: digests, signatures, roles, and that both servers state the same."""
    _require_torch()
    from precad.deploy.exporting import signing, verify

    wanted = {SignedBy.A: signing.SIGNERS[:1], SignedBy.B: signing.SIGNERS[1:], SignedBy.BOTH: signing.SIGNERS}
    report = verify.verify_export(folder, authority=authority, against=against, wanted=wanted[signed_by])
    if as_json:
        write_json(report, allow_nan=False)
        return
    for role, found in report["signatures"].items():
        tell(f"signed by {role} on {found['signed_on']}, certificate SHA-256 {found['certificate_sha256']}")
    for name, roles in report["files"].items():
        tell(f"{shown(name)}: as {' and '.join(roles)} signed it")
    tell(f"certificate against poisoning: {report['certificate']}")
    tell(f"audit: {report['audit']}")
    _tell_statement(report)


def _require_torch() -> None:
    """Raises ConfigError, where the image of the servers ends here."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("expected PyTorch, found none: exports need all of precad, not the servers' image")


def _tell_statement(report: dict[str, Any]) -> None:
    said = report["statement"]
    tell(shown(f"task {said['task']['name']}, {said['rounds']['committed']} rounds ({said['rounds']['ended']})"))
    tell(shown(f"model {said['model']['architecture']}, SHA-256 {said['model']['sha256']}"))
    tell(f"statement SHA-256 {report['statement_sha256']}")
    tell(shown(said["guarantee"]))
    if said["format"] == "precad/export/1":
        tell(
            "its epsilons are of the rounds that there were: they hold if no draw was discarded "
            "(docs/explanation/privacy.md)"
        )
