"""Serve NVFLARE's client API to a script, as NVFLARE's own in-process backend does, without its runtime.

The trainer's process loads this file, in an interpreter that holds NVFLARE (2.9 or newer) and need not have precad. The
script is not changed: `flare.init()`, `receive()` and `send()` find an `InProcessClientAPI` on NVFLARE's data bus. A
model goes to it over the bus, and its result comes back over the bus. For evaluations, `flare.is_evaluate()` holds. No
job, site, server or connection is there.
"""

from __future__ import annotations

import os
import queue
import runpy
import shlex
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

_OURS = ("exchange_format", "script_args")
"""Settings of the operator's that are for this file: numpy (unless set) or pytorch arrays, and the script's words."""
_TRAIN, _EVALUATE, _JOB = "train", "evaluate", "precad"
_CHECK_S = 0.02
"""How often a script that waits for a model looks for it."""
_ENDED = ValueError("the script ended")
"""The answer of a script that ended without one."""


def trainer(hello: dict[str, Any], counts: ModuleType) -> tuple[Callable[[dict[str, Any]], Any], Any]:
    """Return two functions of arrays by name, to new ones and to `counts`, once the script called `flare.init()`.

    Raises what the script raises before, and FileNotFoundError where there is none.
    """
    if not os.path.isfile(hello["path"]):
        raise FileNotFoundError
    script = _Script(hello, counts)
    script.start()
    return script.train, script.evaluate


