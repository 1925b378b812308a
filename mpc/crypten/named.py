"""Functions of the shared sum by name: the file that one is in, its digest, and what it does on a dry run.

Such a function is code that runs in a server's process. Its operator names it in the server's own configuration; the
digest says that both operators, and the clients' task, mean the same file. What that file imports is not in the digest.
"""

from __future__ import annotations

import hashlib
import hmac
import importlib
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from precad.mpc.crypten.bridge import SumFunction
from precad.mpc.errors import FunctionRefusedError


def file_digest(name: str) -> str:
    """Return the SHA-256 of the file that `package.module:function` is in, as hex. Runs nothing of that file.

    Packages around it are imported, as Python finds modules in them. Raises FunctionRefusedError.
    """
    module = name.partition(":")[0]
    try:
        spec = find_spec(module)
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError
        return hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()
    except (ImportError, OSError, ValueError, AttributeError):
        raise FunctionRefusedError(f"sum_function: expected an importable file of Python, found {module}") from None


def require_file(name: str, sha256: str) -> None:
    """Refuse a file other than the one with this digest. Raises FunctionRefusedError."""
    if not hmac.compare_digest(found := file_digest(name), sha256):
        raise FunctionRefusedError(f"sum_function_sha256: expected {sha256}, found {found} of the file of {name}")


def named_function(
    name: str, sha256: str, arguments: Mapping[str, Any], dim: int, *, is_bounded: bool = False
) -> SumFunction:
    """Load a function, and make its dry run for vectors of length d.

    is_bounded: a factor is declared, so that it must be exact and take zero to zero. Raises FunctionRefusedError,
    GateUnavailableError.
    """
    require_file(name, sha256)
    module, _, attribute = name.partition(":")
    try:
        function = getattr(importlib.import_module(module), attribute)
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
