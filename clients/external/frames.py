"""The frames between a client and its trainer's process: a kind, a length, raw bytes. Nothing is ever unpickled.

    client  -> trainer   HELLO      JSON: what to load and how, and the model's arrays
    client  -> trainer   CONSTANTS  bytes of the arrays that nobody trains
    client  -> trainer   STATE      what an earlier process left for this one; empty for the first
    client  -> trainer   MODEL      float32, the round's parameters (n,)
    client  -> trainer   EVALUATE   float32, parameters (n,) that held-out records are counted with
    trainer -> client    SHUT_OFF   one byte: `sandbox`'s bits, before foreign code is loaded
    trainer -> client    CONFINED   one byte: further bits, of what the worker gave up, before it too
    trainer -> client    LOADED     one byte: whether it may answer EVALUATE
    trainer -> client    STATE      what the next process shall get, before an answer, where it has changed
    trainer -> client    TRAINED    float32, new parameters (n,)
    trainer -> client    EVALUATED  float64, `counts`
    trainer -> client    FAILED     why: a word of ours, or the name of one of Python's own exceptions, and
                                   the module that an import did not find

The trainer's process uses this file too, in an interpreter that need not have precad.
"""

from __future__ import annotations

import os
import select
import struct
import time

HELLO, CONSTANTS, MODEL, SHUT_OFF, LOADED, TRAINED, FAILED, EVALUATE, EVALUATED, STATE, CONFINED = range(1, 12)
_HEADER = struct.Struct("<4sBQ")
_MAGIC = b"PCT1"
LONGEST_REASON = 128
NO_NAME, NOT_CALLABLE, OTHER_ARGUMENTS = "no-name", "not-callable", "other-arguments"
"""Words of ours: why what the configuration names is no trainer."""
_PIECE = 1 << 20


class FrameError(Exception):
    """The other side is gone, too slow, or sent something else than was agreed. `reason` is one word."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def send(descriptor: int, kind: int, body: bytes | memoryview = b"", *, deadline: float | None = None) -> None:
    """Write a frame, until `deadline` of the monotonic clock if one is given. Raises FrameError."""
    for part in (_HEADER.pack(_MAGIC, kind, len(body)), body):
        rest = memoryview(part)
        while rest:
            _await(descriptor, select.POLLOUT, deadline)
            try:
                rest = rest[os.write(descriptor, rest[:_PIECE]) :]
            except BlockingIOError:
                continue
            except OSError:
                raise FrameError("ended") from None


def receive(descriptor: int, longest: dict[int, int], *, deadline: float | None = None) -> tuple[int, bytes]:
    """Return (kind, body) of the next frame. longest: the kinds that are taken, and the most bytes of each.

    No body is read, and no memory taken, for a frame of another kind or a longer one. Raises FrameError.
    """
    magic, kind, length = _HEADER.unpack(_exactly(descriptor, _HEADER.size, deadline))
    if magic != _MAGIC or kind not in longest:
        raise FrameError("frame")
    if length > longest[kind]:
        raise FrameError("length")
    return kind, _exactly(descriptor, length, deadline)


def _exactly(descriptor: int, size: int, deadline: float | None) -> bytes:
    found = bytearray()
    while len(found) < size:
        _await(descriptor, select.POLLIN, deadline)
        try:
            piece = os.read(descriptor, min(_PIECE, size - len(found)))
        except BlockingIOError:
            continue
        except OSError:
            raise FrameError("ended") from None
        if not piece:
            raise FrameError("ended")
        found += piece
    return bytes(found)


def _await(descriptor: int, event: int, deadline: float | None) -> None:
    """Wait until something can be read or written. Without a deadline the descriptor itself waits."""
    if deadline is None:
        return
    poll = select.poll()
    poll.register(descriptor, event)
    left = deadline - time.monotonic()
    if left <= 0 or not poll.poll(1000 * left):
        raise FrameError("deadline")
