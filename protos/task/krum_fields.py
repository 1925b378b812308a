"""Fields of a task whose servers add up the updates that are closest to their neighbours (`krum`, `multi-krum`).

For comparison with PRECAD: no noise is added, so that nothing is proved for anybody. What servers learn beside the sum
is nothing, by docs/reference/protocol-krum.md; but the sum itself is one client's update, or that of few.
Source: Blanchard, El Mhamdi, Guerraoui and Stainer, NeurIPS '17.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Protocol

from pydantic import BaseModel, ConfigDict, Field

from precad.protos.task.proved_fields import MODE as PROVED
from precad.protos.task.quantile import LEARNT
from precad.protos.task.trim_fields import MOST_DEALT

if TYPE_CHECKING:
    from precad.mpc.norm_bound import NormBound
    from precad.mpc.robust.krum import Krum
    from precad.protos.task.algorithms import AlgorithmRules

MOST_EXPECTED: Final = 64
"""Expected clients of a round at most: each three of them take a comparison of shared distances. A round of more than
128, which is no round of so many expected ones, ends the task."""


class KrumFields(BaseModel):
    """A part of `precad.protos.task.task.Task`. The text has them where they are not at their default."""

    model_config = ConfigDict(defer_build=True)

    krum_attackers: Annotated[int, Field(ge=0, le=1_000_000)] = 1
    """`krum`, `multi-krum`: f, how many of a round's m accepted updates are attackers', at most. Krum's guarantee needs
    m >= 2f + 3; a score adds up the m - f - 2 least distances."""
    krum_keep: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """`multi-krum`: how many updates are averaged, all where fewer are accepted. None: m - f."""


class _Selecting(Protocol):
    """A task, as far as Krum's rule needs it."""

    clients: dict[str, int]
    dim: int
    krum_attackers: int
    krum_keep: int | None

    @property
    def mode(self) -> str: ...
    @property
    def rules(self) -> AlgorithmRules: ...
    @property
    def checks_norms(self) -> bool: ...
    @property
    def update_clipping(self) -> str: ...
    @property
    def expected_clients(self) -> float: ...
    @property
    def norm_bound(self) -> NormBound: ...


@dataclass(frozen=True)
class KrumRule:
    """Which of a round's accepted updates are added up."""

    task: _Selecting

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


def refuse_krum(task: _Selecting) -> None:
    """Refuse Krum's rule in a task whose servers cannot compute it, or that says two things. Raises ValueError."""
    if not task.rules.selects:
        return
    name, n = task.rules.name, len(task.clients)
    if task.mode == PROVED:
        raise ValueError(f"mode: expected one with a dealer with algorithm {name!r}, whose distances are shared there")
    if not task.checks_norms:
        raise ValueError(f"validation: expected 'norm' with algorithm {name!r}, whose distances are of checked updates")
    if task.update_clipping in LEARNT:
        raise ValueError(f"update_clipping: expected a fixed bound with algorithm {name!r}, found a learnt one")
    if task.expected_clients > MOST_EXPECTED:
        raise ValueError(
            f"client_rate: expected at most {MOST_EXPECTED} clients of a round with algorithm {name!r}, which compares "
            f"two distances from each of them, found {task.expected_clients:g}"
        )
    if (words := task.expected_clients * (task.dim + 1)) > MOST_DEALT:
        raise ValueError(
            f"dim: expected at most 2^28 dealt words of a round with algorithm {name!r}, dim + 1 for each expected "
            f"client, found {words:.3g}"
        )
    if 2 * task.krum_attackers + 3 > n:
        raise ValueError(
            f"krum_attackers: expected 2 f + 3 <= {n}, the enrolled clients, without which Krum promises nothing, "
            f"found {task.krum_attackers}"
        )
    if task.krum_keep is not None and task.krum_keep > n:
        raise ValueError(f"krum_keep: expected at most the {n} enrolled clients, found {task.krum_keep}")
