"""Several replicas on one PostgreSQL: a real server, real processes.

Failure means a tuple that is burnt twice, a replica that writes and does not lead, or two that lead at once. A password
in a message is a failure as well.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from precad.deploy.configuration.sections import load
from precad.mpc.errors import TupleReusedError
from precad.mpc.tuples.burning import TupleUse
from precad.protos.tls.identity import Role
from precad.servers.errors import LeadLostError, PeerUnreachableError, SetupError, StoreError
from precad.servers.store import audit_log
from precad.servers.store.burnt_tuples import TupleLedger
from precad.servers.store.folder import open_ledger
from precad.servers.store.rounds import CommittedRound, TaskStore
from tests.harness.command_line import precad
from tests.harness.organisations import Organisations
from tests.servers.conftest import PostgresPlaces, SqlitePlaces

pytest.importorskip("psycopg", reason="precad[postgres]")
import psycopg

from precad.servers.database import postgres
from precad.servers.database.postgres import Session
from precad.servers.store.copy import copy_database

RACER = """
import sys, time
from precad.mpc.tuples.burning import TupleUse
from precad.mpc.errors import TupleReusedError
from precad.protos.tls.identity import Role
from precad.servers.errors import StoreError
from precad.servers.database.postgres import Session
from precad.servers.store.burnt_tuples import TupleLedger

session = Session(sys.argv[1], Role.AGGREGATOR_A)
print("waiting", flush=True)
while not session.try_lead():
    time.sleep(0.02)
ledger = TupleLedger(session.tables("tuples"))
print("leading", flush=True)
for line in sys.stdin:
    try:
        ledger.burn("t", int(line), {0: "ada"}, TupleUse.CHECK)
        print("burnt", flush=True)
    except (TupleReusedError, StoreError) as error:
        print(type(error).__name__, flush=True)
"""


@pytest.fixture
def url(postgres_url: str) -> Iterator[str]:
    """With nothing in it."""
    yield postgres_url
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        connection.execute("DROP SCHEMA IF EXISTS precad_aggregator_a CASCADE")


class Racer:
    """A replica in a process of its own."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", RACER, url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )

    def said(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def burn(self, round: int) -> str:
        self.ask(round)
        return self.said()

    def ask(self, round: int) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{round}\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def pair(url: str) -> Iterator[tuple[Racer, Racer]]:
    """One that leads, and one that waits."""
    first = Racer(url)
    assert (first.said(), first.said()) == ("waiting", "leading")
    second = Racer(url)
    assert second.said() == "waiting"
    yield first, second
    for racer in (first, second):
        racer.close()


def terminate_leader(url: str) -> None:
    """As an operator does, or PostgreSQL when keepalives go unanswered."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted")


def test_a_replica_that_waits_leads_when_the_other_one_is_killed_and_burns_nothing_again(
    url: str, pair: tuple[Racer, Racer]
) -> None:
    first, second = pair
    assert [first.burn(1), first.burn(1)] == ["burnt", "TupleReusedError"]
    first.process.send_signal(signal.SIGKILL)
    assert second.said() == "leading"
    assert [second.burn(1), second.burn(2), second.burn(2)] == ["TupleReusedError", "burnt", "TupleReusedError"]


def test_a_leader_that_was_frozen_and_lost_its_session_burns_nothing_any_more(
    url: str, pair: tuple[Racer, Racer]
) -> None:
    """It wakes up in the middle of the other one's work, and does not know."""
    first, second = pair
    assert first.burn(1) == "burnt"
    first.process.send_signal(signal.SIGSTOP)
    first.ask(2)
    terminate_leader(url)
    assert second.said() == "leading"
    first.process.send_signal(signal.SIGCONT)
    assert first.said() == "LeadLostError"
    assert [first.burn(3), second.burn(2), second.burn(3)] == ["LeadLostError", "burnt", "burnt"]


def test_an_earlier_leader_writes_nothing_even_when_the_lock_failed_to_keep_the_next_one_out(url: str) -> None:
    """As behind a pooler that mixes sessions up: the epoch alone stops it."""
    with Session(url, Role.AGGREGATOR_A) as old, Session(url, Role.AGGREGATOR_A) as new:
        assert old.try_lead()
        assert not new.try_lead()
        ledger = TupleLedger(old.tables("tuples"))
        ledger.burn("t", 1, {0: "ada"}, TupleUse.CHECK)
        old._connection.execute("SELECT pg_advisory_unlock_all()")
        assert new.try_lead()
        with pytest.raises(StoreError, match=r"nothing was recorded: another replica leads"):
            ledger.burn("t", 2, {0: "ada"}, TupleUse.CHECK)
        after = TupleLedger(new.tables("tuples"))
        assert [row[0] for row in after.burnt("t")] == [1]
        with pytest.raises(TupleReusedError):
            after.burn("t", 1, {0: "ada"}, TupleUse.CHECK)


def test_a_replica_whose_session_ends_while_it_waits_is_told_so(url: str) -> None:
    """PostgreSQL was restarted: no fault of the configuration's."""
    with Session(url, Role.AGGREGATOR_A) as leader, Session(url, Role.AGGREGATOR_A) as other:
        assert leader.try_lead()
        assert not other.try_lead()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        for session in (leader, other):
            with pytest.raises(LeadLostError, match="the session is lost: ") as caught:
                session.try_lead()
            assert "\n" not in str(caught.value)  # else the last line of the log is the end of libpq's advice


def test_whoever_does_not_lead_writes_nothing(url: str) -> None:
    with Session(url, Role.AGGREGATOR_A) as leader, Session(url, Role.AGGREGATOR_A) as other:
        assert leader.try_lead()
        with pytest.raises(StoreError, match="another replica leads"):
            TupleLedger(other.tables("tuples"))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ada:hunter2@/postgres?host=/nowhere",
        "postgresql://ada:hunter2@127.0.0.1:1/postgres",
        "postgresql://ada:hun ter2@[",
        "postgresql://ada@host:hunter2/x",
        "postgresql://ada:hun@ter2@localhost/x",
        "postgresql://ada:hun/ter2@localhost/x",
        "postgresql://ada:hun/x@ter2",
        "hunter2",
    ],
)
def test_a_database_that_is_not_there_is_refused_without_its_password(url: str) -> None:
    with pytest.raises((SetupError, PeerUnreachableError), match=r"^database_url: expected") as caught:
        Session(url, Role.DEALER)
    assert "hunter2" not in str(caught.value)
    assert "ter2" not in str(caught.value)


