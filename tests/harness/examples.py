"""How many examples Hypothesis tries of a costly property: few in the default suite, all in `make test-slow`."""

from __future__ import annotations

import os

from hypothesis import settings

IS_THOROUGH = bool(os.environ.get("PRECAD_THOROUGH"))
SMALL_RATE = 0.01 if IS_THOROUGH else 0.1
"""The least sampling rate that is tried. A grid of losses grows as rates fall, to seconds for one number."""


def examples(quick: int, thorough: int) -> settings:
    """Return the settings of a property whose examples take seconds."""
    return settings(max_examples=thorough if IS_THOROUGH else quick, deadline=None)
