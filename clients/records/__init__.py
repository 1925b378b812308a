"""Labelled records, where they come from, and how an experiment spreads them over clients.

Modules:

    digest          The digest of records by whose they are
    digits          The handwritten digits that come with scikit-learn: nothing is downloaded
    download        Data sets through torchvision, where the configuration allows to download them
    folder          Where data sets lie that are not bundled, and the proof that a file is the one it should be
    holdout         Which records are kept for testing, each by its own content
    idx             MNIST, Fashion-MNIST and four splits of EMNIST: idx files, plain or gzip-compressed
    mosaics         CIFAR-10 as one lossless image per half and class: a mosaic of 32x32 tiles, 100 tiles a row
    partitions      How an experiment spreads the records of a data set over clients. Real clients bring their own
    own/            Records of a client's own: files, data sets and functions
    records         Labelled records, and the two halves of a data set
    source          The records that a configuration names, and how they are spread over a task's clients
    tweets          Tweets as hashed words: to American airlines with their authors, and Sentiment140
"""

from precad.clients.records.digits import digits
from precad.clients.records.idx import emnist, fashion_mnist, mnist
from precad.clients.records.mosaics import cifar10
from precad.clients.records.records import (
    IMAGE_AXES,
    N_CLASSES,
    Records,
    Split,
    channels_last,
    example_label_of,
    example_of,
    joined,
    model_inputs,
)
from precad.clients.records.source import DataSource
from precad.clients.records.tweets import airline_tweets, sentiment140, sentiment140_50k

__all__ = [
    "IMAGE_AXES",
    "N_CLASSES",
    "DataSource",
    "Records",
    "Split",
    "airline_tweets",
    "channels_last",
    "cifar10",
    "digits",
    "emnist",
    "example_label_of",
    "example_of",
    "fashion_mnist",
    "joined",
    "mnist",
    "model_inputs",
    "sentiment140",
    "sentiment140_50k",
]
