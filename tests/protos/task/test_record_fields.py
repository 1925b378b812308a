"""Fields of a task that say what a record is: columns in their order, names of classes, a shape."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from pydantic import ValidationError

from precad.protos.task.record_fields import RecordFields
from precad.protos.task.task import Task
from precad.protos.task.task_fields import first_difference
from tests.harness.harness import small_task


def columns(text: str) -> Any:
    return tomllib.loads(text)["columns"]


AGE_FIRST = columns('columns = { age = { mean = 50, std = 20 }, sex = { categories = ["f", "m"] } }')
SEX_FIRST = columns('columns = { sex = { categories = ["f", "m"] }, age = { mean = 50, std = 20 } }')


def test_a_task_without_them_has_none_in_its_canonical_text() -> None:
    assert not {"columns", "class_names", "record_shape"} & json.loads(small_task().canonical()).keys()


def test_the_order_of_columns_is_part_of_the_digest() -> None:
    """A table of columns keeps its order as a list; canonical JSON would sort the keys of an object."""
    one, other = small_task(columns=AGE_FIRST), small_task(columns=SEX_FIRST)
    assert [column.name for column in one.columns] == ["age", "sex"]
    assert [column["name"] for column in json.loads(other.canonical())["columns"]] == ["sex", "age"]
    assert one.digest() != other.digest()


def test_a_task_that_was_written_and_read_is_the_same() -> None:
    """Run folders hold the list, users write the table."""
    task = small_task(columns=AGE_FIRST, class_names=["no", "yes"], record_shape=[3])
    for again in (task.model_dump(), task.model_dump(exclude_none=True), json.loads(task.canonical())):
        assert Task.model_validate({"algorithm": "precad", **again}).digest() == task.digest()


def test_two_organisations_are_told_how_their_classes_differ() -> None:
    ours, theirs = small_task(class_names=["no", "yes"]), small_task(class_names=["yes", "no"])
    found = first_difference(ours, theirs.carried_fields)
    assert found == ("task.class_names", '["no","yes"]', '["yes","no"]')


def test_a_fault_in_a_table_of_columns_names_the_column() -> None:
    """By the table's key, in a list by its number."""
    table = {"age": {"std": 0.0, "median": 2.0}, "sex": 3, "dose": {"min": 2.0, "max": 1.0}}
    places = {
        True: [("age", "std"), ("age", "median"), ("sex",), ("dose",)],
        False: [(0, "std"), (0, "median"), (1,), (2,)],
    }
    for is_table, expected in places.items():
        given = table if is_table else [{"name": n, **r} if isinstance(r, dict) else r for n, r in table.items()]
        with pytest.raises(ValidationError) as refused:
            RecordFields.model_validate({"columns": given})
        assert [fault["loc"] for fault in refused.value.errors()] == [("columns", *place) for place in expected]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"columns": {"age": {"std": 0.0}}}, "greater than 0"),
        ({"columns": {"age": {"mean": float("nan")}}}, "finite"),
        ({"columns": {"age": {"min": 2.0, "max": 1.0}}}, "expected min <= max, found 2 and 1"),
        (
            {"columns": {"age": {"categories": ["a"], "mean": 2.0}}},
            "columns.age\n.* expected categories or numbers",
        ),
        (
            {"columns": {"sex": {"categories": ["f", "f"]}}},
            "columns.sex\n.* expected different categories",
        ),
        ({"columns": [{"name": "a"}, {"name": "a"}]}, "columns: expected different names, found one twice"),
        ({"columns": {"age": {"median": 2.0}}}, "Extra inputs"),
        ({"columns": {"age": 3}}, "Column"),
        ({"class_names": ["a"]}, "class_names: expected at least two classes, found one"),
        ({"class_names": ["a", "b", "a"]}, "class_names: expected different names, found one twice"),
        ({"class_names": ["a", "b\x1b[2J"]}, "class_names: expected printable characters, found others"),
        ({"record_shape": [0]}, "greater than or equal to 1"),
        ({"columns": AGE_FIRST, "record_shape": [2]}, r"record_shape: expected \[3\], the columns' features, found"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RecordFields.model_validate(fields)
