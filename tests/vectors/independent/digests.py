"""Sections 3, 7 and 9: everything that is hashed, byte by byte."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Any

VERSION = "precad/v1.1"
"""In hellos, bindings, and before a task's text."""
DERIVATIONS = "precad/v1"
"""Before what is hashed or derived otherwise, which is as it was in that version."""

FLOATS = frozenset(
    {"client_rate", "record_rate", "record_clip", "client_clip", "noise_multiplier", "learning_rate", "delta"}
    | {"submit_timeout_s", "registration_timeout_s"}
    | {"epsilon_budget_one_server", "epsilon_budget_clients_only", "epsilon_budget_client"}
    | {"decay_factor", "server_momentum", "server_beta2", "server_adaptivity"}
    | {"local_rate", "local_momentum", "local_weight_decay", "quantile", "quantile_rate", "quantile_noise"}
)
"""Fields of a task that are written with a point or an exponent, whatever their value."""
COLUMN_FLOATS = frozenset({"mean", "std", "min", "max", "missing"})
"""Members of one of the task's columns, likewise."""
BINDING_FIELDS = (
    "protocol_version",
    "task",
    "round",
    "client",
    "config_digest",
    "model_digest",
    "dim",
    "mode",
    "digest_a",
    "digest_b",
)
"""In the order of their numbers, 1 to 10."""


def sha256(data: bytes) -> bytes:
    """Return the digest of an upload or of a model."""
    return hashlib.sha256(data).digest()


def tagged(*parts: bytes) -> bytes:
    """D(parts): every part with its length, after the version of derivations."""
    return sha256(b"".join(len(part).to_bytes(8, "big") + part for part in (DERIVATIONS.encode(), *parts)))


def canonical_task(task: Mapping[str, Any]) -> str:
    """The text that a task's digest is of, without the version's line."""
    fields = {name: _value(value, is_float=name in FLOATS) for name, value in task.items()}
    if "record_rates" in task:
        rates = {client: repr(float(rate)) for client, rate in task["record_rates"].items()}
        fields["record_rates"] = _object(rates)
    for name in {"audit_clients", "real_audit_clients"} & task.keys():
        fields[name] = _value(sorted(task[name]), is_float=False)
    return _object(fields)


def _value(value: Any, *, is_float: bool) -> str:
    if value is None:
        return "null"
    if isinstance(value, list):
        return (
            "["
            + ",".join(_column(item) if isinstance(item, dict) else _value(item, is_float=False) for item in value)
            + "]"
        )
    if isinstance(value, dict):
        return _object({name: _value(item, is_float=False) for name, item in value.items()})
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(float(value)) if is_float else str(value)


def _column(column: Mapping[str, Any]) -> str:
    return _object({name: _value(value, is_float=name in COLUMN_FLOATS) for name, value in column.items()})


def _object(fields: Mapping[str, str]) -> str:
    return "{" + ",".join(f"{_string(name)}:{fields[name]}" for name in sorted(fields)) + "}"


def _string(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
    return '"' + "".join(escapes.get(c) or (c if " " <= c <= "~" else _utf16(c)) for c in text) + '"'


def _utf16(character: str) -> str:
    units = character.encode("utf-16-be")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


def task_digest(task: Mapping[str, Any]) -> bytes:
    """Return what a hello carries as config_digest."""
    return sha256(f"{VERSION}\n{canonical_task(task)}".encode())


def task_id(name: str, nonce_a: bytes, nonce_b: bytes) -> str:
    """The task's identifier, from both servers' hellos."""
    return f"{name}-{tagged(b'task id', nonce_a, nonce_b).hex()[:16]}"


def binding_digest(binding: Mapping[str, Any]) -> bytes:
    """32 bytes that the servers compare at the lock. Strings and integers are hashed as text, bytes as they are."""
    hashed = b""
    for number, name in enumerate(BINDING_FIELDS, start=1):
        value = binding[name]
        part = value if isinstance(value, bytes) else str(value).encode()
        hashed += number.to_bytes(4, "big") + len(part).to_bytes(8, "big") + part
    return sha256(hashed)


def salted(digest: bytes, salt: bytes) -> bytes:
    """Return what a binding says of the payload to B in the `shares` form, from the payload's SHA-256."""
    return hmac.new(salt, digest, hashlib.sha256).digest()


def coin_commitment(party: int, context: str, value: bytes) -> bytes:
    """Return what a server sends before it reveals its half of a coin."""
    return tagged(b"coin commitment", bytes([party]), context.encode(), value)


def joint_coin(context: str, value_a: bytes, value_b: bytes, transcript: bytes) -> bytes:
    """The seed that both halves make."""
    return tagged(b"joint coin", context.encode(), value_a, value_b, transcript)[:16]
