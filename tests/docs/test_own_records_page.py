"""The files of docs/guides/own-records.md, as they stand there, on made-up patients; and what the page says of
sources."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import precad
from precad.clients import own_code
from precad.clients.config import FILE_KINDS
from tests.harness.hospital import patients, write_csv

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "own-records.md").read_text()
BLOCK = re.compile(r"^```(?:python|toml)\n# ([\w.]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def test_the_files_of_the_page_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the page's names, beside a table. They are not more lines than the page says."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_code, "_BESIDE", [])
    monkeypatch.delitem(sys.modules, "my_model", raising=False)
    files = dict(BLOCK.findall(PAGE))
    assert sum(1 for text in files.values() for line in text.splitlines() if line.strip()) <= 20
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    write_csv(tmp_path / "patients.csv", patients(400))
    found = precad.simulate(tmp_path / "task.toml", folder=tmp_path / "out")
    monkeypatch.delitem(sys.modules, "my_model")
    assert found.seeds[0].rounds == 6
    assert found.seeds[0].accuracy > 0.85


def test_the_page_has_a_row_for_every_source() -> None:
    assert re.findall(r"^\| `(\w+):\w+` \|", PAGE, re.MULTILINE) == [*FILE_KINDS, "module"]
