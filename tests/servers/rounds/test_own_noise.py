"""A server's own noise over the rounds of one meeting, in memory and in the spool.

Failure means one of these:
- the outputs are not the recursion's, or not what the servers' rounds add to their sums;
- outputs of one meeting enter the noise of the next;
- an output lies on a disk where another process can read it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from precad.protos.task.task import Task
from precad.servers.errors import StoreError
from precad.servers.rounds.own_noise import OwnNoise
from precad.servers.rounds.states import Opened
from precad.servers.rounds.uploads import Spool
from tests.harness.harness import asynchronous, small_task
from tests.servers.rounds.test_round import both_servers

DIM, SCALE = 5000, 1 << 16


def task_of(bands: int, **changes: Any) -> Task:
    """Four clients take turns of four rounds."""
    turns = {"algorithm": "user-dp-fedavg", "min_separation": 4, "noise_bands": bands}
    return small_task(("alice", "bob", "carol", "dave"), **{"dim": DIM, "noise_multiplier": 2.0, **turns, **changes})


class Source:
    """Draws that are kept, of the standard deviation that is asked for."""

    def __init__(self) -> None:
        self.stds: list[float] = []
        self.draws: list[NDArray[np.int64]] = []
        self._random = np.random.default_rng(5)

    def __call__(self, std: float, dim: int) -> NDArray[np.int64]:
        drawn = np.rint(self._random.normal(0, std, dim)).astype(np.int64)
        self.stds.append(std)
        self.draws.append(drawn.copy())
        return drawn


def spool_at(folder: Path, memory_bytes: int) -> Spool:
    return Spool(folder / "spool", most_bytes=8 * DIM, memory_bytes=memory_bytes, max_memory_upload=memory_bytes)


def expected(draws: list[NDArray[np.int64]], coefficients: tuple[int, ...]) -> list[NDArray[np.int64]]:
    """The recursion by whole vectors, of one block."""
    found: list[NDArray[np.int64]] = []
    for t, draw in enumerate(draws):
        past = sum((c * found[t - k] for k, c in enumerate(coefficients) if 0 < k <= t), np.zeros_like(draw))
        found.append(np.floor_divide(draw - past + SCALE // 2, SCALE))
    return found


@pytest.mark.parametrize("memory_bytes", [0, 1 << 30], ids=["spool", "memory"])
@pytest.mark.parametrize("bands", [2, 4])
def test_outputs_are_the_recursion_and_a_new_meeting_begins_a_new_block(
    bands: int, memory_bytes: int, tmp_path: Path
) -> None:
    """Seven rounds, then a meeting is lost, then three more: their noise is as if there had been none before."""
    task, source = task_of(bands), Source()
    with spool_at(tmp_path, memory_bytes) as spool:
        noise = OwnNoise(task, source, spool)
        first = [noise.draw().copy() for _ in range(7)]
        noise.close()
        second = [noise.draw().copy() for _ in range(3)]
        noise.close()
        assert spool.n_in_file == 0
    assert source.stds == [task.noise_std_on_grid * SCALE] * 10
    assert_array_equal(first, expected(source.draws[:7], task.strategy.coefficients))
    assert_array_equal(second, expected(source.draws[7:], task.strategy.coefficients))
    assert (second[1] != expected(source.draws[6:9], task.strategy.coefficients)[2]).any()


@pytest.mark.parametrize("mode", ["masked", "proved"])
@asynchronous
async def test_what_servers_release_has_the_noise_of_the_recursion(mode: str, tmp_path: Path) -> None:
    """Rounds with nobody in them. Independent noise of this size would cost more than is accounted for."""
    task = task_of(4, mode=mode, dim=24, rounds=4, **({"frac_bits": 8} if mode == "proved" else {}))
    stds: list[float] = []

    def draw(std: float, dim: int) -> NDArray[np.int64]:
        stds.append(std)
        return np.full(dim, int(std), dtype=np.int64)

    async with both_servers(task, tmp_path, noise=draw) as servers:
        for server in servers:
            server.link.begin(0, n_phases=2 if mode == "proved" else 1)
        for t in range(task.rounds):
            await asyncio.gather(*(server.runner.run_round(t) for server in servers))
        sums = [state.noisy_sum for state in servers[0].of_kind(Opened) if isinstance(state, Opened)]
    draws = [np.full(task.dim, int(task.noise_std_on_grid * SCALE), dtype=np.int64)] * task.rounds
    assert stds == [task.noise_std_on_grid * SCALE] * 2 * task.rounds
    assert_array_equal(sums, [2 * noise for noise in expected(draws, task.strategy.coefficients)])


def test_independent_noise_is_what_the_source_gives_and_nothing_is_kept(tmp_path: Path) -> None:
    task, source = task_of(1), Source()
    with spool_at(tmp_path, 0) as spool:
        noise = OwnNoise(task, source, spool)
        drawn = [noise.draw() for _ in range(3)]
        assert spool.n_in_file == 0
    assert source.stds == [task.noise_std_on_grid] * 3
    assert_array_equal(drawn, source.draws)


def test_the_spool_holds_no_output_that_others_can_read(tmp_path: Path) -> None:
    """Three outputs lie there, encrypted; no run of eight words of any output or draw is in the file."""
    task, source = task_of(4), Source()
    with spool_at(tmp_path, 0) as spool:
        noise = OwnNoise(task, source, spool)
        outputs = [noise.draw().copy() for _ in range(5)]
        written = (tmp_path / "spool").read_bytes()
        assert spool.n_in_file == 3
        assert len(written) >= 3 * 8 * DIM
        for words in (*outputs, *source.draws):
            assert not any(words[i : i + 8].astype("<i8").tobytes() in written for i in range(0, DIM, 500))
    assert not (tmp_path / "spool").exists()


def test_no_upload_stays_in_the_file_beside_past_noise(tmp_path: Path) -> None:
    """Its key goes with its round, but stays where memory is not overwritten: so the file ends behind the noise."""
    path, length = tmp_path / "spool", 8 * DIM
    with spool_at(tmp_path, 0) as spool:
        noise = OwnNoise(task_of(2), source := Source(), spool)
        first = noise.draw().copy()
        for order in ((0, 1, 2), (2, 0, 1)):
            uploads = [spool.new(length) for _ in order]
            for upload in uploads:
                upload.write(bytes(length))
            assert path.stat().st_size == 4 * length
            for which in order:
                uploads[which].discard()
            assert path.stat().st_size == length
        second = noise.draw().copy()
        assert_array_equal([first, second], expected(source.draws, task_of(2).strategy.coefficients))


def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> Callable[[], None]:
        raise OSError(28, "No space left on device")

    with spool_at(tmp_path, 0) as spool:
        noise = OwnNoise(task_of(2), Source(), spool)
        monkeypatch.setattr("precad.mpc.local.encrypted_region.os.pwrite", full)
        with pytest.raises(StoreError, match="no room for this server's last noise: No space left"):
            noise.draw()
        assert spool.n_in_file == 0
