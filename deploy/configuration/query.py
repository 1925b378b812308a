"""The configuration of a query: a local run's, with a task of its own that asks instead of training.

A query keeps of the file's `[task]` who the clients are, how they reach the servers, delta and the budgets. It leaves
out whatever is of a model. C is the largest number of records that a client declares, unless a smaller one is asked
for. The grid is the finest that C allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from precad.clients.config import ClientConfig
from precad.clients.errors import ClientError
from precad.clients.own_code import look_in
from precad.clients.query_consent import refusal
from precad.deploy.configuration.client_ids import ids_of, require_ids
from precad.deploy.configuration.earlier_run import go_on
from precad.deploy.configuration.local import begun, finished, supply_gate
from precad.deploy.configuration.local_servers import is_proved
from precad.deploy.configuration.sections import Deployment, parse_section
from precad.deploy.errors import ConfigError, refusing
from precad.deploy.run_files.folder import RunFolder
from precad.mpc.errors import ParameterError
from precad.mpc.norm_bound import NormBound
from precad.protos.task.algorithms import BUDGETS
from precad.protos.task.evaluation import frac_bits_of
from precad.protos.task.query import Query
from precad.protos.task.target import TARGET

KEPT: Final = (
    *("name", "clients", "delta", "mode", "accept_weak_wire_form", "gate", "min_clients", "records_per_person"),
    *("submit_timeout_s", "registration_timeout_s", "proof_timeout_s", *BUDGETS),
)
"""Fields of the training's task that a query has as well."""
_OF_TRAINING: Final = (
    *("sum_function", "keep_canary_noise"),
    *("evaluation_records", "evaluation_label", "evaluation_metrics"),
)
"""Fields of a server that are of its training's task, and that a server of a query refuses."""
REGISTRATION_TIMEOUT_S: Final = 20.0
"""How long a local query waits for clients that may have refused, where the file says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, and its price."""

    query: Mapping[str, Any]
    """Fields of `precad.protos.task.query.Query`."""
    epsilon: float | None = None
    """Epsilon of a record against one server. None: `noise_multiplier` is given."""
    noise_multiplier: float | None = None
    """sigma: each server's noise in records."""
    most_records: float | None = None
    """C: how many records of a client count fully. None: as many as any client declares."""
    after: Path | None = None
    """Run folder of the training or query before it, whose ledgers count as well, and whose clients' limits go on."""


def resolve_query(raw: Mapping[str, Any], question: Question, folder: RunFolder) -> tuple[dict[str, Any], Deployment]:
    """Return the configuration of a query on this machine, as written and as validated. Raises ConfigError,
    DataError."""
    given = raw.get("task")
    if not isinstance(given, Mapping):
        raise ConfigError(f"task: expected a section, found {given!r:.80}")
    kept = {name: given[name] for name in KEPT if name in given}
    if kept.get("mode") != "shares":  # else it is said of bounds of layers or half-spaces, which no answer has
        kept.pop("accept_weak_wire_form", None)
    resolved = begun({**raw, "task": kept}, folder)
    for server in resolved["aggregator"].values():
        for name in _OF_TRAINING:
            server.pop(name, None)
    client = parse_section(ClientConfig, resolved["client"], "client", base=folder.root)
    query = parse_section(Query, dict(question.query), "query", base=folder.root)
    if (why := refusal(query, client.queries)) is not None:
        raise ConfigError(why)
    task = resolved["task"]
    task["clients"] = _declared(kept.get("clients"), client, query)
    _supply(task, question, query)
    supply_gate(task)
    if question.after is not None:
        go_on(resolved, question.after)
    return resolved, finished(resolved, folder)


def _declared(clients: object, config: ClientConfig, query: Query) -> dict[str, int]:
    """Return how many records each client declares: as the file says, or as many as it has. Raises ConfigError."""
    from precad.clients.queries.columns import sizes, values_of

    if isinstance(clients, Mapping):
        return dict(clients)
    ids = [] if clients is None else ids_of(clients)
    require_ids(ids)
    look_in(config.folder)
    with refusing(ClientError):
        return sizes(values_of(config, query.column, ids, ids))


def _supply(task: dict[str, Any], question: Question, query: Query) -> None:
    """Write what makes a task a query. Raises ConfigError."""
    numbers = [n for n in task["clients"].values() if isinstance(n, int)]
    clip = float(max(numbers, default=1)) if question.most_records is None else question.most_records
    task.update(
        query=query.model_dump(mode="json"),
        rounds=1,
        lost_rounds=1,
        client_rate=1.0,
        record_rate=1.0,
        record_clip=1.0,
        client_clip=clip,
        learning_rate=1.0,
        dim=query.encoding(0).dim,
    )
    task.setdefault("registration_timeout_s", REGISTRATION_TIMEOUT_S)
    if not is_proved({"task": task}):
        task["frac_bits"] = _finest_grid(clip, task["dim"])
    if question.epsilon is not None:
        task[TARGET] = question.epsilon
    else:
        task["noise_multiplier"] = question.noise_multiplier


def _finest_grid(clip: float, dim: int) -> int:
    """Return the most fractional bits that the norm check has room for. Raises ConfigError where it has none."""
    try:
        return NormBound(clip_norm=clip, dim=dim, frac_bits=frac_bits_of(None, clip)).frac_bits
    except ParameterError as error:
        raise ConfigError(f"--most-records: {str(error).replace('clip_norm', 'C')}") from None
