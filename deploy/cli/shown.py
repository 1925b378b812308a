"""Show the report of `precad account` or `precad certify`: as a picture, for people, or for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from precad.deploy.cli.common import Json, Plot, results, write_json


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Flags of a command that shows a report: they come last."""

    plot: Plot = None
    as_json: Json = False

    def require_plot(self) -> None:
        """Refuse, before anything is computed, a picture that cannot be drawn. Raises ConfigError."""
        from precad.deploy.guarantees import plots

        if self.plot is not None:
            plots.require_plot(self.plot)

    def show(
        self,
        report: dict[str, Any],
        print_report: Callable[[Console, dict[str, Any]], None],
        draw: Callable[[dict[str, Any], Path], None],
    ) -> None:
        """Draw the report where a picture is asked for, and print it as JSON or for people."""

        if self.plot is not None:
            draw(report, self.plot)
        if self.as_json:
            write_json(report, allow_nan=False)
        else:
            print_report(results, report)
