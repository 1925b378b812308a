"""The fractional bits of a task that asks for the most that its bound allows: `frac_bits = "largest"`.

Each bit less doubles what rounding adds to a record's sensitivity, sqrt(d) 2^-f, which every epsilon counts. More bits
cost neither bytes nor time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from precad.mpc.errors import ParameterError
from precad.protos.task.proved_fields import MODE as PROVED

LARGEST: Final = "largest"


@contextmanager
def naming_fields() -> Iterator[None]:
    """Name a task's fields in what `precad.mpc` refuses of their values. Raises ValueError for ParameterError."""
    try:
        yield
    except ParameterError as error:
        raise ValueError(str(error).replace("clip_norm", "client_clip")) from error


def largest_frac_bits(mode: Any, client_clip: float) -> int:
    """Return the most fractional bits that the norm check of a mode has for this bound. Raises ParameterError."""
    if mode == PROVED:
        from precad.mpc.proved.sizes import largest_frac_bits as largest
    else:
        from precad.mpc.norm_bound import largest_frac_bits as largest
    return largest(client_clip)


def with_largest_frac_bits(section: Any) -> Any:
    """Return a section with the most fractional bits where it asks for them, or is of mode `proved` and names none.

    Other modes have 16 where none are named, as every task before. Raises ValueError where the bound allows none.
    """
    if not isinstance(section, Mapping):
        return section
    mode, clip = section.get("mode"), section.get("client_clip")
    if section.get("frac_bits", LARGEST if mode == PROVED else None) != LARGEST:
        return section
    if isinstance(clip, bool) or not isinstance(clip, int | float) or not 0 < clip < math.inf:
        return {name: value for name, value in section.items() if name != "frac_bits"}  # the bound's own field says why
    with naming_fields():
        return {**section, "frac_bits": largest_frac_bits(mode, clip)}
