"""`precad init`: a commented start for a training on this machine, or for a deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import exit_codes, say

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Write to this folder, new or empty; nothing is ever overwritten.")
]

init_app = typer.Typer(help="Write the commented files that a training begins with.", no_args_is_help=True)


@init_app.command("local")
@exit_codes()
def init_local(folder: Folder) -> None:
    """Write a training for this machine: a configuration, a model, and made-up records to replace with yours."""
    from precad.deploy.configuration import init

    files = init.local_files()
    init.write(files, folder)
    say(f"{folder}: wrote {', '.join(files)}")
    say(f"next: precad check {folder / 'train.toml'}")
    say(f"      precad run {folder / 'train.toml'}")


@init_app.command("deployment")
@exit_codes()
def init_deployment(folder: Folder) -> None:
    """Write a deployment: for each of the four roles its configuration, systemd unit and Kubernetes manifests."""
    from precad.deploy.configuration import init

    files = init.deployment_files()
    init.write(files, folder)
    say(f"{folder}: wrote {len(files)} files")
    for name in init.ORGANISATIONS:
        say(f"  {name + '/':<15}{name}.toml with every field explained, its systemd unit, kubernetes/")
    say("  one-machine/   compose.yaml, to try all roles on one machine")
    say("  monitoring/    for Prometheus and Grafana")
    say("next: agree on [task], make the keys (precad pki), then each runs precad check ROLE.toml")
