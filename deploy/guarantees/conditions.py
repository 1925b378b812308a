"""Say what the figures of a draft of PRECAD rest on, where its servers evaluate a function of the sum."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from precad.deploy.configuration.sections import parse_section
from precad.deploy.errors import ConfigError
from precad.dp.accountants.pld import View
from precad.dp.conditions import OF_SERVERS, on_a_function
from precad.protos.task.function_fields import FUNCTION_FIELDS, FunctionFields


def of_draft(task: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the conditions by view; nothing without a function. Raises ConfigError for a function without a factor."""
    given = {name: task[name] for name in FUNCTION_FIELDS if name in task} if task is not None else {}
    found = parse_section(FunctionFields, given, "task", base=Path())
    if found.sum_function is None:
        return {}
    if found.has_unbounded_sum:
        raise ConfigError(
            "task.sum_function_factor: expected a number with algorithm 'precad', whose epsilon it bounds, found none"
        )
    return {view.value: f"{OF_SERVERS[view]}{on_a_function(found, view)}" for view in View}


def print_conditions(console: Console, report: Mapping[str, Any], words: Mapping[str, str]) -> None:
    """Print what all figures of a report rest on, where that must be said. words: for the views."""
    for view, condition in report.get("rests_on", {}).items():
        console.print(f"every figure, {words[view]}: {condition}", highlight=False)
