"""Children run the code that their parent runs.

Failure means: a file in the folder where somebody starts `precad` runs with the rights, and the shares, of a server.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from precad.deploy.localhost.processes import Children

HOSTILE = ("precad", "mpc", "dp", "clients", "servers", "protos", "deploy", "lab", "typer")


def test_a_child_takes_nothing_from_the_folder_where_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders there that have our names, and a dependency's, are not imported."""
    for name in HOSTILE:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('hostile')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    children = Children(tmp_path)
    try:
        child = children.start("version", "--version")
        child.process.wait(timeout=120)
    finally:
        children.close()
    assert (child.exit_code, child.last_words().split(",")[0].split()[0]) == (0, "precad"), child.last_words()
