"""Load matplotlib, an extra (`bench`), to draw files."""

from __future__ import annotations

import importlib
from typing import Any


def load_pyplot(otherwise: Exception) -> Any:
    """Return matplotlib's pyplot, drawing to files. Raises `otherwise` where there is no matplotlib."""
    try:
        importlib.import_module("matplotlib").use("agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise otherwise from None
