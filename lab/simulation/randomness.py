"""Where a simulation's draws come from.

    SeededRandomness    NumPy's generator, from a seed, so that a run repeats. It protects nobody
    KeyedRandomness     AES-256-CTR, from a secret key of the operating system: where a holder's ledger pays

Every draw has a generator of its own, made of the seed or key and of what the draw is for. So a run that is resumed
goes on with the same numbers, and one client's records do not depend on who else was chosen.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from precad.clients.errors import ArgumentError
from precad.clients.record_bins import KEY_BYTES
from precad.clients.training.record_draws import BinKey
from precad.dp.noise import rounded_gaussian, rounded_laplace
from precad.mpc import joint_coin
from precad.mpc.prg import SEED_BYTES, Label, RandomBytes, Seed
from precad.mpc.ring import RingArray
from precad.protos.task.task import Task
from precad.servers.rounds.equipment import Randomness

SECRET_BYTES: Final = 32
"""Length of the key of `KeyedRandomness`."""


class Sources(Protocol):
    """Draw what a round draws at servers, clients and attackers. Tests replay a deployment's draws through it."""

    def chosen(self, t: int, clients: Sequence[str], client_rate: float) -> list[str]:
        """Return who is in round t (Algorithm 1, line 2); `clients` are sorted, and so is the result."""

    def turns(self, clients: Sequence[str], n_turns: int) -> Mapping[str, int]:
        """Return the turn of every client, where they take turns; `clients` are sorted."""

    def records(self, t: int, client: str) -> RandomBytes:
        """Return the random bytes that a client draws its records with."""

    def bins(self, client: str) -> BinKey:
        """Return what a client's bins follow from, where a task's records are in bins."""

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """Return noise on the integer grid (dim,) of `source`: `server-0`, `server-1`, a client's id."""

    def rule(self, t: int) -> RandomBytes:
        """Return the random bytes for an aggregation rule that adds noise."""

    def attack(self, t: int, client: str) -> np.random.Generator:
        """Return the random bytes for an attacker."""


class _Streams(ABC):
    """Draw as a deployment does, each time from a stream of bytes of its own."""

    @abstractmethod
    def _stream(self, use: str, t: int, who: str = "") -> RandomBytes:
        """Return the stream of one draw, from its start."""

    def chosen(self, t: int, clients: Sequence[str], client_rate: float) -> list[str]:
        """Draw by the servers' own function, from a coin of the stream."""
        coin = Seed(self._stream("coin", t)(SEED_BYTES))
        return joint_coin.select_poisson(coin, Label("simulation", t), clients, client_rate)

    def turns(self, clients: Sequence[str], n_turns: int) -> Mapping[str, int]:
        """Deal by the servers' own function, from a coin of the stream."""
        coin = Seed(self._stream("turns", 0)(SEED_BYTES))
        return joint_coin.turns(coin, Label("simulation", 0), clients, n_turns)

    def records(self, t: int, client: str) -> RandomBytes:
        """See Sources."""
        return self._stream("records", t, client)

    def bins(self, client: str) -> BinKey:
        """See Sources."""
        return BinKey(self._stream("bins", 0, client)(KEY_BYTES), "simulation")

    def noise(self, t: int, source: str, std_on_grid: float, dim: int) -> RingArray:
        """Draw by the servers' own sampler, on bytes of the stream."""
        return rounded_gaussian.sample(std_on_grid, dim, self._stream("noise", t, source))

    def rule(self, t: int) -> RandomBytes:
        """See Sources."""
        return self._stream("rule", t)


class SeededRandomness(_Streams):
    """Everything from one seed, for experiments. Production draws from the operating system's generator."""

    def __init__(self, seed: int) -> None:
        """Raises ArgumentError for what is no seed."""
        self.seed = _required(seed)

    def attack(self, t: int, client: str) -> np.random.Generator:
        """See Sources."""
        return self._generator("attack", t, client)

    def _stream(self, use: str, t: int, who: str = "") -> RandomBytes:
        return self._generator(use, t, who).bytes

    def _generator(self, use: str, t: int, who: str = "") -> np.random.Generator:
        key = hashlib.sha256(f"{self.seed}/{use}/{t}/{who}".encode()).digest()
        return np.random.Generator(np.random.PCG64(int.from_bytes(key, "little")))


class KeyedRandomness(_Streams):
    """Everything from one secret key, for trainings that holders pay for: whoever lacks the key sees random bytes.

    Each draw has a key of its own, HKDF-SHA256(secret, info = [number, use, round, who]), which AES-256-CTR expands.
    Numbers tell the trainings under one key apart.
    """

    def __init__(self, secret: bytes, number: int) -> None:
        """Raises ArgumentError for another length of the secret, or what is no number."""
        if len(secret) != SECRET_BYTES:
            raise ArgumentError(f"secret: expected {SECRET_BYTES} bytes, found {len(secret)}")
        self._secret, self._number = secret, _required(number)

    def attack(self, t: int, client: str) -> np.random.Generator:
        """See Sources. Attackers are paid for by nobody."""
        return np.random.Generator(np.random.PCG64(int.from_bytes(self._stream("attack", t, client)(32), "little")))

    def _stream(self, use: str, t: int, who: str = "") -> RandomBytes:
        info = b"precad/simulation" + json.dumps([self._number, use, t, who]).encode()
        key = HKDF(algorithm=SHA256(), length=SECRET_BYTES, salt=None, info=info).derive(self._secret)
        encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        return lambda n: encryptor.update(bytes(n))

    def __repr__(self) -> str:
        return "KeyedRandomness(REDACTED)"


def _required(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ArgumentError(f"seed: expected an integer of at least 0, found {seed!r}")
    return seed


def of_servers(sources: Sources, t: int) -> tuple[Randomness, Randomness]:
    """Return what servers A and B add in round t. Their noise on the margin is one stream: A's is drawn first."""
    margin = sources.rule(t)

    def source(party: int) -> Randomness:
        return Randomness(
            noise=lambda std, dim: sources.noise(t, f"server-{party}", std, dim),
            margin_noise=lambda scale: rounded_laplace.sample(scale, margin),
        )

    return source(0), source(1)


def drawn(randomness: Sources, task: Task, t: int) -> list[str]:
    """Return who is in round t of a task, sorted: drawn among everybody, or among those whose turn it is."""
    clients = sorted(task.clients)
    if task.min_separation > 1:
        turns = randomness.turns(clients, task.min_separation)
        clients = [client for client in clients if turns[client] == t % task.min_separation]
    return randomness.chosen(t, clients, task.client_rate)
