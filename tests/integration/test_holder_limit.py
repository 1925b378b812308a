"""The holder's own limit in real processes: it ends a run in its middle, and the next one before it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from precad.deploy.cli.main import app
from precad.dp.ledgers.holder import read
from tests.harness.command_line import CliRunner, in_a_process
from tests.harness.harness import read_rounds
from tests.harness.hospital import hospital

LIMIT = """
[client.holder]
ledger = "paid/{client}"
limit_epsilon = 3.5

[localhost]
clients_per_process = 4
"""


def test_a_limit_over_all_tasks_ends_a_run_and_refuses_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every upload that left was paid before; the limit in the ledger is the holder's, not the servers' budget."""
    monkeypatch.chdir(tmp_path)
    config = hospital(tmp_path, "limited_model", rounds=400, n=80)
    config.write_text(config.read_text() + LIMIT)
    checked = CliRunner().invoke(app, ["check", str(config)])
    room = int(checked.stdout.split("room for ")[1].split()[0])
    assert checked.exit_code == 0, checked.stderr
    assert "fewer than the task's 400 rounds, within epsilon 3.5" in checked.stdout
    assert 2 <= room < 40
    assert not (tmp_path / "paid").exists()

    first = in_a_process(tmp_path, "run", str(config), "--output", "first")
    assert first.returncode == 3, first.stderr
    warned = f"client.holder: a has room for {room} more uploads of this task, fewer than the task's 400 rounds"
    assert warned in first.stderr
    assert "and 3 others likewise; the task goes on without clients that reach their limit" in first.stderr
    assert "no client is left" in first.stderr
    assert "must stay <= 3.5 at delta = 1e-05" in first.stderr
    done = read_rounds(tmp_path / "first" / "a")
    assert [record["accepted"] for record in done[:room]] == [list("abcd")] * room
    assert not any(record["accepted"] for record in done[room:])
    before = {}
    for client in "abcd":
        account, _ = read(tmp_path / "paid" / client)
        assert [line.payment.client for line in account.lines] == [client] * room
        assert account.epsilon <= 3.5
        before[client] = (tmp_path / "paid" / client).read_bytes()

    config.write_text(config.read_text().replace('"patients"', '"another-task"'))
    for again in (["run", str(config), "--output", "second"], ["check", str(config)]):
        refused = CliRunner().invoke(app, again)
        assert refused.exit_code == 3, refused.stderr
        assert "client.holder.limit_epsilon: what the records of 'a' lose in all tasks" in refused.stderr
    assert not (tmp_path / "second").exists()
    assert {client: (tmp_path / "paid" / client).read_bytes() for client in "abcd"} == before
    assert CliRunner().invoke(app, ["holder", "statement", "paid/a"]).exit_code == 0
