"""Parse what `--to` names, and open it. A tracker's library is imported when it is asked for, and never before."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from precad.deploy.errors import UNREACHABLE, ConfigError, RunFailedError
from precad.deploy.tracking.scalars import Scalars, Sink
from precad.deploy.tracking.spans import TRACES, Spans
from precad.protos.tls.address import is_loopback

WANDB_SERVICE: Final = "https://api.wandb.ai"
FORMS: Final = "tensorboard:FOLDER, mlflow:URL, mlflow:sqlite:///FILE, wandb:[ENTITY/]PROJECT or otlp:URL"
_PROJECT: Final = re.compile(r"(?:(?P<url>https?://[^/]+)/)?(?:(?P<entity>[\w.-]+)/)?(?P<project>[\w.-]+)")
_LIBRARIES: Final = ("tensorboard", "mlflow", "wandb", "sqlalchemy")
"""Extras of the same names, and what a store of MLflow's is read by: modules whose errors are a tracker's."""
_SQLITE: Final = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Destination:
    """A sink that is not open yet."""

    kind: str
    opened: Callable[[str], Sink]
    """Opens it for a training. Raises what its library raises, so call it within `using`."""


def destination_of(text: str, folder: Path, *, is_offline: bool) -> Destination:
    """Return what a text names. Raises ConfigError, before anything is imported or opened.

    folder: where Weights & Biases keeps its files, and sinks that cannot be asked what they were sent.
    """
    kind, _, place = text.partition(":")
    if kind == "tensorboard" and place:
        return Destination(kind, lambda training: _tensorboard(Path(place), training))
    if kind == "mlflow" and place:
        uri = place if place.startswith(_SQLITE) else _url(text, place, paths=True).geturl()
        return Destination(kind, lambda training: _mlflow(uri, training))
    if kind == "wandb" and (found := _PROJECT.fullmatch(place)) is not None:
        url = WANDB_SERVICE if found["url"] is None else _url(text, found["url"], paths=False).geturl()
        place_there = {"url": url, "entity": found["entity"], "project": found["project"]}
        return Destination(kind, lambda training: _wandb(folder, training, **place_there, is_offline=is_offline))
    if kind == "otlp" and place:
        parts = _url(text, place, paths=True)
        whole = parts._replace(path=TRACES if parts.path in {"", "/"} else parts.path).geturl()
        return Destination(kind, lambda training: Spans(folder, training, whole))
    raise ConfigError(f"--to: expected {FORMS}, found {kind!r} with {'something' if place else 'nothing'} behind it")


def _url(text: str, url: str, *, paths: bool) -> SplitResult:
    """Return an address's parts. Raises ConfigError, which does not quote it: it may hold a password."""
    name = text.partition(":")[0]
    try:
        parts = urlsplit(url)
        place = f"[{parts.hostname}]:1" if ":" in (parts.hostname or "") else f"{parts.hostname}:{parts.port or 1}"
    except ValueError:
        raise ConfigError(f"--to {name}: expected http[s]://HOST[:PORT], found an address of another form") from None
    is_whole = bool(parts.scheme in {"http", "https"} and parts.hostname and (paths or not parts.path))
    if not is_whole or "@" in parts.netloc or parts.query or parts.fragment or not url.isascii():
        raise ConfigError(f"--to {name}: expected http[s]://HOST[:PORT] without name, password or query, found others")
    if parts.scheme == "http" and not is_loopback(place):
        raise ConfigError(f"--to {name}: expected https beyond this machine, found http://{parts.netloc}")
    return parts


@contextmanager
def using(kind: str) -> Iterator[None]:
    """Say how to install what is missing, and what a tracker says that it cannot do. Raises DeployError."""
    try:
        yield
    except ModuleNotFoundError as error:
        if kind not in _LIBRARIES:
            raise
        raise ConfigError(
            f"--to {kind}: expected its library, found no module {error.name}: install 'precad[{kind}]' from where "
            "precad came from"
        ) from None
    except Exception as error:
        if not isinstance(error, OSError) and type(error).__module__.partition(".")[0] not in _LIBRARIES:
            raise
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise RunFailedError(f"{kind}: {why}; another start goes on from here", exit_code=UNREACHABLE) from error


def _tensorboard(folder: Path, training: str) -> Sink:
    from precad.deploy.tracking.tensorboard import TensorBoardWriter

    return Scalars(TensorBoardWriter(folder, training))


def _mlflow(uri: str, training: str) -> Sink:
    from precad.deploy.tracking.mlflow import MlflowWriter

    return Scalars(MlflowWriter(uri, training))


def _wandb(folder: Path, training: str, *, url: str, entity: str | None, project: str, is_offline: bool) -> Sink:
    from precad.deploy.tracking.weights_and_biases import WandbWriter

    return Scalars(WandbWriter(folder, training, base_url=url, entity=entity, project=project, is_offline=is_offline))
