"""Digests of what an app brings as objects, so that a folder is continued with the same records and code only.

Whoever guesses all records can confirm the guess by their digest. It lies in the folder of a simulation, which holds
more about them: models without the randomness of a deployment.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from types import CodeType

from precad.clients.app import App
from precad.clients.records import Records
from precad.clients.records.digest import sha256_of_records


def digests_of(app: App, records: Mapping[str, Records], test: Records) -> dict[str, str]:
    """Return SHA-256 digests, in hexadecimal, of all clients' and the test records, and of the app's functions."""
    codes = {f"{name}_sha256": _sha256(_code_of(made)) for name, made in {"model": app.model, "loss": app.loss}.items()}
    codes["metrics_sha256"] = _sha256(*map(_code_of, app.metrics))
    return {"records_sha256": sha256_of_records({**records, "test records": test}), **codes}


def _code_of(made: object) -> bytes:
    """Return a function's or a class's source, or its compiled code, or else its name.

    What it calls is not covered, nor what a closure holds.
    """
    if isinstance(made, str):
        return made.encode()
    of = made if inspect.isroutine(made) or inspect.isclass(made) else type(made)
    try:
        return inspect.getsource(of).encode()
    except (OSError, TypeError):
        code = getattr(of, "__code__", None)
        return _compiled(code) if isinstance(code, CodeType) else str(getattr(of, "__qualname__", of)).encode()


def _compiled(code: CodeType) -> bytes:
    """Return instructions, names and constants, without the place of the code, which a new session changes."""
    constants = [_compiled(one) if isinstance(one, CodeType) else _constant(one) for one in code.co_consts]
    return b"\n".join([code.co_code, repr(code.co_names).encode(), *constants])


def _constant(value: object) -> bytes:
    """Write a constant; a set in an order that every process gives it."""
    return repr(sorted(map(repr, value)) if isinstance(value, frozenset) else value).encode()


def _sha256(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()
