"""Make tables for people: the title above, words to the left, numbers to the right."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rich.table import Column, Table


def titled(title: str, *columns: str, words: Collection[str] = (), **looks: Any) -> Table:
    """Return a table with these columns and no rows yet. Those of `words` hold text.

    looks  as rich takes them
    """
    made = (Column(column, justify="left" if column in words else "right", overflow="fold") for column in columns)
    return Table(*made, title=title, title_justify="left", caption_justify="left", **looks)


def facts() -> Table:
    """Return a table of two columns without heads: what something is called, and what is said of it."""
    return Table(
        Column(style="bold", no_wrap=True), Column(overflow="fold"), show_header=False, box=None, pad_edge=False
    )
