"""Commands that run in the test's own process leave nothing behind in it."""

from tests.deploy.conftest import logging_as_it_was

__all__ = ["logging_as_it_was"]
