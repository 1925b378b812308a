"""Slow, obviously right twins of the local step: whole vectors, one formula a line, and once in Python's integers."""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from precad.mpc.prg import Label, Purpose, Seed, derive


def stream(seed: Seed, purpose: Purpose, label: Label, n_words: int):
    """The first words of a stream, AES-128-CTR of that many zeros in one call."""
    encryptor = Cipher(algorithms.AES128(derive(seed, purpose, label).reveal()), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * n_words)), dtype="<u8")


def bits(words):
    """(m,) to (m, 64): bit j of each word, lowest first."""
    return (words[:, np.newaxis] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)


def rows(share, row_words, sign_words):
    """v_j = sum_i u_ji s_i x_i modulo 2^64, (64,)."""
    is_negative = bits(sign_words).reshape(-1)[: share.size].astype(bool)
    signed = np.where(is_negative, np.uint64(0) - share, share)
    return (bits(row_words) * signed[:, np.newaxis]).sum(axis=0, dtype=np.uint64)


def local_sums(party, opened, masks, row_words, sign_words):
    """(rows, <b, a>, <b, b>, sum of shares) of lists of vectors, as uint64."""
    shares = [b + a if party == 0 else a for b, a in zip(opened, masks, strict=True)]
    n, dim = len(opened), row_words.size
    return (
        np.array([rows(share, row_words, sign_words) for share in shares], dtype=np.uint64).reshape(n, 64),
        np.array([(b * a).sum(dtype=np.uint64) for b, a in zip(opened, masks, strict=True)], dtype=np.uint64),
        np.array([(b * b).sum(dtype=np.uint64) for b in opened], dtype=np.uint64),
        np.array(shares, dtype=np.uint64).reshape(n, dim).sum(axis=0, dtype=np.uint64),
    )


def rows_in_integers(share, row_words, sign_words):
    """`rows` without arrays."""
    x, u, s = share.tolist(), row_words.tolist(), sign_words.tolist()
    return [
        sum((-x_i if s[i // 64] >> i % 64 & 1 else x_i) for i, x_i in enumerate(x) if u[i] >> j & 1) % 2**64
        for j in range(64)
    ]