def test_messages_name_the_database_and_no_password(url: str) -> None:
    with Session(url, Role.AGGREGATOR_A) as session:
        assert "schema precad_aggregator_a" in session.where
        assert "hunter2" not in session.where
    assert os.environ.get("PRECAD_DATABASE_URL") is None


# The task's store


def history(store: TaskStore, ledger_chain: str = "c0" * 32) -> None:
    """Write a task with a release, which names the ledger's chain value, and three lost rounds.

    One lost round has verdicts, one is in its check, and one is charged by B alone.
    """
    store.begin("small-1", Role.AGGREGATOR_A)
    store.joined(0, "fingerprint")
    for number in (0, 1):
        store.reserve(number)
        store.checking(number, chosen=("ada", "bob"), active=("ada", "bob"))
        store.validated(number, accepted=("ada",), rejected=("bob",))
    release = CommittedRound(0, ("ada", "bob"), ("ada",), ("bob",), bytes(range(32)), 0.1, 1e-300)
    store.commit(release, noisy_sum_digest=bytes(32), ledger_chain=ledger_chain)
    store.reserve(2)
    store.charged_by_peer(2, ("bob",))
    store.reserve(3)
    store.checking(3, chosen=("ada",), active=("ada",))
    store.settle({0, 1, 3})
    store.interrupted(2, "a link broke")
    store.finished("1 rounds done")


