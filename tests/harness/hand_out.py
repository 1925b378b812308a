"""A server process that hands out mask seeds of one batch, and may be killed on the way, with SIGKILL.

    python -m tests.harness.hand_out STATE_DIR before|burnt|replied CLIENT...

One process for each CLIENT, one after the other, forked before anything is opened. The batch is the same in every one:
the worst case, in which a restarted server has its old keys again. A line per reply: `CLIENT SEED` or `CLIENT refused`.
It kills itself at CLIENT's turn: before the tuple is burnt, between the burning and the reply, or after the reply. Its
last line: `exit CODE`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from pathlib import Path

from precad.mpc.errors import TupleReusedError
from precad.mpc.prg import Seed
from precad.mpc.tuples.correlations import AndBlock
from precad.mpc.tuples.held import DIGEST_BYTES, BatchShape, Dealt, ServerTuples
from precad.servers.store.folder import open_tuple_ledger

CLIENTS = ("alice", "bob", "carol", "dave")
SHAPE = BatchShape("small-0123456789abcdef", 3, CLIENTS, 24, (AndBlock(130),))
KEY = Seed(bytes(range(16)))
PART = Dealt(KEY, bytes(DIGEST_BYTES * len(CLIENTS)))
"""The part of server A. Nobody asks for its peer's seeds."""


def main(state_dir: Path, point: str, victim: str) -> None:
    """See the module."""

    def die(here: str, client: str) -> None:
        if (here, client) == (point, victim):
            os.kill(os.getpid(), signal.SIGKILL)

    with open_tuple_ledger(state_dir) as ledger:
        tuples = ServerTuples(0, SHAPE, PART, ledger)
        for client in CLIENTS:
            die("before", client)
            try:
                reply = tuples.hand_out_mask_seed(client).reveal().hex()
            except TupleReusedError:
                reply = "refused"
            die("burnt", client)
            os.write(1, f"{client} {reply}\n".encode())
            die("replied", client)


if __name__ == "__main__":
    for name in sys.argv[3:]:
        process = multiprocessing.get_context("fork").Process(target=main, args=(Path(sys.argv[1]), sys.argv[2], name))
        process.start()
        process.join()
        os.write(1, f"exit {process.exitcode}\n".encode())
