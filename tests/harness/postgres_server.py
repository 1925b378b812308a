"""A real PostgreSQL on a socket of its own, thrown away afterwards; for tests that skip where none is installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


def program(name: str) -> str | None:
    """Return the path of a program of the newest version that Debian's layout or PATH has."""
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3]))
    return str(found[-1]) if found else shutil.which(name)


@contextmanager
def postgres() -> Iterator[str]:
    """Its URL, with a password. Skips where there is no server or no driver."""
    initdb, server = program("initdb"), program("postgres")
    if initdb is None or server is None:
        pytest.skip("PostgreSQL is not installed: no initdb, no postgres")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("psycopg is not installed: precad[postgres]")
    with tempfile.TemporaryDirectory(prefix="precad-pg-", dir="/tmp") as folder:
        user = "postgres" if os.geteuid() == 0 else None  # it does not run as root
        if user is not None:
            shutil.chown(folder, user)
        data = Path(folder, "data")
        subprocess.run(
            [initdb, "--pgdata", data, "--username", "precad", "--auth", "trust", "--no-sync"],
            check=True,
            capture_output=True,
            user=user,
        )
        arguments = [server, "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "max_connections=20"]
        with subprocess.Popen(arguments, user=user, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                url = f"postgresql://precad:hunter2@/postgres?host={folder}"
                _await(url)
                yield url
            finally:
                process.terminate()


def _await(url: str) -> None:
    import psycopg

    for _ in range(200):
        try:
            psycopg.connect(url).close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return
    raise TimeoutError("PostgreSQL has not started in 10 s")
