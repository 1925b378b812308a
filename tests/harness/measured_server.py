"""One server as production runs it, with its peak of resident memory written down when its task is over.

    python -m tests.harness.measured_server FOLDER dealer|aggregator-a|aggregator-b

FOLDER holds deployment.json (the task, addresses, certificates, changes to the aggregators' configuration) and
initial.npy. Writes peak-ROLE, bytes.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from precad.lab.bench.machine import peak_rss
from precad.protos.task.task import Task
from precad.protos.tls.identity import Role
from precad.servers.aggregator import Aggregator
from precad.servers.dealer import Dealer
from precad.servers.freed_memory import overwrite_and_keep
from tests.harness.harness import AGGREGATORS, Pki


def main(folder: Path, role: Role) -> None:
    """See the module."""
    deployment = json.loads((folder / "deployment.json").read_text())
    task, pki, addresses = Task(**deployment["task"]), Pki(Path(deployment["pki"])), deployment["addresses"]
    overwrite_and_keep()
    if role is Role.DEALER:
        server: Dealer | Aggregator = Dealer(task=task, config=pki.dealer(listen=addresses[role], folder=folder))
    else:
        party, others = AGGREGATORS.index(role), (addresses[Role.AGGREGATOR_B], addresses[Role.DEALER])
        config = pki.aggregator(party, listen=addresses[role], folder=folder, **deployment["changes"])
        server = Aggregator(party=party, task=task, config=config, addresses=others)
    asyncio.run(server.run())
    (folder / f"peak-{role}").write_text(str(peak_rss()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Role(sys.argv[2]))
