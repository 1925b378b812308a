"""Fields of a task whose servers add up the updates that are closest to their neighbours (`krum`, `multi-krum`).

For comparison with PRECAD: no noise is added, so that nothing is proved for anybody. What servers learn beside the sum
is nothing, by docs/reference/protocol-krum.md; but the sum itself is one client's update, or that of few.
Source: Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS '17.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from pydantic import BaseModel, Field

from precad.protos.task.parameters import TaskParameters
from precad.protos.task.trim_fields import refuse_unranked

if TYPE_CHECKING:
    from precad.mpc.robust.krum import Krum

MOST_EXPECTED: Final = 64
"""Expected clients of a round at most: each three of them take a comparison of shared distances. A round of more than
128, which is no round of so many expected ones, ends the task."""
_ROUNDING: Final = 1e-9
"""A rate times a number of clients may come out a little below the whole number that it is."""


class KrumFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`. The text has them where they are not at their default."""

    krum_attackers: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """`krum`, `multi-krum`: f, how many of a round's m accepted updates are attackers', at most. Krum's guarantee needs
    m >= 2f + 3; a score adds up the m - f - 2 least distances."""
    krum_keep: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """`multi-krum`: how many updates are averaged, all where fewer are accepted. None: m - f."""


@dataclass(frozen=True)
class KrumRule:
    """Which of a round's accepted updates are added up."""

    task: TaskParameters

    def n_kept(self, n_accepted: int) -> int:
        """Return how many: one, or krum_keep, or m - f; no more than there are."""
        task, wanted = self.task, 1
        if self._adds_several:
            wanted = max(1, n_accepted - task.krum_attackers) if task.krum_keep is None else task.krum_keep
        return min(wanted, n_accepted)

    def krum(self, n_accepted: int) -> Krum:
        """Return the parameters of a round with so many accepted updates."""
        from precad.mpc.robust.krum import Krum

        return Krum(self.task.norm_bound, self.task.krum_attackers, max(1, self.n_kept(n_accepted)))

    @property
    def least_accepted(self) -> int:
        """Return the accepted updates that a round needs for Krum's guarantee: 2f + 3."""
        return 2 * self.task.krum_attackers + 3

    @property
    def released(self) -> str:
        """Say what a round releases, wherever a task or a run of one is shown."""
        sum_of = "one client's update as it is"
        if self._adds_several and self.task.krum_keep != 1:
            keep, f = self.task.krum_keep, self.task.krum_attackers
            some = f"at most {keep}" if keep is not None else f"all but {f}" if f else "all"
            sum_of = f"the sum of {some} clients' updates"
        return f"not differentially private: a round releases {sum_of}, without noise"

    @property
    def _adds_several(self) -> bool:
        return "krum_keep" in self.task.rules.own_fields


def refuse_krum(task: TaskParameters) -> None:
    """Refuse Krum's rule in a task whose servers cannot compute it, or that says two things. Raises ValueError."""
    if not task.rules.selects:
        return
    compared, n = "two distances from each of them", task.expected_clients
    refuse_unranked(task, "distances", "distances are of checked updates", compared, MOST_EXPECTED)
    if KrumRule(task).least_accepted > n * (1 + _ROUNDING):
        raise ValueError(
            f"krum_attackers: expected 2 f + 3 <= {n:g}, the clients that a round expects, without which Krum promises "
            f"nothing, found {task.krum_attackers}"
        )
    if task.krum_keep is not None and task.krum_keep > n * (1 + _ROUNDING):
        raise ValueError(f"krum_keep: expected at most the {n:g} clients that a round expects, found {task.krum_keep}")
