"""`precad check` of a server whose ledger counts earlier tasks: what it will state, before the task and after."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from precad.deploy.shown.figures import at_most
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import Conduct, View
from precad.protos.task.task import Task
from precad.servers.store.folder import open_ledger


def with_tasks(task: Task, earlier: Sequence[EarlierTask]) -> dict[str, str]:
    """Say what a new ledger of the task states that counts these. Raises: SetupError, DpError."""
    if not earlier or not task.rules.is_private:
        return {}
    with TemporaryDirectory(prefix="precad-check-") as scratch, open_ledger(Path(scratch), task, earlier) as ledger:
        before, in_the_end = (
            at_most(ledger.statement(View.ONE_SERVER, conduct=conduct).epsilon)
            for conduct in (Conduct.WATCHES, Conduct.MAY_DISCARD)
        )
    said = f"{before} before the first round; if it may discard draws, in the end {in_the_end}"
    return {"privacy_with_earlier_tasks": f"against one server {said}"}
