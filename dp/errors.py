"""Errors of the dp package. A wrong argument is a ValueError naming the argument, the condition and the value.

Classes:

    DpError
    ├── BudgetExceededError    the coming round would spend more than a view allows
    ├── HolderLimitError       a payment would pass the limit of a holder's own ledger
    ├── UnsupportedEventError  an accountant was asked about a round it has no formula for
    ├── MostRoundsError        an earlier ledger holds more rounds of a client than there can have been
    ├── LedgerCorruptedError   a ledger file is not one this ledger could have written
    ├── LedgerInUseError       another process holds the ledger file
    └── LedgerClosedError      the ledger was closed, by its owner or after a failed write
"""

from pathlib import Path
from typing import Final

_LONGEST_PROBLEM: Final = 400


class DpError(Exception):
    """Base of every error this package raises about state, as opposed to arguments."""


class BudgetExceededError(DpError):
    """Charging the coming round would pass `budget` in `view`, a view or a level; for `client`, or for all. Nothing was
    charged."""

    def __init__(self, *, view: str, client: str | None, budget: float, would_be: float) -> None:
        whose = f"epsilon against {view}" if client is not None else f"epsilon of a {view.replace('_', ' ')}"
        who = f"for client {client!r}" if client is not None else "for every client"
        super().__init__(f"{whose} must stay <= {budget}, would be {would_be} {who} after this round")
        self.view = view
        self.client = client
        self.budget = budget
        self.would_be = would_be


class HolderLimitError(DpError):
    """One more payment would pass the limit of a holder's ledger. Nothing was paid.

    of_delta: what protocols take of delta would pass its share, whatever is left of epsilon.
    """

    def __init__(self, *, client: str, limit_epsilon: float, delta: float, of_delta: bool = False) -> None:
        what = "" if not of_delta else " in delta: a ledger of a smaller limit_epsilon or a larger delta has room"
        super().__init__(
            f"what the records of {client!r} lose in all tasks must stay <= {limit_epsilon:g} at delta = {delta:g}, "
            f"and one more round would pass that{what}"
        )
        self.client = client
        self.limit_epsilon = limit_epsilon
        self.delta = delta


class UnsupportedEventError(DpError):
    """`accountant` has no formula for `event`."""

    def __init__(self, accountant: str, event: object) -> None:
        super().__init__(f"event: expected rounds without sampling for {accountant}, found {event}")


class LedgerCorruptedError(DpError):
    """Line `line` of the ledger at `path` is not what a ledger with these parameters writes there.

    problem: may quote the line, so it reaches no terminal as a command: at most 400 characters, each printable.
    """

    def __init__(self, path: Path, *, line: int, problem: str) -> None:
        said = "".join(c if c.isprintable() else "?" for c in problem[:_LONGEST_PROBLEM])
        super().__init__(f"{path}, line {line}: {said}")
        self.path = path
        self.line = line


class MostRoundsError(DpError):
    """The ledger at `path` charged a client for `charged` rounds, more than the `most_rounds` that were given."""

    def __init__(self, path: Path, *, charged: int, most_rounds: int) -> None:
        super().__init__(
            f"most_rounds: expected at least {charged}, as {path} charged a client for so many, found {most_rounds}"
        )
        self.path = path


class LedgerInUseError(DpError):
    """Another process has the ledger at `path` open; two writers would each miss the other's charges."""

    def __init__(self, path: Path) -> None:
        super().__init__(f"{path}: expected no other process that has it open, found one")
        self.path = path


class LedgerClosedError(DpError):
    """The ledger takes no more charges. Open it again, which replays what is on disk."""

    def __init__(self) -> None:
        super().__init__("the ledger must be open to take a charge, and it is closed")
