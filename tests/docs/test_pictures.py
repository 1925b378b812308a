"""The pictures of a round and of mode `proved` are what their scripts draw."""

from __future__ import annotations

import runpy
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("picture", ["round", "proof"])
def test_a_picture_is_drawn_by_its_script(picture: str, theme: str) -> None:
    """Both files are fresh, well-formed, and say every step in words, for readers who do not see them."""
    script = runpy.run_path(str(IMAGES / f"{picture}.py"))
    drawn = (IMAGES / f"{picture}-{theme}.svg").read_text()
    said = "".join(ET.fromstring(drawn).itertext())

    assert drawn == script["drawing"](script["THEMES"][theme])
    assert all(said.count(step) == 2 for step in script["STEPS"])
