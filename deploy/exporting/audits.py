"""Put the audit of a training beside its exported model, where both servers sign it as a file of the model.

It says what an attack showed, never what is guaranteed: the statement's epsilons stay the proved ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from precad.deploy.errors import ConfigError, ExportRefusedError, refusing
from precad.deploy.reporting.audits import FILE, Audit, read_audit, sentence_of
from precad.deploy.reporting.files import read_object
from precad.protos.task.task import Task

AUDIT: Final = FILE
NO_AUDIT: Final = "none"


def audit_for(task: Task, given: Path | None, run: Path | None) -> bytes | None:
    """Return the bytes of the audit to export: the given one, or that in a run's folder. None where there is none.

    An audit that trained anew is of another training: it is refused where it was given, and else left out.
    Raises ConfigError for a file that is no audit of this training.
    """
    path = run / AUDIT if given is None and run is not None else given
    if path is None or (given is None and not path.exists()):
        return None
    if not read_audit(path, task).task_digest:
        if given is None:
            return None
        raise ConfigError(f"--audit: expected an audit of the exported training, found one that trained anew: {path}")
    return path.read_bytes()


def verified_audit(folder: Path, configuration_sha256: str) -> str:
    """Return what an exported audit says, or that there is none.

    configuration_sha256: of the stated task. Raises ExportRefusedError for an audit of another one.
    """
    path = folder / AUDIT
    if not path.exists():
        return NO_AUDIT
    with refusing(ConfigError, refusal=ExportRefusedError):
        found = read_object(path, Audit)
    if found.task_digest != configuration_sha256:
        raise ExportRefusedError(f"{path}: expected an audit of the exported task, found another's")
    return sentence_of(found)
