"""How a role's process ends: what signals do before, while and after its event loop is closed.

Failure means a server that prints the interpreter's complaints when it is stopped as it ends. It also means one that a
signal at that moment kills before its files are closed.
"""

from __future__ import annotations

import asyncio
import json
import signal
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import structlog

from precad.deploy.cli import roles
from precad.deploy.cli.common import AggregatorLetter
from precad.deploy.cli.roles import serve
from precad.deploy.configuration import sections as configuration
from precad.deploy.measuring import program
from precad.protos.tls.identity import Role
from precad.servers import aggregator, dealer, freed_memory

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Restore the handlers that a role's process sets for good."""
    handlers = [signal.getsignal(number) for number in SIGNALS]
    yield
    structlog.reset_defaults()
    for number, handler in zip(SIGNALS, handlers, strict=True):
        signal.signal(number, handler)


class Stopped:
    """A service that ends when it is told to."""

    def __init__(self, *raised: signal.Signals) -> None:
        self._raised, self._stop = raised, asyncio.Event()
        self.told: list[str] = []

    def stop(self) -> None:
        self.told.append("stop")
        self._stop.set()

    def drain(self) -> None:
        self.told.append("drain")

    async def run(self) -> None:
        for number in self._raised:
            signal.raise_signal(number)
            await asyncio.sleep(0)
        if self._raised:
            await self._stop.wait()


class Ended(Stopped):
    """One whose task is over at once."""

    async def run(self) -> None:
        pass


def test_signals_are_told_to_the_service_while_it_runs() -> None:
    services: list[Stopped] = []

    def make() -> Stopped:
        services.append(Stopped(signal.SIGTERM, signal.SIGINT))
        return services[0]

    serve(make, on_terminate=Stopped.drain)

    assert services[0].told == ["drain", "stop"]
    assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_DFL, signal.SIG_DFL]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_the_loop_is_closed_is_silent(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It comes when the loop's pipe is closed and its handlers are not yet removed."""
    close, raised = BaseSelectorEventLoop._close_self_pipe, []

    def close_and_be_stopped(loop: BaseSelectorEventLoop) -> None:
        close(loop)
        signal.raise_signal(number)
        raised.append(number)

    monkeypatch.setattr(BaseSelectorEventLoop, "_close_self_pipe", close_and_be_stopped)
    serve(Stopped)

    assert raised == [number]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "run",
    [lambda: roles.serve_aggregator(Path("x.toml"), AggregatorLetter.A), lambda: roles.serve_dealer(Path("x.toml"))],
)
def test_servers_overwrite_what_they_free_before_they_serve(
    run: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failure means shares that stay in a server's memory when their round is over (rule S4)."""
    done: list[str] = []
    monkeypatch.setattr(configuration, "load", lambda path: MagicMock())
    monkeypatch.setattr(configuration, "section", lambda own, name: own)
    monkeypatch.setattr(program, "program_of", lambda task, own: None)
    monkeypatch.setattr(freed_memory, "overwrite_and_keep", lambda: done.append("overwrites"))
    monkeypatch.setattr(roles, "serve", lambda make, **_: done.append("serves"))
    run()
    assert done == ["overwrites", "serves"]


@pytest.mark.parametrize("has_glibc", [True, False])
@pytest.mark.parametrize("role", [Role.AGGREGATOR_B, Role.DEALER])
def test_a_server_warns_once_where_freed_memory_is_not_overwritten(
    role: Role, has_glibc: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """By a C library that lacks the call."""
    library = SimpleNamespace(**({"mallopt": lambda name, value: 1} if has_glibc else {}))
    monkeypatch.setattr(freed_memory, "ctypes", SimpleNamespace(CDLL=lambda name: library))
    monkeypatch.setattr(configuration, "load", lambda path: MagicMock())
    monkeypatch.setattr(configuration, "section", lambda own, name: own)
    monkeypatch.setattr(program, "program_of", lambda task, own: None)
    monkeypatch.setattr(aggregator, "Aggregator", ends := MagicMock(side_effect=lambda **_: Ended(), drain=None))
    monkeypatch.setattr(dealer, "Dealer", ends)
    if role is Role.DEALER:
        roles.serve_dealer(Path("x.toml"))
    else:
        roles.serve_aggregator(Path("x.toml"), AggregatorLetter.B)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["level"], line["event"], line["role"]) for line in lines] == (
        [] if has_glibc else [("warning", "memory.not_overwritten", role)]
    )
