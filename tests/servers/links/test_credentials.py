"""A running server says of its own certificate that it ends, once a day before and once when it has.

Failure means: a server whose certificate ran out stays without a line, and others cannot tell why it hangs up.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import shutil
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from precad.deploy.authority.pki import create_authority, issue
from precad.protos.tls.identity import Identity, Role
from precad.servers.aggregator import Aggregator
from precad.servers.dealer import Dealer
from precad.servers.errors import PeerUnreachableError
from precad.servers.links import credentials
from tests.harness.harness import Pki, asynchronous, free_addresses, small_task, until

NOW = dt.datetime.now(dt.UTC)


@asynchronous
async def test_each_end_of_a_certificate_is_logged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a good one, and where there is none, nothing is said."""
    monkeypatch.setattr(credentials, "WATCH_S", 0.01)
    create_authority(tmp_path / "first", now=NOW - dt.timedelta(days=30))
    shown, identity = tmp_path / "shown.pem", Identity(Role.AGGREGATOR_A, "aggregator-a")
    ages = {"good": 1.0, "soon": 9.5, "expired": 11.0}
    issued = {}
    for name, age in ages.items():
        shutil.copytree(tmp_path / "first", tmp_path / name)
        issued[name] = issue(tmp_path / name, identity, days=10, now=NOW - dt.timedelta(days=age)).certificate

    with capture_logs() as lines:
        async with credentials.watched(shown):
            await asyncio.sleep(0.05)
            for name, n_said in (("good", 0), ("soon", 1), ("expired", 2), ("good", 2)):
                shutil.copy(issued[name], tmp_path / "new.pem")
                (tmp_path / "new.pem").replace(shown)
                await until(lambda n_said=n_said: len(lines) >= n_said)  # type: ignore[misc]
                await asyncio.sleep(0.1)

    assert [line["event"] for line in lines] == ["tls.expires_soon", "tls.expired"]
    assert all(line["log_level"] == "warning" for line in lines)
    assert lines[0]["until"] == f"{NOW + dt.timedelta(days=0.5):%Y-%m-%d %H:%M} UTC"


@asynchronous
async def test_every_server_watches_its_own_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        credentials, "valid_between", lambda _: (NOW - dt.timedelta(days=90), NOW + dt.timedelta(hours=1))
    )
    task, (b, dealer) = small_task(), free_addresses(2)
    pki = Pki.create(tmp_path / "pki", task.clients)
    np.save(tmp_path / "initial.npy", np.zeros(task.dim, dtype=np.float32))
    waits = {"connect_timeout_s": 0.3}
    ours = pki.aggregator(0, listen="127.0.0.1:0", folder=tmp_path).model_copy(update=waits)
    servers = (
        Aggregator(party=0, task=task, config=ours, addresses=(b, dealer)),
        Dealer(task=task, config=pki.dealer(listen=dealer, folder=tmp_path).model_copy(update=waits)),
    )
    for server in servers:
        with capture_logs() as lines, pytest.raises(PeerUnreachableError):
            await server.run()
        warned = [line["certificate"] for line in lines if line["event"] == "tls.expires_soon"]
        assert warned == [str(server.config.tls.certificate)]
