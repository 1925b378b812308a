"""Keep one audit client's secrets of one task: its coins, and what it added in each round.

    {"client": .., "task": digest}          the header
    {"coins": "0110.."}                     drawn once, from the operating system; a restart reads them
    {"n_committed": .., "model": digest, "head": numbers of the model, "uploaded": integers}    for every update
    {"pairs": .., "most": ..}               records at kinks of the model, beside some updates

Lines are sealed (`precad.dp.ledgers.sealed_file`). Nothing of the file is ever sent or logged; its mode is 0600.
"""

from __future__ import annotations

import base64
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from precad.clients.auditing.kinks import Kinks
from precad.clients.errors import StateFileError
from precad.dp.errors import LedgerCorruptedError, LedgerInUseError
from precad.dp.ledgers.lines import replay, require_same
from precad.dp.ledgers.sealed_file import KeepsSealedFile, SealedFile
from precad.mpc.errors import raised_as
from precad.mpc.prg import SYSTEM_BYTES, RandomBytes
from precad.mpc.ring import RingArray

_KIND: Final = "a file of canaries"
_BITS: Final = 8
Held = TypeVar("Held", bound="Secrets")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Contribution:
    """Hold what an audit client added to one update, for a model that both servers had committed."""

    n_committed: int
    model_digest: bytes
    head: NDArray[np.float32]
    """(m,): the model's numbers at all canaries' coordinates."""
    uploaded: RingArray
    """(k,): the encoded update at this client's own."""

    def fields(self) -> dict[str, Any]:
        """Return it as a line's fields."""
        return {
            "n_committed": self.n_committed,
            "model": self.model_digest.hex(),
            "head": base64.b64encode(self.head.astype("<f4").tobytes()).decode(),
            "uploaded": self.uploaded.tolist(),
        }

    @classmethod
    def of(cls, fields: dict[str, Any], n_canaries: int, held: int) -> Self:
        """Read a line's fields. Raises ValueError for any others."""
        if list(fields) != ["n_committed", "model", "head", "uploaded"]:
            raise ValueError(f"expected a contribution, found the fields {', '.join(fields)}")
        head = np.frombuffer(base64.b64decode(str(fields["head"]), validate=True), dtype="<f4")
        uploaded, number = fields["uploaded"], fields["n_committed"]
        is_whole = isinstance(uploaded, list) and len(uploaded) == held and _are_words(uploaded)
        if len(head) != n_canaries or not np.isfinite(head).all() or not is_whole or type(number) is not int:
            raise ValueError(f"expected {n_canaries} numbers of a model and {held} integers, found others")
        return cls(
            number, bytes.fromhex(str(fields["model"])), head.astype(np.float32), np.array(uploaded, dtype=np.int64)
        )


def _are_words(values: Sequence[Any]) -> bool:
    """Return whether these are integers that words of 64 bits stand for."""
    return all(type(value) is int and -(2**63) <= value < 2**63 for value in values)


class Secrets(ABC):
    """Secrets of one audit client, as its file has them."""

    held: int
    """k: how many records the coins are of."""
    coins: NDArray[np.bool_] | None
    """(k,): which are among its records; None before they are drawn."""
    kinks: list[Kinks]
    """Findings by records at kinks of the model, in the client's process, in order."""

    def first_line(self, coins: str) -> dict[str, Any]:
        """Return the fields of the line after the header."""
        return {"coins": coins}

    def take(self, fields: dict[str, Any]) -> None:
        """Take in one line after the header. Raises ValueError."""
        if self.coins is None:
            self.take_first(fields)
        elif list(fields) == ["pairs", "most"]:
            self.kinks.append(_kinks_of(fields))
        else:
            self.take_contribution(fields)

    def take_first(self, fields: dict[str, Any]) -> None:
        """Take in the line after the header. Raises ValueError."""
        coins = fields.get("coins")
        if list(fields) != ["coins"] or not isinstance(coins, str) or len(coins) != self.held or set(coins) - {*"01"}:
            raise ValueError(f"expected {self.held} coins, found something else")
        self.coins = np.array([coin == "1" for coin in coins])

    @abstractmethod
    def take_contribution(self, fields: dict[str, Any]) -> None:
        """Take in one update. Raises ValueError."""


def _kinks_of(fields: dict[str, Any]) -> Kinks:
    """Return what a line says of kinks. Raises ValueError."""
    pairs, most = fields["pairs"], fields["most"]
    if type(pairs) is not int or pairs < 0 or type(most) is not float or not 0 <= most < math.inf:
        raise ValueError("expected a number of pairs and how far one moved a sum, found others")
    return Kinks(pairs, most)


@dataclass(slots=True, eq=False, repr=False)
class Canaries(Secrets):
    """Secrets of an audit client whose records are canaries."""

    n_canaries: int
    """m: of all audit clients of the task."""
    held: int
    coins: NDArray[np.bool_] | None = None
    contributions: list[Contribution] = field(default_factory=list)
    """One for each update that was encoded, in order."""
    kinks: list[Kinks] = field(default_factory=list)

    def take_contribution(self, fields: dict[str, Any]) -> None:
        """See `Secrets`."""
        self.contributions.append(Contribution.of(fields, self.n_canaries, self.held))


def path_of(state_dir: Path, client: str, config_digest: bytes) -> Path:
    """Return where an audit client of a task keeps its canaries."""
    return state_dir / f"{client}-{config_digest.hex()[:16]}.canaries"


def header_of(client: str, config_digest: bytes) -> dict[str, Any]:
    """Return the first line's fields."""
    return {"client": client, "task": config_digest.hex()}


class CanaryFile(KeepsSealedFile):
    """The file, open in the client's own process."""

    def __init__(
        self, path: Path, header: dict[str, Any], secrets: Secrets, random_bytes: RandomBytes = SYSTEM_BYTES
    ) -> None:
        """Open the file, or draw the coins and begin it. secrets: empty; takes in what is there.

        Raises: StateFileError, also where another process has it open.
        """
        self._path, self._secrets = path, secrets
        with _using(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = SealedFile(path, header, secrets.take, _KIND)
            path.chmod(0o600)
            if secrets.coins is None:
                bits = np.unpackbits(np.frombuffer(random_bytes(-(-secrets.held // _BITS)), dtype=np.uint8))
                self._add(secrets.first_line("".join(map(str, bits[: secrets.held]))))

    def add(self, contribution: dict[str, Any]) -> None:
        """Write down one update, durably. Raises StateFileError; then nothing of it may be uploaded."""
        with _using(self._path):
            self._add(contribution)

    def add_kinks(self, found: Kinks) -> None:
        """Write down what records at kinks showed. Raises StateFileError."""
        self.add({"pairs": found.pairs, "most": found.most})

    def _add(self, fields: dict[str, Any]) -> None:
        self._file.append(fields)
        self._secrets.take(fields)


def read(path: Path, header: dict[str, Any], secrets: Held) -> Held:
    """Fill `secrets` from a file, for the auditor. Changes nothing. Raises StateFileError."""
    with _using(path):
        content = path.read_bytes()
        replay(path, content[: content.rfind(b"\n") + 1], lambda found: require_same(found, header), secrets.take)
    if secrets.coins is None:
        raise StateFileError(f"client.state_dir: expected the coins of canaries, found none in {path}")
    return secrets


def _using(path: Path) -> AbstractContextManager[None]:
    """Raise StateFileError for a file that the system refuses, another process uses, or somebody changed."""
    refused = (OSError, LedgerCorruptedError, LedgerInUseError)
    return raised_as(StateFileError, refused, f"client.state_dir: expected {_KIND} to read and write, found {path}")
