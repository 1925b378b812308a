"""A client's bins over many lives, attacked by all that happens to it: kills, lost rounds, repeats, other records.

Failure means a record in two rounds of one epoch. Lives are random; each failure prints its own.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from precad.clients.errors import ProtocolError
from precad.clients.records import Records
from precad.clients.training.record_draws import RecordDraws, draws_of
from tests.harness.harness import small_task

T, LIVES, RUN = 4, 12, "small-0123456789abcdef"
TASK = small_task(["alice", "bob"], dim=1, rounds=60, record_rate=1 / T, record_bins=T)
SETS = [
    Records(np.array(values, dtype=np.float32)[:, None], np.zeros(len(values), dtype=np.int64))
    for values in (range(12), range(1, 13), [*range(12), 3, 3], range(11, -1, -1))
]
"""Records, others in place of one, copies beside them, and the first ones in another order."""
File = bytes | None


class Alice:
    """One client, which dies as `kill -9` leaves it: at any byte of a line, before or after it has trained."""

    def __init__(self, folder: Path, choices: random.Random) -> None:
        self.folder, self.choices, self.number = folder, choices, -1
        self.file = folder / "alice.bins"
        self.lost_at = -1
        """The last number before the client's file was lost: no honest server repeats those, which it forgot."""
        self.in_rounds: dict[int, Counter[float]] = {}
        """Values that left the client, by epoch and value; a copy is a record of its own."""
        self.story: list[object] = []

    def lives(self) -> None:
        """Live once: with some records, for some numbers. Servers give out each number once; one repeats them."""
        which = self.choices.choice([0, 0, 0, 1, 2, 3])
        own, draws = SETS[which], draws_of(TASK, self.folder, ["alice"], {})
        self.story.append(f"records {which}")
        for number in self._asked():
            before = self.file.read_bytes()
            drawn = self._drawn(draws, own, number)
            if drawn is None:
                continue
            death = self.choices.random()
            self.story.append((number, drawn, round(death, 2)))
            if death < 0.15:  # in the middle of its line: nothing has left
                end = self.choices.randrange(len(before), len(self.file.read_bytes()))
                self.file.write_bytes(self.file.read_bytes()[:end])
                return
            if death < 0.3:  # after its line, before its upload
                return
            self.in_rounds.setdefault(number // T, Counter()).update(drawn)
            if death < 0.4:
                return

    def _asked(self) -> Iterator[int]:
        for _ in range(self.choices.randrange(1, 2 * T)):
            if self.choices.random() < 0.2 and self.number > self.lost_at:
                yield self.choices.randrange(self.lost_at + 1, self.number + 1)  # again
            self.number += self.choices.choice([1, 1, 1, 2, 3])  # some are lost before they reach anybody
            yield self.number

    def _drawn(self, draws: RecordDraws, own: Records, number: int) -> list[float] | None:
        draws.enter("alice", RUN, number)
        try:
            return [float(value) for value in draws.drawn("alice", own).records.features[:, 0]]
        except ProtocolError:
            return None

    def leaves_and_joins(self) -> None:
        """Lose the whole folder's file, as on another machine. Its key is gone."""
        self.story.append("lost")
        self.lost_at = self.number
        self.file.unlink(missing_ok=True)


@pytest.mark.parametrize("seed", range(60))
def test_no_life_puts_a_record_into_two_rounds_of_an_epoch(seed: int, tmp_path: Path) -> None:
    """A value is in at most as many rounds as there are copies of it; all of an epoch are of one set of records."""
    alice = Alice(tmp_path, random.Random(seed))
    for _ in range(LIVES):
        alice.lives()
        if alice.choices.random() < 0.2:
            alice.leaves_and_joins()
    assert alice.in_rounds
    for epoch, times in alice.in_rounds.items():
        copies = [Counter(float(value) for value in own.features[:, 0]) for own in SETS]
        assert any(times <= own for own in copies), (epoch, times, alice.story)
