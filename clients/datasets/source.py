"""The records that a configuration names, and how they are spread over a task's clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, get_args

from clients.config import ClientConfig, DatasetName, PartitionName
from clients.datasets import partitions
from clients.datasets.digits import DIGITS_SIDE, digits
from clients.datasets.idx import fashion_mnist, mnist
from clients.datasets.mosaics import cifar10
from clients.datasets.partitions import Parts
from clients.datasets.records import Records, Split
from clients.datasets.sentiment import sentiment140, sentiment140_50k
from clients.datasets.tweets import airline_tweets
from clients.errors import UnknownNameError


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

    @classmethod
    def of(cls, config: ClientConfig) -> Self:
        """What the `[client]` section says."""
        return cls(
            dataset=config.dataset,
            classes=tuple(config.classes),
            partition=config.partition,
            seed=config.partition_seed,
            shards_per_client=config.shards_per_client,
            dirichlet_alpha=config.dirichlet_alpha,
            may_download=config.download,
        )

    def load(self, *, side: int | None = None) -> Split:
        """The data set. `side` is that of the images which a model takes: the bundled digits are enlarged to it.

        Raises: MissingDataError, CorruptDataError, UnknownNameError, DataError where it lacks one of the classes.
        """
        split = self._whole(side)
        return split.of_classes(self.classes) if self.classes else split

    def _whole(self, side: int | None) -> Split:
        match self.dataset:
            case "digits":
                return digits(side=max(side or DIGITS_SIDE, DIGITS_SIDE))
            case "mnist":
                return mnist(may_download=self.may_download)
            case "fashion-mnist":
                return fashion_mnist(may_download=self.may_download)
            case "cifar10":
                return cifar10(may_download=self.may_download)
            case "airline-tweets":
                return airline_tweets()
            case "sentiment140":
                return sentiment140()
            case "sentiment140-50k":
                return sentiment140_50k()
        raise UnknownNameError("data set", self.dataset, known=list(get_args(DatasetName)))

    def parts(self, split: Split, n_clients: int) -> Parts:
        """Indices of each client's records in the training half. Raises ArgumentError, UnknownNameError."""
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
        """How many records each client has. Parts are dealt in the order of the clients' ids."""
        parts = self.parts(split, len(clients))
        return {client: len(part) for client, part in zip(sorted(clients), parts, strict=True)}

    def records_of(self, split: Split, clients: Sequence[str], wanted: Sequence[str]) -> dict[str, Records]:
        """The records of the `wanted` among all `clients` of the task."""
        parts = dict(zip(sorted(clients), self.parts(split, len(clients)), strict=True))
        return {client: split.train.take(parts[client]) for client in wanted}
