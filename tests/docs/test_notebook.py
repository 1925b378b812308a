"""docs/tutorial/notebook.ipynb runs from its first cell to its last, and is stored without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

PATH = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "notebook.ipynb"
NOTEBOOK: dict[str, Any] = json.loads(PATH.read_text())
CELLS = ["".join(cell["source"]) for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def execute(folder: Path, monkeypatch: pytest.MonkeyPatch, rounds: int) -> dict[str, Any]:
    """Execute every cell in one namespace, as a kernel does, from an empty folder. Return the names."""
    monkeypatch.chdir(folder)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for number, cell in enumerate(CELLS):
            changed = cell.replace('"rounds": 20', f'"rounds": {rounds}')
            exec(compile(changed, f"cell {number}", "exec"), names)
    finally:
        torch.set_num_threads(threads)
    return names


def test_it_is_a_notebook_without_outputs() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    for cell in NOTEBOOK["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


def test_its_cells_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two rounds: the budget holds, by what the training itself states as well, and the model predicts."""
    names = execute(tmp_path, monkeypatch, rounds=2)
    assert 2 < names["cost"].one_server.epsilon_if_discarded <= 4
    assert names["trained"].rounds == 2
    stated, *_ = names["trained"].summary["guarantees"]
    assert stated["against"].startswith("one aggregation server")
    assert stated["epsilon_if_discarded"] <= 4
    assert len(names["predicted"]) == 5


@pytest.mark.slow
def test_the_notebook_trains_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, as it is stored."""
    names = execute(tmp_path, monkeypatch, rounds=20)
    assert names["trained"].accuracy > 0.8
