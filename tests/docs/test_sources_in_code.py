"""Documents that docstrings name as their source: a reader of the code can open them, at the section they name."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r'(docs/[\w/-]+\.md)(?:,\s+(?:sections?\s+(\d+(?:(?:,| and| to)\s+\d+)*)|"([^"]+)"))?')


def named() -> list[tuple[str, str, str, str]]:
    """Return (file, document, numbers of sections, or one by its heading) of what code names, tests aside."""
    listed = subprocess.run(["git", "ls-files", "*.py", ":!tests"], cwd=ROOT, check=True, capture_output=True)
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in listed.stdout.decode().split()}
    return [(file, *found) for file, text in texts.items() for found in NAMED.findall(text)]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")
def test_every_document_that_code_names_is_there_with_its_sections() -> None:
    found = named()
    assert len(found) > 30
    for file, document, numbers, heading in found:
        assert (ROOT / document).is_file(), (file, document)
        headings = re.findall(r"^## (?:(\d+)\. )?(.*)$", (ROOT / document).read_text(encoding="utf-8"), re.MULTILINE)
        for number in re.findall(r"\d+", numbers):
            assert number in {one for one, _ in headings}, (file, document, number)
        assert not heading or heading in {text for _, text in headings}, (file, document, heading)
