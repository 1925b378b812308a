"""The page of what an export's statement says: every field, from the models that validate it."""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel

from docs.generate.configuration import FIELDS, field_rows
from docs.generate.markdown import page, table

INTRODUCTION: Final = """\
`statement.json` of an [export](../guides/export.md) is canonical JSON with these fields, of the newest format. Each
server signs it."""


def statement_page() -> str:
    """Return the page: the statement, then each of its parts."""
    from precad.deploy.exporting import statement as of

    parts: dict[str, type[BaseModel]] = {
        "The statement": of.ExportStatement,
        "task": of.TaskPart,
        "model": of.ModelPart,
        "rounds": of.RoundsPart,
        "privacy, a row": of.PrivacyPart,
        "poisoning": of.PoisoningPart,
        "poisoning, certificate": of.CertificatePart,
    }
    sections = (text for title, model in parts.items() for text in (f"## {title}", table(FIELDS, field_rows(model))))
    return page("The statement of an export", INTRODUCTION, *sections)
