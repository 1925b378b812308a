"""Records in bins: each in exactly one round of an epoch, uniformly and by itself, by a second reading of the words.

Failure means a record in two rounds of an epoch or in none, or a bin that another record moves. Or it is a bin that
can be known from a copy's or from another epoch's.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from scipy.stats import chi2_contingency, chisquare
from structlog.testing import capture_logs

from precad.clients.errors import ArgumentError
from precad.clients.record_bins import KEY_BYTES, RecordBins
from precad.clients.records import Records
from precad.clients.training.record_draws import BinDraws, BinKey, EpochBins, PoissonDraws, draws_of
from precad.dp.accountants.balls_in_bins import BallsInBins
from tests.harness.harness import small_task

T = 5
TASK = small_task(rounds=20, record_rate=1 / T, record_bins=T)
KEY = BinKey(bytes(range(KEY_BYTES)), "small-1")
FALSE_ALARM = 1e-6


def of_numbers(values: list[int]) -> Records:
    """One record for each number, told apart by its feature alone."""
    return Records(np.array(values, dtype=np.float32)[:, None], np.zeros(len(values), dtype=np.int64))


def bins(values: list[int], epoch: int = 0, key: BinKey = KEY) -> list[int]:
    return EpochBins(TASK, of_numbers(values)).of_epoch(key, epoch).tolist()


def test_a_bin_is_what_the_words_say() -> None:
    """Computed again from the docstring, with integers alone."""
    run = hashlib.sha256(f"{TASK.digest().hex()} small-1 3".encode()).digest()
    content = hashlib.sha256(np.float32(7).tobytes() + np.int64(0).tobytes()).digest()
    expected = [
        int(hashlib.blake2b(run + content + bytes([0] * 7 + [place]), key=KEY.key, digest_size=32).hexdigest(), 16) % T
        for place in (0, 1)
    ]
    assert bins([7, 7], epoch=3) == expected


def test_a_record_is_in_exactly_one_round_of_each_epoch() -> None:
    """Copies too: over the T rounds of an epoch, each record turns up as often as the client holds it."""
    values = [*range(300), *range(20), 7, 7]
    made = EpochBins(TASK, of_numbers(values))
    for epoch in range(3):
        drawn = [made.of_round(KEY, epoch * T + place) for place in range(T)]
        assert all(one.rate == 1.0 for one in drawn)
        found = Counter(int(x) for one in drawn for x in one.records.features[:, 0])
        assert found == Counter(values)


def test_bins_are_uniform_and_independent_of_copies_of_epochs_and_of_runs() -> None:
    """Chi-square on 20,000 records, five tests: false alarm 1e-6 each. Keys here are fixed, so it never changes."""
    values = list(range(20_000))
    first = bins(values)
    assert chisquare(np.bincount(first, minlength=T)).pvalue > FALSE_ALARM
    copies = np.array(bins(values + values))
    others = [
        bins(values, epoch=1),
        bins(values, key=BinKey(KEY.key, "small-2")),
        bins(values, key=BinKey(bytes(KEY_BYTES), "small-1")),
        copies[len(values) :].tolist(),
    ]
    for other in others:
        table = np.zeros((T, T))
        np.add.at(table, (first, other), 1)
        assert chi2_contingency(table).pvalue > FALSE_ALARM


def test_a_record_more_or_less_moves_no_other_and_order_says_nothing() -> None:
    values = [3, 1, 4, 1, 5]
    before = dict(zip([3, 1, 4, "1 again", 5], bins(values), strict=True))
    more = bins([9, *values, 1])
    assert more[1:-1] == list(before.values())
    assert bins(values[::-1]) == [before[x] for x in (5, 1, 4, "1 again", 3)]
    assert bins([3, 1, 4, 5]) == [before[x] for x in (3, 1, 4, 5)]


def test_a_label_is_part_of_a_record() -> None:
    values = np.arange(2000, dtype=np.float32)[:, None]
    found = [
        EpochBins(TASK, Records(values, np.full(2000, label, dtype=np.int64))).of_epoch(KEY, 0) for label in (0, 1)
    ]
    assert 0.1 < np.mean(found[0] == found[1]) < 0.3  # 1 / T, by eleven standard errors


def kept(folder: Path, client: str = "alice") -> BinDraws:
    found = draws_of(TASK, folder, [client], {})
    assert isinstance(found, BinDraws)
    return found


def test_a_process_started_again_draws_the_same_and_each_round_once(tmp_path: Path) -> None:
    """With a process for each round the client is in the rounds that one process would have been in."""
    own = of_numbers(list(range(100)))
    seen = []
    for number in range(2 * T):
        draws = kept(tmp_path)
        draws.enter("alice", "small-1", number)
        seen.append(draws.drawn("alice", own).records.features[:, 0])
        with pytest.raises(ArgumentError, match="alice: expected a round to draw records for, found none"):
            draws.drawn("alice", own)
    for epoch in (seen[:T], seen[T:]):
        assert_array_equal(np.sort(np.concatenate(epoch)), np.arange(100))
    key = BinKey(RecordBins("alice", TASK.digest(), bins=T, file=tmp_path / "alice.bins").key, "small-1")
    again = EpochBins(TASK, own)
    for number, features in enumerate(seen):
        assert_array_equal(again.of_round(key, number).records.features[:, 0], features)


def test_records_that_change_are_in_no_round_until_the_next_epoch(tmp_path: Path) -> None:
    """Else a record that is read otherwise by another version could be in two rounds. Their order may change. The
    client's operator is told, and no server: it takes part with nothing."""
    before, after = of_numbers([1, 2, 3]), of_numbers([1, 2, 4])
    found = {}
    with capture_logs() as lines:
        for number, own in enumerate([before, of_numbers([3, 1, 2]), after, after, before, after]):
            draws = kept(tmp_path)
            draws.enter("alice", "small-1", number)
            found[number] = draws.drawn("alice", own).records
    key = BinKey(draws._kept["alice"].key, "small-1")
    expected = [len(EpochBins(TASK, before).of_round(key, number).records) for number in range(T)]
    assert [len(found[number]) for number in range(T)] == [*expected[:2], 0, 0, expected[4]]
    assert len(found[T]) == len(EpochBins(TASK, after).of_round(key, T).records)
    told = [(line["event"], line["round"]) for line in lines]
    assert told == [("client.records_changed", 2), ("client.records_changed", 3)]


