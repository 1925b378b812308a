"""The file of a client's bins, attacked: asked twice, restarted, its files lost, cut, swapped or damaged.

Failure means a number that a client trains for twice, or an epoch that it goes on with under another key. Or it is an
epoch that its holder does not pay for.
"""

from __future__ import annotations

import resource
import stat
import threading
from pathlib import Path

import pytest

from precad.clients.errors import ArgumentError, ProtocolError, StateFileError
from precad.clients.record_bins import RecordBins
from tests.harness.harness import small_task

T = 4
TASK = small_task(rounds=20, record_rate=1 / T, record_bins=T)
RECORDS, OTHERS = bytes(32), bytes([1]) * 32


class Purse:
    """Counts payments, and has room for some."""

    def __init__(self, room: int = 100) -> None:
        self.paid, self.room = 0, room

    def pay(self) -> None:
        if self.paid == self.room:
            raise ArgumentError("no room")
        self.paid += 1


def opened(folder: Path, purse: Purse | None = None, digest: bytes | None = None) -> RecordBins:
    return RecordBins(
        "alice", TASK.digest() if digest is None else digest, bins=T, file=folder / "alice.bins", payer=purse
    )


def test_no_number_is_begun_twice_or_after_a_later_one(tmp_path: Path) -> None:
    """By one process, or by one for each question: whatever a server repeats."""
    last = -1
    for number in (0, 0, 1, 3, 2, 1, 3, 4, 0, 4, 5):
        if number > last:
            opened(tmp_path).begin("small-1", number, RECORDS)
            last = number
            continue
        said = f"round: expected a number above {last}, up to which alice has trained .*, found {number}"
        with pytest.raises(ProtocolError, match=said):
            opened(tmp_path).begin("small-1", number, RECORDS)
    assert last == 5


def test_runs_and_tasks_count_apart_under_one_key(tmp_path: Path) -> None:
    bins = opened(tmp_path)
    bins.begin("small-1", 7 * T, RECORDS)
    bins.begin("small-2", 0, RECORDS)
    opened(tmp_path, digest=bytes(32)).begin("small-1", 0, RECORDS)
    with pytest.raises(ProtocolError, match="expected a number above 28"):
        bins.begin("small-1", 0, RECORDS)
    assert opened(tmp_path, digest=bytes(32)).key == bins.key


def test_keys_are_secret_and_of_the_operating_system(tmp_path: Path) -> None:
    keys = {opened(tmp_path / str(i)).key for i in range(20)}
    assert {len(key) for key in keys} == {32}
    assert len(keys) == 20
    file = tmp_path / "0" / "alice.bins"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("number", [1, 2, T - 1, 3 * T + 1])
