"""Write the generated pages, or say which are out of date: `python -m docs.generate [--check]`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from docs.generate.algorithms import algorithms_page
from docs.generate.commands import commands_page
from docs.generate.configuration import configuration_page
from docs.generate.decisions import decisions_page
from docs.generate.models import models_page
from docs.generate.names import names_page
from docs.generate.papers import papers_page
from docs.generate.promises import promises_page
from docs.generate.refusals import endings_page, refusals_page
from docs.generate.results import results_page
from docs.generate.statement import statement_page

DOCS: Final = Path(__file__).resolve().parents[1]
PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/configuration.md": configuration_page,
    "reference/commands.md": commands_page,
    "reference/python.md": names_page,
    "reference/models.md": models_page,
    "reference/algorithms.md": algorithms_page,
    "reference/statement.md": statement_page,
    "reference/promises.md": promises_page,
    "reference/refusals.md": refusals_page,
    "reference/endings.md": endings_page,
    "explanation/decisions/README.md": decisions_page,
    "results/papers.md": papers_page,
    "results/experiments-tables.md": partial(results_page, "experiments"),
    "results/performance-tables.md": partial(results_page, "performance"),
    "results/privacy-tables.md": partial(results_page, "privacy"),
}


def stale(folder: Path = DOCS) -> dict[str, str]:
    """Return the pages of `folder` that are not what their sources say, by path, each with its right text."""
    made = {path: write() for path, write in PAGES.items()}
    return {
        path: text
        for path, text in made.items()
        if not (folder / path).is_file() or (folder / path).read_text(encoding="utf-8") != text
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write what is out of date; with --check, name it instead and return 1."""
    parser = argparse.ArgumentParser(prog="python -m docs.generate", description="Write the generated pages.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a page is out of date")
    is_check = parser.parse_args(arguments).check
    found = stale()
    for path, text in found.items():
        print(f"docs/{path}: {'out of date: python -m docs.generate' if is_check else 'written'}")
        if not is_check:
            (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
            (DOCS / path).write_text(text, encoding="utf-8")
    return int(is_check and bool(found))


if __name__ == "__main__":
    sys.exit(main())
