"""A path in a configuration file: relative ones are taken from the folder that the file lies in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, TypeAlias

from pydantic import AfterValidator, ValidationInfo

from precad.protos.file_names import fault_of


def _from_base(path: Path, info: ValidationInfo) -> Path:
    if "\n" in str(path):  # a key, for one, in the place of its file's name: no error may repeat it
        raise ValueError("expected the name of a file, found a text of several lines")
    if (fault := fault_of(path)) is not None:
        raise ValueError(f"expected the name of a file, found {fault}")
    base = (info.context or {}).get("base")
    return path if base is None else Path(base) / path


ConfigPath: TypeAlias = Annotated[Path, AfterValidator(_from_base)]
"""Validated with `context={"base": folder}`; without one it stays as it is."""
