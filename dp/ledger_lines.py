"""The lines of a ledger's file (`precad.dp.ledger`): how one is written, and what is refused when it is read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from typing import Any

from precad.dp.checks import require_count


def charge_of(fields: dict[str, Any], earlier: Collection[int]) -> tuple[int, list[str]]:
    """Round and clients of a charge. ValueError if it is none, or of a round that was charged before."""
    if list(fields) != ["round", "clients"] or not isinstance(fields["clients"], list):
        raise ValueError(f"a charge must have a round and a list of clients, got the fields {', '.join(fields)}")
    require_count("round", fields["round"])
    if fields["round"] in earlier:
        raise ValueError(f"a round must be charged once, round {fields['round']} is again")
    return fields["round"], sorted_ids(fields["clients"])


def sorted_ids(clients: Collection[str]) -> list[str]:
    """Return the client ids in order, each a non-empty string and named once."""
    if isinstance(clients, str) or not all(isinstance(client, str) and client for client in clients):
        raise ValueError(f"clients must be a collection of non-empty strings, got {clients!r}")
    if len(set(clients)) != len(clients):
        raise ValueError(f"clients must be named once each, got {sorted(clients)}")
    return sorted(clients)


def seal(fields: dict[str, Any], previous_chain: str) -> tuple[bytes, str]:
    """Return the line holding `fields`, with its newline, and its chain value."""
    body = json.dumps(fields, separators=(",", ":"))
    chain = hashlib.sha256(f"{previous_chain}{body}".encode()).hexdigest()
    return f'{body[:-1]},"chain":"{chain}"}}\n'.encode(), chain


def unseal(line: bytes, previous_chain: str) -> tuple[dict[str, Any], str]:
    """Return the fields of a line and its chain value. ValueError unless `_seal` makes exactly this line of them."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("a line must be a JSON object")
    fields.pop("chain", None)
    sealed, chain = seal(fields, previous_chain)
    if sealed != line:
        raise ValueError("the line was changed after it was written, or the line before it was")
    return fields, chain


def require_same(found: dict[str, Any], ours: dict[str, Any], prefix: str = "") -> None:
    """Every parameter in the header must be ours; the first that is not is named."""
    for name in sorted(ours.keys() | found.keys()):
        theirs, expected = found.get(name), ours.get(name)
        if isinstance(theirs, dict) and isinstance(expected, dict):
            require_same(theirs, expected, f"{prefix}{name}.")
        elif theirs != expected:
            raise ValueError(f"the ledger was started with {prefix}{name} = {theirs}, this server has {expected}")
