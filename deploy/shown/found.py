"""How a message repeats what it found in a configuration: never what may be a secret.

A secret may stand under a misspelt key, or where the name of its file belongs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_NAMES: Final = re.compile(r"key|secret|pass|token|credential", re.IGNORECASE)
_TEXTS: Final = re.compile("://|pass(word|phrase)?=|password|-----BEGIN")
"""Where a database's URL or its settings, or a key, begin to be nobody's business."""
_LONGEST: Final = 80


def found_shown(value: object, *field: object) -> str:
    """Return a value for an error, in one line of at most 80 characters.

    field: names on the way to it, the last one its own.
    """
    if isinstance(value, Mapping) and value:
        return "a section"
    if isinstance(value, list | tuple) and any(isinstance(one, Mapping | list | tuple) for one in value):
        return "a list of sections"
    if value and isinstance(value, str | bytes | list | tuple) and any(_NAMES.search(str(name)) for name in field):
        return "a value that is not repeated here"
    text = repr(value)
    if (secret := _TEXTS.search(text)) is not None:
        text = f"{text[: secret.end()]}..."
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."
