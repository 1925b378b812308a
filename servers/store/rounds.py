"""State of a task that an aggregator must know after a crash: who it is, how far it came, which round numbers are used
up.

    reserved    the number is used up: its coin, its tuples and its labels belong to one attempt, in one process
    checking    the uploads are locked; with a charge in the ledger, the norm check may have begun
    unknown     a check whose end this server never saw: the other one may know any of its verdicts
    charged     the other server charged it; nothing of a check left this one
    validated   the verdicts are known; the noisy share may have left
    committed   the noisy sum is open, and the model that it makes is on disk; or it is an evaluation's, and on disk

A transition is on disk before its effect leaves the process. A round that is not committed when its process dies is
*lost*: it is never continued. The next attempt has the next number, so nothing that was drawn for a number serves
twice. Every transition writes its entry of the audit log in the same transaction.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

from precad.protos.task.task import PROTOCOL_VERSION, VERSION_BEFORE
from precad.protos.task.trim_fields import Tested
from precad.protos.tls.identity import Role
from precad.servers.database.dialects import Dialect
from precad.servers.database.tables import BUSY_TIMEOUT_S, Backend, Database, Run
from precad.servers.errors import SetupError, StoreError
from precad.servers.store import audit_log


def migrations(sql: Dialect) -> Sequence[str]:
    """Return the migrations of this store's tables."""
    return (
        f"""
        CREATE TABLE task (
            one {sql.integer} PRIMARY KEY CHECK (one = 1),
            id TEXT NOT NULL,
            config_digest {sql.blob} NOT NULL,
            initial_model_digest {sql.blob} NOT NULL
        ){sql.table_end};
        CREATE TABLE round (
            number {sql.integer} PRIMARY KEY,
            state TEXT NOT NULL CHECK (state IN ('reserved', 'validated', 'committed')),
            chosen TEXT,
            accepted TEXT,
            rejected TEXT,
            model_digest {sql.blob},
            epsilon_one_server {sql.real},
            epsilon_clients_only {sql.real}
        ){sql.table_end};
        {audit_log.table(sql)}
        """,
        f"""
        ALTER TABLE round RENAME TO round_of_version_1;
        CREATE TABLE round (
            number {sql.integer} PRIMARY KEY,
            state TEXT NOT NULL
                CHECK (state IN ('reserved', 'checking', 'unknown', 'charged', 'validated', 'committed')),
            chosen TEXT,
            active TEXT,
            accepted TEXT,
            rejected TEXT,
            model_digest {sql.blob},
            epsilon_one_server {sql.real},
            epsilon_clients_only {sql.real}
        ){sql.table_end};
        INSERT INTO round (
            number, state, chosen, accepted, rejected, model_digest, epsilon_one_server, epsilon_clients_only
        ) SELECT
            number, state, chosen, accepted, rejected, model_digest, epsilon_one_server, epsilon_clients_only
        FROM round_of_version_1;
        DROP TABLE round_of_version_1
        """,  # noqa: S608 - a dialect's words
        "ALTER TABLE round ADD COLUMN evaluation TEXT",  # the opened sum of a round that evaluated the model
        "ALTER TABLE round ADD COLUMN test TEXT",  # the opened margin of a round that tested one, and what followed
    )


@dataclass(frozen=True, slots=True)
class FinishedRound:
    """A release, as both servers know it: of a round of the training, or of an evaluation by the clients."""

    number: int
    chosen: tuple[str, ...]
    accepted: tuple[str, ...]
    rejected: tuple[str, ...]
    model_digest: bytes
    """Digest of the model after the round. An evaluation is of the model that the round before made."""
    epsilon_one_server: float
    epsilon_clients_only: float

    @property
    def missing(self) -> tuple[str, ...]:
        """Chosen clients whose upload was not complete and equal at both servers."""
        seen = {*self.accepted, *self.rejected}
        return tuple(client for client in self.chosen if client not in seen)


@dataclass(frozen=True, slots=True)
class CommittedRound(FinishedRound):
    """A finished round of the training, and what it cost this server."""

    seconds: Mapping[str, float] = field(default_factory=dict, hash=False)
    """By phase. The store has no place for them: they are empty where a crash came before rounds.jsonl had them."""
    bytes_by_link: Mapping[str, int] = field(default_factory=dict, hash=False)
    """As this server counts them; empty in the same cases."""
    test: Tested | None = None
    """Outcome of its test, in algorithms that propose, test and release."""


@dataclass(frozen=True, slots=True)
class EvaluatedRound(FinishedRound):
    """A finished evaluation by the clients."""

    noisy_sum: tuple[int, ...]
    """Sum that both servers opened, on the grid of `Task.evaluation_round`."""


