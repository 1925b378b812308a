"""The page of every promise, its adversary and the tests that attack it, from `tests/promises.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from docs.generate.markdown import code, page, table

PROMISES: Final = Path(__file__).resolve().parents[2] / "tests" / "promises.toml"
TITLES: Final = {"protocol": "The protocol", "privacy": "Privacy", "operations": "Operations"}
INTRODUCTION: Final = """\
What precad promises, against whom, and the test that attacks each promise. Adversaries and residual risks are in the
[threat model](../explanation/threat-model.md), proofs in [privacy](../explanation/privacy.md), procedures in
[operations](../guides/operations.md)."""


def promises_page() -> str:
    """Return the page, a table for each part of the file."""
    parts = [INTRODUCTION]
    for part, promises in tomllib.loads(PROMISES.read_text(encoding="utf-8")).items():
        rows = ((one["promise"], one["adversary"], ", ".join(map(code, one["tests"]))) for one in promises)
        parts += [f"## {TITLES[part]}", table(("promise", "adversary", "test that attacks it"), rows)]
    return page("Promises, and the tests that attack them", *parts)
