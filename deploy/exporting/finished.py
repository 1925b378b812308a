"""Read what an aggregator's folder proves of a task that is over: its model, what was released, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from precad.deploy.errors import ConfigError, refusing
from precad.deploy.oversight.log_audit import check_log
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import Conduct, PrivacyStatement, View
from precad.dp.accountants.task_cost import hid_draws
from precad.dp.ledgers.ledger import Ledger, Level
from precad.protos.messages import convert
from precad.protos.task.task import VERSION_BEFORE, Task
from precad.protos.tls.identity import Role
from precad.servers.errors import AuditError, SetupError
from precad.servers.store import audit_log
from precad.servers.store.folder import ledger_path, load_final_model, open_ledger, store_path

ROLES: Final = {"a": Role.AGGREGATOR_A, "b": Role.AGGREGATOR_B}
"""The aggregators by the letters of their sections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTask:
    """Hold one server's account of a task that is over. Its log and its ledger verify, belong to the task, and to one
    another."""

    task: Task
    task_id: str
    ended: str
    """Why no round follows."""
    n_committed: int
    n_charged: int
    """Rounds that the ledger counts: those that were committed, and attempts that paid in vain."""
    initial_model_sha256: str
    model_sha256: str
    parameters: NDArray[np.float32]
    """Parameters of the final model, (`Task.n_parameters`,)."""
    n_discarded: int
    """Draws that were given up before their charge (`Ledger.discarded_draws`)."""
    most_rounds: int | None
    """That a client can have been in, if draws may be discarded."""
    earlier: tuple[EarlierTask, ...]
    """Finished tasks that every statement counts as well."""
    views: Mapping[Conduct, Mapping[View, PrivacyStatement]]
    """Statements about what the algorithm protects, a record or a client, where most rounds were, or can have been.
    Where draws are hidden, none counts the rounds that a client was in."""
    levels: Mapping[Conduct, Mapping[Level, PrivacyStatement]]
    """Statements about a unit of any enrolled client, drawn or not, against clients only. A level without an account is
    left out."""
    log_chain: str
    n_log_entries: int
    ledger_chain: str

    @property
    def counts_hidden_draws(self) -> bool:
        """Return whether an earlier task that every statement counts hid who was drawn."""
        return hid_draws(self.earlier)


def read_finished(state_dir: Path, task: Task, role: Role) -> FinishedTask:
    """Read a finished task from a server's folder, which may be one that nothing can be written to.

    role: that of the server whose folder it is.

    Raises:
    - SetupError where a file is missing or damaged.
    - AuditError, LedgerCorruptedError where something was changed, or log and ledger are of different histories.
    - LedgerInUseError while the server runs.
    - ConfigError for another task's or the other server's folder, and for a task that is not over.
    """
    report = check_log(state_dir)
    log = audit_log.read(store_path(state_dir))
    begun = next((entry.fields for entry in log if entry.kind == "task"), None)
    if begun is None or begun["config"] != task.digest().hex():
        found = "one that never began" if begun is None else f"one whose digest is {begun['config'][:16]}"
        if begun is not None and begun["config"] == task.digest_before.hex():
            found = f"one of protocol {VERSION_BEFORE}: export it with the version of precad that ran it"
        raise ConfigError(f"{state_dir}: expected the task of digest {task.digest().hex()[:16]}, found {found}")
    if (kept_by := begun.get("role", role)) != role:  # logs of earlier versions do not say whose they are
        raise ConfigError(f"{state_dir}: expected the folder of {role}, found one of {kept_by}")
    releases = audit_log.releases(log, ("committed",))
    if log[-1].kind != "finished" or not releases:
        raise ConfigError(f"{state_dir}: expected a finished task, found {_standing(log[-1], len(releases), task)}")
    last = releases[max(releases)]
    vector = load_final_model(state_dir, task.dim)
    if (digest := convert.sha256(convert.model_to_bytes(vector)).hex()) != last["model"]:
        raise AuditError(f"model.npy: expected the released model {last['model'][:16]}, found {digest[:16]}")
    parameters = vector[: task.n_parameters]
    with _ledger(state_dir, task) as ledger:
        return FinishedTask(
            task=task,
            task_id=begun["task"],
            ended=log[-1].fields["reason"],
            n_committed=len(releases),
            n_charged=ledger.charged.n_charged,
            initial_model_sha256=begun["model"],
            model_sha256=convert.sha256(convert.model_to_bytes(parameters)).hex(),
            parameters=parameters,
            n_discarded=ledger.discarded_draws,
            most_rounds=ledger.most_rounds_of_a_client,
            earlier=ledger.cost.earlier,
            views={conduct: {view: _of_view(ledger, view, conduct, task) for view in View} for conduct in Conduct},
            levels={
                conduct: {
                    level: ledger.task_statement(level, _told(ledger, conduct))
                    for level in Level
                    if level in ledger.levels
                }
                for conduct in Conduct
            },
            log_chain=report["chain"],
            n_log_entries=len(log),
            ledger_chain=ledger.chain,
        )


def _of_view(ledger: Ledger, view: View, conduct: Conduct, task: Task) -> PrivacyStatement:
    """Return what is stated of a view. Where draws are hidden, all charged rounds count, as if a client were in each.

    The rounds of the client that was in most tell clients of draws, and a released statement tells them.
    """
    conduct = _told(ledger, conduct)
    said = ledger.statement(view, conduct=conduct)
    if conduct is not Conduct.WATCHES or not task.hides_draws:
        return said
    of_all = ledger.cost.of_view(view, ledger.charged.n_charged, ledger.charged.n_evaluations)
    most = ledger.statement(view, conduct=Conduct.MAY_DISCARD).epsilon  # what holds against more holds against less
    return replace(said, epsilon=min(of_all, most))


def _told(ledger: Ledger, conduct: Conduct) -> Conduct:
    """Return whose figures are stated. Where an earlier task hid draws, those of its actual rounds would tell them."""
    return Conduct.MAY_DISCARD if hid_draws(ledger.cost.earlier) else conduct


def _ledger(state_dir: Path, task: Task) -> Ledger:
    """Read it. It is whole: no server that has ended leaves an incomplete last line, and reading would leave it out."""
    path = ledger_path(state_dir)
    with refusing(OSError, f"{path}: expected a ledger that can be read and locked", SetupError):
        if not path.read_bytes().endswith(b"\n"):
            raise AuditError(f"{path}: expected whole lines, found one that is cut off at the end")
        return open_ledger(state_dir, task, only_reads=True)


def _standing(last: audit_log.Entry, n_committed: int, task: Task) -> str:
    fields: Mapping[str, Any] = last.fields
    why = f": {fields['reason']}" if "reason" in fields else ""
    return f"{n_committed} of {task.rounds} rounds, and last in its log {last.kind!r}{why}"
