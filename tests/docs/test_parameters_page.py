"""The code of docs/guides/parameters.md runs as it stands, and its three trainings show what the page says of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "parameters.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def run_page(folder: Path, monkeypatch: pytest.MonkeyPatch, blocks: list[str]) -> dict[str, Any]:
    """Run blocks in their order from an empty folder, on one thread. Return their names."""
    monkeypatch.chdir(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    names: dict[str, Any] = {}
    try:
        for block in blocks:
            exec(block, names)
    finally:
        torch.set_num_threads(threads)
    return names


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer rounds: everything runs, and the plan meets its budget."""
    names = run_page(tmp_path, monkeypatch, [block.replace('"rounds": 20', '"rounds": 2') for block in BLOCKS])
    assert len(BLOCKS) == 3
    assert 1 < names["cost"].one_server.epsilon_if_discarded <= 2
    assert len(names["images"]) == 5


@pytest.mark.slow
def test_clipping_and_noise_cost_accuracy_in_this_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_page(tmp_path, monkeypatch, BLOCKS)
    unprotected, clipped, planned = (names[name].accuracy for name in ("unprotected", "clipped", "planned"))
    assert unprotected > 0.9
    assert unprotected + 0.02 >= clipped >= planned - 0.02
    assert planned > 0.8