class AttemptState(enum.StrEnum):
    """How far a round came that is not committed here and whose clients are known."""

    CHECKING = "checking"
    UNKNOWN = "unknown"
    CHARGED = "charged"
    VALIDATED = "validated"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A round whose clients are known, and that is not committed here."""

    number: int
    state: AttemptState
    chosen: tuple[str, ...]
    active: tuple[str, ...] = ()
    """Clients whose uploads were locked at both servers: the ones that a check is about."""
    accepted: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()
    test: Tested | None = None
    """The opened margin, where one was tested."""


class TaskStore(Database):
    """One task at one aggregator."""

    def __init__(
        self,
        place: Path | Backend,
        *,
        config_digest: bytes,
        initial_model_digest: bytes,
        digest_before: bytes = b"",
        rests_on: Mapping[str, str] = MappingProxyType({}),
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """digest_before: of the same parameters in the protocol's version before.

        rests_on: conditions of the task's figures, by view, which a new task's log keeps for whoever reads the folder.

        Raises SetupError: of a file that is none of ours, or holds a task with other parameters, or of that version.
        """
        self._config_digest, self._initial_model_digest, self._clock = config_digest, initial_model_digest, clock
        self._digest_before, self._rests_on = digest_before, rests_on
        self.task_id = ""
        """Empty before the servers have first met."""
        super().__init__(place, migrations, busy_timeout_s=busy_timeout_s, require=self._require_same_task)

    def _require_same_task(self, run: Run) -> None:
        """Take in which task this is. Raises SetupError when it is another one."""
        row = run("SELECT id, config_digest, initial_model_digest FROM task").fetchone()
        if row is None:
            return
        if (row[1], row[2]) != (self._config_digest, self._initial_model_digest):
            if row[1] == self._digest_before:
                raise SetupError(
                    f"state_dir: expected a folder of protocol {PROTOCOL_VERSION}, found {row[0]!r}, which was begun "
                    f"under {VERSION_BEFORE} ({self.where}): finish it with the version of precad that began it, or "
                    "begin a new task in empty folders, whose epsilon adds to what this one has spent"
                )
            what = "other parameters" if row[1] != self._config_digest else "another initial model"
            raise SetupError(
                f"state_dir: expected a folder of this task, found {row[0]!r}, which has {what} ({self.where})"
            )
        self.task_id = row[0]

    def begin(self, task_id: str, role: Role) -> None:
        """Record that both servers hold the same parameters. role: this server's.

        Writes nothing for a task that is resumed. Raises SetupError in the other server's folder, whose shares of noise
        and burnt tuples are not this one's.
        """
        if self.task_id == task_id:
            self.require_role(role)
            return
        assert not self.task_id  # `standing.agree` never gives another id than the one that is here
        with self.transaction() as run:
            values = (task_id, self._config_digest, self._initial_model_digest)
            run("INSERT INTO task (one, id, config_digest, initial_model_digest) VALUES (1, ?, ?, ?)", values)
            digests = {"config": self._config_digest.hex(), "model": self._initial_model_digest.hex()}
            conditions = {"rests_on": dict(self._rests_on)} if self._rests_on else {}
            self._log(run, "task", task=task_id, role=role.value, **digests, **conditions)
        self.task_id = task_id

    def require_role(self, role: Role) -> None:
        """Raise SetupError when another server began the task in this folder."""
        with self.transaction() as run:
            began = audit_log.role_in(run)
        if began not in (None, role.value):
            raise SetupError(f"state_dir: expected the folder of {role.value}, found that of {began} ({self.where})")

    def joined(self, next_round: int, peer: str) -> None:
        """Record that the servers have met and go on with this round number. peer: the other one's certificate, by
        fingerprint."""
        with self.transaction() as run:
            self._log(run, "joined", next_round=next_round, peer=peer)

    @property
    def turns_coin(self) -> bytes:
        """Return the coin that deals clients their turns; empty before it was tossed."""
        with self.transaction() as run:
            found = audit_log.last_of(run, "turns")
        return b"" if found is None else bytes.fromhex(found["coin"])

    def keep_turns_coin(self, coin: bytes) -> None:
        """Write down the coin that deals clients their turns, which is public. Before the first round is begun."""
        with self.transaction() as run:
            self._log(run, "turns", coin=coin.hex())

    def interrupted(self, round: int | None, reason: str) -> None:
        """Record that the servers have lost one another, or the dealer, in this round. None: before the coming one."""
        with self.transaction() as run:
            self._log(run, "interrupted", round=_next_round(run) if round is None else round, reason=reason)

    def finished(self, reason: str) -> None:
        """Record that the task is over, and that both servers have its last release.

        It is an entry again only when others came in between.
        """
        with self.transaction() as run:
            if audit_log.last_kind(run) != "finished":
                self._log(run, "finished", reason=reason)

    @property
    def is_finished(self) -> bool:
        """Return whether that was said."""
        with self.transaction() as run:
            return audit_log.holds(run, "finished")

    def reserve(self, number: int) -> None:
        """Use up the number before our half of the coin that draws its clients leaves, so before anything is drawn.

        A number whose coin was committed to, and no more, is not used: its next coin is a fresh one. Raises
        StoreError, also when the number was used before.
        """
        with self.transaction() as run:
            run("INSERT INTO round (number, state) VALUES (?, 'reserved')", (number,))

    def skip(self, number: int) -> None:
        """Use up a number that the other server reserved and this one did not: nobody was drawn. Raises StoreError."""
        with self.transaction() as run:
            run("INSERT INTO round (number, state, chosen) VALUES (?, 'reserved', '[]')", (number,))

    def checking(self, number: int, *, chosen: Sequence[str], active: Sequence[str]) -> None:
        """Record the locked uploads, before the round is charged and before anything of its check leaves."""
        with self.transaction() as run:
            _update(run, "SET state = 'checking', chosen = ?, active = ?", _text(chosen), _text(active), number)
            self._log(run, "checking", round=number, chosen=list(chosen), active=list(active))

    def settle(self, charged: Collection[int]) -> None:
        """Close the checks that no process continues. Call when no round is in flight.

        charged: the rounds that the ledger holds. A check that was charged becomes `unknown`, with an entry that names
        its clients. One that was not charged never began: it is `reserved` again.
        """
        begun = [attempt for attempt in self.attempts() if attempt.state is AttemptState.CHECKING]
        for attempt in begun:
            with self.transaction() as run:
                if attempt.number in charged:
                    _update(run, "SET state = 'unknown'", attempt.number)
                    self._log(run, "unknown", round=attempt.number, clients=list(attempt.active))
                else:
                    _update(run, "SET state = 'reserved', chosen = NULL, active = NULL", attempt.number)

    def validated(
        self, number: int, *, accepted: Sequence[str], rejected: Sequence[str], test: Tested | None = None
    ) -> None:
        """Record the verdicts of a check, and the opened margin of a test, before the noisy share leaves."""
        with self.transaction() as run:
            (chosen,) = run("SELECT chosen FROM round WHERE number = ?", (number,)).fetchone()
            _update(
                run, "SET state = 'validated', accepted = ?, rejected = ?", _text(accepted), _text(rejected), number
            )
            if test is not None:
                _update(run, "SET test = ?", json.dumps(test.fields), number)
            missing = sorted(set(_names(chosen)) - {*accepted, *rejected})
            fields = {"accepted": list(accepted), "rejected": list(rejected), "missing": missing}
            self._log(run, "validated", round=number, **fields, **_of_test(test))

    def charged_by_peer(self, number: int, chosen: Sequence[str]) -> None:
        """Record that the other server charged a round of which nothing left this one."""
        with self.transaction() as run:
            _update(run, "SET state = 'charged', chosen = ?", _text(chosen), number)
            self._log(run, "charged", round=number, chosen=list(chosen))

    def commit(self, round: CommittedRound, *, noisy_sum_digest: bytes, ledger_chain: str) -> None:
        """Record the round, whose checkpoint is on disk. ledger_chain: of the privacy ledger, which holds the round.

        Raises StoreError for a round without verdicts.
        """
        with self.transaction() as run:
            values = (round.model_digest, round.epsilon_one_server, round.epsilon_clients_only)
            changed = run(
                "UPDATE round SET state = 'committed', model_digest = ?, epsilon_one_server = ?, "
                "epsilon_clients_only = ? WHERE number = ? AND state = 'validated' RETURNING number",
                (*values, round.number),
            )
            _require_validated(round.number, changed.fetchone())
            entry = _finished(round, noisy_sum_digest.hex(), ledger_chain)
            self._log(run, "committed", **entry, **_of_test(round.test))

    def evaluated(self, round: EvaluatedRound, *, ledger_chain: str) -> None:
        """Record the opened sum of an evaluation. ledger_chain: of the privacy ledger, which holds the round.

        Raises StoreError for a round without verdicts.
        """
        with self.transaction() as run:
            values = (round.model_digest, round.epsilon_one_server, round.epsilon_clients_only)
            changed = run(
                "UPDATE round SET state = 'committed', model_digest = ?, epsilon_one_server = ?, "
                "epsilon_clients_only = ?, evaluation = ? WHERE number = ? AND state = 'validated' RETURNING number",
                (*values, json.dumps(round.noisy_sum), round.number),
            )
            _require_validated(round.number, changed.fetchone())
            self._log(run, "evaluated", **_finished(round, list(round.noisy_sum), ledger_chain))

    @property
    def last_commit_at(self) -> float | None:
        """Return when the latest model was committed, in seconds since the epoch; None before the first."""
        with self.transaction() as run:
            last = audit_log.last_of(run, "committed")
        return None if last is None else datetime.fromisoformat(last["at"]).timestamp()

    def evaluations(self) -> list[EvaluatedRound]:
        """Return every finished evaluation of the task, in order."""
        rows = self.rows(
            "SELECT number, chosen, accepted, rejected, model_digest, evaluation, epsilon_one_server, "
            "epsilon_clients_only FROM round WHERE evaluation IS NOT NULL ORDER BY number"
        )
        return [
            EvaluatedRound(
                number,
                _names(chosen),
                _names(accepted),
                _names(rejected),
                digest,
                one_server,
                clients_only,
                tuple(json.loads(opened)),
            )
            for number, chosen, accepted, rejected, digest, opened, one_server, clients_only in rows
        ]

    def committed(self) -> list[CommittedRound]:
        """Return every release of a model of the task, in order."""
        rows = self.rows(
            "SELECT number, chosen, accepted, rejected, model_digest, test, epsilon_one_server, "
            "epsilon_clients_only FROM round WHERE state = 'committed' AND evaluation IS NULL ORDER BY number"
        )
        return [
            CommittedRound(
                number,
                _names(chosen),
                _names(accepted),
                _names(rejected),
                digest,
                epsilon_one_server,
                epsilon_clients_only,
                test=_test(test),
            )
            for number, chosen, accepted, rejected, digest, test, epsilon_one_server, epsilon_clients_only in rows
        ]

    def attempts(self) -> list[Attempt]:
        """Return the rounds whose clients are known and that are not committed. The ledger says which were paid for."""
        rows = self.rows(
            "SELECT number, state, test, chosen, active, accepted, rejected FROM round "
            "WHERE state NOT IN ('reserved', 'committed') ORDER BY number"
        )
        return [
            Attempt(
                number,
                AttemptState(state),
                _names(chosen),
                _names(active),
                _names(accepted),
                _names(rejected),
                _test(test),
            )
            for number, state, test, chosen, active, accepted, rejected in rows
        ]

    def uncommitted(self) -> frozenset[int]:
        """Return every number that is used up and not committed: those in flight, and those that are lost."""
        return frozenset(number for (number,) in self.rows("SELECT number FROM round WHERE state <> 'committed'"))

    def skipped(self) -> frozenset[int]:
        """Return the numbers that were used up here without a draw."""
        return frozenset(
            number for (number,) in self.rows("SELECT number FROM round WHERE state = 'reserved' AND chosen = '[]'")
        )

    @property
    def n_rounds(self) -> int:
        """Return how many were begun here, or charged as the other server said."""
        with self.transaction() as run:
            (n_rounds,) = run("SELECT COUNT(*) FROM round").fetchone()
        return int(n_rounds)

    @property
    def next_round(self) -> int:
        """Return the first number that was never used here."""
        with self.transaction() as run:
            return _next_round(run)

    def _log(self, run: Run, kind: str, **fields: Any) -> None:
        audit_log.append(run, kind, self._clock().isoformat(timespec="milliseconds"), fields)


def _require_validated(number: int, changed: object) -> None:
    """Refuse to log the release of a round that did not change. Its transaction is undone."""
    if changed is None:
        raise StoreError(f"round {number}: expected one with verdicts to release, found none")


def _next_round(run: Run) -> int:
    (last,) = run("SELECT MAX(number) FROM round").fetchone()
    return 0 if last is None else last + 1


def _update(run: Run, changes: str, *values: str | int) -> None:
    """Change one round's row. The last value is its number."""
    run(f"UPDATE round {changes} WHERE number = ?", values)


def _text(names: Sequence[str]) -> str:
    return json.dumps(list(names))


def _names(column: str | None) -> tuple[str, ...]:
    return () if column is None else tuple(json.loads(column))


def _test(column: str | None) -> Tested | None:
    return None if column is None else Tested(**json.loads(column))


def _finished(round: FinishedRound, noisy_sum: str | list[int], ledger_chain: str) -> dict[str, Any]:
    """Return what an entry of the audit log says of a finished round."""
    return {
        "round": round.number,
        "chosen": list(round.chosen),
        "accepted": list(round.accepted),
        "rejected": list(round.rejected),
        "noisy_sum": noisy_sum,
        "model": round.model_digest.hex(),
        "epsilon_one_server": round.epsilon_one_server,
        "epsilon_clients_only": round.epsilon_clients_only,
        "ledger": ledger_chain,
    }


def _of_test(test: Tested | None) -> dict[str, Any]:
    """Return what an entry of the audit log says of a test; nothing where there is none."""
    return {} if test is None else {"test": test.fields}
