"""A task's fields as a hello carries them, for people: each value as JSON, of a long one its hash."""

from __future__ import annotations

import hashlib
import json
from typing import Final

LONGEST_VALUE: Final = 512
"""Characters of a value that are carried. So a hello stays far below what is read of a call before it is known who
makes it, however many clients there are."""


def carried(canonical: str) -> dict[str, str]:
    """Return the text of each field, from a task's canonical text."""
    return {name: _value(value) for name, value in json.loads(canonical).items()}


def _value(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    if len(text) <= LONGEST_VALUE:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return f"{len(value)} entries of SHA-256 {digest}" if isinstance(value, dict) else f"text of SHA-256 {digest}"
