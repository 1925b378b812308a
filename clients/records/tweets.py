"""Tweets to American airlines with their authors, as hashed words; and what other tweets are read by."""

from __future__ import annotations

import csv
import io
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from precad.clients.errors import CorruptDataError
from precad.clients.records.folder import find, missing, read_verified
from precad.clients.records.records import Records, Split

FILE: Final = "tweets/airline_tweets.csv"
SHA256: Final = "c419c481ad5fe5b3a15f4199a214d974517c3bcd6501a797b0fbddbd3a2ea05f"
LENGTH, VOCABULARY = 32, 2000
"""Words per tweet that are read, and rows of a model's embedding; token 0 stands for no word."""
_TEST_SHARE, _SPLIT_SEED = 0.2, 0


def airline_tweets() -> Split:
    """Tweets of 7701 users in three classes: 0 negative, 1 neutral, 2 positive; int64 tokens (n, 32).

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
    """Those of a CSV file with a header, in the order of `names`. Raises CorruptDataError where one is missing."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if not set(names) <= set(reader.fieldnames or ()):
        raise CorruptDataError(path, f"expected columns {', '.join(names)}, found {reader.fieldnames}")
    return [tuple(row[name] for name in names) for row in reader]


def halves(tweets: Records, users: NDArray[np.int64] | None) -> Split:
    """A fifth of the users, always the same, kept aside; of the tweets, where nobody knows who wrote them."""
    units = np.arange(len(tweets)) if users is None else users
    names = np.unique(units)
    kept_aside = np.random.default_rng(_SPLIT_SEED).permutation(names)[: round(_TEST_SHARE * len(names))]
    is_test = np.isin(units, kept_aside)
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    return Split(tweets.take(train), tweets.take(test), users=None if users is None else users[train])


def tokenised(texts: Sequence[str]) -> NDArray[np.int64]:
    """Tokens (n, 32)."""
    found = np.zeros((len(texts), LENGTH), dtype=np.int64)
    for row, text in zip(found, texts, strict=True):
        row[:] = tokens(text)
    return found


def tokens(text: str) -> list[int]:
    """Return the first 32 words, in lower case, each as 1 + crc32 mod 1999; zeros where there is no word."""
    words = re.findall(r"[@#]?\w+", text.lower())[:LENGTH]
    found = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words]
    return found + [0] * (LENGTH - len(found))
