"""The README's picture of a round is what its script draws."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_picture_of_a_round_is_drawn_by_its_script(theme: str) -> None:
    """Both files are fresh, well-formed, and say every step in words, for readers who do not see them."""
    script = runpy.run_path(str(IMAGES / "round.py"))
    drawn = (IMAGES / f"round-{theme}.svg").read_text()
    said = "".join(ET.fromstring(drawn).itertext())

    assert drawn == script["drawing"](script["THEMES"][theme])
    assert all(said.count(step) == 2 for step in script["STEPS"])
