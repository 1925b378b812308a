"""Take arguments of the front door as `deploy` and `lab` want them, and name them in errors as callers do."""

from __future__ import annotations

import numbers
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from precad.deploy.errors import ConfigError, refusing

if TYPE_CHECKING:
    from rich.console import Console

    from precad.clients.app import App
    from precad.deploy.guarantees.certificates import Request

Folder: TypeAlias = str | os.PathLike[str]
Config: TypeAlias = Mapping[str, Any] | str | os.PathLike[str]
"""A path to a TOML file, or its contents."""

_FLAG: Final = re.compile(r"^(?:--?(?P<flag>[a-z][a-z-]*)(?=:| )|DIR(?=:))", re.MULTILINE)
_OTHERWISE: Final = {None: "folder", "output": "folder", "run": "runs"}
"""Arguments whose name is not that of the command's flag; None is the command's DIR."""


@contextmanager
def named() -> Iterator[None]:
    """Name arguments in a ConfigError as callers of a function do: `rounds` for the command's `--rounds`."""
    from precad.deploy.given_paths import require_current_folder

    def name(found: re.Match[str]) -> str:
        flag = found["flag"]
        return _OTHERWISE[flag] if flag in _OTHERWISE else str(flag).replace("-", "_")

    try:
        require_current_folder()
        yield
    except ConfigError as error:
        raise ConfigError(_FLAG.sub(name, str(error))) from error.__cause__


def contents(config: Config) -> dict[str, Any]:
    """Return what a configuration holds, as if it had been written to a file and read. Raises ConfigError."""
    import tomllib

    import tomli_w

    from precad.deploy.configuration.sections import read_local
    from precad.tasks import Task

    if isinstance(config, str | os.PathLike):
        return read_local(path_of("config", config))
    if isinstance(config, Task):
        config = {"task": config}
    if not isinstance(config, Mapping):
        raise ConfigError(f"config: expected a path or a mapping, found {config!r:.60}")
    if not config:
        raise ConfigError("config: expected a configuration with a section task, found an empty one")
    with refusing(
        (TypeError, ValueError, AttributeError, RecursionError),
        "config: expected names with values that TOML has, found another",
    ):
        return tomllib.loads(tomli_w.dumps(config))


def path_of(name: str, given: Folder) -> Path:
    """Return a path that the system can look up. Raises ConfigError."""
    from precad.deploy.given_paths import require_path

    return require_path(name, given)


def apps_of(clients: Any) -> Sequence[App] | Mapping[str, App]:
    """Return the apps of at least two clients. Raises ConfigError."""
    if isinstance(clients, Mapping | list | tuple) and len(clients) >= 2:
        return clients
    found = f"{len(clients)}" if isinstance(clients, Mapping | list | tuple) else f"a {type(clients).__name__}"
    raise ConfigError(f"clients: expected two apps at least, a list or by client, found {found}")


def console(is_shown: bool) -> Console:
    """Return standard error where progress is to be seen, and nothing elsewhere."""
    import io
    import sys

    from rich.console import Console

    from precad.deploy.shown.consoles import ProgressConsole, width_of

    if is_shown:
        return ProgressConsole(stderr=True, width=width_of(sys.stderr))
    return Console(file=io.StringIO(), force_terminal=False, quiet=True)


def seeds_of(seeds: int | Iterable[int]) -> list[int]:
    """Return the seeds: so many from 0 on, or these. Raises ConfigError."""
    try:
        found = [operator.index(seed) for seed in seeds] if isinstance(seeds, Iterable) else list(range(seeds))
    except (TypeError, OverflowError, MemoryError):
        raise ConfigError(f"seeds: expected a number of seeds, or integers, found {seeds!r:.60}") from None
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise ConfigError(f"seeds: expected distinct integers from 0 on, at least one, found {seeds!r:.60}")
    return found


def number(value: Any) -> Any:
    """Return an integer or a float of Python's for one of NumPy's; anything else as it is."""
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else value


def count_of(name: str, value: object) -> int:
    """Return a positive integer, of NumPy's too. Raises ConfigError for anything else."""
    found = number(value)
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ConfigError(f"{name}: expected an integer of at least 1, found {value!r:.60}")
    return found


def require_all(**given: object) -> None:
    """Raise ConfigError naming all arguments that are None."""
    if missing := [name for name, value in given.items() if value is None]:
        raise ConfigError("\n".join(f"{name}: expected a value, found none" for name in missing))


def require_none(beside: str, **given: object) -> None:
    """Raise ConfigError naming all arguments that are not None."""
    if wrong := {name: value for name, value in given.items() if value is not None}:
        lines = (f"{name}: expected none beside {beside}, found {value!r:.60}" for name, value in wrong.items())
        raise ConfigError("\n".join(lines))


def folders_of(name: str, given: Sequence[Folder]) -> list[Path]:
    """Return at least one folder. Raises ConfigError."""
    is_list = isinstance(given, Iterable) and not isinstance(given, str | bytes | os.PathLike)
    if not is_list or not (found := [path_of(name, folder) for folder in given]):
        raise ConfigError(f"{name}: expected a list of folders, at least one, found {given!r:.60}")
    return found


def request_of(
    delta: float | None, *, threat: str, method: str, at_most: int, psi: float
) -> Callable[[float], Request]:
    """Return what a certificate is asked for, once it is known which delta is the evidence's. Raises ConfigError."""
    from precad.deploy.guarantees.certificates import Request, methods_of
    from precad.dp.certificates.prediction import Method, Threat

    most = count_of("at_most", at_most)
    for name, value, known in (("threat", threat, [*Threat]), ("method", method, [*Method, "all"])):
        if value not in known:
            raise ConfigError(f"{name}: expected one of {', '.join(known)}, found {value!r:.60}")

    def request_at(otherwise: float) -> Request:
        return Request(
            delta=otherwise if delta is None else delta,
            threat=Threat(threat),
            methods=methods_of(method),
            at_most=most,
            psi=psi,
        )

    return request_at


def evidence_of(confidences: Any, labels: Any) -> tuple[list[list[float]], list[int]]:
    """Return confidences (n samples, n classes) and labels (n samples,) as lists. Raises ConfigError."""
    from precad.deploy.guarantees.certificates import require_confidences

    rows, classes = _listed(confidences), _listed(labels)
    require_confidences(rows, classes, "confidences")
    return rows, classes


def _listed(value: Any) -> Any:
    """Return lists of Python's numbers for arrays, tensors and sequences of them; anything else as it is."""
    if hasattr(value, "tolist"):
        return value.tolist()
    return [_listed(inner) for inner in value] if isinstance(value, list | tuple) else value
