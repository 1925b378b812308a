"""Give what a ledger holds as events that dp-accounting composes to the same epsilon.

    {"format": "precad/dp-events/1", "delta": 1e-05, "slack": 0.0, "adjacency": "add_remove", "unit": "record",
     "chain": "...", "clients": {"alice": 12, ...},
     "views": {"one_server": {"12": {...}}, "clients_only": {"12": {...}}}}

`group_size` stands beside `unit` where the events are of several records of one person together.

`views` has an event for every number of rounds that some client was in. `evaluations` has `clients` and `views` of a
task's evaluations, if it may have any: a client's event there composes with its event here. Where the ledger counts
earlier tasks, `earlier` has the views of each, as the client meets them that was in most rounds. They compose with the
others. The figures of levels are not here: the library has no event for a draw that everybody sees.

The library knows nothing of records in bins. An epoch is there as one release that shows a record's round, which costs
at least as much as the ledger says. Clients' numbers of rounds are then of whole epochs.

`slack` is what the protocol takes from delta, 0 but in mode `proved` (`precad.dp.accountants.slack`). That of earlier
tasks is in it. The events do not hold it. The ledger's epsilon is the least one at which the events' own delta is at
most delta - (1 + e^epsilon) slack. Events composed at `delta` itself give an epsilon that is too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from precad.dp.accountants.bins_event import bins_of
from precad.dp.accountants.dp_events import as_json, dp_event
from precad.dp.accountants.earlier_rounds import EarlierTask
from precad.dp.accountants.pld import Release, Unit, View
from precad.dp.accountants.task_cost import Evaluations, evaluations_of
from precad.dp.checks import require_delta, require_non_negative
from precad.dp.errors import LedgerCorruptedError
from precad.dp.ledgers.earlier import event_of_header, tasks_of_header
from precad.dp.ledgers.lines import participation, read_lines

FORMAT: Final = "precad/dp-events/1"


def ledger_events(path: Path) -> dict[str, Any]:
    """Return the events of every client of the ledger at `path`, for every view, ready for JSON.

    The file is read only; an incomplete last line does not count. Raises: LedgerCorruptedError; OSError as the file
    system gives it.
    """
    header, charges, chain = read_lines(path)
    try:
        delta, slack = header["delta"], header.get("slack", 0.0)
        require_delta(delta)
        require_non_negative("slack", slack)
        earlier, steps = tasks_of_header(path, header), header.get("steps_per_round", 1)
        events = {view: event_of_header(header["events"][view]) for view in View}
        counts = participation(charges, bins=bins_of(events.values()))
        views = {
            str(view): {str(n): as_json(dp_event(event, n * steps)) for n in sorted(set(counts.values()))}
            for view, event in events.items()
        }
        return {
            "format": FORMAT,
            "delta": delta,
            "slack": slack + math.fsum(task.slack for task in earlier),
            "adjacency": "add_remove",
            "unit": str(Unit(header.get("unit", Unit.RECORD))),
            **_group(events),
            "chain": chain,
            "clients": dict(sorted(counts.items())),
            "views": views,
            **_evaluations(evaluations_of(header), participation(charges, is_evaluation=True)),
            **_earlier(earlier),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise LedgerCorruptedError(path, line=1, problem=f"expected a ledger's parameters, found {error}") from error


def _group(events: Mapping[View, Release | None]) -> dict[str, int]:
    """Return how many records of one person the events are of together, if more than one."""
    size = max((event.group_size for event in events.values() if event is not None), default=1)
    return {"group_size": size} if size > 1 else {}


def _evaluations(evaluations: Evaluations | None, counts: Mapping[str, int]) -> dict[str, Any]:
    if evaluations is None:
        return {}
    views = {
        str(view): {str(n): as_json(dp_event(event, n)) for n in sorted(set(counts.values()))}
        for view, event in evaluations.events.items()
    }
    return {"evaluations": {"clients": dict(sorted(counts.items())), "views": views}}


def _earlier(tasks: Sequence[EarlierTask]) -> dict[str, Any]:
    if not tasks:
        return {}
    return {
        "earlier": [
            {str(view): as_json(dp_event(event, task.rounds)) for view, event in task.events.items()} for task in tasks
        ]
    }