class _Script:
    """A script, run in a thread, and again when a model comes and it has ended."""

    def __init__(self, hello: dict[str, Any], counts: ModuleType) -> None:
        from nvflare.client.in_process.api import TOPIC_LOCAL_RESULT
        from nvflare.fuel.data_event.data_bus import DataBus

        config = {name: value for name, value in counts.without_names(hello["config"]).items() if name not in _OURS}
        self._counts = partial(counts.of_metrics, config=hello["config"], has_accuracy=hello["has_accuracy"])
        self._path, self._words = hello["path"], shlex.split(str(hello["config"].get("script_args", "")))
        self._meta = {**hello["message"], **config, **_meta(hello)}
        self._answers: queue.Queue[Any] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._api: Any = None
        self._n_done, self._asked_number, self._received = hello["n_done"], 0, -1
        self._is_due = False
        self._sent: Any = None
        self._has_begun = threading.Event()
        self._bus = DataBus()
        self._bus.subscribe([TOPIC_LOCAL_RESULT], self._take)

    def train(self, arrays: dict[str, Any]) -> Any:
        """Give the script a model, and return what it sends. Raises what it raises, or ValueError if it sends none."""
        from nvflare.app_common.abstract.fl_model import ParamsType

        self._n_done += 1
        found = self._answer(_TRAIN, arrays)
        if found.params_type == ParamsType.DIFF:
            return {name: arrays[name] + change for name, change in found.params.items()}
        return found.params

    def evaluate(self, arrays: dict[str, Any]) -> Any:
        """Give the script a model as a task of validation, and return counts of the metrics that it sends.

        Raises as `train`, and KeyError where a metric is missing.
        """
        found = self._answer(_EVALUATE, arrays)
        return self._counts({**(found.meta or {}), **(found.metrics or {})})

    def _answer(self, task: str, arrays: dict[str, Any]) -> Any:
        """Return the model that the script sends back.

        A script for one task at a time ends after its answer, perhaps only now: then it is run again.
        """
        from nvflare.app_common.utils.fl_model_utils import FLModelUtils

        answer = self._asked(task, arrays) if self._thread is not None and self._thread.is_alive() else _ENDED
        if answer is _ENDED:
            self.start()
            answer = self._asked(task, arrays)
        if isinstance(answer, BaseException):
            raise answer
        return FLModelUtils.from_shareable(answer)

    def _take(self, topic: str, result: Any, bus: Any) -> None:
        """Take the first result after the script received the round's model; no other is an answer to it."""
        if self._is_due and self._received == self._asked_number:
            self._is_due, self._sent = False, result

    def _hand_over(self) -> None:
        """Make what was sent the answer, after `send()`: at its end that clears a model that came during it."""
        sent, self._sent = self._sent, None
        if sent is not None:
            self._answers.put(sent)

    def _asked(self, task: str, arrays: dict[str, Any]) -> Any:
        """Put the model on the bus. Return what the script sends, `_ENDED` or what it raised."""
        from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
        from nvflare.app_common.utils.fl_model_utils import FLModelUtils
        from nvflare.client.config import ConfigKey
        from nvflare.client.in_process.api import TOPIC_GLOBAL_RESULT

        given = {name: values.copy() for name, values in arrays.items()}
        number = max(self._n_done - 1, 0)
        model = FLModel(params=given, params_type=ParamsType.FULL, current_round=number)
        self._api.set_meta({**self._meta, ConfigKey.TASK_NAME: task})
        self._asked_number, self._received, self._is_due, self._sent = number, -1, True, None
        self._bus.publish([TOPIC_GLOBAL_RESULT], FLModelUtils.to_shareable(model))
        return self._answers.get()

    def start(self) -> None:
        """Begin the script anew, with an API of its own: the last one may be stopped, or hold a model.

        Return once it has called `flare.init()`. Raises what it raises before, or ValueError where it ends.
        """
        from nvflare.client import api
        from nvflare.client.api_spec import CLIENT_API_KEY
        from nvflare.client.in_process.api import InProcessClientAPI

        ours, self._answers = self, queue.Queue()  # without the last one's end

        class Api(InProcessClientAPI):  # type: ignore[misc]
            """Notes that the script has begun, that it received a model, and that it sent one."""

            def init(self, *arguments: Any, **named: Any) -> None:
                super().init(*arguments, **named)
                ours._has_begun.set()

            def receive(self, timeout: float | None = None) -> Any:
                found = super().receive(timeout)
                ours._received = ours._received if found is None else found.current_round
                return found

            def send(self, *arguments: Any, **named: Any) -> None:
                try:
                    super().send(*arguments, **named)
                finally:
                    ours._hand_over()

        if self._api is not None:
            self._api.close()
        self._api = Api(task_metadata=dict(self._meta), result_check_interval=_CHECK_S)
        self._api.init()
        self._has_begun.clear()
        self._bus.put_data(CLIENT_API_KEY, self._api)
        api.context_dict.clear()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        while not self._has_begun.wait(_CHECK_S):
            if not self._thread.is_alive():
                raise self._answers.get()

    def _run(self) -> None:
        """Run the script to its end. Where it has sent no answer, its end is the answer."""
        sys.argv = [self._path, *self._words]
        try:
            runpy.run_path(self._path, run_name="__main__")
        except BaseException as error:  # noqa: BLE001 - foreign code raises what it likes
            self._answers.put(error)
        else:
            self._answers.put(_ENDED)


def _meta(hello: dict[str, Any]) -> dict[str, Any]:
    """Return what NVFLARE tells a script of its task, by NVFLARE's names."""
    from nvflare.apis.fl_constant import FLMetaKey
    from nvflare.client.config import ConfigKey, ExchangeFormat, TransferType

    return {
        FLMetaKey.SITE_NAME: hello["node"]["client"],
        FLMetaKey.JOB_ID: _JOB,
        ConfigKey.TASK_NAME: _TRAIN,
        ConfigKey.TASK_EXCHANGE: {
            ConfigKey.EXCHANGE_FORMAT: ExchangeFormat(hello["config"].get("exchange_format", "numpy")),
            ConfigKey.SERVER_EXPECTED_FORMAT: ExchangeFormat.NUMPY,
            ConfigKey.TRANSFER_TYPE: TransferType.FULL,
            ConfigKey.TRAIN_TASK_NAME: _TRAIN,
            ConfigKey.EVAL_TASK_NAME: _EVALUATE,
            ConfigKey.SUBMIT_MODEL_TASK_NAME: "submit_model",
        },
    }
