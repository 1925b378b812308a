"""The README is short, and its code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_it_has_at_most_900_words() -> None:
    assert len(README.split()) <= 900


def test_its_code_trains_a_model_and_prints_what_that_guarantees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Run from an empty folder; the accuracy is far above a guess among ten digits, and both views have an epsilon."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "__main__"})
    accuracy, *guarantees = capsys.readouterr().out.splitlines()

    assert float(accuracy) > 0.5
    assert sum("epsilon <=" in line for line in guarantees) == 2
