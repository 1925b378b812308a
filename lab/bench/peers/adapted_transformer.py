"""A small transformer of texts with low-rank adapters, in PyTorch alone: the same for us and for the peers.

The sizes are those of `precad experiment adapters`: DistilBERT's blocks of width 64 over texts of 32 places. Imports
nothing of ours.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn

VOCABULARY, N_PLACES, WIDTH, HIDDEN, N_LAYERS, N_HEADS, N_CLASSES = 8000, 32, 64, 128, 2, 4, 2
TARGETS: Final = ("q_lin", "v_lin", "pre_classifier", "classifier")


class Attention(nn.Module):
    """Attend over the places of a text, those of no word left out."""

    def __init__(self) -> None:
        super().__init__()
        self.q_lin, self.k_lin, self.v_lin, self.out_lin = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor, is_read: Tensor) -> Tensor:
        """Map (n, T, width) to (n, T, width)."""
        n = len(x)
        q, k, v = (
            layer(x).view(n, -1, N_HEADS, WIDTH // N_HEADS).transpose(1, 2)
            for layer in (self.q_lin, self.k_lin, self.v_lin)
        )
        read = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=is_read[:, None, None, :])
        out: Tensor = self.out_lin(read.transpose(1, 2).reshape(n, -1, WIDTH))
        return out


class Block(nn.Module):
    """Attention, then a network of two layers, each with a shortcut and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.sa_layer_norm, self.output_layer_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.lin1, self.lin2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: Tensor, is_read: Tensor) -> Tensor:
        """Map (n, T, width) to (n, T, width)."""
        x = self.sa_layer_norm(x + self.attention(x, is_read))
        out: Tensor = self.output_layer_norm(x + self.lin2(nn.functional.gelu(self.lin1(x))))
        return out


class Transformer(nn.Module):
    """Classify texts, in which token 0 stands for no word."""

    def __init__(self, vocabulary: int = VOCABULARY) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(vocabulary, WIDTH), nn.Embedding(N_PLACES, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(N_LAYERS))
        self.pre_classifier, self.classifier = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, N_CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (n, 32) to (n, 2)."""
        at = torch.arange(N_PLACES, device=tokens.device)
        is_read = (tokens != 0) | (at == 0)
        x = self.norm(self.words(tokens) + self.places(at))
        for block in self.blocks:
            x = block(x, is_read)
        out: Tensor = self.classifier(torch.relu(self.pre_classifier(x[:, 0])))
        return out
