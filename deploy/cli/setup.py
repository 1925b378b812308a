"""`precad check`, `precad initial-model` and `precad adapter`: before a deployment starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from precad.deploy.cli.common import AppName, ClientsNumber, ConfigFile, Json, exit_codes, tell, tell_fact, write_json
from precad.deploy.configuration import sections as configuration
from precad.deploy.errors import ConfigError, refusing


@exit_codes()
def check(
    config: ConfigFile,
    app: AppName = None,
    clients: ClientsNumber = None,
    connects: Annotated[
        bool, typer.Option("--connect", help="Dial every server that this configuration's roles dial.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check a role's configuration and files, or a local run's, and show the digests that operators compare."""
    report = checked(config, app, clients)
    if connects:
        from precad.deploy.configuration.check_links import check_links

        report["links"] = check_links(configuration.load(config))
    if as_json:
        write_json(report)
    else:
        from precad.deploy.configuration.check import lines

        for line in lines(report):
            tell_fact(line)


def checked(config: Path, app: str | None, clients: int | None = None) -> dict[str, Any]:
    """Return the check's report, which begins with the kit's facts where the file came in one. Raises as the check."""
    from precad.deploy.configuration.check import check_file
    from precad.deploy.provisioning.joining import kit_facts

    return {**kit_facts(config), **check_file(config, app, clients)}


@exit_codes()
def initial_model(
    config: ConfigFile,
    path: Annotated[
        Path, typer.Argument(metavar="FILE.npy", help="Write this new file, for `initial_model` of both servers.")
    ],
) -> None:
    """Write the public model that the task starts from, of task.model and task.model_seed."""
    task = configuration.load(config).task
    import numpy as np

    from precad.clients.models.networks import initial_vector
    from precad.clients.new_file import new_file
    from precad.clients.own_code import look_in
    from precad.protos.messages import convert

    look_in(config.parent)
    parameters = initial_vector(task)
    if parameters.size != task.dim:
        raise ConfigError(f"task.dim: expected {parameters.size}, of model {task.model!r}, found {task.dim}")
    with refusing(OSError, f"FILE.npy: expected a new file to write, found {path}"), new_file(path) as file:
        np.save(file, parameters)
    tell(f"{path}: {task.dim} parameters, digest {convert.sha256(convert.model_to_bytes(parameters)).hex()}")


@exit_codes()
def adapter(
    config: ConfigFile,
    path: Annotated[
        Path,
        typer.Argument(metavar="FILE.safetensors", help="Write this new file, which every client gets."),
    ],
) -> None:
    """Write the constants A of the task's adapters, drawn from task.model_seed, and show task.adapter_sha256."""
    task = configuration.load(config).task
    from precad.clients.models import networks
    from precad.clients.models.adapter_files import write_adapter
    from precad.clients.own_code import look_in

    look_in(config.parent)
    model = networks.build(task.model, seed=task.model_seed, arguments=task.model_arguments)
    with refusing(OSError, f"FILE.safetensors: expected a new file, found {path}"):
        digest = write_adapter(path, model)
    if task.adapter_sha256 not in (None, digest):
        tell(f"another file than task.adapter_sha256 names, {task.adapter_sha256}")
    tell(f'{path}: task.adapter_sha256 = "{digest}"')
