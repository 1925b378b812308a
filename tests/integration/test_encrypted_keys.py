"""A deployment whose keys lie on disk under a passphrase, from `precad pki` to the last round.

Failure means a role that does not run with its key encrypted, or a key in the clear anywhere on disk. It also means a
wrong passphrase that starts something or changes a file.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from precad.deploy.configuration.init import HOSTS
from precad.protos.tls.files import TlsFileError
from precad.servers.aggregator import Aggregator
from precad.servers.dealer import Dealer
from tests.harness.command_line import precad
from tests.harness.harness import LeashedClient, Pki, asynchronous, running, small_task
from tests.harness.organisations import CLIENTS as HOSPITALS
from tests.harness.organisations import SAMPLES

CLIENTS = ("alice", "bob")


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@asynchronous
async def test_servers_and_clients_run_and_no_key_is_in_the_clear(tmp_path: Path) -> None:
    """Links, lane, dealer, clients: a whole round. While it runs, no file holds a key that opens without a word."""
    pki = Pki.create(tmp_path / "pki", CLIENTS, passphrase=secrets.token_urlsafe(32).encode())
    task = small_task(CLIENTS, rounds=1)
    zero = lambda std, dim: np.zeros(dim, dtype=np.int64)  # noqa: E731
    async with running(task, pki, tmp_path, noises=(zero, zero)) as deployment:
        clients = [LeashedClient(name, deployment) for name in CLIENTS]
        await asyncio.gather(*(client.join() for client in clients))
        submissions = [client.make(np.ones(task.dim, np.int64), await client.invitation()) for client in clients]
        on_disk = everything(tmp_path)
        await asyncio.gather(*(c.submit(s) for c, s in zip(clients, submissions, strict=True)))
        assert {goodbye.finished for goodbye in await asyncio.gather(*(c.goodbye() for c in clients))} == {True}
        await deployment.finish()
        assert deployment.rounds(0)[0]["accepted"] == list(CLIENTS)
    for content in (*on_disk.values(), *everything(tmp_path).values()):
        assert b"BEGIN PRIVATE KEY" not in content
        assert b"BEGIN EC PRIVATE KEY" not in content


@asynchronous
async def test_a_wrong_passphrase_starts_nothing_and_changes_nothing(tmp_path: Path) -> None:
    pki = Pki.create(tmp_path / "pki", CLIENTS, passphrase=b"p" * 24)
    task = small_task(CLIENTS)
    np.save(tmp_path / "initial.npy", np.zeros(task.dim, dtype=np.float32))
    pki.passphrase_file.write_bytes(b"q" * 24)
    before = everything(tmp_path)
    aggregator = Aggregator(
        party=0,
        task=task,
        config=pki.aggregator(0, listen="127.0.0.1:0", folder=tmp_path),
        addresses=("127.0.0.1:1", "127.0.0.1:1"),
    )
    for server in (aggregator, Dealer(task=task, config=pki.dealer(listen="127.0.0.1:0", folder=tmp_path))):
        with pytest.raises(TlsFileError, match=r"^key: expected a key that the passphrase opens") as caught:
            await server.run()
        assert "pppp" not in str(caught.value)
        assert "qqqq" not in str(caught.value)
    assert everything(tmp_path) == before
    with pytest.raises(TlsFileError):
        replace(pki.tls("alice"), key_passphrase_file=None).load()


def test_the_command_line_makes_such_keys_and_checks_them(tmp_path: Path) -> None:
    """`precad pki` with passphrase files, then `precad check` of the client's sample: 0 with the right one, else 2."""
    for name in ("authority", "own", "wrong"):
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_text(secrets.token_urlsafe(32) + "\n")
    opens = ("--authority-passphrase-file", tmp_path / "authority")
    assert precad("pki", "init", tmp_path / "pki", *opens).exit_code == 0
    assert precad("pki", "init", tmp_path / "other", "--authority-passphrase-file", tmp_path / "none").exit_code == 2
    for client in HOSPITALS:
        asked = ("--role", "client", "--name", client)
        made = precad("pki", "request", tmp_path / "clients", *asked, "--passphrase-file", tmp_path / "own")
        assert made.exit_code == 0
        signing = ("pki", "sign", tmp_path / "pki", tmp_path / "clients" / client / "request.pem", *asked)
        assert precad(*signing).exit_code == 2
        assert precad(*signing, *opens).exit_code == 0
        (tmp_path / "pki" / client / "cert.pem").rename(tmp_path / "clients" / client / "cert.pem")
    issuing = (
        "pki",
        "issue",
        tmp_path / "pki",
        "--role",
        "aggregator-a",
        "--passphrase-file",
        tmp_path / "own",
        *opens,
    )
    assert precad(*issuing).exit_code == 0
    lines = (SAMPLES / "client.toml").read_text().replace('"tls/ca.pem"', '"pki/ca.pem"').splitlines(keepends=True)
    sample = "".join(line for line in lines if "_certificate = " not in line)  # pins nobody
    sample = sample.replace("/srv/records/", f"{tmp_path}/")
    for client in HOSPITALS:
        shutil.copy(HOSTS / "start" / "records.csv", tmp_path / f"{client}.csv")
    config = tmp_path / "client.toml"
    for passphrase_file, code, said in (
        ('"own"', 0, "hospital-1"),
        ('"wrong"', 2, "expected a key that the passphrase opens"),
    ):
        config.write_text(sample.replace("[client]\n", f"[client]\nkey_passphrase_file = {passphrase_file}\n"))
        result = precad("check", config)
        assert (result.exit_code, said in result.output) == (code, True), result.output
