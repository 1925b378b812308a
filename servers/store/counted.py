"""A mark beside a ledger that a later task counts as finished: the ledger's own task goes on no more.

What it charged from then on would count nowhere, and every figure of the later task would be too small. The mark is a
file of one later ledger a line. A later ledger that has charged nothing bars nobody: it is compared with the earlier
one again when its task starts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import structlog

from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.errors import LedgerCorruptedError
from precad.dp.ledgers.lines import read_lines
from precad.dp.ledgers.sealed_file import is_open, sync_folder
from precad.mpc.errors import raised_as
from precad.servers.errors import SetupError
from precad.servers.private_files import private

MARK: Final = "counted-by.jsonl"
log = structlog.get_logger(__name__)


def mark_counted(earlier: Sequence[EarlierTask], later: Path) -> None:
    """Mark the ledgers of earlier tasks as counted by the one at `later`, once each, on disk on return.

    Where nothing can be written beside one, the log says that its task must not go on.
    """
    line = f"{json.dumps(str(later.absolute()))}\n"
    for ledger in {task.path for task in earlier if task.path is not None}:
        mark = ledger.parent / MARK
        try:
            if not mark.exists() or line not in mark.read_text(encoding="utf-8").splitlines(keepends=True):
                with open(mark, "a", encoding="utf-8", opener=private) as file:
                    file.write(line)
                    file.flush()
                    os.fsync(file.fileno())
                sync_folder(mark.parent)
        except (OSError, ValueError) as error:
            why = "nothing here keeps its task from going on, whose rounds would count nowhere"
            log.warning("aggregator.earlier_task_unmarked", ledger=str(ledger), problem=str(error), reason=why)


def require_uncounted(state_dir: Path) -> None:
    """Require that no later task counts the ledger of this folder as finished. Raises SetupError."""
    if later := counting(state_dir):
        raise SetupError(
            f"state_dir: expected a task that no later one counts as finished, found {later[0]}, which counts it: its "
            f"rounds from now on would count nowhere; begin a new task, whose earlier_ledgers name {later[0]}"
        )


def counting(state_dir: Path) -> list[Path]:
    """Return the later ledgers that count this folder's and may have charged something. Raises SetupError."""
    mark = state_dir / MARK
    if not mark.exists():
        return []
    with raised_as(SetupError, (OSError, ValueError), f"state_dir: expected a later ledger a line in {mark}, found"):
        later = [Path(str(json.loads(line))) for line in mark.read_text(encoding="utf-8").splitlines()]
    return list(filter(_may_have_charged, later))


def _may_have_charged(ledger: Path) -> bool:
    """Tell whether a later ledger holds a charge, may get one now, or cannot be asked."""
    try:
        return is_open(ledger) or bool(read_lines(ledger)[1])
    except (OSError, LedgerCorruptedError):
        return True
