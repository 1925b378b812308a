"""Fields in which two tasks differ, for people: a digest says only that they do.

A hello carries the sender's fields (`hello_to`), which are public. Nobody verifies or believes them. Whether two tasks
are the same is for their digests to say, and a peer that lies about its fields is refused all the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from typing import Final, NamedTuple

from precad.protos.precad.v1 import common_pb2
from precad.protos.task.carried_fields import LONGEST_VALUE
from precad.protos.task.task import Task

LONGEST_SHOWN: Final = 80
MOST_SHOWN: Final = 8
"""Fields that one message names: each takes 260 characters at most, and gRPC's details have room for 8 KiB."""
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
    return next(iter(differences(task, theirs)), None)


def differences(task: Task, theirs: Mapping[str, str]) -> list[Difference]:
    """Return the fields that differ, by name, ours first; the first `MOST_SHOWN` of them. Theirs may be anything."""
    if not theirs:
        return []
    ours = task.carried_fields
    found = (
        difference
        for name in sorted(ours)
        if theirs.get(name) != ours[name]
        for difference in _between(name, ours[name], theirs.get(name, NOTHING))
    )
    added = (Difference(f"task.{_shown(name)}", NOTHING, _shown(theirs[name])) for name in sorted(theirs.keys() - ours))
    return list(islice(chain(found, added), MOST_SHOWN))


def _between(name: str, ours: str, theirs: str) -> Iterator[Difference]:
    """Yield how a field differs; where both values are objects, every entry that differs."""
    known, others = _entries(ours), _entries(theirs)
    values = {key: (str(known.get(key, NOTHING)), str(others.get(key, NOTHING))) for key in known | others}
    different = [key for key in sorted(values) if values[key][0] != values[key][1]]
    if not (known and others and different):
        yield Difference(f"task.{name}", _shown(ours), _shown(theirs))
        return
    for key in different:
        yield Difference(f"task.{name}.{_shown(key)}", *map(_shown, values[key]))


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
