"""Subprocess of test_ledger: charges round after round and acknowledges each on stdout, until it is killed."""

import itertools
import sys
from pathlib import Path

from precad.dp.accountants.pld import SampledGaussian, View
from precad.dp.ledgers.ledger import Ledger

EVENTS = {View.ONE_SERVER: SampledGaussian(0.05, 1.5), View.CLIENTS_ONLY: SampledGaussian(0.05, 2.1)}
DELTA = 1e-5


def clients_of(round_number: int) -> list[str]:
    """Return who takes part: enough names that a line spans some hundred bytes and can be torn."""
    return [f"client-{(round_number * 7 + i) % 50:02d}" for i in range(round_number % 50)]


if __name__ == "__main__":
    ledger = Ledger(Path(sys.argv[1]), events=EVENTS, delta=DELTA)
    for round_number in itertools.count(max(ledger.rounds, default=-1) + 1):
        ledger.charge(round_number, clients_of(round_number))
        print(round_number, flush=True)
