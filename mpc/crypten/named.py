"""Functions of the shared sum by name: the file that one is in, its digest, and what it does on a dry run.

Such a function is code that runs in a server's process. Its operator names it in the server's own configuration; the
digest says that both operators, and the clients' task, mean the same file. The bytes that were hashed are those that
run: no cached bytecode, and no module of that name that is there already. What that file imports is not in the digest.
"""

from __future__ import annotations

import hashlib
import hmac
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from precad.mpc.crypten.bridge import SumFunction
from precad.mpc.errors import FunctionRefusedError

_SOURCE: Final = ".py"


@dataclass(frozen=True, slots=True)
class _Source:
    """A file of Python, as it was read once."""

    spec: ModuleSpec
    content: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def module(self) -> ModuleType:
        """Run these bytes in a module of their own, which stays out of `sys.modules`."""
        module = ModuleType(self.spec.name)
        module.__file__, module.__package__ = self.spec.origin, self.spec.parent
        if (folders := self.spec.submodule_search_locations) is not None:
            module.__path__ = list(folders)
        code = compile(self.content, str(self.spec.origin), "exec", dont_inherit=True)
        with _registered(module):
            exec(code, module.__dict__)  # noqa: S102 -- its operator consented to these bytes
        return module


@contextmanager
def _registered(module: ModuleType) -> Iterator[None]:
    """Let a module be found by its name while it runs, as decorators such as `dataclass` need."""
    before = sys.modules.get(module.__name__)
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        sys.modules.pop(module.__name__, None)
        if before is not None:
            sys.modules[module.__name__] = before


def _spec_of(name: str) -> ModuleSpec:
    """Find a module as Python's finders do, and import nothing: no package around it runs. Raises ImportError."""
    parent = name.rpartition(".")[0]
    folders = None
    if parent:
        loaded = sys.modules.get(parent)
        folders = _spec_of(parent).submodule_search_locations if loaded is None else getattr(loaded, "__path__", None)
        if folders is None:
            raise ModuleNotFoundError(name)
    for finder in sys.meta_path:
        if (spec := finder.find_spec(name, folders)) is not None:
            return spec
    raise ModuleNotFoundError(name)


def _read(name: str) -> _Source:
    """Read the file that `package.module:function` is in. Runs nothing. Raises FunctionRefusedError."""
    module = name.partition(":")[0]
    try:
        spec = _spec_of(module)
        if not spec.has_location or spec.origin is None or not spec.origin.endswith(_SOURCE):
            raise ModuleNotFoundError(module)
        return _Source(spec, Path(spec.origin).read_bytes())
    except (ImportError, OSError, ValueError, LookupError, AttributeError):
        raise FunctionRefusedError(
            f"sum_function: expected an importable file of Python, *{_SOURCE}, found {module}"
        ) from None


def require_file(name: str, sha256: str) -> _Source:
    """Return the file with this digest, and refuse another. Runs nothing. Raises FunctionRefusedError."""
    source = _read(name)
    if not hmac.compare_digest(source.sha256, sha256):
        raise FunctionRefusedError(
            f"sum_function_sha256: expected {sha256}, found {source.sha256} of the file of {name}"
        )
    return source


def named_function(
    name: str, sha256: str, arguments: Mapping[str, Any], dim: int, *, is_bounded: bool = False
) -> SumFunction:
    """Run the bytes with this digest, and make the function's dry run for vectors of length d.

    is_bounded: a factor is declared, so that it must be exact and take zero to zero. Raises FunctionRefusedError,
    GateUnavailableError.
    """
    source = require_file(name, sha256)
    try:
        function = getattr(source.module(), name.partition(":")[2])
    except Exception as error:
        raise FunctionRefusedError(f"sum_function: importing {name} raised {type(error).__name__}") from error
    found = SumFunction(name, function, arguments, dim)
    if is_bounded and not found.dry_run.is_exact:
        raise FunctionRefusedError(
            f"sum_function_factor: expected none, as {name} truncates shared numbers, and CrypTen's truncation is now "
            "and then wrong by 2^48"
        )
    if is_bounded and not found.dry_run.keeps_zero:
        raise FunctionRefusedError(f"sum_function_factor: expected none, as {name} does not take zero to zero")
    return found
