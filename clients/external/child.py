"""Run a foreign trainer: the program of its process, in an interpreter of its own that need not have precad.

    python -I -B child.py IN OUT LIFELINE

The wrapper reads what to load, shuts itself off (`sandbox`), and forks the worker, which alone runs foreign code. The
wrapper ends the worker, and with it all that the worker started, once nobody holds the lifeline's other end.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.util
import inspect
import json
import os
import select
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

_LONGEST = 100
"""Most bytes of a reason that names a module."""


def _beside(name: str) -> ModuleType:
    """Load a file beside this one: an isolated interpreter does not look in a script's folder."""
    place = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"_precad_{name}", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def main(inward: int, outward: int, lifeline: int) -> int:
    """Be the wrapper. Return its exit code."""
    frames, sandbox = _beside("frames"), _beside("sandbox")
    _, text = frames.receive(inward, {frames.HELLO: 1 << 24})
    hello = json.loads(text)
    needed = [hello["folder"], sys.prefix, sys.base_prefix]
    bits = sandbox.shut_off(hello["hidden"], hello["home"], hello["memory_bytes"], needed=needed)
    frames.send(outward, frames.SHUT_OFF, bytes([bits]))
    if hello["required"] & ~bits:
        return 1
    worker = os.fork()
    if worker == 0:
        try:
            os.close(lifeline)
            for descriptor in (inward, outward):
                os.set_inheritable(descriptor, False)
            closed = sandbox.confine(bits, hello["home"], hello["memory_bytes"])
            frames.send(outward, frames.CONFINED, bytes([closed]))
            _work(frames, hello, inward, outward)
        finally:
            os._exit(0)
    os.close(inward)
    os.close(outward)
    _watch(worker, lifeline)
    return 0


def _watch(worker: int, lifeline: int) -> None:
    """Wait for the end of the worker, or of whoever holds the lifeline; then kill what is left."""
    descriptor = os.pidfd_open(worker)
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    poll.register(lifeline, select.POLLIN)
    poll.poll()
    for kill in (
        os.killpg,
        os.kill,
    ):  # all in the group; and whoever left it ends with the worker, its namespace's init
        try:
            kill(worker, signal.SIGKILL)
        except OSError:
            continue
    os.waitpid(worker, 0)


def _work(frames: ModuleType, hello: dict[str, Any], inward: int, outward: int) -> None:
    """Be the worker: load the trainer, then train or evaluate whenever a model comes. Foreign code runs here alone."""
    os.setpgid(0, 0)
    os.chdir(hello["folder"])
    sys.path.insert(0, hello["folder"])
    try:
        _, constants = frames.receive(inward, {frames.CONSTANTS: hello["constant_bytes"]})
        arrays = Arrays(hello["arrays"], constants)
        _, state = frames.receive(inward, {frames.STATE: hello["most_state_bytes"]})
        train, evaluate, left = _loaded(hello, state)
        frames.send(outward, frames.LOADED, bytes([evaluate is not None]))
    except BaseException as error:  # noqa: BLE001 - foreign code raises what it likes
        frames.send(outward, frames.FAILED, _reason(error))
        return
    answers, pack = {frames.MODEL: frames.TRAINED, frames.EVALUATE: frames.EVALUATED}, _beside("counts").packed
    while True:
        kind, body = frames.receive(inward, dict.fromkeys(answers, 4 * arrays.n_trained))
        try:
            named = arrays.named(body)
            found = arrays.flat(train(named)) if kind == frames.MODEL else pack(evaluate(named))
            before, state = state, left()
            if len(state) > hello["most_state_bytes"]:
                raise OverflowError
        except BaseException as error:  # noqa: BLE001 - foreign code raises what it likes
            frames.send(outward, frames.FAILED, _reason(error))
            continue
        if state != before:
            frames.send(outward, frames.STATE, state)
        frames.send(outward, answers[kind], found)


