"""Writes down every secret that a Python process draws or derives, for tests/integration/test_secrets.py.

Python imports this file at its start when the folder is on PYTHONPATH, before any other code can take a reference to
`os.urandom`. One file per process in $PRECAD_RECORDER, named by its pid: the command line, then a secret in hex a line.

    drawn      os.urandom, 16 to 64 bytes: keys of the dealer, coins, seeds. (Longer draws are noise.)
    seed       every `precad.mpc.prg.Seed`: dealt, derived, received or tossed.
    stream     the first two words of every expanded stream: masks, shares, triples.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

RECORDS = Path(os.environ["PRECAD_RECORDER"])
"""A process makes its file only when it has something to tell, so that it holds its command line by then."""

_urandom = os.urandom


def note(kind: str, secret: bytes) -> None:
    """Appends one line, at once: the process may be killed next."""
    record = RECORDS / str(os.getpid())
    is_new = not record.exists()
    with record.open("a") as file:
        if is_new:
            file.write(" ".join(sys.orig_argv) + "\n")
        file.write(f"{kind} {secret.hex()}\n")


def urandom(size: int, /) -> bytes:
    """os.urandom, overheard."""
    drawn = _urandom(size)
    if 16 <= size <= 64:
        note("drawn", drawn)
    return drawn


os.urandom = urandom

from precad.mpc import prg  # noqa: E402 - after os.urandom is wrapped: prg takes a reference when it is imported

_make_seed, _expand = prg.Seed.__init__, prg.expand


def make_seed(self: prg.Seed, value: bytes) -> None:
    """Seed.__init__, overheard."""
    _make_seed(self, value)
    note("seed", bytes(value))


def expand(key: prg.Seed, n_words: int) -> prg.RingArray:
    """prg.expand, overheard."""
    words = _expand(key, n_words)
    if n_words:
        note("stream", words[:2].tobytes())
    return words


prg.Seed.__init__ = make_seed
prg.expand = expand
