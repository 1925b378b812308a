"""Commands that run in the test's own process leave nothing behind in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A served role logs to the standard error of its moment, which the test runner closes afterwards."""
    yield
    structlog.reset_defaults()
