"""Programs of the peers: what they compute, beside exact integers and a twin in NumPy, and what they import."""

from __future__ import annotations

import ast
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import erf

from precad.lab.bench.peers import adapted_transformer, crypten_ttp
from precad.lab.bench.peers.adapted_transformer import N_HEADS, N_PLACES, WIDTH, Transformer

FOLDER = Path(crypten_ttp.__file__).parent
State = dict[str, np.ndarray]


@pytest.mark.parametrize("clients", [1, 2, 5])
def test_one_update_of_several_is_too_long_for_crypten(clients: int) -> None:
    """By exact sums of squares: the verdicts that the program expects are the true ones."""
    clip = 3.0
    rows, too_long = crypten_ttp.batch(40, clients, clip)
    squares = [sum(Fraction(int(x), 1 << crypten_ttp.FRAC_BITS) ** 2 for x in row) for row in rows]
    assert [square > Fraction(clip) ** 2 for square in squares] == [i == too_long for i in range(clients)]
    assert (too_long >= 0) is (clients > 1)


def test_both_ranks_shares_are_of_the_same_updates() -> None:
    """Modulo 2^64, and neither share is the update itself."""
    rows, _ = crypten_ttp.batch(40, 3, 2.0)
    shares = [crypten_ttp.share(rows, rank).numpy().view(np.uint64) for rank in (0, 1)]
    assert np.array_equal(shares[0] + shares[1], rows.numpy().view(np.uint64))
    for share in shares:
        assert not np.array_equal(share, rows.numpy().view(np.uint64))


def normed(x: np.ndarray, state: State, name: str) -> np.ndarray:
    """Return a layer norm over the last axis."""
    centred = x - x.mean(axis=-1, keepdims=True)
    std = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return centred / std * state[f"{name}.weight"] + state[f"{name}.bias"]


def mapped(x: np.ndarray, state: State, name: str) -> np.ndarray:
    """Return a linear layer's output."""
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def attended(x: np.ndarray, read: np.ndarray, state: State, name: str) -> np.ndarray:
    """Return one text's attention, head by head, over the places that are read alone."""
    size = WIDTH // N_HEADS
    q, k, v = (mapped(x, state, f"{name}.{layer}_lin") for layer in "qkv")
    heads = []
    for head in range(N_HEADS):
        own = slice(head * size, (head + 1) * size)
        scores = q[:, own] @ k[read][:, own].T / math.sqrt(size)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[read][:, own])
    return mapped(np.concatenate(heads, axis=1), state, f"{name}.out_lin")


def logits_of(text: np.ndarray, state: State) -> np.ndarray:
    """Return one text's outputs by the transformer's definition."""
    read = np.flatnonzero((text != 0) | (np.arange(N_PLACES) == 0))
    x = normed(state["words.weight"][text] + state["places.weight"], state, "norm")
    for i in range(adapted_transformer.N_LAYERS):
        block = f"blocks.{i}"
        x = normed(x + attended(x, read, state, f"{block}.attention"), state, f"{block}.sa_layer_norm")
        inner = mapped(x, state, f"{block}.lin1")
        inner = inner * (1 + erf(inner / math.sqrt(2))) / 2
        x = normed(x + mapped(inner, state, f"{block}.lin2"), state, f"{block}.output_layer_norm")
    return mapped(np.maximum(mapped(x[0], state, "pre_classifier"), 0), state, "classifier")


def test_the_transformer_is_its_definition() -> None:
    """In float64, for texts of no, some and all words."""
    torch.manual_seed(3)
    net = Transformer(50).double()
    state = {name: tensor.numpy() for name, tensor in net.state_dict().items()}
    texts = np.random.default_rng(4).integers(1, 50, (4, N_PLACES))
    for text, words in zip(texts, (0, 1, 17, N_PLACES), strict=True):
        text[words:] = 0
    with torch.no_grad():
        found = net(torch.from_numpy(texts)).numpy()
    np.testing.assert_allclose(found, [logits_of(text, state) for text in texts], rtol=1e-9, atol=1e-12)


def ours_in(source: str) -> set[str]:
    """Return the modules of ours that a program imports."""
    nodes = [*ast.walk(ast.parse(source))]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.split(".")[0] == "precad"}


def test_programs_of_the_peers_environment_import_nothing_of_ours() -> None:
    """Their environment does not have it. CrypTen's program runs in ours."""
    programs = {path.stem: ours_in(path.read_text()) for path in FOLDER.glob("*.py")}
    assert {name for name, ours in programs.items() if ours} == {"crypten_ttp"}
    assert ours_in("def f():\n    from precad.mpc import ring") == {"precad.mpc"}