def test_whoever_sees_all_releases_of_an_epoch_gains_what_is_accounted() -> None:
    """The best test of 200,000 records, each by itself: its delta is within five standard errors of the figure's (false
    alarm 6e-7). Whoever sees three of the five rounds gains less."""
    n, delta, noise = 200_000, 5e-2, np.random.default_rng(1)
    epsilon = BallsInBins(bins=T, noise_multiplier=1.0).epsilon(T, delta)
    found = EpochBins(TASK, of_numbers(list(range(n)))).of_epoch(KEY, 0)
    without = noise.normal(size=(n, T))
    with_record = noise.normal(size=(n, T)) + np.eye(T)[found]

    def gained(shown: int) -> tuple[float, float]:
        """Return delta of the test at epsilon, and its standard error."""
        p, q = (
            np.mean((np.exp(z[:, :shown] - 0.5).sum(axis=1) + T - shown) / T > np.exp(epsilon))
            for z in (with_record, without)
        )
        error = np.sqrt((p * (1 - p) + np.exp(2 * epsilon) * q * (1 - q)) / n)
        return float(p - np.exp(epsilon) * q), float(error)

    whole, error = gained(T)
    assert abs(whole - delta) < 5 * error < 0.2 * delta
    part, error = gained(3)
    assert part < delta - 5 * error


def test_no_task_of_bins_is_drawn_for_by_poissons_law(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"task.record_bins: expected none where each round draws, found {T}"):
        PoissonDraws(TASK)
    assert isinstance(draws_of(small_task(), tmp_path, ["alice"], {}), PoissonDraws)
    assert list(tmp_path.iterdir()) == []


def test_a_key_is_in_no_words() -> None:
    assert KEY.key.hex() not in repr(KEY)
    assert repr(KEY.key) not in repr(KEY)
