"""Answer what tests ask of models by name."""

from __future__ import annotations

from precad.clients.models import networks


def dimension_of(name: str) -> int:
    """Return d, the number of parameters of the model of that name."""
    return networks.parameter_count(networks.build(name))
