"""Keep the secret key of a run folder whose trainings a holder pays for: draws of clients, records and noise follow.

    holder.key    64 hexadecimal digits, for its owner only

The key is the operating system's, and each folder has its own. So no two folders share noise, also where both have the
same configuration and seeds. It is on disk before the first training, which a continued folder goes on with.
"""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path
from typing import Final

from precad.deploy.errors import ConfigError, refusing
from precad.lab.simulation.randomness import SECRET_BYTES
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes

FILE: Final = "holder.key"
_WRITTEN: Final = re.compile(rb"([0-9a-f]{%d})\n" % (2 * SECRET_BYTES))


def fresh(random_bytes: RandomBytes = SYSTEM_BYTES) -> bytes:
    """Return a new key."""
    return random_bytes(SECRET_BYTES)


def kept_in(folder: Path) -> bytes:
    """Return a folder's key. Raises ConfigError without one."""
    path = folder / FILE
    with refusing(OSError, f"--output: expected the key that its trainings draw from in {path}, found"):
        found = _WRITTEN.fullmatch(path.read_bytes())
    if found is None:
        raise ConfigError(f"--output: expected {2 * SECRET_BYTES} hexadecimal digits in {path}, found something else")
    return bytes.fromhex(found[1].decode())


def keep(folder: Path, key: bytes) -> None:
    """Write a folder's key, durably, in the place of one that nothing is paid for. Raises ConfigError."""
    path, half_written = folder / FILE, folder / f".{FILE}-{secrets.token_hex(8)}"
    with refusing(OSError, f"--output: expected a file to write, found {path}"):
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(os.open(half_written, flags, 0o600), "wb") as file:
                file.write(f"{key.hex()}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            half_written.replace(path)
        finally:
            half_written.unlink(missing_ok=True)
