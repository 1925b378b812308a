"""Noise that this server adds in the rounds of one meeting, independent or correlated over rounds.

Correlated noise needs the server's last outputs, which are its secret: with them its next noise is partly known. They
lie where uploads lie, in memory or in the encrypted spool, and go with the meeting. So every meeting begins a new block
(`precad.dp.noise.correlated`). One begins after a restart, and after every round that did not commit, which ends its
meeting. Nothing of the outputs is ever written that another process could read, and none serves twice.
"""

from __future__ import annotations

import math

from precad.mpc import ring
from precad.mpc.local.step import WritableWords
from precad.mpc.ring import WORD_BYTES, RingArray
from precad.protos.task.task import Task
from precad.servers.errors import StoreError
from precad.servers.rounds.equipment import NoiseSource
from precad.servers.rounds.uploads import Payload, Spool


class OwnNoise:
    """For the one thread that does MPC."""

    def __init__(self, task: Task, source: NoiseSource, spool: Spool) -> None:
        self._task, self._source, self._spool = task, source, spool
        self._past: list[tuple[Payload, WritableWords]] = []
        """The last outputs of this block, the newest first."""

    def draw(self) -> RingArray:
        """Return this server's noise of the coming round on the grid, (d,). Raises StoreError."""
        task = self._task
        if task.noise_bands == 1:
            return self._source(task.noise_std_on_grid, task.dim)
        from precad.dp.noise.correlated import SCALE_BITS, correlate

        drawn = self._source(math.ldexp(task.noise_std_on_grid, SCALE_BITS), task.dim)
        correlate(drawn, [words for _, words in self._past], task.strategy)
        self._keep(drawn)
        return drawn

    def _keep(self, output: RingArray) -> None:
        """Keep an output before it leaves, in the room of the oldest once there are b - 1."""
        if len(self._past) == self._task.noise_bands - 1:
            payload, words = self._past.pop()
        else:
            payload = self._spool.new(WORD_BYTES * output.size)
            words = payload.room(output.size)
        try:
            for tile in ring.tiles(output.size):
                words[tile] = output[tile]
        except OSError as error:
            payload.discard()
            raise StoreError(f"no room for this server's last noise: {error.strerror}") from error
        self._past.insert(0, (payload, words))

    def close(self) -> None:
        """Forget all outputs; what is drawn after that begins a new block."""
        for payload, _ in self._past:
            payload.discard()
        self._past.clear()
