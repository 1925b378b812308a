"""A small model of texts with adapters, and their gradients by another way: those of the whole weights."""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from precad.clients.models.adapters import AdaptedLayer, adapted, lora
from precad.clients.records import Records

N_TOKENS, N_PLACES, WIDTH, N_CLASSES = 12, 5, 16, 3
TARGETS = ("q", "v", "head")


class Attention(nn.Module):
    """One head over the places of a text, and the mean of what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(N_TOKENS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(WIDTH, N_CLASSES)

    def forward(self, texts: Tensor) -> Tensor:
        x = self.norm(self.tokens(texts))
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) / WIDTH**0.5, dim=-1)
        return self.head(self.drop(torch.tanh(x + weights @ self.v(x)).mean(dim=1)))


def small(rank: int = 4, targets: tuple[str, ...] = TARGETS) -> nn.Module:
    """Return the model with adapters, as a task's factory does."""
    return lora(Attention(), rank, targets, alpha=2.0 * rank)


def texts(n: int, seed: int = 0) -> Records:
    """Draw texts, and labels that say which class of tokens is most frequent."""
    drawn = np.random.default_rng(seed).integers(0, N_TOKENS, (n, N_PLACES))
    labels = np.array([np.bincount(row % N_CLASSES, minlength=N_CLASSES).argmax() for row in drawn])
    return Records(drawn.astype(np.int64), labels.astype(np.int64))


def merged(model: nn.Module) -> nn.Module:
    """Return the plain model that an adapted one stands for, in float64: W + scale B A in each target's place."""
    plain = copy.deepcopy(model).double()
    for name, layer in list(plain.named_modules()):
        if isinstance(layer, AdaptedLayer):
            weight = layer.base.weight + layer.scale * layer.B.weight @ layer.A
            whole = nn.Linear(weight.shape[1], weight.shape[0]).double()
            whole.weight.data, whole.bias.data = weight.detach().clone(), layer.base.bias.detach().clone()
            parent, _, child = name.rpartition(".")
            setattr(plain.get_submodule(parent), child, whole)
    return plain.eval()


def slow_adapter_gradients(model: nn.Module, records: Records) -> np.ndarray:
    """Each record's gradient, (n, d) float64: the merged weight's by autograd, dL/dB = scale dL/dW A^T by the chain
    rule."""
    plain, rows = merged(model), []
    layers = [(layer.name, layer) for layer in adapted(model).layers()]
    for text, label in zip(records.features, records.labels, strict=True):
        plain.zero_grad()
        nn.functional.cross_entropy(plain(torch.from_numpy(text[None])), torch.tensor([label])).backward()
        parts = [layer.scale * plain.get_submodule(name).weight.grad @ layer.A.double().T for name, layer in layers]
        rows.append(torch.cat([part.reshape(-1) for part in parts]).numpy())
    return np.stack(rows)
