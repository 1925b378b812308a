"""Require that a run folder's configuration is what its servers ran: figures and certificates follow from it."""

from __future__ import annotations

from pathlib import Path

from precad.deploy.errors import ConfigError, refusing
from precad.protos.task.task import Task
from precad.servers.errors import AuditError, SetupError
from precad.servers.store import audit_log
from precad.servers.store.folder import store_path


def require_own_task(state_dir: Path, task: Task, config: Path, *, where: str) -> None:
    """Refuse a configuration that the server's log does not name: one with fewer rounds would count less.

    A server whose log is in a database elsewhere has none here. where: a flag or a folder, as the error names it.

    Raises ConfigError.
    """
    if not store_path(state_dir).exists():
        return
    with refusing((AuditError, SetupError), f"{where}: expected the run's log, found"):
        log = audit_log.read(store_path(state_dir))
    ran = next((entry.fields["config"] for entry in log if entry.kind == "task"), None)
    if ran not in (None, task.digest().hex(), task.digest_before.hex()):
        raise ConfigError(f"{where}: expected the task {ran[:16]} in {config}, found {task.digest().hex()[:16]}")
