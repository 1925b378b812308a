"""Read the events that precad writes for dp-accounting, as somebody with that library alone would."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

from dp_accounting import DpEvent


def from_json(fields: Mapping[str, Any]) -> DpEvent:
    """Return the event that `precad audit events` wrote."""
    return DpEvent.from_named_tuple(_named_tuple(fields))


def _named_tuple(fields: Mapping[str, Any]) -> Any:
    values = {name: _named_tuple(value) if isinstance(value, Mapping) else value for name, value in fields.items()}
    return namedtuple("Event", values)(**values)
