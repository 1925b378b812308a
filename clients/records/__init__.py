"""Labelled records, where they come from, and how an experiment spreads them over clients.

Modules:

    digits          The handwritten digits that come with scikit-learn: nothing is downloaded
    download        Data sets through torchvision, where the configuration allows to download them
    extended_mnist  EMNIST: handwritten digits and letters in the format of MNIST, four of its six splits
    folder          Where data sets lie that are not bundled, and the proof that a file is the one it should be
    idx             MNIST and Fashion-MNIST: the four idx files of each, plain or gzip-compressed
    mosaics         CIFAR-10 as one lossless image per half and class: a mosaic of 32x32 tiles, 100 tiles a row
    partitions      How an experiment spreads the records of a data set over clients. Real clients bring their own
    own/            Records of a client's own: files, data sets and functions
    records         Labelled records, and the two halves of a data set
    sentiment       Sentiment140
    source          The records that a configuration names, and how they are spread over a task's clients
    tweets          Tweets to American airlines with their authors, as hashed words; and what other tweets are read by
"""

from precad.clients.records.digits import digits
from precad.clients.records.extended_mnist import emnist
from precad.clients.records.idx import fashion_mnist, mnist
from precad.clients.records.mosaics import cifar10
from precad.clients.records.partitions import partition
from precad.clients.records.records import (
    N_CLASSES,
    Records,
    Split,
    channels_last,
    example_label_of,
    example_of,
    joined,
    model_inputs,
)
from precad.clients.records.sentiment import sentiment140, sentiment140_50k
from precad.clients.records.source import DataSource
from precad.clients.records.tweets import airline_tweets

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
    "example_label_of",
    "example_of",
    "fashion_mnist",
    "joined",
    "mnist",
    "model_inputs",
    "partition",
    "sentiment140",
    "sentiment140_50k",
]
