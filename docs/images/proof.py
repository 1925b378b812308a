"""Draw mode `proved` as two SVG files, for light and for dark pages: `python docs/images/proof.py`."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
SHAPES: Final = runpy.run_path(str(HERE / "round.py"))
"""Boxes, arrows and colours are those of the picture of a round."""
THEMES: Final = SHAPES["THEMES"]
WIDTH: Final = 860
HEIGHT: Final = 416
STEPS: Final = (
    "The seeded server sends 16 bytes, once",
    "The client uploads X minus their stream",
    "Both lock; a joint coin draws 64 rows",
    "The client answers with one masked proof",
    "Two random points; one small message each",
    "Verdicts agree; open only the noisy sum",
)


def drawing(theme: dict[str, str]) -> str:
    """Return the picture in one theme."""
    a, b, edge = theme["a"], theme["b"], theme["edge"]
    box, arrow, badge = SHAPES["box"], SHAPES["arrow"], SHAPES["badge"]
    in_words = " ".join(f"{i}. {said}." for i, said in enumerate(STEPS, 1))
    client = ["clips the update to C", "masks every polynomial", "proves its norm once"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" {SHAPES["FONT"]}>',
        f"<title>Mode proved</title><desc>{in_words}</desc>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{edge}"/></marker></defs>',
        box(16, 98, 216, 114, "Client", client, theme, edge),
        box(520, 24, 300, 84, "Holder of its slot", ["takes 7 bytes per coordinate", "and the masked proof"], theme, a),
        box(
            520,
            202,
            300,
            84,
            "Seeded server",
            ["takes no data: it expands", "its 16 bytes to the other half"],
            theme,
            b,
        ),
        arrow(518, 244, 234, 196, edge),
        arrow(234, 132, 518, 54, edge),
        arrow(234, 156, 518, 88, edge),
        arrow(610, 110, 610, 200, edge, both=True),
        badge(376, 220, 1, theme),
        badge(340, 103, 2, theme),
        badge(572, 155, 3, theme),
        badge(410, 114, 4, theme),
        badge(650, 155, 5, theme),
        badge(692, 155, 6, theme),
        *SHAPES["legend"](STEPS, theme),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write proof-light.svg and proof-dark.svg beside this file."""
    for name, theme in THEMES.items():
        (HERE / f"proof-{name}.svg").write_text(drawing(theme))


if __name__ == "__main__":
    main()
