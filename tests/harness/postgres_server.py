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
        as_its_user = _as_its_user(folder)
        data = Path(folder, "data")
        making = [*as_its_user, initdb, "--pgdata", data, "--username", "precad", "--auth", "trust", "--no-sync"]
        made = subprocess.run(making, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert made.returncode == 0, f"initdb ended with {made.returncode}: {made.stderr}"
        arguments = [
            *(*as_its_user, server, "-D", data, "-k", folder),
            *("-c", "listen_addresses=", "-c", "max_connections=20"),
        ]
        with subprocess.Popen(arguments, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
            try:
                url = f"postgresql://precad:hunter2@/postgres?host={folder}"
                _await(url)
                yield url
            finally:
                process.terminate()


def _as_its_user(folder: str) -> list[str]:
    """Return what runs a command as PostgreSQL's own user, who owns the folder: it does not run as root.

    A program changes the user, not `Popen(user=)`. That one forks, and gRPC's hook in the child of a fork may abort.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is not installed: PostgreSQL does not run as root")
    shutil.chown(folder, "postgres", "postgres")
    return [setpriv, "--reuid=postgres", "--regid=postgres", "--init-groups"]


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
