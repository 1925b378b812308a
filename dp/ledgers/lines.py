"""The sealed lines of a file (`precad.dp.ledgers.sealed_file`): how one is written, and what reading refuses.

A ledger's charges are among them (`precad.dp.ledgers.ledger`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from precad.dp.checks import require_count
from precad.dp.errors import LedgerCorruptedError

FIRST_CHAIN: Final = ""
"""The chain value before the first line."""

EVALUATION: Final = "evaluation"
"""The kind of a charge that is of an evaluation. Others have none."""

Fields = dict[str, Any]


def replay(path: Path, lines: bytes, header: Callable[[Fields], None], charge: Callable[[Fields], None]) -> str:
    """Give the first line's fields to `header` and those of every other to `charge`. Return the last chain value.

    Raises: LedgerCorruptedError for the first line that was changed, or that one of them refuses by a ValueError.
    """
    chain = FIRST_CHAIN
    for number, line in enumerate(lines.splitlines(keepends=True), start=1):
        try:
            fields, chain = unseal(line, chain)
            (header if number == 1 else charge)(fields)
        except (ValueError, RecursionError) as error:
            raise LedgerCorruptedError(path, line=number, problem=str(error)) from error
    return chain


class Charge(NamedTuple):
    """A charged round."""

    clients: list[str]
    is_evaluation: bool = False


def read_lines(path: Path) -> tuple[Fields, dict[int, Charge], str]:
    """Return the parameters of a ledger's file, its charged rounds with their clients, and the last chain value.

    It is not opened for charges. An incomplete last line does not count. Raises: LedgerCorruptedError; OSError as the
    file system gives it.
    """
    content = path.read_bytes()
    header: Fields = {}
    charges: dict[int, Charge] = {}
    complete = content[: content.rfind(b"\n") + 1]
    chain = replay(path, complete, header.update, lambda fields: charges.update([charge_of(fields, charges)]))
    return header, charges, chain


def chains(header: Fields, charges: Mapping[int, Charge]) -> dict[int, str]:
    """Return the chain value after each charged round, of what `read_lines` gave."""
    chain, found = seal(header, FIRST_CHAIN)[1], dict[int, str]()
    for number, charge in charges.items():
        chain = found[number] = seal(charge_fields(number, charge), chain)[1]
    return found


def participation(charges: Mapping[int, Charge], *, is_evaluation: bool = False, bins: int = 1) -> Counter[str]:
    """Return in how many charged rounds each client was, of the training or of evaluations.

    charges: by number. bins: in how many rounds a record is once; then all rounds of an epoch count that has one.
    """
    if bins == 1 or is_evaluation:
        found = charges.values()
        return Counter(client for one in found if one.is_evaluation is is_evaluation for client in one.clients)
    epochs: dict[int, set[str]] = {}
    for number, one in charges.items():
        if not one.is_evaluation:
            epochs.setdefault(number // bins, set()).update(one.clients)
    once = Counter(client for clients in epochs.values() for client in clients)
    return Counter({client: bins * n for client, n in once.items()})


def charge_fields(round_number: int, charge: Charge) -> Fields:
    """Return the fields of a charge's line."""
    kind = {"kind": EVALUATION} if charge.is_evaluation else {}
    return {"round": round_number, "clients": charge.clients, **kind}


def charge_of(fields: Fields, earlier: Collection[int]) -> tuple[int, Charge]:
    """Return round and charge. Raises ValueError if it is none, or of a round that was charged before."""
    is_evaluation = fields.get("kind") == EVALUATION
    expected = ["round", "clients", *(["kind"] if is_evaluation else [])]
    if list(fields) != expected or not isinstance(fields["clients"], list):
        raise ValueError(f"charge: expected a round and a list of clients, found the fields {', '.join(fields)}")
    require_count("round", fields["round"])
    if fields["round"] in earlier:
        raise ValueError(f"round: expected each of them charged once, found {fields['round']} again")
    return fields["round"], Charge(sorted_ids(fields["clients"]), is_evaluation)


def sorted_ids(clients: Collection[str]) -> list[str]:
    """Return the client ids in order, each a non-empty string and named once."""
    if isinstance(clients, str) or not all(isinstance(client, str) and client for client in clients):
        raise ValueError(f"clients: expected a collection of non-empty strings, found {clients!r}")
    if len(set(clients)) != len(clients):
        raise ValueError(f"clients: expected each of them once, found {sorted(clients)}")
    return sorted(clients)


def seal(fields: dict[str, Any], previous_chain: str) -> tuple[bytes, str]:
    """Return the line holding `fields`, with its newline, and its chain value."""
    body = json.dumps(fields, separators=(",", ":"))
    chain = hashlib.sha256(f"{previous_chain}{body}".encode()).hexdigest()
    return f'{body[:-1]},"chain":"{chain}"}}\n'.encode(), chain


def unseal(line: bytes, previous_chain: str) -> tuple[dict[str, Any], str]:
    """Return the fields of a line and its chain value. Raises ValueError unless `seal` makes just this line of them."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError(f"a line: expected a JSON object, found a {type(fields).__name__}")
    fields.pop("chain", None)
    sealed, chain = seal(fields, previous_chain)
    if sealed != line:
        raise ValueError("the line was changed after it was written, or the line before it was")
    return fields, chain


def require_same(found: dict[str, Any], ours: dict[str, Any], prefix: str = "") -> None:
    """Require every parameter in the header to be ours. Raises ValueError, which names the first that is not."""
    for name in sorted(ours.keys() | found.keys()):
        theirs, expected = found.get(name), ours.get(name)
        if isinstance(theirs, dict) and isinstance(expected, dict):
            require_same(theirs, expected, f"{prefix}{name}.")
        elif theirs != expected:
            raise ValueError(f"the file was started with {prefix}{name} = {theirs}, and is opened with {expected}")
