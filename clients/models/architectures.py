"""The models that have a name here, and the shape of the records that each takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from precad.clients.records.records import N_CLASSES
from precad.clients.records.tweets import LENGTH, VOCABULARY


def _mlp() -> nn.Module:
    """Build one hidden layer of 64 tanh units on 8x8 images: d = 4810. (batch, 1, 8, 8) -> logits (batch, 10).

    Each image is first brought to mean 0 and variance 1 by itself, which uses no statistic of other records. On the
    digits this gains about one point of accuracy at epsilon = 2.
    """
    return nn.Sequential(
        nn.Flatten(),
        nn.LayerNorm(8 * 8, elementwise_affine=False),
        nn.Linear(8 * 8, 64),
        nn.Tanh(),
        nn.Linear(64, N_CLASSES),
    )


def _cnn(n_classes: int = N_CLASSES, *, colours: int = 1, width: int = 16, side: int = 4) -> nn.Module:
    """Build the small CNN of Opacus' MNIST example: d = 26 010. (batch, 1, 28, 28) -> logits (batch, 10).

    With 26, 47 or 62 logits, for EMNIST: d = 26 538, 27 231 or 27 726.
    Source: pytorch/opacus, examples/mnist.py, class SampleConvNet.

        width    channels of the first convolution: 8 for half the channels and units, d = 6866, for experiments with
                 many updates and little time
        colours  3 for 32x32 colour images, d = 37 274: the small CNN of tensorflow/privacy's tutorial, whose layers
                 are also these (tutorials/mnist_dpsgd_tutorial.py)
        side     of what the second pooling gives: 4 for images of 28x28, 5 for 32x32
    """
    return nn.Sequential(
        nn.Conv2d(colours, width, kernel_size=8, stride=2, padding=3),  # (batch, 16, 14, 14)
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=2, stride=1),  # (batch, 16, 13, 13)
        nn.Conv2d(width, 2 * width, kernel_size=4, stride=2),  # (batch, 32, 5, 5)
        nn.ReLU(),
        nn.MaxPool2d(kernel_size=2, stride=1),  # (batch, 32, 4, 4)
        nn.Flatten(),
        nn.Linear(2 * width * side * side, 2 * width),
        nn.ReLU(),
        nn.Linear(2 * width, n_classes),
    )


class Standardise(nn.Module):
    """(x - mean) / std of every pixel, with constants that are part of the architecture: it has no parameters."""

    def __init__(self, mean: float, std: float) -> None:
        super().__init__()
        self.mean, self.std = mean, std

    def forward(self, images: Tensor) -> Tensor:
        """Return an array of the shape and dtype of `images`."""
        return (images - self.mean) / self.std


def _cnn_standardised() -> nn.Module:
    """`cnn` as Opacus' example feeds it: pixels brought to mean 0 and variance 1 by the published constants of MNIST.

    Source: pytorch/opacus, examples/mnist.py, MNIST_MEAN and MNIST_STD.
    """
    return nn.Sequential(Standardise(0.1307, 0.3081), *_cnn().children())


class UnusedClasses(nn.Module):
    """Brings the logits of some classes to (batch, 10): the others get -10^4, of which softmax makes exactly 0."""

    def __init__(self, *used: int) -> None:
        """used: the class of each logit."""
        super().__init__()
        self._columns = [used.index(label) if label in used else len(used) for label in range(N_CLASSES)]

    def forward(self, logits: Tensor) -> Tensor:
        """Map (batch, n) to (batch, 10)."""
        return nn.functional.pad(logits, (0, 1), value=-1e4)[:, self._columns]


def _cnn_binary() -> nn.Module:
    """`cnn` with two outputs, for records of the classes 0 and 1: d = 25 746. (batch, 1, 28, 28) -> logits (batch, 10).

    For `client.classes = [0, 1]`; a record of another class would have a loss of 10^4.
    """
    return nn.Sequential(*list(_cnn().children())[:-1], nn.Linear(32, 2), UnusedClasses(0, 1))


def _cifar() -> nn.Module:
    """Build the CNN of TensorFlow's tutorial on CIFAR-10: d = 122 570. (batch, 3, 32, 32) -> logits (batch, 10).

    Source: tensorflow.org/tutorials/images/cnn, which PRECAD uses for CIFAR-10.
    """
    return nn.Sequential(
        nn.Conv2d(3, 32, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),  # (batch, 32, 15, 15)
        nn.Conv2d(32, 64, kernel_size=3),
        nn.ReLU(),
        nn.MaxPool2d(2),  # (batch, 64, 6, 6)
        nn.Conv2d(64, 64, kernel_size=3),  # (batch, 64, 4, 4)
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, N_CLASSES),
    )


def _cnn_pooled() -> nn.Module:
    """Four convolutions with average pooling, of Opacus' CIFAR-10 example: d = 131 466. (batch, 3, 32, 32) -> logits
    (batch, 10).

    Source: pytorch/opacus, examples/cifar10.py, function convnet; Xie et al., CCS '23, Sec. 6.1.1, train it.
    """
    return nn.Sequential(
        nn.Conv2d(3, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),  # (batch, 32, 16, 16)
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),  # (batch, 64, 8, 8)
        nn.Conv2d(64, 64, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(2),  # (batch, 64, 4, 4)
        nn.Conv2d(64, 128, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.AvgPool2d(4),  # (batch, 128, 1, 1)
        nn.Flatten(),
        nn.Linear(128, N_CLASSES),
    )


def _cnn_pooled_binary() -> nn.Module:
    """`cnn-pooled` with two outputs, for airplanes and birds: d = 130 434. (batch, 3, 32, 32) -> logits (batch, 10).

    For `client.classes = [0, 2]`; a record of another class would have a loss of 10^4.
    """
    return nn.Sequential(*list(_cnn_pooled().children())[:-1], nn.Linear(128, 2), UnusedClasses(0, 2))


class LstmClassifier(nn.Module):
    """Two LSTM layers on 32 embedded words: d = 122 506. (batch, 32) tokens -> logits (batch, 10).

    Its gates are plain linear layers, so that the per-record engine knows their gradients. The words' padding, token 0,
    comes last; the classifier reads the mean of the second layer's states.
    Source: Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, with forget gates (Gers et al., 2000).
    """

    EMBEDDING, HIDDEN = 32, 64

    def __init__(self, n_classes: int = N_CLASSES) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, self.EMBEDDING)
        sizes = (self.EMBEDDING, self.HIDDEN)
        self.reads = nn.ModuleList(nn.Linear(size, 4 * self.HIDDEN) for size in sizes)
        self.recalls = nn.ModuleList(nn.Linear(self.HIDDEN, 4 * self.HIDDEN, bias=False) for _ in sizes)
        self.classifier = nn.Linear(self.HIDDEN, n_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (batch, 32) int64 to (batch, n_classes)."""
        sequence = self.embedding(tokens)
        for read, recall in zip(self.reads, self.recalls, strict=True):
            inputs = read(sequence).unbind(dim=1)
            hidden = inputs[0].new_zeros((tokens.shape[0], self.HIDDEN))
            cell, states = hidden, []
            for step in inputs:
                take, forget, value, show = (step + recall(hidden)).chunk(4, dim=1)
                cell = torch.sigmoid(forget) * cell + torch.sigmoid(take) * torch.tanh(value)
                hidden = torch.sigmoid(show) * torch.tanh(cell)
                states.append(hidden)
            sequence = torch.stack(states, dim=1)
        logits: Tensor = self.classifier(sequence.mean(dim=1))
        return logits


