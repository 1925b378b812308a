"""Tweets as hashed words: to American airlines with their authors, and Sentiment140, with authors or 50 000 without.

Sentiment140's are of 2009, and their sentiment is what an emoticon told.
"""

from __future__ import annotations

import csv
import html
import io
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import CorruptDataError
from precad.clients.records.folder import find, missing, read_members, read_verified
from precad.clients.records.records import Records, Split

FILE: Final = "tweets/airline_tweets.csv"
SHA256: Final = "c419c481ad5fe5b3a15f4199a214d974517c3bcd6501a797b0fbddbd3a2ea05f"
LENGTH, VOCABULARY = 32, 2000
"""Words per tweet that are read, and rows of a model's embedding; token 0 stands for no word."""
_TEST_SHARE, _SPLIT_SEED = 0.2, 0


def airline_tweets() -> Split:
    """Read tweets of 7701 users in three classes: 0 negative, 1 neutral, 2 positive; int64 tokens (n, 32).

    A fifth of the users, always the same, is kept aside: nobody's tweets are in both halves. A word's token is a hash
    of it, so the vocabulary depends on no record.
    Raises: MissingDataError, CorruptDataError.
    Source: "Twitter US Airline Sentiment", Figure Eight, 2015, with authors as numbers.
    """
    path = find(FILE)
    if path is None:
        raise missing("airline-tweets", f"{FILE}(.gz)", can_download=False)
    rows = columns(path, read_verified(path, SHA256).decode("utf-8"), ("user", "label", "text"))
    users, labels = (np.array([int(row[i]) for row in rows]) for i in (0, 1))
    return halves(Records(tokenised([row[2] for row in rows]), labels), users)


def columns(path: Path, text: str, names: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the columns of a CSV file with a header, in the order of `names`.

    Raises CorruptDataError where one is missing.
    """
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if not set(names) <= set(reader.fieldnames or ()):
        raise CorruptDataError(path, f"expected columns {', '.join(names)}, found {reader.fieldnames}")
    return [tuple(row[name] for name in names) for row in reader]


def halves(tweets: Records, users: NDArray[np.int64] | None) -> Split:
    """Keep aside a fifth of the users, always the same; of the tweets, where nobody knows who wrote them."""
    units = np.arange(len(tweets)) if users is None else users
    names = np.unique(units)
    kept_aside = np.random.default_rng(_SPLIT_SEED).permutation(names)[: round(_TEST_SHARE * len(names))]
    is_test = np.isin(units, kept_aside)
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    return Split(tweets.take(train), tweets.take(test), users=None if users is None else users[train])


def tokenised(texts: Sequence[str]) -> NDArray[np.int64]:
    """Return tokens (n, 32)."""
    found = np.zeros((len(texts), LENGTH), dtype=np.int64)
    for row, text in zip(found, texts, strict=True):
        row[:] = tokens(text)
    return found


def tokens(text: str) -> list[int]:
    """Return the first 32 words, in lower case, each as 1 + crc32 mod 1999; zeros where there is no word."""
    words = re.findall(r"[@#]?\w+", text.lower())[:LENGTH]
    found = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words]
    return found + [0] * (LENGTH - len(found))


SUBSET: Final = "tweets/sentiment140_50k.csv"
SUBSET_SHA256: Final = "40df741988356081488314eb02f88ae828c57a9c1bf21a010115f2e89e1a605e"
ARCHIVE: Final = "tweets/trainingandtestdata.zip"
ARCHIVE_SHA256: Final = "004a3772c8a7ff9bbfeb875880f47f0679d93fc63e5cf9cff72d54a8a6162e57"
"""Checksum of the archive that the authors publish, 81 363 704 bytes, as tensorflow/datasets has it
(tensorflow_datasets/text/sentiment140/checksums.tsv)."""
MEMBER: Final = "training.1600000.processed.noemoticon.csv"
_FIELDS: Final = 6
_LABELS: Final = {"0": 0, "4": 1}


def sentiment140_50k() -> Split:
    """Read 25 000 negative (0) and 25 000 positive (1) tweets; int64 tokens (n, 32). Nobody knows who wrote them.

    A fifth of the tweets, always the same, is kept aside.
    Raises: MissingDataError, CorruptDataError.
    Source: Go, Bhayani and Huang, "Twitter Sentiment Classification using Distant Supervision", 2009, a subset.
    """
    path = find(SUBSET)
    if path is None:
        raise missing("sentiment140-50k", f"{SUBSET}(.gz)", can_download=False)
    rows = columns(path, read_verified(path, SUBSET_SHA256).decode("utf-8"), ("label", "text"))
    return halves(Records(tokenised([text for _, text in rows]), np.array([int(label) for label, _ in rows])), None)


def sentiment140() -> Split:
    """Read 1 600 000 tweets with their authors, 0 negative and 1 positive; int64 tokens (n, 32).

    A fifth of the authors, always the same, is kept aside. The authors' 498 tweets for tests, which others labelled by
    hand in three classes, are left out.
    Raises: MissingDataError, CorruptDataError.
    Source: as `sentiment140_50k`.
    """
    archive = find(ARCHIVE)
    if archive is None:
        raise missing("sentiment140", ARCHIVE, can_download=False)
    (data,) = read_members(archive, ARCHIVE_SHA256, [MEMBER])
    return _parsed(archive, data.decode("latin-1"))


def _parsed(archive: Path, text: str) -> Split:
    """Rows of polarity, id, date, query, user and text, without a header. Raises CorruptDataError."""
    labels: list[int] = []
    names, texts = [], []
    for row in csv.reader(io.StringIO(text, newline="")):
        if len(row) != _FIELDS or row[0] not in _LABELS:
            raise CorruptDataError(
                archive, f"expected {_FIELDS} fields that begin with 0 or 4 in row {len(labels) + 1} of {MEMBER}"
            )
        labels.append(_LABELS[row[0]])
        names.append(row[4])
        texts.append(cleaned(row[5]))
    _, users = np.unique(names, return_inverse=True)
    return halves(Records(tokenised(texts), np.array(labels, dtype=np.int64)), users.astype(np.int64))


def cleaned(text: str) -> str:
    """Return a tweet as the other files have it: HTML entities decoded, links as `http`, e-mail addresses as `email`,
    whoever is addressed as `@user`."""
    linked = re.sub(r"https?://\S+|www\.\S+", "http", html.unescape(text))
    return re.sub(r"@\w+", "@user", re.sub(r"[\w.+-]+@[\w-]+\.\S+", "email", linked))
