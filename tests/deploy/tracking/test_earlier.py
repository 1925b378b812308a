"""Records of a server that may be anybody's: `precad track` keeps no more of them than it shows, and gives up."""

from __future__ import annotations

import pytest
from aiohttp import web

from precad.deploy.errors import RunFailedError
from precad.deploy.oversight.status_sources import Source
from precad.deploy.tracking import earlier
from precad.servers.operations.snapshot import summary_of
from precad.servers.store.record import to_line
from precad.servers.store.rounds import CommittedRound
from precad.servers.telemetry.status import RoundSummary
from tests.harness.harness import asynchronous, free_addresses
from tests.harness.tracked import a_status

MIB = 1 << 20


def record(number: int) -> CommittedRound:
    return CommittedRound(
        number=number,
        chosen=tuple(f"a client of a long name {i:05}" for i in range(5_000)),
        accepted=(),
        rejected=(),
        model_digest=bytes(32),
        epsilon_one_server=0.1,
        epsilon_clients_only=0.05,
        seconds={"collect": 0.5},
        bytes_by_link={},
    )


async def asked(line: bytes, n_lines: int) -> list[RoundSummary]:
    """Return what is found among so many lines of a server, before round 1."""

    async def answer(request: web.Request) -> web.StreamResponse:
        stream = web.StreamResponse()
        await stream.prepare(request)
        try:
            for _ in range(n_lines):
                await stream.write(line)
        except ConnectionError:
            pass
        return stream

    app = web.Application()
    app.router.add_get("/checkpoints/rounds.jsonl", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    (address,) = free_addresses(1)
    host, port = address.split(":")
    await web.TCPSite(runner, host, int(port)).start()
    status = a_status(rounds_done=2, rounds=(summary_of(record(1)),))
    try:
        return await earlier.earlier_rounds(Source("a", f"http://{address}", "token"), status)
    finally:
        await runner.cleanup()


@asynchronous
async def test_old_rounds_are_found_line_by_line() -> None:
    """Rounds that the status has are left out, and so is what a crash left of a line."""
    whole, torn, known = to_line(record(0)), to_line(record(0))[:100] + "\n", to_line(record(1))
    assert await asked((whole + torn + known).encode(), 3) == [summary_of(record(0))] * 3


@pytest.mark.parametrize(("line", "said"), [(bytes(MIB), "400"), (to_line(record(0)).encode(), "at most 1000 bytes")])
@asynchronous
async def test_records_without_end_are_given_up(line: bytes, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line without end, and lines without end. Neither is taken in whole."""
    monkeypatch.setattr(earlier, "_MOST_KEPT", 1000)
    with pytest.raises(RunFailedError, match=rf"rounds\.jsonl: .*{said}") as caught:
        await asked(line, 200)
    assert len(str(caught.value)) < 600
