"""Record durably what one client has answered, with a limit of its own, before an answer leaves the client.

Format. One JSON object per line, appended only, sealed as a ledger's lines are (`precad.dp.ledgers.ledger`):

    {"format":1,"answers_of":"alice","chain":"..."}
    {"query":"9f..","column":"age","noise_multiplier":7.1,"slack":0.0,"chain":"..."}

`noise_multiplier` is that of one record, or of all of a person's, against one server, without sampling. `slack` is what
the query's protocol takes from delta (`precad.dp.accountants.slack`). Answers to all queries count together, whatever
they ask. A charge that did not return counts neither, and its line is cut off. An answer that was charged and lost
stays charged.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

from precad.dp.accountants.composed import composed_epsilon
from precad.dp.accountants.pld import SampledGaussian, View
from precad.dp.accountants.slack import least_with_slack
from precad.dp.checks import require_delta, require_non_negative, require_positive
from precad.dp.errors import BudgetExceededError
from precad.dp.ledgers.sealed_file import KeepsSealedFile, SealedFile

_FORMAT: Final = 1
_FIELDS: Final = ["query", "column", "noise_multiplier", "slack"]


class Spending(KeepsSealedFile):
    """One client's answers, and their epsilon against one server. For one thread of one process.

    - `path`: the file, created if missing
    - `client`: whose answers they are
    - `limit_epsilon`, `delta`: no answer takes epsilon over the limit at this delta

    Raises: LedgerCorruptedError, LedgerInUseError, ValueError; and OSError as the file system gives it.
    """

    def __init__(self, path: Path, *, client: str, limit_epsilon: float, delta: float) -> None:
        require_positive("limit_epsilon", limit_epsilon)
        require_delta(delta)
        self._client, self._limit, self._delta = client, limit_epsilon, delta
        self._answers: list[tuple[float, float]] = []
        self._file = SealedFile(path, {"format": _FORMAT, "answers_of": client}, self._replay, "a record of answers")

    @property
    def epsilon(self) -> float:
        """Return the bound on what a record has lost to one server, by every answer so far."""
        return self._epsilon(self._answers)

    def require_room(self, noise_multiplier: float, slack: float = 0.0) -> None:
        """Raise BudgetExceededError if one more answer with that noise would pass the limit."""
        would_be = self._epsilon([*self._answers, (noise_multiplier, slack)])
        if not would_be <= self._limit:
            raise BudgetExceededError(view=View.ONE_SERVER, client=self._client, budget=self._limit, would_be=would_be)

    def charge(self, query: str, column: str, noise_multiplier: float, slack: float = 0.0) -> None:
        """Record one answer, on disk on return. query: digest of its task. slack: what its protocol takes from delta.

        Raises: BudgetExceededError; OSError if the write failed. In each case nothing may leave.
        """
        self.require_room(noise_multiplier, slack)
        self._file.append({"query": query, "column": column, "noise_multiplier": noise_multiplier, "slack": slack})
        self._answers.append((noise_multiplier, slack))

    def _epsilon(self, answers: list[tuple[float, float]]) -> float:
        rounds = [(SampledGaussian(1.0, multiplier), 1) for multiplier, _ in answers]
        slack = math.fsum(slack for _, slack in answers)
        return least_with_slack(lambda left: composed_epsilon(rounds, left), self._delta, slack)

    def _replay(self, fields: dict[str, Any]) -> None:
        """Count one answer read from the file. Raises ValueError."""
        if list(fields) != _FIELDS or isinstance(fields["noise_multiplier"], bool):
            raise ValueError(f"answer: expected {', '.join(_FIELDS)}, found the fields {', '.join(fields)}")
        require_positive("noise_multiplier", fields["noise_multiplier"])
        require_non_negative("slack", fields["slack"])
        self._answers.append((float(fields["noise_multiplier"]), float(fields["slack"])))
