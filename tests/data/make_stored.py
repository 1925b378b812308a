"""Makes the stored folders that `tests/integration/test_stored_folders.py` reads.

    python -m tests.data.make_stored [FOLDER]

    finished.tar.gz     `run`, the folder of `precad run`, and `export`, what `precad export` made of it
    interrupted.tar.gz  the folders of both aggregators and the dealer, whose task was cut off after two of four rounds

They are made once by a version, and later versions must read them: make new ones beside them, not in their place. Keys
are thrown away before anything is packed. The folders hold public certificates and bundled data's figures alone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

from precad.servers.rounds.states import Committed, RoundState
from tests.harness.harness import running, until
from tests.harness.pki import Pki
from tests.vectors.final_models import CLIENTS, coins_of, noise_of, session_of, task_of

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parents[1]
ROUNDS_BEFORE: Final = 2
CONFIG: Final = """
[task]
name = "stored"
clients = ["anna", "boris", "chloe"]
rounds = 4
client_rate = 1.0
record_rate = 0.5
record_clip = 4.0
client_clip = 16.0
noise_multiplier = 8.0
learning_rate = 8.0
model = "tests.data.stored_model:small"
gate = "native"

[localhost]
clients_per_process = 3
"""
LEFT_OUT: Final = (".key", "key.pem", ".log", "report.html")
"""Endings of names that are not packed: keys, and what is long."""


def interrupted_task() -> dict[str, object]:
    """Return what sets the task apart from the others of its model."""
    return {"gate": "native", "name": "interrupted", "registration_timeout_s": 60.0}


async def interrupt(folder: Path) -> None:
    """Run both servers until each has committed some rounds, and cut them off."""
    task, pki = task_of(**interrupted_task()), Pki.create(folder / "pki", CLIENTS)
    committed = [0, 0]

    def on_state(party: int, state: RoundState) -> None:
        committed[party] += isinstance(state, Committed)

    noises = noise_of("noise", 0), noise_of("noise", 1)
    async with running(task, pki, folder, noises=noises, coins=coins_of(), on_state=on_state) as deployment:
        clients = [asyncio.create_task(session_of(client, deployment).run()) for client in CLIENTS]
        await until(lambda: min(committed) >= ROUNDS_BEFORE)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


def finish(folder: Path) -> None:
    """Run a whole deployment in processes of its own, and export its model."""
    (folder / "task.toml").write_text(CONFIG)
    for arguments in (("run", "task.toml", "--output", "run"), ("export", "run", "--out", "export")):
        command = [sys.executable, "-P", "-m", "precad.deploy.cli.main", *arguments]
        subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def pack(folder: Path, names: tuple[str, ...], archive: Path) -> None:
    """Pack these folders, without keys, owners and times."""

    def without(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return None if member.name.endswith(LEFT_OUT) else member

    with tarfile.open(archive, "w:gz") as packed:
        for name in names:
            packed.add(folder / name, name, filter=without)


def main(out: Path = HERE) -> None:
    """Make both archives."""
    with tempfile.TemporaryDirectory() as name:
        finish(Path(name))
        pack(Path(name), ("run", "export"), out / "finished.tar.gz")
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(interrupt(Path(name)))
        shutil.rmtree(Path(name) / "pki")
        pack(Path(name), ("aggregator-a", "aggregator-b", "dealer"), out / "interrupted.tar.gz")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
