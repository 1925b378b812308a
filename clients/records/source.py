"""The records that a configuration names, and how they are spread over a task's clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, Self, get_args

import numpy as np

from precad.clients.config import ClientConfig, DatasetName, PartitionName
from precad.clients.errors import UnknownNameError
from precad.clients.records import partitions
from precad.clients.records.digits import DIGITS_SIDE, digits
from precad.clients.records.holdout import is_kept_aside
from precad.clients.records.idx import EMNIST_SPLITS, emnist, fashion_mnist, mnist
from precad.clients.records.mosaics import cifar10
from precad.clients.records.partitions import Parts
from precad.clients.records.records import Records, Split
from precad.clients.records.tweets import airline_tweets, sentiment140, sentiment140_50k


class _Images(Protocol):
    def __call__(self, *, may_download: bool) -> Split: ...


_IMAGES: Final[Mapping[str, _Images]] = {
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar10": cifar10,
    **{f"emnist-{name}": partial(emnist, name) for name in EMNIST_SPLITS},
}
_TEXTS: Final[Mapping[str, Callable[[], Split]]] = {
    "airline-tweets": airline_tweets,
    "sentiment140": sentiment140,
    "sentiment140-50k": sentiment140_50k,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSource:
    """One data set, spread in one way."""

    dataset: DatasetName = "digits"
    classes: tuple[int, ...] = ()
    """Only the records of these; empty: of all."""
    partition: PartitionName = "iid"
    seed: int = 0
    shards_per_client: int = 4
    dirichlet_alpha: float = 0.5
    may_download: bool = False
    holdout: float = 0.0
    """The share of the training half that clients hold out."""
    holdout_seed: int = 0

    @classmethod
    def of(cls, config: ClientConfig) -> Self:
        """Take the values of the `[client]` section."""
        return cls(
            dataset=config.dataset,
            classes=tuple(config.classes),
            partition=config.partition,
            seed=config.partition_seed,
            shards_per_client=config.shards_per_client,
            dirichlet_alpha=config.dirichlet_alpha,
            may_download=config.download,
            holdout=config.holdout or 0.0,
            holdout_seed=config.holdout_seed,
        )

    @property
    def name(self) -> str:
        """Return how messages call it: the field of the configuration, and its value."""
        return f"client.dataset {self.dataset}"

    def load(self, *, side: int | None = None) -> Split:
        """Return the data set. `side` is that of the images which a model takes: the bundled digits are enlarged to it.

        Raises: MissingDataError, CorruptDataError, UnknownNameError, DataError where it lacks one of the classes.
        """
        split = self._whole(side)
        split = split.of_classes(self.classes) if self.classes else split
        if not self.holdout:
            return split
        return split.keeping_aside(is_kept_aside(split.train, self.holdout, self.holdout_seed))

    def _whole(self, side: int | None) -> Split:
        if self.dataset == "digits":
            return digits(side=max(side or DIGITS_SIDE, DIGITS_SIDE))
        if self.dataset in _IMAGES:
            return _IMAGES[self.dataset](may_download=self.may_download)
        if self.dataset in _TEXTS:
            return _TEXTS[self.dataset]()
        raise UnknownNameError("data set", self.dataset, known=list(get_args(DatasetName)))

    def parts(self, split: Split, n_clients: int) -> Parts:
        """Return the indices of each client's records in the training half. Raises ArgumentError, UnknownNameError."""
        labels = split.train.labels
        match self.partition:
            case "iid":
                return partitions.iid(len(labels), n_clients, seed=self.seed)
            case "shards":
                return partitions.shards(labels, n_clients, per_client=self.shards_per_client, seed=self.seed)
            case "dirichlet":
                return partitions.dirichlet(labels, n_clients, alpha=self.dirichlet_alpha, seed=self.seed)
            case "user":
                return partitions.by_user(split.users, n_clients, seed=self.seed)
        raise UnknownNameError("partition", self.partition, known=list(get_args(PartitionName)))

    def sizes(self, split: Split, clients: Sequence[str]) -> dict[str, int]:
        """Return how many records each client has. Parts are dealt in the order of the clients' ids."""
        parts = self.parts(split, len(clients))
        return {client: len(part) for client, part in zip(sorted(clients), parts, strict=True)}

    def records_of(self, split: Split, clients: Sequence[str], wanted: Sequence[str]) -> dict[str, Records]:
        """Return the records of the `wanted` among all `clients` of the task."""
        parts = dict(zip(sorted(clients), self.parts(split, len(clients)), strict=True))
        return {client: split.train.take(parts[client]) for client in wanted}

    def held_out_of(self, split: Split, clients: Sequence[str], wanted: Sequence[str]) -> dict[str, Records]:
        """Return the records that the `wanted` among all `clients` hold out, empty where none are kept.

        Where nobody says whose a record is, they are dealt after a shuffle.
        """
        held = split.train.take(np.zeros(0, np.int64)) if split.held_out is None else split.held_out
        if split.holders is None:
            place = np.random.default_rng(self.seed).permutation(len(held)) % max(len(clients), 1)
        else:
            place = split.holders
        order = sorted(clients)
        return {client: held.take(np.flatnonzero(place == order.index(client))) for client in wanted}
