"""How Hypothesis explores: freely on a developer's machine, the same examples each time where CI is set."""

from __future__ import annotations

import os

from hypothesis import settings

settings.register_profile("precad", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("precad")
