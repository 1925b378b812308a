"""A server's own noise at canaries' coordinates: what is kept is what was added, and of committed rounds alone."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from precad.servers.errors import SetupError
from precad.servers.store import canary_noise
from precad.servers.store.canary_noise import FILE, CanaryNoise, read
from tests.harness.harness import small_task

A, B = "aggregator-a", "aggregator-b"


@pytest.fixture(scope="module")
def task() -> Task:
    return small_task(clients={"alice": 5, "bob": 5, "eve": 4}, audit_clients=["eve"], client_clip=2.0, dim=204)


def drawn(std: float, dim: int) -> RingArray:
    """Integers that no two coordinates share."""
    return np.arange(dim, dtype=np.int64) + int(std) * 1000


def test_what_is_kept_is_the_noise_that_was_added_and_the_opened_sum(task: Task, tmp_path: Path) -> None:
    """The whole vector goes on to the round; of it the last four coordinates are kept, once the round is committed."""
    umask = os.umask(0)
    try:
        kept = CanaryNoise(tmp_path, task, A)
    finally:
        os.umask(umask)
    draw = kept.drawing(drawn)
    assert_array_equal(draw(1.0, 204), drawn(1.0, 204))
    draw(2.0, 204)  # the first round was lost
    kept.keep(7, np.full(204, 5, dtype=np.int64))
    kept.keep(8, np.zeros(204, dtype=np.int64))  # of which this process drew nothing
    kept.close()

    (number,) = found = read(tmp_path, task, A)
    assert number == 7
    assert_array_equal(found[7].noise, drawn(2.0, 204)[200:])
    assert_array_equal(found[7].total, [5, 5, 5, 5])
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_a_restart_goes_on_in_the_same_file(task: Task, tmp_path: Path) -> None:
    for number in (0, 3):
        kept = CanaryNoise(tmp_path, task, A)
        kept.drawing(drawn)(float(number), 204)
        kept.keep(number, np.zeros(204, dtype=np.int64))
        kept.close()
    assert sorted(read(tmp_path, task, A)) == [0, 3]


def test_another_servers_or_tasks_file_is_refused_and_so_is_a_changed_one(task: Task, tmp_path: Path) -> None:
    kept = CanaryNoise(tmp_path, task, A)
    kept.drawing(drawn)(1.0, 204)
    kept.keep(0, np.zeros(204, dtype=np.int64))
    kept.close()
    other = Task.model_validate(task.model_dump() | {"rounds": 99})
    for whose, role in ((task, B), (other, A)):
        with pytest.raises(SetupError, match="expected a file of canaries' noise"):
            CanaryNoise(tmp_path, whose, role)
        with pytest.raises(SetupError, match="expected a file of canaries' noise"):
            read(tmp_path, whose, role)
    path = tmp_path / FILE
    path.write_bytes(path.read_bytes().replace(b'"opened":"A', b'"opened":"B'))
    with pytest.raises(SetupError, match="expected a file of canaries' noise"):
        read(tmp_path, task, A)


def test_rounds_of_a_second_are_one_write(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen rounds wait for the disk once, and none of them is left out."""
    kept = CanaryNoise(tmp_path, task, A)
    draw, append, writes = kept.drawing(drawn), kept._file.append, list[int]()

    def counted(*lines: dict[str, object]) -> None:
        writes.append(len(lines))
        append(*lines)

    monkeypatch.setattr(kept._file, "append", counted)
    for number in range(16):
        draw(float(number), 204)
        kept.keep(number, np.zeros(204, dtype=np.int64))
    kept.close()
    assert sum(writes) == 16
    assert len(writes) <= 2
    assert [found.noise[0] for found in read(tmp_path, task, A).values()] == [200 + 1000 * t for t in range(16)]


def test_a_disk_that_is_full_costs_the_audit_rounds_and_the_task_none(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rounds before it are still read."""
    monkeypatch.setattr(canary_noise, "WRITE_EVERY_S", 0.0)
    kept = CanaryNoise(tmp_path, task, A)
    draw = kept.drawing(drawn)
    for number in range(3):
        draw(1.0, 204)
        if number == 1:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kept._file, "append", _full)
                kept.keep(number, np.zeros(204, dtype=np.int64))
                kept._thread.submit(int).result()
            kept._file.close()
        else:
            kept.keep(number, np.zeros(204, dtype=np.int64))
            kept._thread.submit(int).result()
    kept.close()
    assert sorted(read(tmp_path, task, A)) == [0]


def _full(*lines: object) -> None:
    raise OSError(28, "No space left on device")
