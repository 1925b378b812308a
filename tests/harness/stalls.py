"""Elapsed seconds in which this process could run: what a busy machine takes from it is no delay of ours."""

from __future__ import annotations

import threading
import time
from typing import Final, Self

BEAT_S: Final = 0.01
LEAST_S: Final = 0.1
"""A pause between two beats that counts as a stall; other threads of the process make shorter ones."""


class RunningTime:
    """A stop watch, in a context. A thread beats meanwhile: where it was held up, so was everything else here."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """From the beginning of the context to its end, stalls of the whole process left out."""
        self._stalled_s, self._is_over = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._began = time.monotonic()

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.seconds = time.monotonic() - self._began - self._stalled_s

    def _beat(self) -> None:
        last = self._began
        while not self._is_over.wait(BEAT_S):
            now = time.monotonic()
            self._stalled_s += now - last - BEAT_S if now - last > LEAST_S else 0.0
            last = now
