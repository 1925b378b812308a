"""Load matplotlib, an extra (`bench`), to draw files."""

from __future__ import annotations

from typing import Any

from precad.clients.extras import extra


def load_pyplot(otherwise: Exception) -> Any:
    """Return matplotlib's pyplot, drawing to files. Raises `otherwise` where there is no matplotlib."""
    extra("matplotlib", otherwise).use("agg")
    return extra("matplotlib.pyplot", otherwise)
