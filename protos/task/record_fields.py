"""Fields of a task that say what a record is: columns, shape and the names of classes.

Clients with records of their own must read them alike. What they agree on stands in the task, and so in its digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Self

from pydantic import BaseModel, Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails

Finite = Annotated[float, Field(allow_inf_nan=False)]
MOST_PER_PERSON: Final = 1000
"""Records of one person, at most: beyond, figures take long and say nothing."""
LONGEST_NAME: Final = 256
"""Characters of the name of a column or a class, at most."""
Name = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]


def is_name(text: str) -> bool:
    """Return whether a text may name a class: neither empty nor long, without line breaks and escape codes."""
    return 0 < len(text) <= LONGEST_NAME and text.isprintable()


class Column(BaseModel, frozen=True, extra="forbid", defer_build=True, strict=True):
    """One column of a table, and the public constants that turn its cells into features."""

    name: Name
    """As the table's header has it."""
    mean: Finite = 0.0
    """A number x becomes the feature (x - mean) / std. Constants of the task, never a client's own statistics."""
    std: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    """See `mean`."""
    min: Finite | None = None
    """The least number that a cell may hold; None: no limit."""
    max: Finite | None = None
    """The largest, likewise."""
    missing: Finite | None = None
    """The number that an empty cell stands for; None: an empty cell is refused."""
    categories: list[str] = Field(default_factory=list)
    """The texts that a cell may hold, each a feature of 0 or 1; an empty text is an empty cell. Empty: numbers."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min is not None and self.max is not None and not self.min <= self.max:
            raise ValueError(f"{self.name}: expected min <= max, found {self.min:g} and {self.max:g}")
        of_numbers = (self.mean, self.std, self.min, self.max, self.missing)
        if self.categories and of_numbers != (0.0, 1.0, None, None, None):
            raise ValueError(f"{self.name}: expected categories or numbers, found both")
        if len(set(self.categories)) != len(self.categories):
            raise ValueError(f"{self.name}: expected different categories, found one twice")
        return self

    @property
    def width(self) -> int:
        """Return how many features a cell becomes."""
        return max(1, len(self.categories))


def _listed(columns: object, validate: ValidatorFunctionWrapHandler) -> object:
    """Return a table of columns by name as a list, in the table's order, which the digest then holds.

    A fault is named by the column, as the table has it. Raises ValidationError.
    """
    if not isinstance(columns, Mapping):
        return validate(columns)
    rules = [{"name": name, **rule} if isinstance(rule, Mapping) else rule for name, rule in columns.items()]
    try:
        return validate(rules)
    except ValidationError as error:
        faults = [_by_name(fault, list(columns)) for fault in error.errors(include_url=False)]
        raise ValidationError.from_exception_data(error.title, faults) from None


def _by_name(fault: ErrorDetails, names: Sequence[object]) -> InitErrorDetails:
    """Return a fault in a list of columns as one in a table of them."""
    number, *rest = fault["loc"]
    assert isinstance(number, int)
    name, told = str(names[number]), fault.get("ctx", {})
    if "error" in told:  # which names the column, as a list does not
        told = {"error": ValueError(str(told["error"]).removeprefix(f"{name}: "))}
    return InitErrorDetails(type=fault["type"], loc=(name, *rest), input=fault["input"], ctx=told)


class RecordFields(BaseModel):
    """Say what a record of the task is. Empty fields say nothing, and are not part of the canonical text."""

    columns: Annotated[list[Column], WrapValidator(_listed)] = Field(default_factory=list)
    """Columns of a table that are features, in this order, whatever the order in the file. Empty: all but the label."""
    class_names: list[Name] = Field(default_factory=list)
    """Class 0, 1, .. as the records name them. Empty: labels are these numbers themselves."""
    record_shape: list[Annotated[int, Field(ge=1)]] = Field(default_factory=list)
    """Shape of one record's features. Empty: the shape that the records have and the model takes."""
    records_per_person: Annotated[int, Field(ge=1, le=MOST_PER_PERSON)] = 1
    """k: every epsilon of a record is of k records of one person together, all of the same client. Nobody checks that a
    person has no more."""

    @model_validator(mode="after")
    def _check_record_fields(self) -> Self:
        names = [column.name for column in self.columns]
        for field, values in (("columns", names), ("class_names", self.class_names)):
            if len(set(values)) != len(values):
                raise ValueError(f"{field}: expected different names, found one twice")
        if not all(map(is_name, self.class_names)):
            raise ValueError("class_names: expected printable characters, found others")
        if len(self.class_names) == 1:
            raise ValueError("class_names: expected at least two classes, found one")
        width = sum(column.width for column in self.columns)
        if self.columns and self.record_shape and self.record_shape != [width]:
            raise ValueError(f"record_shape: expected [{width}], the columns' features, found {self.record_shape}")
        return self


RECORD_FIELDS: Sequence[str] = tuple(RecordFields.model_fields)
"""Their names. All came later than tasks without them."""
