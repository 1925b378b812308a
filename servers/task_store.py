"""What an aggregator must know of its task after a crash: who it is, how far it came, which round numbers are used up.

    reserved    the number is used up: its coin, its tuples and its labels belong to one attempt, in one process
    validated   the verdicts are known; with a charge in the ledger, the noisy share may have left
    committed   the noisy sum is open, and the model that it makes is on disk

A transition is on disk before its effect leaves the process. A round that is not committed when its process dies is
never gone on with: the next attempt has the next number, so nothing that was drawn for a number serves twice. Every
transition writes its entry of the audit log in the same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from protos.identity import Role
from protos.task import PROTOCOL_VERSION, VERSION_BEFORE
from servers import audit_log
from servers.database import BUSY_TIMEOUT_S, Backend, Database, Run
from servers.dialects import Dialect
from servers.errors import SetupError


def migrations(sql: Dialect) -> Sequence[str]:
    """Of this store's tables."""
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
    )


_SET_VERDICTS: Final = (
    "INSERT INTO round (number, state, chosen, accepted, rejected) VALUES (?, 'validated', ?, ?, ?) "
    "ON CONFLICT (number) DO UPDATE SET state = excluded.state, chosen = excluded.chosen, "
    "accepted = excluded.accepted, rejected = excluded.rejected, "
    "model_digest = NULL, epsilon_one_server = NULL, epsilon_clients_only = NULL"
)


@dataclass(frozen=True, slots=True)
class CommittedRound:
    """A release, as both servers know it."""

    number: int
    chosen: tuple[str, ...]
    accepted: tuple[str, ...]
    rejected: tuple[str, ...]
    model_digest: bytes
    """Of the model after it."""
    epsilon_one_server: float
    epsilon_clients_only: float


@dataclass(frozen=True, slots=True)
class Attempt:
    """A round that has its verdicts, and is not committed here."""

    number: int
    chosen: tuple[str, ...]
    accepted: tuple[str, ...]
    rejected: tuple[str, ...]


