"""JSON of both adapters, and a wire between two servers that notes and, where a case asks for it, tampers.

Bytes are hex; vectors of words are the hex of their bytes on the wire. Reals and integers of more than 53 bits are
decimal strings. Standard library only.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

SHORT = 4096
"""Messages up to this length are in the vectors in full, longer ones as a digest."""


class Wire:
    """One server's end of any channel. `messages` is what leaves.

    tamper: {"party", "label", and "flip_byte" (its lowest bit) or "payload"}: what this end sends instead, there.
    """

    def __init__(self, channel: Any, tamper: dict[str, Any] | None = None) -> None:
        self._channel, self.party = channel, channel.party
        self._tamper = tamper if tamper is not None and tamper["party"] == self.party else {"label": None}
        self.messages: list[dict[str, Any]] = []

    def exchange(self, label: str, payload: bytes) -> bytes:
        """Sends ours, or what it is replaced by, and returns the peer's."""
        if label == self._tamper["label"]:
            payload = self._changed(payload)
        self.messages.append(message(label, payload))
        return self._channel.exchange(label, payload)

    def exchange_pieces(self, label: str, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """Exchange a step in pieces, as one message; the peer's is cut like ours, its last piece takes the rest."""
        ours = list(pieces)
        received = self.exchange(label, b"".join(ours))
        for piece in ours[:-1]:
            yield received[: len(piece)]
            received = received[len(piece) :]
        if ours:
            yield received

    def _changed(self, payload: bytes) -> bytes:
        if "payload" in self._tamper:
            return bytes.fromhex(self._tamper["payload"])
        at = self._tamper["flip_byte"]
        return payload[:at] + bytes([payload[at] ^ 1]) + payload[at + 1 :]


def message(label: str, payload: bytes) -> dict[str, Any]:
    """A message as the vectors hold it."""
    if len(payload) <= SHORT:
        return {"label": label, "payload": payload.hex()}
    return {"label": label, "n_bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}


class LinkLostError(Exception):
    """The other end is gone."""


class QueueEnd:
    """An end of an in-process pair."""

    def __init__(self, party: int, inbox: queue.Queue[Any], outbox: queue.Queue[Any]) -> None:
        self.party, self._inbox, self._outbox = party, inbox, outbox

    def exchange(self, label: str, payload: bytes) -> bytes:
        """Sends ours and returns the peer's."""
        self._outbox.put((label, payload))
        received = self._inbox.get(timeout=60)
        if received is None:
            raise LinkLostError(label)
        assert received[0] == label, f"the ends are out of step: {label} and {received[0]}"
        return received[1]

    def close(self) -> None:
        """Wakes the peer."""
        self._outbox.put(None)


def run_both(program: Callable[[QueueEnd], T]) -> tuple[T, T]:
    """The program as server A and as server B, each in a thread. Raises the error that is no consequence of another."""
    one, other = queue.Queue(), queue.Queue()
    ends = (QueueEnd(0, one, other), QueueEnd(1, other, one))
    results: list[Any] = [None, None]
    errors: list[BaseException] = []

    def run(end: QueueEnd) -> None:
        try:
            results[end.party] = program(end)
        except BaseException as error:  # noqa: BLE001 - raised again below
            errors.append(error)
        finally:
            end.close()

    threads = [threading.Thread(target=run, args=(end,)) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise min(errors, key=lambda error: isinstance(error, LinkLostError))
    return results[0], results[1]
