"""Fields in which two tasks differ, for people: a digest says only that they do.

A hello carries the sender's fields (`hello_to`), which are public. Nobody verifies or believes them. Whether two tasks
are the same is for their digests to say, and a peer that lies about its fields is refused all the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from precad.protos.precad.v1 import common_pb2
from precad.protos.task.carried_fields import LONGEST_VALUE
from precad.protos.task.task import Task

LONGEST_SHOWN: Final = 80
NOTHING: Final = "nothing"


class Difference(NamedTuple):
    """Fit for a line of a log."""

    field: str
    ours: str
    theirs: str


def hello_to(task: Task, *, task_id: str = "") -> common_pb2.Hello:
    """Return what a party says first on any link."""
    return common_pb2.Hello(
        protocol_version=task.protocol_version,
        config_digest=task.digest(),
        task=task_id,
        task_fields=task.carried_fields,
    )


def first_difference(task: Task, theirs: Mapping[str, str]) -> Difference | None:
    """Return the first by name. None where theirs are no others than ours, or are not known. They may be anything."""
    if not theirs:
        return None
    ours = task.carried_fields
    found = next((name for name in sorted(ours) if theirs.get(name) != ours[name]), None)
    if found is not None:
        return _between(found, ours[found], theirs.get(found, NOTHING))
    added = min(theirs.keys() - ours.keys(), default=None)
    return None if added is None else Difference(f"task.{_shown(added)}", NOTHING, _shown(theirs[added]))


def _between(name: str, ours: str, theirs: str) -> Difference:
    """Return how a field differs; where both values are objects, the first entry that differs."""
    known, others = _entries(ours), _entries(theirs)
    if known and others:
        for key in sorted(known.keys() | others.keys()):
            our_value, their_value = str(known.get(key, NOTHING)), str(others.get(key, NOTHING))
            if our_value != their_value:
                return Difference(f"task.{name}.{_shown(key)}", _shown(our_value), _shown(their_value))
    return Difference(f"task.{name}", _shown(ours), _shown(theirs))


def _entries(text: str) -> dict[str, object]:
    """Return the entries of a JSON object; none where it is no object, or too long to be one of ours."""
    try:
        value = json.loads(text) if len(text) <= LONGEST_VALUE else None
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _shown(text: str) -> str:
    """In a line for people and logs: printable ASCII, and not too much of it."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text[: LONGEST_SHOWN + 1])
    return plain if len(plain) <= LONGEST_SHOWN else f"{plain[:LONGEST_SHOWN]}..."