class TaskStore(Database):
    """One task at one aggregator."""

    def __init__(
        self,
        place: Path | Backend,
        *,
        config_digest: bytes,
        initial_model_digest: bytes,
        digest_before: bytes = b"",
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """digest_before: of the same parameters in the protocol's version before.

        Raises SetupError: of a file that is none of ours, or holds a task with other parameters, or of that version.
        """
        super().__init__(place, migrations, busy_timeout_s=busy_timeout_s)
        self._config_digest, self._initial_model_digest, self._clock = config_digest, initial_model_digest, clock
        with self.transaction() as run:
            row = run("SELECT id, config_digest, initial_model_digest FROM task").fetchone()
        self._task_id: str = "" if row is None else row[0]
        if row is not None and (row[1], row[2]) != (config_digest, initial_model_digest):
            self.close()
            if row[1] == digest_before:
                raise SetupError(
                    f"state_dir: expected a folder of protocol {PROTOCOL_VERSION}, found {row[0]!r}, which was begun "
                    f"under {VERSION_BEFORE} ({self.where}): finish it with the version of precad that began it, or "
                    "begin a new task in empty folders, whose epsilon adds to what this one has spent"
                )
            what = "parameters" if row[1] != config_digest else "initial model"
            raise SetupError(
                f"state_dir: expected a folder of this task, found {row[0]!r}, which has another {what} ({self.where})"
            )

    @property
    def task_id(self) -> str:
        """Empty before the servers have first met."""
        return self._task_id

    def begin(self, task_id: str, role: Role) -> None:
        """Both servers hold the same parameters. role: this server's. Does nothing for a task that is resumed."""
        if self._task_id == task_id:
            return
        assert not self._task_id  # `resumption.agree` never gives another id than the one that is here
        with self.transaction() as run:
            values = (task_id, self._config_digest, self._initial_model_digest)
            run("INSERT INTO task (one, id, config_digest, initial_model_digest) VALUES (1, ?, ?, ?)", values)
            self._log(
                run, "task", task=task_id, role=role.value, config=self._config_digest.hex(), model=values[2].hex()
            )
        self._task_id = task_id

    def joined(self, next_round: int, peer: str) -> None:
        """The servers have met and go on with this round number. peer: the other one's certificate, by fingerprint."""
        with self.transaction() as run:
            self._log(run, "joined", next_round=next_round, peer=peer)

    def interrupted(self, round: int, reason: str) -> None:
        """The servers have lost one another, or the dealer, in or before this round."""
        with self.transaction() as run:
            self._log(run, "interrupted", round=round, reason=reason)

    def finished(self, reason: str) -> None:
        """The task is over, and both servers have its last release. Said again, it is an entry again only when others
        came in between."""
        with self.transaction() as run:
            if audit_log.last_kind(run) != "finished":
                self._log(run, "finished", reason=reason)

    @property
    def is_finished(self) -> bool:
        """Whether that was said."""
        with self.transaction() as run:
            return audit_log.holds(run, "finished")

    def reserve(self, number: int) -> None:
        """Before anything of the round is drawn. Raises StoreError, also when the number was used before."""
        with self.transaction() as run:
            run("INSERT INTO round (number, state) VALUES (?, 'reserved')", (number,))

    def validated(
        self, number: int, *, chosen: Sequence[str], accepted: Sequence[str], rejected: Sequence[str]
    ) -> None:
        """Before the round is charged."""
        missing = sorted(set(chosen) - {*accepted, *rejected})
        with self.transaction() as run:
            run(
                _SET_VERDICTS,
                (number, *(json.dumps(list(names)) for names in (chosen, accepted, rejected))),
            )
            self._log(run, "validated", round=number, accepted=list(accepted), rejected=list(rejected), missing=missing)

    def charged_by_peer(self, number: int, chosen: Sequence[str]) -> None:
        """The other server charged an attempt that did not get as far here; it is charged here as well."""
        with self.transaction() as run:
            run(
                _SET_VERDICTS,
                (number, json.dumps(list(chosen)), "[]", "[]"),
            )

    def commit(self, round: CommittedRound, *, noisy_sum_digest: bytes, ledger_chain: str) -> None:
        """The round's checkpoint is on disk. ledger_chain: of the privacy ledger, which holds the round."""
        with self.transaction() as run:
            run(
                "UPDATE round SET state = 'committed', model_digest = ?, epsilon_one_server = ?, "
                "epsilon_clients_only = ? WHERE number = ? AND state = 'validated'",
                (round.model_digest, round.epsilon_one_server, round.epsilon_clients_only, round.number),
            )
            self._log(
                run,
                "committed",
                round=round.number,
                chosen=list(round.chosen),
                accepted=list(round.accepted),
                rejected=list(round.rejected),
                noisy_sum=noisy_sum_digest.hex(),
                model=round.model_digest.hex(),
                epsilon_one_server=round.epsilon_one_server,
                epsilon_clients_only=round.epsilon_clients_only,
                ledger=ledger_chain,
            )

    def committed(self) -> list[CommittedRound]:
        """Every release of the task, in order."""
        with self.transaction() as run:
            rows = run(
                "SELECT number, chosen, accepted, rejected, model_digest, epsilon_one_server, epsilon_clients_only "
                "FROM round WHERE state = 'committed' ORDER BY number"
            ).fetchall()
        return [
            CommittedRound(number, _names(chosen), _names(accepted), _names(rejected), digest, *epsilons)
            for number, chosen, accepted, rejected, digest, *epsilons in rows
        ]

    def attempts(self) -> list[Attempt]:
        """Rounds that have their verdicts, and are not committed. Those that the ledger holds were paid for."""
        with self.transaction() as run:
            rows = run(
                "SELECT number, chosen, accepted, rejected FROM round WHERE state = 'validated' ORDER BY number"
            ).fetchall()
        return [
            Attempt(number, _names(chosen), _names(accepted), _names(rejected))
            for number, chosen, accepted, rejected in rows
        ]

    @property
    def next_round(self) -> int:
        """The first number that was never used here."""
        with self.transaction() as run:
            (last,) = run("SELECT MAX(number) FROM round").fetchone()
        return 0 if last is None else last + 1

    def _log(self, run: Run, kind: str, **fields: Any) -> None:
        audit_log.append(run, kind, self._clock().isoformat(timespec="milliseconds"), fields)


def _names(column: str) -> tuple[str, ...]:
    return tuple(json.loads(column))
