"""`server_main`, killed with SIGKILL at a point around the use of its tuples.

The points are before-mask, after-mask, first-upload and after-check.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precad.mpc.tuples.burning import TupleUse
from precad.protos.tls.identity import Role
from precad.servers.rounds.receiving import Upload
from precad.servers.store.burnt_tuples import TupleLedger
from tests.harness import server_main


def main(folder: Path, role: Role, point: str) -> None:
    """Runs the server until then."""
    burn, begin = TupleLedger.burn, Upload.begin

    def die(here: str) -> None:
        if here == point:
            os.kill(os.getpid(), signal.SIGKILL)

    def burn_and_die(self: TupleLedger, task: str, round: int, clients: Mapping[int, str], use: TupleUse) -> None:
        die(f"before-{use}")
        burn(self, task, round, clients, use)
        die(f"after-{use}")

    def begin_and_die(self: Upload, *args: Any) -> None:
        die("first-upload")
        begin(self, *args)

    TupleLedger.burn = burn_and_die  # type: ignore[method-assign]
    Upload.begin = begin_and_die  # type: ignore[method-assign]
    server_main.main(folder, role)
