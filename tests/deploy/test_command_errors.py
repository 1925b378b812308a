"""Errors of other parts in a command's words."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from precad.deploy.errors import ConfigError, ExportRefusedError, refusing


def test_an_error_of_the_system_says_its_reason_alone(tmp_path: Path) -> None:
    """The words in front name the file, which the system's own text would name again."""
    missing = tmp_path / "missing"

    with pytest.raises(ConfigError) as caught, refusing(OSError, "--token: expected a file, found none"):
        missing.read_text()

    assert str(caught.value) == f"--token: expected a file, found none: {os.strerror(2)}"
    assert caught.value.__suppress_context__


def test_an_error_without_a_reason_of_the_system_keeps_its_words() -> None:
    """NumPy raises an OSError of text alone, and our own errors are text."""
    with pytest.raises(ExportRefusedError, match=r"^x: no array$"), refusing(OSError, "x", ExportRefusedError):
        raise OSError("no array")
    with pytest.raises(ConfigError, match=r"^q: expected a rate$"), refusing(ValueError):
        raise ValueError("q: expected a rate")


def test_an_error_of_another_kind_goes_through() -> None:
    """A defect of ours keeps its type and its traceback."""
    with pytest.raises(KeyError), refusing((ValueError, OSError), "--config"):
        raise KeyError("x")
