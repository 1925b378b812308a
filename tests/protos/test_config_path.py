"""A path in a configuration file is taken from the folder that the file lies in, wherever the process stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from precad.protos.config_path import ConfigPath


class Read(BaseModel):
    """A table with one path."""

    file: ConfigPath


@pytest.mark.parametrize(
    ("written", "base", "expected"),
    [
        ("keys/a.pem", "/etc/precad", "/etc/precad/keys/a.pem"),
        ("../a.pem", Path("/etc/precad"), "/etc/precad/../a.pem"),
        ("/var/a.pem", "/etc/precad", "/var/a.pem"),
        ("a.pem", "site", "site/a.pem"),
    ],
)
def test_a_path_is_taken_from_the_files_folder(written: str, base: str | Path, expected: str) -> None:
    assert Read.model_validate({"file": written}, context={"base": base}).file == Path(expected)


@pytest.mark.parametrize("context", [None, {}, {"base": None}])
def test_without_a_folder_it_stays_as_it_is(context: dict[str, None] | None) -> None:
    assert Read.model_validate({"file": "keys/a.pem"}, context=context).file == Path("keys/a.pem")


@pytest.mark.parametrize(
    ("written", "why"),
    [("a" * 256, "a name of 256 bytes"), ("é" * 128, "a name of 256 bytes"), ("a\0b", "a NUL")],
)
def test_a_name_that_no_file_has_is_refused(written: str, why: str) -> None:
    with pytest.raises(ValidationError, match=f"expected the name of a file, found {why}"):
        Read.model_validate({"file": f"keys/{written}/a.pem"})
    assert Read.model_validate({"file": "a" * 255}).file == Path("a" * 255)
