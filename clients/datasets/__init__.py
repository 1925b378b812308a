"""Labelled records, where they come from, and how an experiment spreads them over clients."""

from clients.datasets.digits import digits
from clients.datasets.extended_mnist import emnist
from clients.datasets.idx import fashion_mnist, mnist
from clients.datasets.mosaics import cifar10
from clients.datasets.partitions import partition
from clients.datasets.records import N_CLASSES, Records, Split, channels_last, example_of, joined, model_inputs
from clients.datasets.sentiment import sentiment140, sentiment140_50k
from clients.datasets.source import DataSource
from clients.datasets.tweets import airline_tweets

__all__ = [
    "N_CLASSES",
    "DataSource",
    "Records",
    "Split",
    "airline_tweets",
    "channels_last",
    "cifar10",
    "digits",
    "emnist",
    "example_of",
    "fashion_mnist",
    "joined",
    "mnist",
    "model_inputs",
    "partition",
    "sentiment140",
    "sentiment140_50k",
]