def test_a_client_that_lost_its_file_waits_for_an_epoch_to_begin(tmp_path: Path, number: int) -> None:
    """It cannot know that it was not in this epoch under the key that is gone."""
    first = opened(tmp_path)
    first.begin("small-1", number // T * T, RECORDS)
    (tmp_path / "alice.bins").unlink()
    second = opened(tmp_path)
    assert second.key != first.key
    with pytest.raises(ProtocolError, match=rf"round: expected the first of an epoch of {T}, .* found {number}"):
        second.begin("small-1", number, RECORDS)
    second.begin("small-1", (number // T + 1) * T, RECORDS)
    with pytest.raises(StateFileError, match=r"expected its own key in line 1 of .*, found another one"):
        first.begin("small-1", (number // T + 1) * T + 1, RECORDS)


def test_a_file_that_is_put_back_for_all_to_read_is_closed_again(tmp_path: Path) -> None:
    """A copy has the mode that whoever copied gave it."""
    file = tmp_path / "alice.bins"
    key = opened(tmp_path).key
    file.chmod(0o644)
    assert opened(tmp_path).key == key
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_process_whose_file_goes_while_it_runs_trains_no_more(tmp_path: Path) -> None:
    bins = opened(tmp_path)
    (tmp_path / "alice.bins").unlink()
    with pytest.raises(StateFileError, match=r"expected a key in line 1 of .*, found none"):
        bins.begin("small-1", 0, RECORDS)


def test_a_client_that_missed_the_beginning_of_an_epoch_comes_in_later(tmp_path: Path) -> None:
    """Its file knows that it was in no round of that epoch: it was in an earlier one."""
    opened(tmp_path).begin("small-1", 1 * T, RECORDS)
    opened(tmp_path).begin("small-1", 2 * T + 2, OTHERS)


def test_records_that_changed_are_in_no_more_rounds_of_an_epoch(tmp_path: Path) -> None:
    """However often the process is started; those that it began with are, if they come back."""
    records = {0: RECORDS, 1: OTHERS, 2: RECORDS, 3: OTHERS, T: OTHERS, T + 1: RECORDS}
    found = {number: opened(tmp_path).begin("small-1", number, own) for number, own in records.items()}
    assert found == {0: True, 1: False, 2: True, 3: False, T: True, T + 1: False}


def test_half_a_line_of_a_process_that_died_never_was(tmp_path: Path) -> None:
    """Cut at each byte of a round's line: the round was not begun, and is begun once."""
    bins = opened(tmp_path)
    bins.begin("small-1", 0, RECORDS)
    before = (tmp_path / "alice.bins").read_bytes()
    bins.begin("small-1", 1, RECORDS)
    whole = (tmp_path / "alice.bins").read_bytes()
    for end in range(len(before), len(whole)):
        (tmp_path / "alice.bins").write_bytes(whole[:end])
        opened(tmp_path).begin("small-1", 1, RECORDS)
        assert (tmp_path / "alice.bins").read_bytes() == whole
        with pytest.raises(ProtocolError, match="expected a number above 1"):
            opened(tmp_path).begin("small-1", 1, RECORDS)


def test_a_round_whose_line_the_disk_does_not_take_is_not_begun(tmp_path: Path) -> None:
    """The disk has room for half of it: the client trains for the round once there is more."""
    bins, file = opened(tmp_path), tmp_path / "alice.bins"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 20, before[1]))
    try:
        with pytest.raises(StateFileError, match=r"expected a file of bins to .*alice\.bins: the disk is full$"):
            bins.begin("small-1", 0, RECORDS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert bins.begin("small-1", 0, RECORDS)


def test_half_a_key_is_none_yet(tmp_path: Path) -> None:
    key = opened(tmp_path).key
    (tmp_path / "alice.bins").write_bytes((tmp_path / "alice.bins").read_bytes()[:-1])
    assert opened(tmp_path).key != key


@pytest.mark.parametrize("line", [b"", b"key 12", b"0 1", b"ab" * 32 + b" small-1 01 " + b"ab" * 32])
def test_a_damaged_line_stops_the_client(tmp_path: Path, line: bytes) -> None:
    bins = opened(tmp_path)
    with (tmp_path / "alice.bins").open("ab") as file:
        file.write(line + b"\n")
    with pytest.raises(StateFileError, match=r"expected digests, a task and a number in line 2 of .*; nothing is up"):
        bins.begin("small-1", 0, RECORDS)


@pytest.mark.parametrize("first", [b"key 12\n", b"\n", b"nonsense\n", b"key " + b"zz" * 32 + b"\n"])
def test_a_damaged_key_is_not_replaced(tmp_path: Path, first: bytes) -> None:
    (tmp_path / "alice.bins").write_bytes(first)
    with pytest.raises(StateFileError, match=r"expected a key in line 1 of .*, found none"):
        opened(tmp_path)
    assert (tmp_path / "alice.bins").read_bytes() == first


@pytest.mark.parametrize("task_id", ["", "two words", "line\nbreak", "x" * 201])
def test_a_task_id_that_would_break_a_line_is_refused(tmp_path: Path, task_id: str) -> None:
    purse = Purse()
    bins = opened(tmp_path, purse)
    before = (tmp_path / "alice.bins").read_bytes()
    with pytest.raises(ProtocolError, match="task: expected a task id without spaces"):
        bins.begin(task_id, 0, RECORDS)
    assert (tmp_path / "alice.bins").read_bytes() == before
    assert purse.paid == 0


def test_of_many_processes_that_begin_a_number_at_once_one_does(tmp_path: Path) -> None:
    bins = [opened(tmp_path) for _ in range(8)]
    begun: list[int] = []

    def begin(one: RecordBins, i: int) -> None:
        for number in range(T):
            try:
                one.begin("small-1", number, RECORDS)
                begun.append(number)
            except ProtocolError:
                pass

    threads = [threading.Thread(target=begin, args=(one, i)) for i, one in enumerate(bins)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(begun) == len(set(begun))
    assert begun


def test_an_epoch_is_paid_once_whoever_is_restarted(tmp_path: Path) -> None:
    purse = Purse()
    for number in (0, 1, 3, T, 2 * T + 1):
        opened(tmp_path, purse).begin("small-1", number, RECORDS)
    assert purse.paid == 3


def test_a_limit_that_is_set_in_the_middle_of_an_epoch_pays_for_it(tmp_path: Path) -> None:
    """Records may be in the rounds that are left. Once is enough, whoever has a payer and who not."""
    purse = Purse()
    opened(tmp_path).begin("small-1", 0, RECORDS)
    opened(tmp_path, purse).begin("small-1", 1, RECORDS)
    assert purse.paid == 1
    opened(tmp_path).begin("small-1", 2, RECORDS)
    opened(tmp_path, purse).begin("small-1", 3, RECORDS)
    assert purse.paid == 1
    empty = Purse(room=0)
    opened(tmp_path).begin("small-1", T, RECORDS)
    with pytest.raises(ArgumentError, match="no room"):
        opened(tmp_path, empty).begin("small-1", T + 1, RECORDS)


def test_an_epoch_that_cannot_be_paid_is_not_begun(tmp_path: Path) -> None:
    purse = Purse(room=1)
    opened(tmp_path, purse).begin("small-1", 0, RECORDS)
    opened(tmp_path, purse).begin("small-1", 1, RECORDS)
    before = (tmp_path / "alice.bins").read_bytes()
    with pytest.raises(ArgumentError, match="no room"):
        opened(tmp_path, purse).begin("small-1", T, RECORDS)
    assert (tmp_path / "alice.bins").read_bytes() == before
