"""`precad check` on a state folder: it refuses what the server's start refuses, with its code, and changes nothing."""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from precad.deploy.errors import exit_code_of
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.errors import DpError
from precad.dp.ledgers.earlier import earlier_tasks
from precad.protos.tls.identity import Role
from precad.servers.dealer import LEDGER_NAME
from precad.servers.errors import SetupError, StoreError
from precad.servers.store import rehearsal
from precad.servers.store.dealt_parts import DealLedger
from precad.servers.store.folder import ledger_path, open_ledger, store_path
from precad.servers.store.rehearsal import require_aggregator_opens, require_dealer_opens
from precad.servers.store.state import TaskState
from tests.harness.harness import small_task

TASK = small_task()
INITIAL = np.zeros(TASK.dim, dtype=np.float32)


def start(folder: Path, earlier: Sequence[EarlierTask] | None = None) -> None:
    """Do what `serve` does with its folder."""
    with ExitStack() as stack:
        TaskState.open(stack, folder, TASK, INITIAL, earlier=earlier)


def content(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    found = {path: path.stat() for path in sorted(folder.rglob("*")) if path.is_file()}
    return {str(path): (path.read_bytes(), was.st_mtime_ns, was.st_mode) for path, was in found.items()}


def of_another_task(folder: Path) -> None:
    with ExitStack() as stack:
        state = TaskState.open(stack, folder, small_task(name="other"), INITIAL)
        state.store.begin("other-1", Role.AGGREGATOR_B)


def charged_for_a_lost_round(folder: Path) -> None:
    with ExitStack() as stack:
        TaskState.open(stack, folder, TASK, INITIAL).ledger.charge(5, ["alice"])


def torn_ledger(folder: Path) -> None:
    start(folder)
    with ledger_path(folder).open("ab") as file:
        file.write(b'{"round":0,"clients":["nobody"],"chain":"00"}\n')


def no_database(folder: Path) -> None:
    start(folder)
    store_path(folder).write_bytes(b"no database" * 100)


def sticky(folder: Path) -> None:
    start(folder)
    folder.chmod(0o1777)


def no_folder(folder: Path) -> None:
    folder.write_text("a file")


SPOILT = (of_another_task, charged_for_a_lost_round, torn_ledger, no_database, sticky, no_folder)


@pytest.mark.parametrize("spoil", SPOILT, ids=lambda spoil: spoil.__name__)
def test_what_the_start_refuses_is_refused_and_nothing_changes(spoil: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "state"
    spoil(folder)
    before = content(tmp_path)
    with pytest.raises((SetupError, StoreError, DpError)) as refused:
        require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL)
    assert content(tmp_path) == before
    with pytest.raises((SetupError, StoreError, DpError)) as start_refused:
        start(folder)
    assert str(refused.value) == str(start_refused.value)
    assert exit_code_of(refused.value) == exit_code_of(start_refused.value)


def test_the_folder_of_the_other_server_is_refused(tmp_path: Path) -> None:
    """As the start refuses it, once it meets the other one."""
    folder, task_id = tmp_path / "state", f"{TASK.name}-0123456789abcdef"
    with ExitStack() as stack:
        TaskState.open(stack, folder, TASK, INITIAL).store.begin(task_id, Role.AGGREGATOR_B)
    require_aggregator_opens(folder, TASK, Role.AGGREGATOR_B, INITIAL)
    before = content(tmp_path)
    with pytest.raises(SetupError) as refused:
        require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL)
    assert content(tmp_path) == before
    with pytest.raises(SetupError) as start_refused, ExitStack() as stack:
        TaskState.open(stack, folder, TASK, INITIAL).store.begin(task_id, Role.AGGREGATOR_A)
    assert str(refused.value) == str(start_refused.value)


