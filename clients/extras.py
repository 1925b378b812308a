"""Import libraries that only some installations have."""

from __future__ import annotations

import importlib
from types import ModuleType


def extra(library: str, otherwise: Exception) -> ModuleType:
    """Return a library that is an extra. Raises `otherwise` where it is not installed."""
    try:
        return importlib.import_module(library)
    except ImportError:
        raise otherwise from None
