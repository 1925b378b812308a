"""The page of the models that have a name, from the models themselves: what each takes, and its size."""

from __future__ import annotations

from typing import Final

from docs.generate.markdown import code, page, table
from precad.clients.models.architectures import ARCHITECTURES, Architecture
from precad.clients.models.networks import build, parameter_count

INTRODUCTION: Final = """\
Names that `task.model` takes. [Data sets](../guides/data.md#models) says how to bring a model of your own. A model for
two classes alone keeps ten outputs, and those of the other classes are never chosen: leave out their records with
`client.classes`."""


def models_page() -> str:
    """Return the page: a row for each architecture."""
    rows = [
        [code(name), it.about, _input(it), str(it.n_logits), f"{parameter_count(build(name)):,}".replace(",", " ")]
        for name, it in ARCHITECTURES.items()
    ]
    return page(
        "Models", INTRODUCTION, table(["`task.model`", "what it is", "one record", "outputs", "parameters"], rows)
    )


def _input(architecture: Architecture) -> str:
    if architecture.is_text:
        return f"{architecture.shape[0]} words"
    colours, height, width = architecture.shape
    return f"{height} x {width} pixels{', in colour' if colours > 1 else ''}"
