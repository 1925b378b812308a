"""Rounds of earlier tasks that a task's figures count as well, as the client meets them that was in most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Self

from precad.dp.accountants.bins_event import BinnedGaussian
from precad.dp.accountants.pld import Release, SampledGaussian, Unit, View, event_fields, release_of
from precad.dp.checks import require_count, require_non_negative

CONDITIONS: Final = "rests_on"
"""Field of a header for what figures rest on, in words, which another version may say otherwise, or not at all."""
_WHOLE_CLIENT: Final = ("client", "hidden_client")
"""The levels of `precad.dp.accountants.task_cost` that are of no record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTask:
    """A finished task of the same clients. Rounds are steps where a round has several."""

    unit: Unit
    events: Mapping[View, Release | None]
    """A step as a unit of a client that takes part meets it; None: a step costs everything."""
    rounds: int
    """Steps of the client that was in most rounds."""
    most_rounds: int | None = None
    """The most that any client can have been in, fixed before that task; None: not known."""
    levels: Mapping[str, SampledGaussian]
    """A round by level, as if everybody were drawn."""
    slack: float = 0.0
    """Part of delta that its protocol took, as eta (`precad.dp.accountants.slack`)."""
    chain: str
    """The last line's chain of its ledger."""
    rests_on: Mapping[View, str] = field(default_factory=dict)
    """Conditions that its figures have beside them, in words; of no view where none is needed."""
    path: Path | None = field(default=None, compare=False)
    """The ledger that it was read from; None where another ledger's header names it."""

    def __post_init__(self) -> None:
        require_count("rounds", self.rounds)
        require_non_negative("slack", self.slack)
        if self.most_rounds is not None:
            require_count("most_rounds", self.most_rounds, at_least=self.rounds)

    def counted(self, *, discarded: bool) -> int | None:
        """Return the rounds that there were, or the most that there could be where draws may be discarded."""
        return self.most_rounds if discarded else self.rounds

    def of_groups(self, size: int) -> Self:
        """Return the same task as groups of so many records meet it: a later task may count other groups."""
        if self.unit is not Unit.RECORD:
            return self
        return replace(
            self,
            events={
                view: replace(event, group_size=size) if isinstance(event, SampledGaussian | BinnedGaussian) else event
                for view, event in self.events.items()
            },
            levels={
                level: event if level in _WHOLE_CLIENT else replace(event, group_size=size)
                for level, event in self.levels.items()
            },
        )

    def fields(self) -> dict[str, Any]:
        """Return what a ledger's header holds of it."""
        return {
            "unit": str(self.unit),
            "events": {
                str(view): None if event is None else event_fields(event) for view, event in self.events.items()
            },
            "rounds": self.rounds,
            "most_rounds": self.most_rounds,
            "levels": {level: event_fields(event) for level, event in self.levels.items()},
            "slack": self.slack,
            "chain": self.chain,
            **fields_of_conditions(self.rests_on),
        }

    @classmethod
    def of_fields(cls, fields: Mapping[str, Any]) -> Self:
        """Return what `fields` wrote. Raises KeyError, TypeError, ValueError for anything else."""
        events = {view: fields["events"][view] for view in View}
        return cls(
            unit=Unit(fields["unit"]),
            events={view: None if event is None else release_of(event) for view, event in events.items()},
            rounds=fields["rounds"],
            most_rounds=fields["most_rounds"],
            levels={level: SampledGaussian(**event) for level, event in fields["levels"].items()},
            slack=fields["slack"],
            chain=str(fields["chain"]),
            rests_on=conditions_of_fields(fields),
        )


def fields_of_conditions(rests_on: Mapping[View, str]) -> dict[str, Any]:
    """Return what a header holds of conditions by view: nothing where there are none."""
    return {CONDITIONS: {str(view): why for view, why in rests_on.items()}} if rests_on else {}


def conditions_of_fields(fields: Mapping[str, Any]) -> dict[View, str]:
    """Return the conditions among a header's fields, by view; those of earlier versions have none.

    Raises ValueError for anything else.
    """
    found = fields.get(CONDITIONS, {})
    if not isinstance(found, dict) or not all(isinstance(why, str) and why.isprintable() for why in found.values()):
        raise ValueError(f"{CONDITIONS}: expected words by view, found {found!a:.60}")
    return {View(view): why for view, why in found.items()}
