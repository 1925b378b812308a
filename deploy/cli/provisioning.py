"""`precad provision` and `precad join`: start-up kits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from precad.deploy.cli.common import AggregatorLetter, AppName, exit_codes, tell, tell_fact
from precad.deploy.cli.pki import AuthorityPassphraseFile, passphrase_of
from precad.deploy.cli.roles import client, serve_aggregator, serve_dealer
from precad.deploy.cli.setup import checked
from precad.protos.tls.identity import Identity, Role


def provision(
    project: Annotated[Path, typer.Argument(metavar="PROJECT", help="Read this project.toml.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write to this folder, new or empty: kits/ unless given.")
    ] = None,
    authority_passphrase_file: AuthorityPassphraseFile = None,
) -> None:
    """Certify the participants' requests, and write a start-up kit for each of them."""
    with exit_codes():
        from precad.deploy.configuration.evaluation_clip import clip_advice
        from precad.deploy.provisioning import kits
        from precad.deploy.provisioning.project import read

        opens, agreed = passphrase_of(authority_passphrase_file), read(project)
        made = kits.provision(agreed, project.parent / "kits" if out is None else out, passphrase=opens)
        tell(f"{made.folder}: wrote kits of {', '.join(made.participants)}")
        if made.strangers:
            tell(f"note: left out requests of nobody in the task: {', '.join(made.strangers)}")
        tell(f"authority SHA-256  {made.authority}")
        tell(f"project digest     {made.digest}")
        if made.model_digest is not None:
            tell(f"model digest       {made.model_digest}: a client with other code is refused")
        if advice := clip_advice(agreed.task, agreed.holdout):
            tell(f"note: {advice}")
        tell("next: send each its folder. A and B run precad join, then read the digest out to everybody else")


def join(
    kit: Annotated[Path, typer.Argument(metavar="KIT", help="Take this kit, the folder that was sent.")],
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Keep it in this folder, of `precad pki request`, where the key is.")
    ],
    agreed: Annotated[
        str, typer.Option(metavar="DIGEST", help="Require this project digest, read out by the operators of A and B.")
    ],
    is_started: Annotated[bool, typer.Option("--start/--no-start", help="Start the role once all is right.")] = True,
    app: AppName = None,
) -> None:
    """Verify a start-up kit, install it, check it as `precad check`, and start its role.

    The same command continues after a stop.
    """
    with exit_codes():
        from precad.deploy.configuration.check import lines
        from precad.deploy.provisioning.joining import join as install

        joined = install(kit, directory, agreed)
        tell(f"{joined.config}: installed")
        for setting in joined.settings:
            tell(f"set by the kit's maker: {setting}")
        if joined.replaced:
            edited = ", ".join(joined.replaced)
            tell(f"note: replaced by the kit's, as it was edited: {edited}. Settings of your own go into own.toml")
        try:
            report = checked(joined.config, app)
        except Exception:
            tell("not started: the kit stays installed. Mend what the error names, then repeat this command")
            raise
        for line in lines(report):
            tell_fact(line)
    if is_started:
        _start(joined.identity, joined.config, app)


def _start(identity: Identity, config: Path, app: str | None) -> None:
    if identity.role is Role.CLIENT:
        client(config, [identity.name], app)
    elif identity.role is Role.DEALER:
        serve_dealer(config)
    else:
        serve_aggregator(config, AggregatorLetter(identity.role.value[-1]))
