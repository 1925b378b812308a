"""The files of trained adapters: what `peft` loads over the base, which is not written again.

`peft` 0.21 finds a layer by its first name, and puts the adapter there alone. An adapted layer in two places would keep
the base in the other one, without a word. There are no files for such a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from precad.clients.models.adapter_files import a_of
from precad.clients.models.adapters import Adapted, is_transposed
from precad.clients.models.safetensors_file import write_tensors

CONFIG: Final = "adapter_config.json"
WEIGHTS: Final = "adapter_model.safetensors"
_PREFIX: Final = "base_model.model."
"""Begins peft's names of the adapted model's layers."""


def write_adapters(folder: Path, found: Adapted) -> list[str]:
    """Write configuration and weights of the adapters, and return the files' names. Raises OSError.

    Write none where `peft` would give other outputs.
    """
    if not _is_loaded_whole(found):
        return []
    trained = {f"{layer.name}.lora_B.weight": layer.B.weight for layer in found.layers()}
    tensors = {f"{_PREFIX}{name}": value for name, value in {**a_of(found), **trained}.items()}
    write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
    text = json.dumps(_configuration(found), indent=2, sort_keys=True)
    (folder / CONFIG).write_text(f"{text}\n", encoding="utf-8")
    return [CONFIG, WEIGHTS]


def remarks(files: Collection[str], found: Adapted | None) -> list[str]:
    """Return what an operator should know of an adapted model's files: that some were not written, and why."""
    if found is None or WEIGHTS in files:
        return []
    why = "an adapted layer has two places or names, of which peft adapts the first alone"
    return [f"no {CONFIG}, no {WEIGHTS}: {why}"]


def _is_loaded_whole(found: Adapted) -> bool:
    """Tell whether each adapted layer has one place, which `peft` finds by the layer's name."""
    held = [child for parent in found.root.modules() for child in parent._modules.values()]  # each place of a layer
    first = {layer: name for name, layer in found.root.named_modules()}
    return all(held.count(own) == 1 and first[own.base] == f"{own.name}.base" for own in found.layers())


def _configuration(found: Adapted) -> dict[str, Any]:
    """Return the fields of peft's `LoraConfig`. Targets are one expression: a list of names would mean endings."""
    layers = list(found.layers())
    return {
        "peft_type": "LORA",
        "task_type": None,
        "base_model_name_or_path": None,
        "inference_mode": True,
        "r": found.shared.rank,
        "lora_alpha": found.shared.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": all(is_transposed(layer.base) for layer in layers),
        "target_modules": "|".join(re.escape(layer.name) for layer in layers),
    }
