"""`precad serve` and `precad client`: one role of a deployment."""

from __future__ import annotations

import asyncio
import resource
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Protocol, TypeVar

import typer

from precad.deploy import errors
from precad.deploy.cli.common import AggregatorLetter, AppName, ConfigFile, exit_codes, say
from precad.deploy.configuration import sections as configuration
from precad.deploy.localhost.processes import watch_lifeline
from precad.protos.tls.files import TlsFiles
from precad.protos.tls.identity import Role

serve_app = typer.Typer(help="Run one server of a deployment.", no_args_is_help=True)


@serve_app.command("aggregator")
@exit_codes(explains_denied=False)
def serve_aggregator(
    config: ConfigFile,
    role: Annotated[AggregatorLetter, typer.Option(help="Say which of the two aggregators this is.")],
) -> None:
    """Run aggregation server A or B."""
    deployment = configuration.load(config)
    from precad.deploy.measuring.program import program_of
    from precad.servers.aggregator import Aggregator

    letter = role.value
    own = configuration.section(getattr(deployment.aggregator, letter), f"aggregator.{letter}")
    network = deployment.network
    _serve_overwriting(
        Role.AGGREGATOR_A if role is AggregatorLetter.A else Role.AGGREGATOR_B,
        lambda: Aggregator(
            party=0 if role is AggregatorLetter.A else 1,
            task=deployment.task,
            config=own,
            addresses=(network.aggregator_b, network.dealer),
            measuring=program_of(deployment.task, own),
        ),
        on_terminate=Aggregator.drain,
    )


@serve_app.command("dealer")
@exit_codes(explains_denied=False)
def serve_dealer(config: ConfigFile) -> None:
    """Run the dealer."""
    deployment = configuration.load(config)
    from precad.servers.dealer import Dealer

    own = configuration.section(deployment.dealer, "dealer")
    _serve_overwriting(Role.DEALER, lambda: Dealer(task=deployment.task, config=own), on_terminate=Dealer.drain)


@exit_codes(explains_denied=False)
def client(
    config: ConfigFile,
    ids: Annotated[
        list[str], typer.Option("--id", metavar="ID", help="Host this client; repeat for several virtual ones.")
    ],
    app: AppName = None,
    flower: Annotated[
        str | None,
        typer.Option("--flower", metavar="MODULE:APP", help="Train by this Flower ClientApp, in a process of its own."),
    ] = None,
    flower_python: Annotated[
        Path | None,
        typer.Option("--flower-python", metavar="PATH", help="Run it with this interpreter, which holds Flower."),
    ] = None,
    nvflare: Annotated[
        str | None,
        typer.Option(
            "--nvflare",
            metavar="SCRIPT",
            help="Train by this script of NVFLARE's client API, in a process of its own.",
        ),
    ] = None,
    nvflare_python: Annotated[
        Path | None,
        typer.Option("--nvflare-python", metavar="PATH", help="Run it with this interpreter, which holds NVFLARE."),
    ] = None,
) -> None:
    """Run one client, or several virtual ones."""
    from precad.clients.config import FLOWER, NVFLARE
    from precad.deploy.configuration.apps import load_with_app
    from precad.deploy.configuration.trainers import promised_to_clients, with_trainer

    deployment = with_trainer(load_with_app(config, app), config.parent, FLOWER, flower, flower_python)
    deployment = with_trainer(deployment, config.parent, NVFLARE, nvflare, nvflare_python)
    own = configuration.section(deployment.client, "client")
    unknown = [name for name in ids if name not in deployment.task.clients]
    if unknown or len(set(ids)) != len(ids):
        raise errors.ConfigError(f"--id: expected distinct clients of the task, found {', '.join(ids)}")
    from precad.deploy.conducts import conducts_of

    conducts = conducts_of(ids, own, deployment.task)
    for name in ids:
        _require_identity(own.tls(name), name)
    from precad.clients.process import ClientProcess

    if own.trainer is not None:
        from precad.clients.external.training import require_task

        require_task(deployment.task)
        for line in promised_to_clients(deployment.task):
            say(line)
    addresses = (deployment.network.aggregator_a, deployment.network.aggregator_b)
    serve(lambda: ClientProcess(task=deployment.task, config=own, conducts=conducts, addresses=addresses))


def _require_identity(tls: TlsFiles, client_id: str) -> None:
    found = tls.load().identity
    if (found.role, found.name) != (Role.CLIENT, client_id):
        raise errors.ConfigError(f"certificate: expected one of client {client_id!r}, found {found.uri}")


class Service(Protocol):
    """A role of the deployment, ready to run."""

    def stop(self) -> None:
        """End it at the next possible moment."""

    def run(self) -> Coroutine[None, None, None]:
        """Run it to its end."""


S = TypeVar("S", bound=Service)


def serve(make: Callable[[], S], *, on_terminate: Callable[[S], None] | None = None) -> None:
    """Run a service until it ends or a signal stops it; log JSON lines to standard error.

    on_terminate: what SIGTERM does instead.
    """
    from precad.clients.external.sandbox import hide_this_process
    from precad.deploy.cli.process_logs import configure

    watch_lifeline()
    configure()
    with suppress(ValueError, OSError):  # a sandbox that forbids the call sets the limit itself (deploy/hosts/systemd)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump would hold shares and keys
    with suppress(AttributeError):  # beyond Linux
        # A program that takes core dumps in may pass over the limit. And code of one's own that is started from here
        # would find a passphrase or token in the environment that this process was given.
        hide_this_process()

    async def main() -> None:
        service = make()
        on_sigterm = service.stop if on_terminate is None else partial(on_terminate, service)
        await _until_over(service, {signal.SIGINT: service.stop, signal.SIGTERM: on_sigterm})

    try:
        asyncio.run(main())
    finally:  # from here on a signal ends the process, without a traceback of the interpreter's own end
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)


def _serve_overwriting(role: Role, make: Callable[[], S], *, on_terminate: Callable[[S], None]) -> None:
    """Serve a server that overwrites what it frees. The first line of its log says where it cannot."""
    from precad.servers.freed_memory import overwrite_and_keep

    overwrites = overwrite_and_keep()

    def made() -> S:
        if not overwrites:
            import structlog

            structlog.get_logger().warning("memory.not_overwritten", role=role, reason="the C library is not glibc")
        return make()

    serve(made, on_terminate=on_terminate)


async def _until_over(service: Service, handlers: Mapping[signal.Signals, Callable[[], None]]) -> None:
    """Run the service to its end. Signals call their handlers until then, and are ignored while the loop is closed."""
    loop = asyncio.get_running_loop()
    for number, handler in handlers.items():
        loop.add_signal_handler(number, handler)
    try:
        await service.run()
    finally:
        for number in handlers:
            # Closing the loop closes the pipe that a handled signal is written to before it lets go of the signal.
            # One that came in between would have the interpreter complain on standard error.
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
