"""Experiments that train, and `precad-noise`, in small on the bundled digits: what they write, and say."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from precad.lab.papers import runner
from tests.harness.legends import require_clear_of_curves


@pytest.mark.parametrize(
    ("panels", "are_alike"),
    [
        (1, True),
        (3, True),
        (3, False),
        (8, True),
        (4, False),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, False), (2, True), (2, False))),
    ],
)
def test_no_legend_covers_a_curve(tmp_path: Path, panels: int, are_alike: bool) -> None:
    """Curves that fill their panels, under names as long as those of the certified accuracies."""
    pytest.importorskip("matplotlib")
    drawn: list[Any] = []

    def draw(axes: Any) -> None:
        for i, panel in enumerate(axes):
            for k in range(6):
                which = "" if are_alike else f" of panel {i}"
                panel.plot(
                    [0, 10], [1, k / 6], label=f"{k}: published, with the radius (published reproduction){which}"
                )
            panel.set(xlabel="attackers k", ylabel="certified accuracy", title="sigma = 1")
        drawn.append(axes[0].figure)

    runner.save_figure(draw, tmp_path / "figure.png", panels=panels)
    require_clear_of_curves(drawn[0])
    assert len(drawn[0].axes) == panels
    width, height = drawn[0].get_size_inches()
    assert width == runner.PANEL_WIDTH * min(panels, 3)
    assert height >= runner.PANEL_HEIGHT * -(-panels // 3)
    shown = [text.get_text() for legend in drawn[0].legends for text in legend.get_texts()]
    assert len(shown) == (6 if are_alike or panels == 1 else 0)


def test_a_full_disk_leaves_the_report_that_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is the old one or the new one, whole: tables, report, paragraph and figure."""

    def write(accuracy: float) -> None:
        runner.write_rows(tmp_path / "curves.csv", [{"accuracy": accuracy}])
        runner.write(tmp_path, {"accuracy": accuracy}, [], f"{accuracy}")

    def draw(axes: Any) -> None:
        axes[0].plot([0, 1], label="accuracy")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    write(0.5)
    runner.save_figure(draw, tmp_path / "figure.png", panels=1)
    old = contents()
    assert sorted(old) == ["curves.csv", "figure.png", "report.json", "report.txt"]
    monkeypatch.setattr(os, "fsync", full)
    for write_again in (
        lambda: runner.write_rows(tmp_path / "curves.csv", [{"accuracy": 0.75}]),
        lambda: write(0.75),
        lambda: runner.save_figure(draw, tmp_path / "figure.png", panels=2),
    ):
        with pytest.raises(OSError, match="No space left"):
            write_again()
    assert contents() == old
