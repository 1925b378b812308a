"""How an experiment spreads the records of a data set over clients. Real clients bring their own.

Experiments only, hence plain generators: the seeds protect nobody.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from precad.clients.checks import require_positive
from precad.clients.errors import ArgumentError

Parts = tuple[NDArray[np.int64], ...]
"""For each client the indices of its records: disjoint, together all records, none empty."""


def iid(n_records: int, n_clients: int, *, seed: int) -> Parts:
    """Deal records after a shuffle; sizes differ by at most one.

    Raises: ArgumentError unless 1 <= n_clients <= n_records.
    """
    _require_clients(n_clients, n_records)
    return tuple(np.array_split(np.random.default_rng(seed).permutation(n_records), n_clients))


def shards(labels: NDArray[np.int64], n_clients: int, *, per_client: int = 4, seed: int) -> Parts:
    """Sort by label, cut into per_client * n_clients shards, and give per_client of them at random to each client.

    100 clients with 4 shards each are the 400 shards of PRECAD's experiments: a client sees few classes.
    Raises: ArgumentError unless there are at least as many records as shards, and a shard per client.
    Source: McMahan et al., "Communication-Efficient Learning of Deep Networks", 2017, Sec. 3; PRECAD, Sec. 6.1.
    """
    if per_client < 1:
        raise ArgumentError(f"shards per client: expected at least 1, found {per_client}")
    _require_clients(n_clients * per_client, len(labels), "shards")
    random = np.random.default_rng(seed)
    by_label = np.lexsort((random.random(len(labels)), labels))
    pieces = np.array_split(by_label, n_clients * per_client)
    dealt = random.permutation(len(pieces)).reshape(n_clients, per_client)
    return tuple(np.concatenate([pieces[i] for i in own]) for own in dealt)


def dirichlet(labels: NDArray[np.int64], n_clients: int, *, alpha: float, seed: int) -> Parts:
    """Return the records of each class, dealt in proportions from Dirichlet(alpha, .., alpha); small alpha: few classes
    each.

    A client that draws nothing gets one record from the client that has most.
    Raises: ArgumentError unless alpha is positive and finite and there is a record per client.
    Source: Hsu, Qi and Brown, "Measuring the Effects of Non-Identical Data Distribution", 2019, in its form with
    proportions per class (Yurochkin et al., 2019).
    """
    require_positive("alpha", alpha)
    _require_clients(n_clients, len(labels))
    random = np.random.default_rng(seed)
    dealt: list[list[NDArray[np.int64]]] = [[] for _ in range(n_clients)]
    for label in np.unique(labels):
        own = random.permutation(np.flatnonzero(labels == label))
        cuts = np.round(np.cumsum(random.dirichlet(np.full(n_clients, alpha)))[:-1] * len(own)).astype(np.int64)
        for client, piece in zip(dealt, np.split(own, cuts), strict=True):
            client.append(piece)
    parts = [np.concatenate(pieces) for pieces in dealt]
    _give_to_the_poor(parts)
    return tuple(parts)


def _give_to_the_poor(parts: list[NDArray[np.int64]]) -> None:
    """Give each client that has none a record of the one that has most just then, of equals the first; in place."""
    by_wealth = [(-len(part), i) for i, part in enumerate(parts)]
    heapq.heapify(by_wealth)
    for i, part in enumerate(parts):
        if len(part) == 0:
            _, richest = by_wealth[0]
            parts[i], parts[richest] = parts[richest][-1:], parts[richest][:-1]
            heapq.heapreplace(by_wealth, (-len(parts[richest]), richest))  # who got one never has most again


def by_user(users: NDArray[np.int64] | None, n_clients: int, *, seed: int) -> Parts:
    """Deal whole users i.i.d. to the clients; with as many clients as users, every client is one user.

    Raises: ArgumentError where records have no user, or unless there is a user per client.
    """
    if users is None:
        raise ArgumentError("partition 'user' needs a data set that knows its users: airline-tweets or sentiment140")
    names, who = np.unique(users, return_inverse=True)
    _require_clients(n_clients, len(names), "clients of users")
    client_of = np.empty(len(names), dtype=np.int64)
    for client, group in enumerate(np.array_split(np.random.default_rng(seed).permutation(names), n_clients)):
        client_of[np.searchsorted(names, group)] = client
    owners = client_of[who]
    ends = np.cumsum(np.bincount(owners, minlength=n_clients))
    return tuple(np.split(np.argsort(owners, kind="stable"), ends[:-1]))  # one sort, however many users there are


def _require_clients(n: int, limit: int, what: str = "n_clients") -> None:
    if not 1 <= n <= limit:
        raise ArgumentError(f"{what}: expected 1 to {limit}, found {n}")
