"""Keep what a client must know of its records' bins: the key that they follow from, and the rounds that it was in.

    key 8f..
    <configuration's digest> <task id> <number> <digest of the records that its epoch began with> [paid]

The key is the client's secret, from the operating system. In a run of a task the client is in each round's number at
most once, and only in rising ones. That holds whatever servers ask for, and however often it is started. So no record
is in two rounds of an epoch. A line is on disk before the client trains for its round.

Within an epoch the bins must stay. Without a line of a run, as after a lost state_dir, nobody knows whether the client
was in its current epoch under another key. It then waits for the first number of an epoch, which both servers give out
once. A file may be put back, older or not, if no other key was in use since. The same key makes the same bins, and
honest servers give no number twice. So no client is started in two folders by turns. An older file has forgotten which
records the epoch began with.

Where the client's records are no longer those, none of them is in the rest of it. For a record in other bytes, as
after other preprocessing, has another bin. The client then uploads zeros. Staying away would name it to everybody. That
its records changed is no secret of a record's epsilon all the same: all of its update is gone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from precad.clients.errors import ProtocolError, StateFileError
from precad.clients.state_lines import append, locked, whole_lines

KEY_BYTES: Final = 32
_KEY: Final = re.compile(rb"key [0-9a-f]{64}")
_PAID: Final = " paid"
_LINE: Final = re.compile(rb"[0-9a-f]{64} [^ \n]{1,200} (0|[1-9][0-9]{0,19}) [0-9a-f]{64}( paid)?")


class Payer(Protocol):
    """Pay for each epoch (`precad.clients.payments`)."""

    def pay(self) -> None:
        """Pay one epoch, durably, on return. Raises ClientError; then nothing may leave."""


class _Entry(NamedTuple):
    """A round that the client was in."""

    number: int
    records: bytes
    is_paid: bool
    """Whether the holder has paid for the epoch by then."""


class RecordBins:
    """The key and the rounds of one client in one task. Blocking; a thread at a time."""

    def __init__(self, client: str, config_digest: bytes, *, bins: int, file: Path, payer: Payer | None = None) -> None:
        """Makes the file with its key, and folders to it. payer: of each epoch, if anybody. Raises StateFileError."""
        self._client, self._digest, self._bins, self._file, self._payer = client, config_digest, bins, file, payer
        with self._opened() as (descriptor, lines):
            if not lines:
                append(descriptor, [], b"key " + secrets.token_bytes(KEY_BYTES).hex().encode())
        with self._opened() as (_, lines):
            self.key: Final = _key_in(lines, file)

    def begin(self, task_id: str, number: int, records: bytes) -> bool:
        """Count a round, and have its epoch paid unless it is: at its first round, or at the first with a payer.

        Durable on return.

        Return whether the records are those that the epoch began with. Else none of them may be in the round.
        records: a digest of them, 32 bytes.
        Raises ProtocolError where the client stays away from this round; StateFileError, HolderLimitReachedError.
        """
        with self._opened() as (descriptor, lines):
            if _key_in(lines, self._file) != self.key:
                raise _unknown(self._file, "its own key in line 1", "another one")
            entries = self._entries(lines, task_id)
            self._require_new(entries, number)
            of_epoch = [one for one in entries if one.number // self._bins == number // self._bins]
            if not entries and number % self._bins:
                raise ProtocolError(
                    f"round: expected the first of an epoch of {self._bins}, as {self._file} has no round of this task "
                    f"and nobody knows whether {self._client} was in this epoch before, found {number}"
                )
            is_paid = any(one.is_paid for one in of_epoch)
            payer = None if is_paid else self._payer
            began_with = of_epoch[0].records if of_epoch else records
            paid = _PAID if is_paid or payer is not None else ""
            line = f"{self._digest.hex()} {task_id} {number} {began_with.hex()}{paid}"
            if _LINE.fullmatch(line.encode()) is None:
                raise ProtocolError(f"task: expected a task id without spaces, the servers say {task_id!r:.80}")
            if payer is not None:
                payer.pay()
            append(descriptor, lines, line.encode())
        return records == began_with

    def _require_new(self, entries: list[_Entry], number: int) -> None:
        if (last := max((one.number for one in entries), default=-1)) >= number:
            raise ProtocolError(
                f"round: expected a number above {last}, up to which {self._client} has trained with record_bins, "
                f"found {number}"
            )

    def _entries(self, lines: list[bytes], task_id: str) -> list[_Entry]:
        """Return the rounds of this run of the task. Raises StateFileError for a line that is none."""
        found = []
        for at, line in enumerate(lines[1:], start=2):
            if _LINE.fullmatch(line) is None:
                raise _unknown(self._file, f"digests, a task and a number in line {at}", "something else")
            digest, task, number, records, *paid = line.decode().split(" ")
            if (digest, task) == (self._digest.hex(), task_id):
                found.append(_Entry(int(number), bytes.fromhex(records), bool(paid)))
        return found

    @contextmanager
    def _opened(self) -> Iterator[tuple[int, list[bytes]]]:
        """Return the file and its lines. Raises StateFileError for a file that cannot be used."""
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked(self._file) as descriptor:
                yield descriptor, whole_lines(descriptor)
        except OSError as error:
            reason = error.strerror or error
            raise StateFileError(
                f"client.state_dir: expected a file of bins to read and write, found {self._file}: {reason}"
            ) from None


def _key_in(lines: list[bytes], file: Path) -> bytes:
    """Return the key in the first line. Raises StateFileError where there is none."""
    if not lines or _KEY.fullmatch(lines[0]) is None:
        raise _unknown(file, "a key in line 1", "none")
    return bytes.fromhex(lines[0].split()[1].decode())


def _unknown(file: Path, expected: str, found: str) -> StateFileError:
    return StateFileError(
        f"client.state_dir: expected {expected} of {file}, found {found}; nothing is uploaded until the client's bins "
        "are known again"
    )
