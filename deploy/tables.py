"""Make tables for people: the title above, words to the left, numbers to the right."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rich.table import Table


def titled(title: str, *columns: str, words: Collection[str] = (), **looks: Any) -> Table:
    """Return a table with these columns and no rows yet. Those of `words` hold text.

    looks  as rich takes them
    """
    made = Table(title=title, title_justify="left", caption_justify="left", **looks)
    for column in columns:
        made.add_column(column, justify="left" if column in words else "right")
    return made
