"""Trainings side by side: in processes of this machine, or on a Ray cluster (extra `precad[scale]`).

A training depends on its configuration and its seed alone and writes files of its own. It does not matter who runs it,
nor beside what. Results are those of one training after the other, bit for bit, with the same number of threads each.
On a cluster the run folder lies on storage that all of its machines share.
"""

from __future__ import annotations

import functools
import importlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import joblib
import torch

from precad.deploy.errors import ConfigError
from precad.protos.tls.address import split_address
from precad.protos.tls.files import TransportError

T = TypeVar("T")

RAY = "ray"
_FOUND_BY_RAY = ("local", "auto")
ANSWER_S = 10.0
LOOK_S = 1.0
"""How often a worker looks whether the process that started it is still there."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Describe who runs the trainings."""

    number: int = 1
    """At once; 1 is this process."""
    ray: str | None = None
    """Address of a Ray cluster, or "local" for one that lasts as long as we do; none: processes of this machine."""

    @classmethod
    def asked_for(cls, number: int, ray: str | None) -> Self | None:
        """Return the workers of the command line; None where one process, this one, trains them all."""
        return cls(number, ray) if number > 1 or ray is not None else None

    def run(self, jobs: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Yield what each job gives, in their order. Jobs can be pickled.

        The first error of a job is raised, and ends the others. Raises ConfigError without Ray, or a cluster.
        """
        threads, parent = torch.get_num_threads(), None if self.ray is not None else os.getpid()
        with _cluster(self.ray) if self.ray is not None else nullcontext():
            side_by_side = joblib.Parallel(
                n_jobs=self.number,
                backend=RAY if self.ray is not None else None,
                return_as="generator" if self.ray is None else "list",  # Ray gives all at the end
                batch_size=1,
            )
            yield from side_by_side(joblib.delayed(_in_worker)(threads, parent, job) for job in jobs)


def _in_worker(threads: int, parent: int | None, job: Callable[[], T]) -> T:
    """Run a job. threads: of PyTorch, as many as whoever asked has: sums are theirs, bit for bit. parent: whose death
    ends us."""
    torch.set_num_threads(threads)
    if parent is not None:
        _end_with(parent)
    return job()


@functools.cache
def _end_with(parent: int) -> None:
    """End this process soon after its parent, however that died. A worker would go on to the end of its training."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


@contextmanager
def _cluster(address: str) -> Iterator[None]:
    try:
        ray: Any = importlib.import_module("ray")
        register: Any = importlib.import_module("ray.util.joblib").register_ray
    except ImportError:
        raise ConfigError(
            '--ray: expected Ray, found none: install "precad[scale]" from where precad came from'
        ) from None
    _require_answering(address)
    try:
        _join(ray, address)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise ConfigError(_no_cluster(address, error)) from None
    try:
        register()
        yield
    finally:
        ray.shutdown()


def _join(ray: Any, address: str) -> None:
    """Join a cluster. One of this machine that did not come up within Ray's own 30 s is started once more."""
    start = functools.partial(ray.init, address=address, log_to_driver=False, logging_level="error")
    try:
        start()
    except RuntimeError:
        if address != "local":
            raise
        ray.shutdown()
        start()


def _require_answering(address: str) -> None:
    """Raises ConfigError: of a machine that is not there, Ray would say nothing and wait for minutes."""
    if address in _FOUND_BY_RAY:
        return
    try:
        socket.create_connection(split_address(address.removeprefix("ray://")), timeout=ANSWER_S).close()
    except (OSError, TransportError) as error:
        raise ConfigError(_no_cluster(address, error)) from None


def _no_cluster(address: str, error: Exception) -> str:
    return f'--ray: expected "local", "auto" or HOST:PORT of a cluster that answers, found {address!r}: {error}'
