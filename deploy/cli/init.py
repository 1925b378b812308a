"""`precad init`: a commented start for a training on this machine, or for a deployment."""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import exit_codes, tell

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Write to this folder, new or empty; nothing is ever overwritten.")
]


class DeploymentMode(StrEnum):
    """How a deployment checks updates."""

    PROVED = "proved"
    DEALER = "dealer"


init_app = typer.Typer(help="Write the commented files that a training begins with.", no_args_is_help=True)


@init_app.command("local")
@exit_codes()
def init_local(folder: Folder) -> None:
    """Write a training for this machine: a configuration, a model, and made-up records to replace with yours."""
    from precad.deploy.configuration import init

    files = init.local_files()
    init.write(files, folder)
    tell(f"{folder}: wrote {', '.join(files)}")
    tell(f"next: precad check {shlex.quote(str(folder / 'train.toml'))}")
    tell(f"      precad run {shlex.quote(str(folder / 'train.toml'))}")


@init_app.command("deployment")
@exit_codes()
def init_deployment(
    folder: Folder,
    mode: Annotated[
        DeploymentMode,
        typer.Option(help="Check updates by clients' proofs, with two servers (proved), or with a dealer's tuples."),
    ] = DeploymentMode.PROVED,
) -> None:
    """Write a deployment on your own records: each role's configuration, systemd unit and Kubernetes manifests."""
    from precad.deploy.configuration import init
    from precad.protos.task.proved_fields import STANDING

    has_dealer = mode is DeploymentMode.DEALER
    files = init.deployment_files(has_dealer=has_dealer)
    init.write(files, folder)
    tell(f"{folder}: wrote {len(files)} files")
    for name in init.organisations(has_dealer=has_dealer):
        tell(f"  {name + '/':<15}{name}.toml with every field explained, its systemd unit, kubernetes/")
    tell("  helm/          the manifests as a chart, with each role's values")
    tell("  identities/    certificates by cert-manager or step-ca, in place of precad pki")
    tell("  one-machine/   compose.yaml, to try all roles on one machine")
    tell("  monitoring/    for Prometheus and Grafana")
    if not has_dealer:
        tell(f"mode proved {STANDING} (docs/explanation/proved.md)")
    tell("  project.toml   for precad provision, which makes a kit for each organisation; task.toml is its [task]")
    tell("next: agree on task.toml, make keys (precad pki request), then precad provision project.toml")
    tell("      or each organisation fills in its own files, and runs precad check ROLE.toml")
    tell(f"      each client's records: a table like {folder / init.RECORDS}, where client.records names it")
