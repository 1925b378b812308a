"""Text that another process said, on its way into our errors, logs and terminals."""

from __future__ import annotations

from typing import Final

LONGEST_REASON: Final = 400
"""Characters of a reason that are passed on. A message on the link may hold a megabyte, and clients take 64 KiB."""
LONGEST_REFUSAL: Final = 4000
"""Characters of why a call was refused. All differences between two tasks that a server names are fewer."""
_NO_BREAK: Final = "\u00a0"
"""The space of our own figures, which `str.isprintable` takes for none."""


def shown(text: str, most: int | None = None) -> str:
    """Return what of a text from outside a terminal shows and does not obey, `most` characters of it or all."""
    return "".join(one if one.isprintable() or one == _NO_BREAK else "?" for one in text[:most])