def test_both_kinds_of_database_tell_the_same_story(postgres_url: str, tmp_path: Path) -> None:
    """Read back from PostgreSQL, by another process, and from its copy, what SQLite gives."""
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    known: dict[str, Any] = {"config_digest": b"c" * 32, "initial_model_digest": b"m" * 32, "clock": lambda: noon}
    told = []
    for places in (SqlitePlaces(tmp_path / "task.sqlite"), PostgresPlaces(postgres_url)):
        with TaskStore(places("task"), **known) as store:
            history(store)
            with pytest.raises(StoreError, match="nothing was recorded"):
                store.reserve(3)
        with TaskStore(places("task"), **known) as store:
            told.append((store.task_id, store.committed(), store.attempts(), store.next_round, store.is_finished))
            with pytest.raises(StoreError, match="an audit entry cannot be"), store.transaction() as run:
                run("DELETE FROM audit")
        with pytest.raises(SetupError, match="which has other parameters"):
            TaskStore(places("task"), **{**known, "config_digest": b"x" * 32})
    assert told[0] == told[1]
    (tmp_path / "copy").mkdir()
    TupleLedger(places("tuples")).burn("small-1", 0, {0: "ada"}, TupleUse.CHECK)
    copy_database(postgres_url, Role.AGGREGATOR_A, tmp_path / "copy")
    places.close()
    logs = [audit_log.read(folder / "task.sqlite") for folder in (tmp_path, tmp_path / "copy")]
    assert logs[0] == logs[1]
    assert len(logs[0]) == 12
    with TaskStore(tmp_path / "copy" / "task.sqlite", **known) as store:
        told_by_copy = (store.task_id, store.committed(), store.attempts(), store.next_round, store.is_finished)
        assert told_by_copy == told[0]
    with TupleLedger(tmp_path / "copy" / "tuples.sqlite") as burns:
        assert burns.burnt("small-1") == [(0, 0, "ada", TupleUse.CHECK)]
    with pytest.raises(SetupError, match="expected no such file"):
        copy_database(postgres_url, Role.AGGREGATOR_A, tmp_path / "copy")


def test_a_copy_takes_longer_than_a_statement_of_the_leader_may(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long task's tables take a reader longer than any limit, and so does writing them down in between."""
    for limit in ("statement_timeout", "idle_in_transaction_session_timeout"):
        monkeypatch.setitem(postgres._SETTINGS, limit, "50ms")
    with Session(url, Role.AGGREGATOR_A) as session, session.snapshot() as read:
        read("SELECT pg_sleep(0.2)")
        time.sleep(0.2)
        assert read("SELECT 1").fetchone() == (1,)


def test_tables_of_a_newer_version_are_refused(postgres_url: str) -> None:
    places = PostgresPlaces(postgres_url)
    with TupleLedger(places("tuples")) as ledger, ledger.transaction() as run:
        run("UPDATE store SET version = 9")
    with pytest.raises(SetupError, match="expected version 1 or older, found 9"):
        TupleLedger(places("tuples"))
    places.close()


# The command line


def test_an_auditor_gets_files_of_what_is_in_the_database(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`precad check` of a configuration with a database, `precad audit copy` and `precad audit log` of the copy."""
    organisations = Organisations.create(tmp_path)
    organisations.write_configs()
    config, folder = organisations.config(Role.AGGREGATOR_A), organisations.folder(Role.AGGREGATOR_A)
    assert precad("initial-model", config, folder / "initial.npy").exit_code == 0
    assert precad("audit", "copy", config, tmp_path / "none", "--role", "aggregator-a").exit_code == 2
    monkeypatch.setenv("PRECAD_DATABASE_URL", postgres_url)
    places = PostgresPlaces(postgres_url)
    with TupleLedger(places("tuples")), open_ledger(folder / "state", load(config).task) as ledger:
        for number in (0, 1):
            ledger.charge(number, ["ada", "bob"])
        with TaskStore(places("task"), config_digest=b"c" * 32, initial_model_digest=b"m" * 32) as store:
            history(store, ledger.chain)
        ledger.charge(3, ["ada"])
    assert precad("check", config).exit_code == 0
    copied = precad("audit", "copy", config, tmp_path / "copy", "--role", "aggregator-a")
    assert copied.exit_code == 0, copied.output
    assert precad("audit", "copy", config, tmp_path / "copy", "--role", "aggregator-a").exit_code == 2
    places.close()
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == [
        "ledger.jsonl",
        "task.sqlite",
        "tuples.sqlite",
    ]
    report = precad("audit", "log", tmp_path / "copy", "--json")
    assert (report.exit_code, json.loads(report.stdout)["releases"]) == (0, 1)
