"""Tweets to American airlines with their authors, as hashed words."""

from __future__ import annotations

import csv
import io
import re
import zlib
from typing import Final

import numpy as np

from clients.datasets.folder import find, missing, read_verified
from clients.datasets.records import Records, Split
from clients.errors import CorruptDataError

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
    text = read_verified(path, SHA256).decode("utf-8")
    try:
        rows = [(int(row["user"]), int(row["label"]), row["text"]) for row in csv.DictReader(io.StringIO(text))]
    except (KeyError, ValueError) as error:
        raise CorruptDataError(path, f"expected columns user, label, text ({error})") from None
    users = np.array([user for user, _, _ in rows])
    everything = Records(np.array([tokens(tweet) for _, _, tweet in rows]), np.array([label for _, label, _ in rows]))
    names = np.unique(users)
    kept_aside = np.random.default_rng(_SPLIT_SEED).permutation(names)[: round(_TEST_SHARE * len(names))]
    is_test = np.isin(users, kept_aside)
    train, test = np.flatnonzero(~is_test), np.flatnonzero(is_test)
    return Split(everything.take(train), everything.take(test), users=users[train])


def tokens(text: str) -> list[int]:
    """The first 32 words, in lower case, each as 1 + crc32 mod 1999; zeros where there is no word."""
    words = re.findall(r"[@#]?\w+", text.lower())[:LENGTH]
    found = [1 + zlib.crc32(word.encode()) % (VOCABULARY - 1) for word in words]
    return found + [0] * (LENGTH - len(found))
