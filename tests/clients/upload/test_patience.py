"""When a client asks a server again that has no room for it.

Failure means a client that asks sooner than it was told, or gives up while there is time. It also means a client that
asks for ever, or believes a server everything.
"""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from precad.clients.upload import patience as patience_module
from precad.clients.upload.patience import LONGEST_HINT_S, Patience, longest_pause_s, retry_after_s, until_admitted
from precad.protos.tls.transport import RETRY_HINT
from tests.harness.clock import Clock
from tests.harness.harness import asynchronous

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


def refusal(*hints: str, code: grpc.StatusCode = EXHAUSTED, details: str = "busy") -> grpc.aio.AioRpcError:
    """As gRPC raises it."""
    trailer = grpc.aio.Metadata(("content-type", "application/grpc"), *((RETRY_HINT, hint) for hint in hints))
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailer, details=details)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refusal("250"), 0.25),
        (refusal("0"), 0.0),
        (refusal("999999999"), LONGEST_HINT_S),
        (refusal(), None),  # a full disk: asking again does not help
        (refusal("-1"), None),  # gRPC's word for: do not
        (refusal("1.5"), None),
        (refusal("soon"), None),
        (refusal("٣"), None),
        (refusal("1", "2"), None),
        (refusal("250", code=grpc.StatusCode.UNAVAILABLE), None),
        (refusal(code=grpc.StatusCode.INTERNAL), None),
        (refusal(code=grpc.StatusCode.INTERNAL, details="Internal error from Core"), 0.0),  # the status is lost
    ],
)
def test_a_hint_is_a_number_of_milliseconds_or_none(error: grpc.aio.AioRpcError, expected: float | None) -> None:
    assert retry_after_s(error) == expected


class Busy:
    """A server that has room at the n-th call, and when it was called."""

    def __init__(self, n_refusals: float, error: grpc.aio.AioRpcError) -> None:
        self._n_refusals, self._error = n_refusals, error
        self.called_at: list[float] = []

    async def __call__(self) -> str:
        self.called_at.append(time.monotonic())
        if len(self.called_at) <= self._n_refusals:
            raise self._error
        return "admitted"


@asynchronous
async def test_a_client_comes_back_when_it_was_told_to_and_not_before() -> None:
    busy = Busy(2, refusal("150"))
    assert await until_admitted(busy, 60.0) == "admitted"
    first, second, third = busy.called_at
    assert min(second - first, third - second) >= 0.15


@asynchronous
async def test_a_client_gives_up_when_its_time_is_up_with_the_servers_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of ours, which only its own pauses move on."""
    busy, clock = Busy(float("inf"), refusal("20")), Clock()

    async def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(patience_module, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(patience_module, "asyncio", SimpleNamespace(sleep=sleep))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await until_admitted(busy, 0.5)
    assert caught.value.details() == "busy"
    assert len(busy.called_at) >= 3
    assert 0.45 < clock.now - Clock.now <= 0.5 + 1e-9


@asynchronous
@pytest.mark.parametrize("hint_ms", ["600", "60000"])
async def test_a_client_that_is_told_to_come_back_too_late_gives_up_at_once(hint_ms: str) -> None:
    """Its round would be over, and the next ones as well: a server names a minute."""
    busy = Busy(float("inf"), refusal(hint_ms))
    with pytest.raises(grpc.aio.AioRpcError):
        await asyncio.wait_for(until_admitted(busy, 0.5), 30)
    assert len(busy.called_at) == 1


@asynchronous
async def test_another_refusal_is_final() -> None:
    for error in (refusal(), refusal("10", code=grpc.StatusCode.INVALID_ARGUMENT)):
        busy = Busy(1, error)
        with pytest.raises(grpc.aio.AioRpcError):
            await until_admitted(busy, 60.0)
        assert len(busy.called_at) == 1


def test_a_thousand_clients_do_not_come_back_at_once() -> None:
    """Draw 1000 pauses, each from the hint to half as much again.

    The shortest and the longest lie in the outer tenths of that range but with probability 2 * 0.9^1000 < 1e-45.
    """
    pauses: list[Any] = [Patience(60.0, 0.0).next_pause_s(10.0) for _ in range(1000)]
    assert 10.0 <= min(pauses) < 10.5
    assert 14.5 < max(pauses) <= 15.0


@pytest.mark.parametrize(
    ("address", "n_clients", "longest_s"),
    [
        ("127.0.0.1:7001", 8, 0.2),
        ("localhost:7001", 50, 1.0),
        ("[::1]:7001", 10_000, 2.0),
        ("aggregator-a.example:7001", 8, 2.0),
        ("192.0.2.1:7001", 8, 2.0),
    ],
)
def test_a_server_on_this_machine_is_asked_more_often_by_few_clients(
    address: str, n_clients: int, longest_s: float
) -> None:
    assert longest_pause_s(address, n_clients) == pytest.approx(longest_s)
    patience = Patience(60.0, 0.0, longest_pause_s(address, n_clients))
    pauses = [patience.next_pause_s() for _ in range(20)]
    assert all(pause is not None and pause <= longest_s for pause in pauses)
