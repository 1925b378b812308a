"""Call a Flower `ClientApp` as Flower's own client does: a message of type `train` or `evaluate` in, its reply out.

The trainer's process loads this file, in an interpreter that holds Flower (1.21 or newer) and need not have precad.
The app is not changed: it finds arrays, `config`, `context.node_config` and `context.run_config` where it expects them.
What it leaves in `context.state` it finds again, in the next process too.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable
from types import ModuleType
from typing import Any

_TRAIN, _EVALUATE = "train", "evaluate"
_OF_A_CLIENT_FN = {_TRAIN: "fitins", _EVALUATE: "evaluateins"}
"""Prefix of the names of a message's records, by its type, for `ClientApp(client_fn)`. For `@app.train()` and
`@app.evaluate()` they are `arrays` and `config`."""
_TTL_S = 43_200.0


def trainer(
    app: Any, hello: dict[str, Any], counts: ModuleType, state: bytes
) -> tuple[Callable[[dict[str, Any]], Any], Any, Callable[[], bytes]]:
    """Return two functions of arrays by name: one to new arrays, and one to `counts` or None. The third returns
    `context.state` as bytes. state: what it returned to an earlier process, or empty.

    Raises TypeError unless `app` is a `ClientApp`.
    """
    from flwr.app import Context
    from flwr.clientapp import ClientApp

    if not isinstance(app, ClientApp):
        raise TypeError
    config = counts.without_names(hello["config"])
    run_config = {**_flat(_own_run_config(hello["folder"])), **config}
    context = Context(
        run_id=1, node_id=1, node_config=dict(hello["node"]), state=_state(state), run_config=run_config, series_id=0
    )
    n_done = hello["n_done"]

    def asked(kind: str, arrays: dict[str, Any]) -> Any:
        names = ("arrays", "config")
        if app._call is not None:
            names = (f"{_OF_A_CLIENT_FN[kind]}.parameters", f"{_OF_A_CLIENT_FN[kind]}.config")
        told = {**hello["message"], **config, "server-round": n_done}
        return app(_message(kind, dict(zip(names, (arrays, told), strict=True)), n_done), context).content

    def train(arrays: dict[str, Any]) -> Any:
        nonlocal n_done
        n_done += 1
        (found,) = asked(_TRAIN, arrays).array_records.values()
        values = {name: array.numpy() for name, array in found.items()}
        return values if values.keys() >= arrays.keys() else list(values.values())

    def evaluate(arrays: dict[str, Any]) -> Any:
        content = asked(_EVALUATE, arrays)
        metrics: dict[str, Any] = {}
        for record in (*content.config_records.values(), *content.metric_records.values()):
            metrics.update(record)
        return counts.of_metrics(metrics, hello["config"], has_accuracy=hello["has_accuracy"])

    def left() -> bytes:
        return _packed(context.state)

    return train, evaluate if _may_evaluate(app) else None, left


def _state(packed: bytes) -> Any:
    """Return the records that these bytes are; none for none."""
    from flwr.common.serde import recorddict_from_proto
    from flwr.proto.recorddict_pb2 import RecordDict

    return recorddict_from_proto(RecordDict.FromString(packed))


def _packed(state: Any) -> bytes:
    from flwr.common.serde import recorddict_to_proto

    packed: bytes = recorddict_to_proto(state).SerializeToString(deterministic=True)
    return packed


def _may_evaluate(app: Any) -> bool:
    """Tell whether the app has a function for messages of type `evaluate`; a client function is asked to find out."""
    return app._call is not None or any(name.split(".")[0] == _EVALUATE for name in app._registered_funcs)


def _message(kind: str, content: dict[str, dict[str, Any]], number: int) -> Any:
    """Return a message of this type. content: the names and values of arrays, then of settings."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, Metadata, RecordDict

    (arrays_name, arrays), (config_name, config) = content.items()
    records = RecordDict(
        {
            arrays_name: ArrayRecord({name: Array(values) for name, values in arrays.items()}),
            config_name: ConfigRecord(config),
        }
    )
    metadata = Metadata(
        run_id=1,
        message_id=f"{kind}-{number}",
        src_node_id=0,
        dst_node_id=1,
        reply_to_message_id="",
        group_id=str(number),
        created_at=time.time(),
        ttl=_TTL_S,
        message_type=kind,
    )
    return Message(content=records, metadata=metadata)


def _own_run_config(folder: str) -> dict[str, Any]:
    """Return the run's configuration from the app's `pyproject.toml`, which Flower reads too; nothing without one."""
    try:
        with open(os.path.join(folder, "pyproject.toml"), "rb") as file:
            found = tomllib.load(file)
        return dict(found["tool"]["flwr"]["app"]["config"])
    except (OSError, KeyError):
        return {}


def _flat(config: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Join the names of nested tables by dots, as Flower does."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found.update(_flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value})
    return found
