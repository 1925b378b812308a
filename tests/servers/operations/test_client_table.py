"""The status says of each client how it fared and since when it is away, and until when a round waits."""

from __future__ import annotations

import io
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from precad.deploy.oversight.status_shown import status_table
from precad.protos.tls.identity import Role
from precad.servers.operations.snapshot import AggregatorSnapshots
from precad.servers.rounds.sessions import Sessions
from precad.servers.rounds.states import Aborted, Locked, Proving
from precad.servers.rounds.uploads import Spool
from precad.servers.store.rounds import CommittedRound
from precad.servers.telemetry.events import Flight, Telemetry
from precad.servers.telemetry.status import MAX_NAMED, LiveRound
from tests.harness.harness import small_task


def committed(number: int, **verdicts: tuple[str, ...]) -> CommittedRound:
    found: dict[str, Any] = {"accepted": (), "rejected": (), **verdicts}
    return CommittedRound(
        number=number, model_digest=bytes(32), epsilon_one_server=0.1, epsilon_clients_only=0.1, **found
    )


def snapshots(telemetry: Telemetry, sessions: Sessions, folder: Path, **task: Any) -> AggregatorSnapshots:
    spool = cast(Spool, SimpleNamespace(n_in_file=0))
    return AggregatorSnapshots(small_task(**task), telemetry, sessions, spool, folder)


def test_clients_are_counted_by_verdict_and_those_left_out_come_first(tmp_path: Path) -> None:
    """A snapshot in which nothing happened is the one before it; a round more counts once."""
    telemetry, names = Telemetry(Role.AGGREGATOR_A), ("alice", "bob", "mallory")
    sessions = Sessions(names, now=lambda: 7.0)
    sessions.enter("alice")
    taken = snapshots(telemetry, sessions, tmp_path)
    telemetry.records.append(committed(0, chosen=names, accepted=("alice", "bob"), rejected=("mallory",)))
    assert taken.take().clients == taken.take().clients
    telemetry.records.append(committed(1, chosen=names, accepted=("alice",), rejected=("mallory",)))
    found = [(c.client, c.accepted, c.rejected, c.missing, c.absent_since) for c in taken.take().clients]
    assert found == [("mallory", 0, 2, 0, 7.0), ("bob", 1, 0, 1, 7.0), ("alice", 2, 0, 0, None)]


def test_the_table_is_bounded(tmp_path: Path) -> None:
    clients = {f"c{i:04d}": 1 for i in range(3 * MAX_NAMED)}
    telemetry, sessions = Telemetry(Role.AGGREGATOR_A), Sessions(clients)
    telemetry.records.append(committed(0, chosen=tuple(clients), rejected=("c0299",)))
    found = snapshots(telemetry, sessions, tmp_path, clients=clients).take()
    assert len(found.clients) == MAX_NAMED
    assert found.n_enrolled == 3 * MAX_NAMED


def test_a_round_says_until_when_it_waits(tmp_path: Path) -> None:
    """While uploads come in, and in no other state; in time since the epoch, which stays from look to look."""
    telemetry, sessions = Telemetry(Role.AGGREGATOR_A), Sessions(("alice", "bob", "mallory"))
    intake = SimpleNamespace(complete=frozenset({"bob"}), n_receiving=0, is_chosen=lambda client: True)
    asked_at = time.time()
    telemetry.flight = Flight(0, asked_at - 5, chosen=("alice", "bob"), asked_at=asked_at)
    taken = snapshots(telemetry, sessions, tmp_path, submit_timeout_s=30.0)
    live = taken.take().live
    assert live is not None
    assert live.waits_until is None
    telemetry.flight.collecting = cast(Any, SimpleNamespace(intake=intake))
    live = taken.take().live
    assert live is not None
    assert live.waits_until == asked_at + 30.0
    assert live.waiting_for == ("alice",)


def test_the_uploads_of_a_round_that_is_given_up_are_not_looked_at() -> None:
    """Another thread erases them by then: a dictionary that changes under an iteration would end the task."""

    class Erased:
        @property
        def complete(self) -> frozenset[str]:
            raise RuntimeError("dictionary changed size during iteration")

    telemetry = Telemetry(Role.AGGREGATOR_A)
    telemetry.flight = Flight(3, time.time(), collecting=cast(Any, SimpleNamespace(intake=Erased())))
    telemetry.entered_round(Aborted(3, "this meeting of the servers is over"), frozenset())
    assert telemetry.flight is None
    assert telemetry.interrupted() == 3
    assert telemetry.interrupted() is None


def test_a_round_of_mode_proved_says_which_proofs_it_waits_for(tmp_path: Path) -> None:
    """The phase is `prove` from the lock on. How many uploads came in stays, and each proof's client is awaited."""
    telemetry, sessions = Telemetry(Role.AGGREGATOR_A), Sessions(("alice", "bob", "mallory"))
    taken = snapshots(telemetry, sessions, tmp_path, mode="proved", proof_timeout_s=40.0)

    def live() -> LiveRound:
        found = taken.take().live
        assert found is not None
        return found

    uploads = SimpleNamespace(complete=frozenset({"bob", "alice"}), n_receiving=0)
    telemetry.flight = Flight(0, time.time(), chosen=("alice", "bob", "mallory"))
    telemetry.flight.collecting = cast(Any, SimpleNamespace(intake=uploads))
    assert (live().n_complete, live().n_active, live().n_proved) == (2, None, None)
    lock, nothing = cast(Any, SimpleNamespace(active=("alice", "bob"))), cast(Any, None)
    telemetry.entered_round(Locked(0, ("alice", "bob", "mallory"), nothing, lock, nothing), frozenset())
    assert (live().phase, live().n_complete, live().waits_until) == ("prove", 2, None)
    proofs = cast(Any, SimpleNamespace(complete=frozenset({"bob"}), n_receiving=1))
    proving = Proving(0, (), nothing, lock, nothing, proofs, nothing)
    telemetry.entered_round(proving, frozenset())
    found = live()
    assert (found.phase, found.n_complete, found.n_active, found.n_proved, found.n_receiving) == ("prove", 2, 2, 1, 1)
    assert found.waiting_for == ("alice",)
    assert found.waits_until == pytest.approx(time.time() + 40.0, abs=5.0)
    console = Console(width=120, file=io.StringIO(), record=True)
    console.print(status_table({"a": taken.take()}))
    assert "round 0: prove, 2 of 3 uploads complete, 1 of 2 proofs" in console.export_text()