class Arrays:
    """The model's arrays by name, in the order of its state dict, and the bytes of those that are trained."""

    def __init__(self, described: Sequence[Mapping[str, Any]], constants: bytes) -> None:
        """described: name, shape, dtype, whether it is trained, and where it begins in the bytes of its kind."""
        import numpy as np

        self._np, self._described, self._constants = np, described, constants
        own = {entry["at"]: entry["count"] for entry in described if entry["is_trained"]}
        self.n_trained = sum(own.values())

    def named(self, body: bytes) -> dict[str, Any]:
        """Return writable copies of all arrays, given the trained ones (n,) in float32."""
        found = {}
        for entry in self._described:
            values = self._np.frombuffer(
                body if entry["is_trained"] else self._constants, entry["dtype"], entry["count"], entry["at"]
            )
            found[entry["name"]] = values.reshape(entry["shape"]).copy()
        return found

    def flat(self, trained: Mapping[str, Any] | Sequence[Any]) -> bytes:
        """Return the trained arrays as bytes (n,), from arrays by name, or as a sequence in the same order.

        Raises ValueError where one is missing or has another shape.
        """
        if not isinstance(trained, Mapping):
            trained = dict(zip((entry["name"] for entry in self._described), trained, strict=True))
        flat = self._np.zeros(self.n_trained, "<f4")
        for entry in self._described:
            if entry["is_trained"]:
                values = self._np.asarray(trained[entry["name"]], "<f4")
                if list(values.shape) != entry["shape"]:
                    raise ValueError
                start = entry["at"] // 4
                flat[start : start + entry["count"]] = values.reshape(-1)
        return bytes(flat.tobytes())


Asked = Callable[[dict[str, Any]], Any]


def _loaded(hello: dict[str, Any], state: bytes) -> tuple[Asked, Any, Callable[[], bytes]]:
    """Import what the configuration names. state: what an earlier process left.

    Return two functions of arrays: one to new arrays, and one to counts of held-out records or None. The third returns
    what the next process shall get.
    """
    if hello["kind"] == "nvflare":
        return (*_beside("nvflare").trainer(hello, _beside("counts")), bytes)
    frames, found = _beside("frames"), _named(hello["path"])
    if hello["kind"] == "flower":
        return _beside("flower").trainer(found, hello, _beside("counts"), state)  # type: ignore[no-any-return]
    _require_takes_two(found, frames)
    n_done = hello["n_done"]

    def train(arrays: dict[str, Any]) -> Any:
        nonlocal n_done
        n_done += 1
        return found(arrays, {**hello["config"], **hello["node"], "round": n_done})

    def evaluate(arrays: dict[str, Any]) -> Any:
        return found.evaluate(arrays, {**hello["config"], **hello["node"], "round": n_done})

    if not hasattr(found, "evaluate"):
        return train, None, bytes
    _require_takes_two(found.evaluate, frames)
    return train, evaluate, bytes


class _UnfitError(Exception):
    """Refuse what the configuration names, which is no trainer. The text is one of `frames`' words."""


def _named(path: str) -> Any:
    """Import module:name. Raises what the module raises, _UnfitError."""
    module, _, name = path.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(found, part):
            raise _UnfitError(_beside("frames").NO_NAME)
        found = getattr(found, part)
    return found


def _require_takes_two(found: Any, frames: ModuleType) -> None:
    """Raise _UnfitError unless it can be called with (arrays, settings), as far as Python knows."""
    if not callable(found):
        raise _UnfitError(frames.NOT_CALLABLE)
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):  # of compiled code, which may not say
        return
    try:
        signature.bind({}, {})
    except TypeError:
        raise _UnfitError(frames.OTHER_ARGUMENTS) from None


def _reason(error: BaseException) -> bytes:
    """Name the nearest of Python's own exceptions, and a module that an import did not find.

    Other names, like all texts, may hold values of a record.
    """
    if type(error) is _UnfitError:
        return str(error).encode()
    if type(error) is ModuleNotFoundError and isinstance(error.name, str):
        return f"{type(error).__name__} {error.name}".encode(errors="replace")[:_LONGEST]
    own = (kind for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind)
    return str(next(own).__name__).encode()


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:4])))
