"""A task that a later one counts as finished goes on no more: what it charged from then on would count nowhere."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from structlog.testing import capture_logs

from precad.deploy.errors import exit_code_of
from precad.dp.ledgers.earlier import earlier_tasks
from precad.protos.tls.identity import Role
from precad.servers.errors import SetupError
from precad.servers.store.counted import MARK, counting, mark_counted
from precad.servers.store.folder import ledger_path, open_ledger
from precad.servers.store.rehearsal import require_aggregator_opens
from precad.servers.store.state import TaskState
from tests.harness.harness import small_task

TASK = small_task()
INITIAL = np.zeros(TASK.dim, dtype=np.float32)
REFUSAL = "state_dir: expected a task that no later one counts as finished, found {}, which counts it: "


def start(folder: Path) -> None:
    """Do what `serve` does with its folder."""
    with ExitStack() as stack:
        TaskState.open(stack, folder, TASK, INITIAL)


def refused(folder: Path) -> str:
    """Return why the server does not start, and require `precad check` to say the same."""
    with pytest.raises(SetupError) as at_start:
        start(folder)
    with pytest.raises(SetupError) as at_check:
        require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL)
    assert str(at_start.value) == str(at_check.value)
    assert exit_code_of(at_start.value) == 2
    return str(at_start.value)


def counted(folder: Path, later: Path, *, charges: int) -> Path:
    """Return the ledger of a later task, which counts the one of `folder` and has charged so many rounds."""
    earlier = earlier_tasks([(ledger_path(folder), 4)])
    with open_ledger(later, TASK, earlier) as ledger:
        mark_counted(earlier, ledger_path(later))
        for number in range(charges):
            ledger.charge(number, ["alice"])
    return ledger_path(later)


def test_a_task_goes_on_no_more_once_a_later_one_that_counts_it_has_charged(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    start(folder)
    ledger = counted(folder, tmp_path / "later", charges=1)
    assert refused(folder).startswith(REFUSAL.format(ledger))
    ledger.unlink()  # who knows what it held
    assert refused(folder).startswith(REFUSAL.format(ledger))


def test_a_later_task_that_has_charged_nothing_bars_nobody(tmp_path: Path) -> None:
    """The earlier one goes on, and the later one then refuses to: its ledger counts another state of it."""
    folder, later = tmp_path / "state", tmp_path / "later"
    start(folder)
    counted(folder, later, charges=0)
    start(folder)
    with open_ledger(folder, TASK) as ledger:
        ledger.charge(0, ["alice"])
    with pytest.raises(SetupError, match="earlier_ledgers: expected those that"):
        open_ledger(later, TASK, earlier_tasks([(ledger_path(folder), 4)]))


def test_a_later_task_that_runs_bars_the_earlier_one_before_it_charges(tmp_path: Path) -> None:
    folder, later = tmp_path / "state", tmp_path / "later"
    start(folder)
    ledger = counted(folder, later, charges=0)
    with open_ledger(later, TASK):
        assert refused(folder).startswith(REFUSAL.format(ledger))
    start(folder)


def test_a_task_that_is_over_opens_all_the_same(tmp_path: Path) -> None:
    """To be looked at; it charges nothing more."""
    folder, task = tmp_path / "state", small_task(rounds=1, epsilon_budget_one_server=1e-9)
    with ExitStack() as stack:
        assert TaskState.open(stack, folder, task, INITIAL).why_over is not None
    counted(folder, tmp_path / "later", charges=1)
    with ExitStack() as stack:
        TaskState.open(stack, folder, task, INITIAL)


def test_each_later_ledger_is_marked_once(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    start(folder)
    for _ in range(2):
        later = [counted(folder, tmp_path / name, charges=0) for name in ("with a space", "später")]
    assert len((folder / MARK).read_text().splitlines()) == 2
    for ledger in later:
        with open_ledger(ledger.parent, TASK) as again:
            again.charge(0, ["alice"])
    assert counting(folder) == later


@pytest.mark.parametrize(
    "spoil", [lambda mark: mark.write_bytes(b'"torn'), lambda mark: mark.write_bytes(b"\xff\n"), Path.mkdir]
)
def test_a_damaged_mark_is_named_and_bars(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "state"
    start(folder)
    spoil(folder / MARK)
    with pytest.raises(SetupError, match=f"^state_dir: expected a later ledger a line in {folder / MARK}, found: "):
        start(folder)


def test_a_ledger_beside_which_nothing_can_be_written_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    start(folder)
    (folder / MARK).mkdir()
    with capture_logs() as said:
        counted(folder, tmp_path / "later", charges=0)
    (line,) = said
    assert (line["event"], line["ledger"]) == ("aggregator.earlier_task_unmarked", str(ledger_path(folder)))
