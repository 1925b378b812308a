"""Look after the processes of a run: who has ended, and whether the run can go on without them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from precad.deploy.errors import FAILURE, REFUSED, UNREACHABLE, RunFailedError
from precad.deploy.localhost.observing import POLL_S, Progress
from precad.deploy.localhost.processes import Child, Children
from precad.deploy.localhost.watch import LiveTable


class Guard:
    """The processes of a run: servers without which there is none, and clients."""

    def __init__(self, servers: Sequence[Child], children: Children, logs: Path, progress: Progress) -> None:
        self._servers, self._children, self._logs, self._progress = servers, children, logs, progress

    async def run(self, table: LiveTable) -> None:
        """Raises RunFailedError when a server has ended with an error, or every client before the first round. Any
        other client that ends is reported, no more."""
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
