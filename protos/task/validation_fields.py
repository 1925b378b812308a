"""The field of a task that says whether its servers check norms, and what goes with a task whose servers do not.

PRECAD's faster form has privacy alone. Honest clients keep within C by themselves, so no statement about an honest
client or its records changes. Nothing bounds what a malicious one adds to the sum.
Source: PRECAD, Sec. 7. There clients do not clip to C, which is a C of at least R times the records of each.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel

from precad.protos.task.proved_fields import MODE as PROVED

UNCHECKED: Final = (
    "no norm is checked (task.validation = 'none'): a malicious client adds whatever it likes to the sum, and nothing "
    "is enforced"
)
"""Words for people, wherever a task or a run of one is shown."""


class ValidationFields(BaseModel, defer_build=True):
    """A part of `precad.protos.task.task.Task`. It came later: the text has it where it is not at its default."""

    validation: Literal["norm", "none"] = "norm"
    """Whether the servers check that each update is within C. `none`: privacy alone, and nothing is enforced. A
    malicious client then adds whatever it likes; honest ones keep within C by themselves."""

    @property
    def checks_norms(self) -> bool:
        """Return whether an update beyond C stays out of the sum."""
        return self.validation == "norm"


VALIDATION_FIELDS: Final = tuple(ValidationFields.model_fields)


def refuse_unchecked(mode: str, *, checks_norms: bool, is_query: bool) -> None:
    """Refuse a task without a check where its figures need the check. Raises ValueError."""
    if checks_norms:
        return
    if mode == PROVED:
        raise ValueError(
            "validation: expected 'norm' in mode 'proved', whose proofs are the check, found 'none'; mode 'masked' has "
            "tasks without one"
        )
    if is_query:
        raise ValueError("validation: expected 'norm' in a task with a query, whose answer it bounds, found 'none'")
