"""Draw one round of PRECAD as two SVG files, for light and for dark pages: `python docs/images/round.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
WIDTH: Final = 860
HEIGHT: Final = 416
THEMES: Final = {
    "light": {
        "ink": "#1f2328",
        "soft": "#59636e",
        "page": "#ffffff",
        "box": "#f6f8fa",
        "edge": "#8c959f",
        "a": "#0969da",
        "b": "#8250df",
    },
    "dark": {
        "ink": "#f0f6fc",
        "soft": "#9198a1",
        "page": "#0d1117",
        "box": "#161b22",
        "edge": "#6e7681",
        "a": "#4493f8",
        "b": "#ab7df8",
    },
}
STEPS: Final = (
    "A joint coin selects the round's clients",
    "The dealer sends each server a key for masks",
    "Each server sends a client half of its mask",
    "The client uploads its update under both halves",
    "Check by MPC: norm at most C? One bit per client",
    "Open only the noisy sum, and step the model",
)
FONT: Final = "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\""


def text(
    x: float, y: float, said: str, colour: str, size: int = 14, *, anchor: str = "middle", bold: bool = False
) -> str:
    """Return one line of text, its baseline at y."""
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" fill="{colour}" font-size="{size}" text-anchor="{anchor}"{weight}>{said}</text>'


def box(
    x: float, y: float, width: float, height: float, title: str, lines: list[str], theme: dict[str, str], edge: str
) -> str:
    """Return a rounded box with a title and lines below it."""
    middle = x + width / 2
    parts = [
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="10" '
        f'fill="{theme["box"]}" stroke="{edge}" stroke-width="1.5"/>',
        text(middle, y + 26, title, theme["ink"], 15, bold=True),
        *(text(middle, y + 48 + 18 * i, line, theme["soft"], 13) for i, line in enumerate(lines)),
    ]
    return "\n".join(parts)


def arrow(x1: float, y1: float, x2: float, y2: float, colour: str, *, both: bool = False, dashed: bool = False) -> str:
    """Return a line with a head at its end, and at its start if `both`."""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    start = ' marker-start="url(#head)"' if both else ""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="1.6" '
        f'marker-end="url(#head)"{start}{dashes}/>'
    )


def badge(x: float, y: float, number: int, theme: dict[str, str]) -> str:
    """Return a step's number in a disc around (x, y)."""
    disc = f'<circle cx="{x:g}" cy="{y:g}" r="10.5" fill="{theme["ink"]}" stroke="{theme["page"]}" stroke-width="3"/>'
    return disc + text(x, y + 4.5, str(number), theme["page"], 13, bold=True)


def legend(steps: Sequence[str], theme: dict[str, str]) -> list[str]:
    """Return the steps in words, in two columns below the picture."""
    parts = []
    for i, said in enumerate(steps):
        x, y = 34 + 425 * (i // 3), 336 + 28 * (i % 3)
        parts += [badge(x, y, i + 1, theme), text(x + 20, y + 5, said, theme["ink"], 14, anchor="start")]
    return parts


def drawing(theme: dict[str, str]) -> str:
    """Return the picture in one theme."""
    a, b, edge = theme["a"], theme["b"], theme["edge"]
    in_words = " ".join(f"{i}. {said}." for i, said in enumerate(STEPS, 1))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" {FONT}>',
        f"<title>One round of PRECAD</title><desc>{in_words}</desc>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{edge}"/></marker></defs>',
        box(
            16,
            98,
            190,
            114,
            "Clients",
            ["train on their own records", "clip each record to R", "clip the update to C"],
            theme,
            edge,
        ),
        box(376, 24, 240, 84, "Aggregation server A", ["holds one share", "adds noise of its own"], theme, a),
        box(376, 202, 240, 84, "Aggregation server B", ["holds the other share", "adds noise of its own"], theme, b),
        box(706, 121, 138, 68, "Dealer", ["sees no update"], theme, edge),
        arrow(374, 54, 208, 118, edge),
        arrow(374, 244, 208, 188, edge),
        arrow(208, 142, 374, 88, edge),
        arrow(454, 110, 454, 200, edge, both=True),
        arrow(706, 134, 618, 84, edge, dashed=True),
        arrow(706, 176, 618, 226, edge, dashed=True),
        badge(454, 155, 1, theme),
        badge(662, 109, 2, theme),
        badge(662, 201, 2, theme),
        badge(300, 82, 3, theme),
        badge(291, 216, 3, theme),
        badge(264, 124, 4, theme),
        badge(496, 155, 5, theme),
        badge(538, 155, 6, theme),
        *legend(STEPS, theme),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write round-light.svg and round-dark.svg beside this file."""
    for name, theme in THEMES.items():
        (HERE / f"round-{name}.svg").write_text(drawing(theme))


if __name__ == "__main__":
    main()