def _lstm_binary() -> nn.Module:
    """Build `lstm` with two outputs, for the classes 0 and 1: d = 121 986. (batch, 32) tokens -> logits (batch, 10).

    For `client.classes = [0, 1]`; a record of another class would have a loss of 10^4.
    """
    return nn.Sequential(LstmClassifier(2), UnusedClasses(0, 1))


@dataclass(frozen=True, slots=True)
class Architecture:
    """A model that has a name here."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    """Shape of one record's features."""
    is_text: bool = False
    n_logits: int = N_CLASSES
    about: str = ""
    """Its cell in docs/reference/models.md: the kind of network, and for which records."""


ARCHITECTURES: Final[Mapping[str, Architecture]] = {
    "mlp": Architecture(_mlp, (1, 8, 8), about="one hidden layer, for `digits`"),
    "cnn": Architecture(_cnn, (1, 28, 28), about="the small CNN of Opacus' MNIST example"),
    "cnn-standardised": Architecture(
        _cnn_standardised,
        (1, 28, 28),
        about="`cnn` on pixels that MNIST's published constants bring to mean 0, variance 1",
    ),
    "cnn-half": Architecture(partial(_cnn, width=8), (1, 28, 28), about="`cnn` with half the channels"),
    "cnn-binary": Architecture(_cnn_binary, (1, 28, 28), about="`cnn` for classes 0 and 1 alone"),
    "cnn-letters": Architecture(partial(_cnn, 26), (1, 28, 28), n_logits=26, about="`cnn` for `emnist-letters`"),
    "cnn-balanced": Architecture(partial(_cnn, 47), (1, 28, 28), n_logits=47, about="`cnn` for `emnist-balanced`"),
    "cnn-byclass": Architecture(partial(_cnn, 62), (1, 28, 28), n_logits=62, about="`cnn` for `emnist-byclass`"),
    "cnn-rgb": Architecture(partial(_cnn, colours=3, side=5), (3, 32, 32), about="`cnn` for `cifar10`"),
    "cifar": Architecture(_cifar, (3, 32, 32), about="the CNN of TensorFlow's tutorial on CIFAR-10"),
    "cnn-pooled": Architecture(_cnn_pooled, (3, 32, 32), about="the CNN of Opacus' CIFAR-10 example"),
    "cnn-pooled-binary": Architecture(
        _cnn_pooled_binary, (3, 32, 32), about="`cnn-pooled` for classes 0 and 2 alone: airplanes and birds"
    ),
    "lstm": Architecture(LstmClassifier, (LENGTH,), is_text=True, about="two LSTM layers, for tweets"),
    "lstm-binary": Architecture(_lstm_binary, (LENGTH,), is_text=True, about="`lstm` for classes 0 and 1 alone"),
}


def image_side(name: str) -> int | None:
    """Return the side in pixels of the images that a named model takes; None for texts and for models of the user's
    own."""
    architecture = ARCHITECTURES.get(name)
    return None if architecture is None or architecture.is_text else architecture.shape[-1]
