"""Try a user's code in float64, where rounding hides nothing; else in float32, as it was written.

PyTorch's users write `torch.zeros(n, 8)` and mean the type that their model has. So code is tried a second time with
all that it makes, naming no type, in float64. Code that still takes float32 alone is tried in that.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MAKERS: Final = frozenset(
    ("tensor", "zeros", "ones", "full", "empty", "eye", "arange", "linspace", "rand", "randn", "scalar_tensor")
)
"""PyTorch's functions that make a tensor of the usual type unless they are given one."""


class _Widening(TorchFunctionMode):
    """Makes these in float64, in this thread alone."""

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found, given = func(*args, **(kwargs or {})), kwargs or {}
        is_made = getattr(func, "__name__", "") in _MAKERS and given.get("dtype") is None
        is_made = is_made and not any(isinstance(one, torch.dtype) for one in args) and isinstance(found, Tensor)
        return found.double() if is_made and found.dtype is torch.float32 else found


@dataclass(frozen=True, slots=True)
class Precision:
    """A type of numbers in which a model and a loss are tried."""

    dtype: torch.dtype
    widens: bool = False
    """Whether what the code makes is of that type, where it names none."""

    def of(self, values: Tensor) -> Tensor:
        """Return these in that type, whole numbers as they are."""
        return values.to(self.dtype) if values.is_floating_point() else values

    def held(self) -> AbstractContextManager[object]:
        """Call a user's code in this."""
        return _Widening() if self.widens else nullcontext()


DOUBLE: Final = Precision(torch.float64), Precision(torch.float64, widens=True)
"""In which records are told apart by more than rounding."""
AS_WRITTEN: Final = Precision(torch.float32)