def test_files_that_change_under_the_copy_are_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server works in the folder: the ledger was copied while a line was half there. One that opens is taken."""
    folder, stamps, n_asked = tmp_path / "state", rehearsal._stamps, itertools.count()
    start(folder)
    monkeypatch.setattr(rehearsal, "_stamps", lambda where: dict.fromkeys(stamps(where), (next(n_asked), 0)))
    monkeypatch.setattr(rehearsal, "_copy_one", _half(rehearsal._copy_one))
    with pytest.raises(SetupError, match=r"state_dir: expected files that stay as they are .*its server works there$"):
        require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL)


def _half(copy: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    def copied(path: Path, there: Path) -> None:
        copy(path, there)
        if there.name == "ledger.jsonl":
            there.write_bytes(b'{"round":0,"clie\n')

    return copied


def test_other_earlier_ledgers_than_the_ledger_was_started_with_are_refused(tmp_path: Path) -> None:
    """As the start refuses them: added to a task, taken from it, or with another bound. Also beside a database."""
    before, folder = tmp_path / "before", tmp_path / "state"
    with open_ledger(before, TASK) as ledger:
        ledger.charge(0, ["alice"])
    counted, other = (earlier_tasks([(ledger_path(before), most)]) for most in (5, 6))
    for started, named in (((), counted), (counted, other), (counted, ())):
        shutil.rmtree(folder, ignore_errors=True)
        start(folder, started)
        kept = content(tmp_path)
        with pytest.raises(SetupError, match=r"^earlier_ledgers: expected .*; found ") as refused:
            require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL, named)
        require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL, started)
        assert content(tmp_path) == kept
        with pytest.raises(SetupError) as start_refused:
            start(folder, named)
        assert str(refused.value) == str(start_refused.value)
        store_path(folder).unlink()
        with pytest.raises(SetupError, match=re.escape(str(refused.value))):
            require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL, named, has_database=True)
        require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL, started, has_database=True)


def test_the_earlier_ledgers_are_told_by_file_rounds_and_chain(tmp_path: Path) -> None:
    """No line of Python, and what the operator has to look at."""
    before, folder = tmp_path / "before", tmp_path / "state"
    with open_ledger(before, TASK) as ledger:
        ledger.charge(0, ["alice"])
        chain = ledger.chain[:16]
    start(folder, earlier_tasks([(ledger_path(before), 5)]))
    with pytest.raises(SetupError) as refused:
        start(folder, earlier_tasks([(ledger_path(before), None)]))
    assert str(refused.value) == (
        f"earlier_ledgers: expected those that {folder}/ledger.jsonl was started with, "
        f"1: a ledger (rounds 1, most_rounds 5, chain {chain}); "
        f"found 1: {before}/ledger.jsonl (rounds 1, most_rounds not known, chain {chain})"
    )


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    """It is not taken for a file that a server replaces: what is behind it would not be looked at."""
    folder = tmp_path / "state"
    start(folder)
    torn_ledger(folder)
    (folder / "checkpoints/link.npz").symlink_to(tmp_path / "nothing")
    with pytest.raises(SetupError, match=r"expected files to read, found .*No such file"):
        require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL)


def test_a_file_that_is_replaced_meanwhile_is_copied_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the list and the copy it is gone, once."""
    folder, copy_one, gone = tmp_path / "state", rehearsal._copy_one, [True]
    start(folder)

    def copied(path: Path, there: Path) -> None:
        if gone:
            gone.clear()
            raise FileNotFoundError(path)
        copy_one(path, there)

    monkeypatch.setattr(rehearsal, "_copy_one", copied)
    require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL)
    assert not gone


def test_a_folder_that_the_start_takes_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL)
    assert not folder.exists()
    start(folder)
    before = content(folder)
    require_aggregator_opens(folder, TASK, Role.AGGREGATOR_A, INITIAL)
    assert content(folder) == before


def test_a_dealers_folder_is_opened_too(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    require_dealer_opens(folder, LEDGER_NAME)
    assert not folder.exists()
    folder.mkdir(mode=0o700)
    DealLedger(folder / LEDGER_NAME).close()
    before = content(folder)
    require_dealer_opens(folder, LEDGER_NAME)
    assert content(folder) == before
    (folder / LEDGER_NAME).write_bytes(b"no database" * 100)
    with pytest.raises((SetupError, StoreError), match=str(folder / LEDGER_NAME)):
        require_dealer_opens(folder, LEDGER_NAME)
    folder.chmod(0o1777)
    with pytest.raises(SetupError, match="state_dir: expected a folder of this server alone"):
        require_dealer_opens(folder, LEDGER_NAME)
