"""How many examples Hypothesis tries of a costly property: few in the default suite, all in `make test-slow`."""

from __future__ import annotations

import os

from hypothesis import settings


def examples(quick: int, thorough: int) -> settings:
    """Return the settings of a property whose examples take seconds."""
    return settings(max_examples=thorough if os.environ.get("PRECAD_THOROUGH") else quick, deadline=None)
