"""Fields that the canonical text of a task leaves out at their defaults: the table of protocol.md beside the code."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from precad.protos.task.proved_fields import PROVED_FIELDS
from precad.protos.task.task import ABSENT_AT_DEFAULT, Task

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "protocol.md"
ELSEWHERE = {*PROVED_FIELDS, "directions"}
"""Fields of mode `proved` are in protocol-v2.md, and the text never names a file of directions."""
EMPTY: tuple[Any, ...] = ([], (), {})


def of_the_page() -> dict[str, str]:
    """Return the default that the page states of each field, as it writes it."""
    _, _, rest = PAGE.read_text().partition("| fields | absent at |\n| --- | --- |\n")
    found: dict[str, str] = {}
    for row in rest.partition("\n\n")[0].splitlines():
        names, values = (cell.strip() for cell in row.strip("|").split("|"))
        fields = [name.strip() for name in re.sub(r"\([^)]*\)", "", names).split(",")]
        stated = [value.strip(" `") for value in values.split(",")]
        if len(stated) == 1:
            stated *= len(fields)
        found.update(zip(fields, stated, strict=True))
    return found


def test_the_table_names_every_field_with_its_default() -> None:
    page = of_the_page()
    assert sorted(page) == sorted(set(ABSENT_AT_DEFAULT) - ELSEWHERE)
    for name, stated in page.items():
        default = Task.model_fields[name].get_default(call_default_factory=True)
        if stated == "empty":
            assert default in EMPTY, name
        else:
            assert json.loads(stated) == default, name
