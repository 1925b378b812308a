"""Records that lie on kinks of a model, crafted: float32 kernels disagree on which side of a ReLU they are.

Between two images whose pre-activations have different signs, bisection in float64 finds an image with one of a few
1e-9. Changing pixels by units in the last place gives many more. At which side such a record's gradient is taken
depends on how the kernel rounds, hence on the shape of the pass.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import Tensor, nn

from precad.clients.models import networks
from precad.clients.records import Records

_HALVINGS = 40


def crafted(name: str, n: int, *, seed: int = 0) -> Records:
    """Images at kinks of the named model with its seed-0 parameters; texts, of which there are few, at random."""
    architecture, generator = networks.ARCHITECTURES[name], np.random.default_rng(seed)
    labels = np.arange(n, dtype=np.int64) % 2
    if architecture.is_text:
        return Records(generator.integers(0, 2000, (n, *architecture.shape)), labels)
    model = copy.deepcopy(networks.build(name)).double().eval()
    n_roots = max(1, n // 8)
    roots = [_on_a_kink(model, architecture.shape, generator) for _ in range(n_roots)]
    images = np.stack([_jittered(roots[i % n_roots], generator) for i in range(n)])
    return Records(images.astype(np.float32), labels)


def pre_activations(model: nn.Module, images: Tensor) -> Tensor:
    """Return what decides the last ReLU, (n, units).

    Without a ReLU it is the difference of the first two logits, (n, 1).
    """
    kept: list[Tensor] = []
    kinks = [layer for layer in model.modules() if isinstance(layer, nn.ReLU)]
    handles = [layer.register_forward_hook(lambda _, read, __: kept.append(read[0].clone())) for layer in kinks[-1:]]
    with torch.no_grad():
        logits = model(images)
    for handle in handles:
        handle.remove()
    return (kept[0] if kept else logits[:, :1] - logits[:, 1:2]).flatten(start_dim=1)


def _on_a_kink(model: nn.Module, shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """An image (..) at which a unit's pre-activation is nearly zero."""
    while True:
        low, high = (torch.from_numpy(_image(shape, generator)) for _ in range(2))
        at_low, at_high = pre_activations(model, torch.stack([low, high]))
        crossing = torch.nonzero(at_low * at_high < 0)[:, 0]
        if not len(crossing):
            continue
        unit = int(crossing[generator.integers(len(crossing))])
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            is_low = pre_activations(model, middle[None])[0, unit] * at_low[unit] > 0
            low, high = (middle, high) if is_low else (low, middle)
        return ((low + high) / 2).numpy()


def _image(shape: tuple[int, ...], generator: np.random.Generator) -> np.ndarray:
    """Strokes on black, or noise: a few bright patches."""
    image = np.zeros(shape)
    for _ in range(4):
        top, left = (int(generator.integers(0, side - 4)) for side in shape[1:])
        image[:, top : top + 6, left : left + 6] += generator.random()
    return np.clip(image + 0.1 * generator.random(shape), 0.0, 1.0)


def _jittered(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """In float32, with some pixels one unit in the last place further."""
    found = image.astype(np.float32)
    chosen = generator.random(found.shape) < 0.05
    return np.where(chosen, np.nextafter(found, np.float32(1.0)), found)
