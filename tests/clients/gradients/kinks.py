"""Records that lie on kinks of a registered model (`precad.clients.auditing.kinks`)."""

from __future__ import annotations

import numpy as np

from precad.clients.auditing.kinks import at_kinks
from precad.clients.models import networks
from precad.clients.records import Records


def crafted(name: str, n: int, *, seed: int = 0) -> Records:
    """Images at kinks of the named model with its seed-0 parameters; texts, of which there are few, at random."""
    architecture, generator = networks.ARCHITECTURES[name], np.random.default_rng(seed)
    if architecture.is_text:
        return Records(generator.integers(0, 2000, (n, *architecture.shape)), np.arange(n, dtype=np.int64) % 2)
    return at_kinks(networks.build(name), architecture.shape, n, generator)
