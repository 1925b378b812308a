"""`precad check` of a server whose ledger counts earlier tasks: what it will state, before the task and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from precad.deploy.shown.figures import three_digits
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import Conduct, View
from precad.dp.ledgers.earlier import described
from precad.protos.messages.spoken import shown
from precad.protos.task.task import Task
from precad.servers.errors import ServerError
from precad.servers.store import audit_log
from precad.servers.store.folder import ledger_path, open_ledger, store_path


def named_earlier(earlier: Sequence[EarlierTask]) -> dict[str, str]:
    """Say which earlier tasks a server counts, for operators to compare: both must count the same.

    A task is named by its id, which both servers know, where its log is beside its ledger.
    """
    paths = {task.path for task in earlier if task.path is not None}
    return {"earlier_tasks": described(earlier, {path: _id_of(path) for path in paths})}


def _id_of(ledger: Path) -> str:
    """Return the id of the task whose ledger this is; its path where the folder does not say."""
    if ledger != ledger_path(ledger.parent):
        return str(ledger)
    try:
        log = audit_log.read(store_path(ledger.parent))
    except (ServerError, OSError):
        return str(ledger)
    return shown(next((entry.fields["task"] for entry in log if entry.kind == "task"), str(ledger)))


def with_tasks(task: Task, earlier: Sequence[EarlierTask]) -> dict[str, str]:
    """Say what a new ledger of the task states that counts these. Raises: SetupError, DpError.

    Ledgers of earlier versions do not say what a task's figures rest on, such as a factor of a function of its sum.
    """
    if not earlier or not task.rules.is_private:
        return {}
    with TemporaryDirectory(prefix="precad-check-") as scratch, open_ledger(Path(scratch), task, earlier) as ledger:
        before, in_the_end = (
            three_digits(ledger.statement(View.ONE_SERVER, conduct=conduct).epsilon)
            for conduct in (Conduct.WATCHES, Conduct.MAY_DISCARD)
        )
    said = f"{before} before the first round; if it may discard draws, in the end {in_the_end}"
    return {"privacy_with_earlier_tasks": f"against one server {said}; if what the earlier figures rest on holds, too"}
