"""Words of a holder, mode `proved`, that wait for one another and leave together.

A message costs both servers more than the word in it: threads wake up at either end. The seeded server waits for the
last word of a phase and for no other, so all but the last may wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from precad.protos.precad.v1 import peer_pb2

WORDS_WAIT_S: Final = 0.05
"""How long the first of them waits for others."""
WORDS_AT_ONCE: Final = 256
"""Words of one message at most: with the longest names of clients it has less than 100 kB. A megabyte of empty ones
would keep the event loop for seconds."""


class Words:
    """Words that have not left. For the event loop."""

    def __init__(self, leave: Callable[[peer_pb2.PeerMessage], None]) -> None:
        """leave: hands a message over to the link."""
        self._leave = leave
        self._waiting: list[peer_pb2.Relay] = []
        self._due: asyncio.TimerHandle | None = None

    def add(self, word: peer_pb2.Relay) -> None:
        """Have a word leave with the next ones."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(WORDS_WAIT_S, self.send)
        self._waiting.append(word)

    def send(self) -> None:
        """Let those that wait leave now."""
        words = self.drop()
        for start in range(0, len(words), WORDS_AT_ONCE):
            self._leave(peer_pb2.PeerMessage(relays=peer_pb2.Relays(relays=words[start : start + WORDS_AT_ONCE])))

    def drop(self) -> list[peer_pb2.Relay]:
        """Return those that wait. They do not wait any more."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        words, self._waiting = self._waiting, []
        return words
