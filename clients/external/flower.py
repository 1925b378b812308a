"""Call a Flower `ClientApp` as Flower's own client does: a message of type `train` in, its reply out.

The trainer's process loads this file, in an interpreter that holds Flower (1.21 or newer) and need not have precad.
The app is not changed: it finds arrays, `config`, `context.node_config` and `context.run_config` where it expects them.
"""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Callable
from typing import Any

_OF_A_CLIENT_FN = ("fitins.parameters", "fitins.config")
_OF_A_FUNCTION = ("arrays", "config")
"""Names of the records that a message of type `train` has: for `ClientApp(client_fn)`, and for `@app.train()`."""
_TTL_S = 43_200.0


def trainer(app: Any, hello: dict[str, Any]) -> Callable[[dict[str, Any]], Any]:
    """Return a function from arrays by name to new ones. Raises TypeError unless `app` is a `ClientApp`."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
    from flwr.clientapp import ClientApp

    if not isinstance(app, ClientApp):
        raise TypeError
    arrays_name, config_name = _OF_A_FUNCTION if app._call is None else _OF_A_CLIENT_FN
    run_config = {**_flat(_own_run_config(hello["folder"])), **hello["config"]}
    context = Context(
        run_id=1, node_id=1, node_config=dict(hello["node"]), state=RecordDict(), run_config=run_config, series_id=0
    )
    n_done = 0

    def train(arrays: dict[str, Any]) -> Any:
        nonlocal n_done
        n_done += 1
        config = {**hello["message"], **hello["config"], "server-round": n_done}
        content = RecordDict(
            {
                arrays_name: ArrayRecord({name: Array(values) for name, values in arrays.items()}),
                config_name: ConfigRecord(config),
            }
        )
        metadata = Metadata(
            run_id=1,
            message_id=str(n_done),
            src_node_id=0,
            dst_node_id=1,
            reply_to_message_id="",
            group_id=str(n_done),
            created_at=time.time(),
            ttl=_TTL_S,
            message_type="train",
        )
        reply = app(Message(content=content, metadata=metadata), context)
        (found,) = reply.content.array_records.values()
        values = {name: array.numpy() for name, array in found.items()}
        return values if values.keys() >= arrays.keys() else list(values.values())

    return train


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
