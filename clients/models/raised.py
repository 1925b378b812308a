"""Name what code of a user's may raise while it is tried."""

from __future__ import annotations

from asyncio import CancelledError
from typing import Final

RAISED: Final = (Exception, SystemExit, CancelledError)
"""All that is the code's own fault: not Ctrl-C, nor the end of a generator."""
