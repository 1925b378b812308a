"""How an aggregator starts the program that measures its models, and what the program is told.

The child gets no key, no token and no database's address. Its environment is made here: where Python and this package
are, and nothing else of the server's. Its standard input and output are pipes of the server.
"""

from __future__ import annotations

import json
import os
import tempfile
from typing import Final

from precad.deploy.localhost.processes import ONE_THREAD_EACH, isolated_python, our_code
from precad.protos.task.task import Task
from precad.servers.config import AggregatorConfig
from precad.servers.telemetry.quality import Program

_MODULE: Final = "precad.deploy.measuring.child"
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
"""Variables of the server that say where programs and libraries are."""


def program_of(task: Task, config: AggregatorConfig) -> Program | None:
    """Return the program; None where the section names no records."""
    if config.evaluation_records is None:
        return None
    opening = {
        "task": task.model_dump(mode="json"),
        "public": {
            "records": config.evaluation_records,
            "label": config.evaluation_label,
            "metrics": config.evaluation_metrics,
            "folder": str(config.evaluation_folder),
        },
    }
    return Program(
        command=(*isolated_python(), "-m", _MODULE),
        environment=_environment(),
        opening=json.dumps(opening).encode() + b"\n",
        timeout_s=config.evaluation_timeout_s,
    )


def _environment() -> dict[str, str]:
    kept = {name: value for name in _KEPT if (value := os.environ.get(name)) is not None}
    home = tempfile.gettempdir()  # libraries look for caches there; the user's own may hold keys
    return {**kept, **ONE_THREAD_EACH, "PYTHONDONTWRITEBYTECODE": "1", "HOME": home, **our_code()}
