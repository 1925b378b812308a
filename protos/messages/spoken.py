"""Text that another process said, on its way into our errors, logs and terminals."""

from __future__ import annotations

from typing import Final

LONGEST_REASON: Final = 400
"""Characters of a reason that are passed on. A message on the link may hold a megabyte, and clients take 64 KiB."""


def shown(text: str, most: int | None = None) -> str:
    """Return what of a text from outside a terminal shows and does not obey, `most` characters of it or all."""
    return "".join(character if character.isprintable() else "?" for character in text[:most])
