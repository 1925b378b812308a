"""Reading what runs wrote: every file may be missing, cut off, or somebody else's."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from precad.deploy.configuration.sections import parse_section
from precad.deploy.errors import ConfigError, refusing

M = TypeVar("M", bound=BaseModel)

Count = Annotated[int, Field(ge=0, le=2**63)]
Share = Annotated[float, Field(ge=0, le=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Epsilon = Annotated[float, BeforeValidator(lambda found: math.inf if found == "inf" else found), Field(ge=0)]
"""May be infinite: the string "inf", since JSON has no such number."""


class Written(BaseModel):
    """Base of what is read; other fields may stand beside those that a report needs."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


def read_object(path: Path, kind: type[M]) -> M:
    """Read a file with one JSON object. Raises ConfigError."""
    return _parsed(_text(path), kind, str(path))


def read_lines(path: Path, kind: type[M], *, may_be_empty: bool = False) -> list[M]:
    """Read a file with a JSON object a line, at least one unless it may be empty. Raises ConfigError."""
    lines = _text(path).splitlines()
    if not (lines or may_be_empty):
        raise ConfigError(f"{path}: expected a line for every round, found none")
    return [_parsed(line, kind, f"{path} line {i}") for i, line in enumerate(lines, start=1)]


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: expected a file of a finished run, found: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: expected text, found: {error}") from None


def _parsed(text: str, kind: type[M], where: str) -> M:
    with refusing((ValueError, RecursionError), f"{where}: expected JSON, found"):
        raw = json.loads(text)
    if "\\u" in text:  # text of a file is UTF-8; an escape may be half of a character, which no page can hold
        with refusing(UnicodeEncodeError, f"{where}: expected text in Unicode, found half of a character"):
            json.dumps(raw, ensure_ascii=False).encode()
    return parse_section(kind, raw, where, base=Path())
