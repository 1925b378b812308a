"""Look after the processes of a run: who has ended, and whether the run can go on without them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from precad.deploy.errors import FAILURE, REFUSED, UNREACHABLE, RunFailedError
from precad.deploy.localhost.observing import POLL_S, Observers, Progress
from precad.deploy.localhost.processes import Child, Children
from precad.deploy.localhost.watch import LiveTable

DIAGNOSIS_S: Final = 5.0
"""How long a failed run waits for the process that failed to say why."""


class Guard:
    """The processes of a run: servers without which there is none, and clients."""

    def __init__(self, servers: Sequence[Child], children: Children, logs: Path, progress: Progress) -> None:
        self._servers, self._children, self._logs, self._progress = servers, children, logs, progress

    async def run(self, table: LiveTable) -> None:
        """Return when every server has ended in peace. Raises RunFailedError when one has ended with an error, or
        every client before the first round. Any other client that ends is reported, no more."""
        reported: set[str] = set()
        while True:
            for child in self._children.all:
                if child.exit_code in (None, 0) or child.name in reported:
                    continue
                if child in self._servers:
                    await asyncio.sleep(1.0)  # the others notice, say so in their logs, and exit
                    raise RunFailedError(self._why_failed(), exit_code=self._exit_code())
                reported.add(child.name)
                table.warn(f"{child.name} ended with code {child.exit_code}: {child.last_words()}")
            if (alone := self.why_alone()) is not None:
                await asyncio.sleep(1.0)  # their last rounds arrive
                raise alone
            if all(server.exit_code == 0 for server in self._servers):
                return
            await asyncio.sleep(POLL_S)

    def why_alone(self) -> RunFailedError | None:
        """Return why no client is left, where none has come to a first round, or all have refused to go on.

        None while one may go on: nobody starts one of them again.
        """
        clients = [child for child in self._children.all if child not in self._servers]
        codes = {child.exit_code for child in clients}
        if not clients or codes & {None, 0} or (self._progress.metrics and codes != {REFUSED}):
            return None
        first, code = clients[0], clients[0].exit_code or FAILURE
        why = f"no client is left: {first.name} ended with code {first.exit_code}: {first.last_words()}"
        return RunFailedError(f"{why}\nlogs: {self._logs}", exit_code=code if code > 0 else FAILURE)

    def _why_failed(self) -> str:
        ended = [child for child in self._servers if child.exit_code not in (None, 0)]
        lines = [f"{child.name} ended with code {child.exit_code}: {child.last_words()}" for child in ended]
        return "\n".join([*lines, f"logs: {self._logs}"])

    def _exit_code(self) -> int:
        """Return the run's exit code: that of the first server which says why. A killed server says nothing, and peers
        of one that is gone say 4."""
        codes = [child.exit_code for child in self._servers if child.exit_code not in (None, 0)]
        why = [code for code in codes if code is not None and code > 1 and code != UNREACHABLE]
        return why[0] if why else UNREACHABLE if codes else FAILURE


async def until_over(
    watching: asyncio.Task[None], guarding: asyncio.Task[None], stopping: asyncio.Task[Any], observers: Observers
) -> None:
    """Wait until the task's end was seen, or a stop was asked for. Raises what ended the run early.

    Return with `watching` undone also when all servers have ended in peace before the observers joined them.
    """
    done, _ = await asyncio.wait((watching, stopping, guarding), return_when=asyncio.FIRST_COMPLETED)
    if guarding in done and guarding.exception() is None and observers.are_joined:  # the last events are on the way
        done, _ = await asyncio.wait((watching, stopping), return_when=asyncio.FIRST_COMPLETED)
    if stopping in done:
        return
    if watching in done and watching.exception() is not None:
        await asyncio.wait((guarding,), timeout=DIAGNOSIS_S)  # who died says more than what we missed
    if guarding.done():
        guarding.result()
    if watching.done():
        watching.result()
